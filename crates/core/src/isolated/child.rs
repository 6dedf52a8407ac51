//! The child's side: bounds of its own, then requests and answers.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{Bounds, MAGIC};

/// The bounds among the arguments behind a job's name: bytes of memory, seconds, bytes of a reply.
#[must_use]
pub fn child_bounds(args: &[OsString]) -> Option<Bounds> {
    let [memory, cpu, reply] = args else { return None };
    let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
    Some(Bounds {
        memory_bytes: number(memory)?,
        cpu_seconds: number(cpu)?,
        wall: Duration::MAX,
        reply_bytes: usize::try_from(number(reply)?).ok()?,
    })
}

/// Answers the requests on standard input until it ends. The memory of this process is bounded first, for good; panics of
/// `answer` are told as replies and nowhere else.
///
/// # Errors
/// Bounds that the system refuses, a parent that is gone.
pub fn serve(bounds: &Bounds, mut answer: impl FnMut(&[u8]) -> Result<Vec<u8>, Vec<u8>>) -> io::Result<()> {
    bound_memory(bounds)?;
    std::panic::set_hook(Box::new(|_| {}));
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let (mut n_requests, mut n_bytes) = (0u64, 0u64);
    loop {
        let mut len = [0; 4];
        match input.read_exact(&mut len) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut request = vec![0; usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX)];
        input.read_exact(&mut request)?;
        n_requests += 1;
        n_bytes += request.len() as u64;
        bound_time(bounds.cpu_seconds + n_requests / 100 + (n_bytes >> 20))?;
        let done = catch_unwind(AssertUnwindSafe(|| answer(&request)));
        let (kind, bytes) = match done {
            Ok(Ok(bytes)) => (0, bytes),
            Ok(Err(reason)) => (1, reason),
            Err(payload) => (2, panic_message(payload.as_ref()).into_bytes()),
        };
        let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        output.write_all(&MAGIC)?;
        output.write_all(&[kind])?;
        output.write_all(&len.to_le_bytes())?;
        output.write_all(&bytes)?;
        output.flush()?;
    }
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

#[cfg(unix)]
fn bound_memory(bounds: &Bounds) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let set = |resource, limit: u64| {
        // Never more than this process has already.
        let old = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limit = Some(limit.min(old));
        setrlimit(resource, Rlimit { current: limit, maximum: limit })
    };
    set(Resource::As, bounds.memory_bytes)?;
    // A crash leaves no image, and nothing here writes files.
    set(Resource::Core, 0)?;
    set(Resource::Fsize, 0)?;
    Ok(())
}

/// The system ends this process (`SIGXCPU`) when all requests so far take longer, also where its parent is gone.
#[cfg(unix)]
fn bound_time(seconds: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let old = getrlimit(Resource::Cpu);
    let current = seconds.min(old.maximum.unwrap_or(u64::MAX));
    setrlimit(Resource::Cpu, Rlimit { current: Some(current), maximum: old.maximum })?;
    Ok(())
}

#[cfg(not(unix))]
fn bound_memory(_: &Bounds) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn bound_time(_: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
