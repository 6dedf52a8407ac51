//! The child's side: resource limits, then requests and answers.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{Bounds, MAGIC};

/// Parses the bounds from the arguments after a job's name: bytes of memory, seconds, bytes of a reply.
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

/// Limits the bytes that a program's allocator hands out; returns false if more is in use already. Systems without a
/// limit of address space ([`serve`]) need one.
pub type MemoryLimit = fn(u64) -> bool;

/// Answers the requests on standard input until it ends. First limits the memory of this process permanently: through
/// the system, or through `limit` where the system has no such limit. Panics of `answer` are reported as replies and
/// nowhere else.
///
/// # Errors
/// Limits that the system refuses; a parent that is gone.
pub fn serve(
    bounds: &Bounds,
    limit: Option<MemoryLimit>,
    mut answer: impl FnMut(&[u8]) -> Result<Vec<u8>, Vec<u8>>,
) -> io::Result<()> {
    bound_memory(bounds, limit)?;
    bound_files()?;
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

/// Limits the address space of this process, where the system supports that. Apple systems also count memory that is
/// mapped and never touched, which exceeds any useful limit; Windows has no such limit.
#[cfg(all(unix, not(target_vendor = "apple")))]
fn bound_memory(bounds: &Bounds, _: Option<MemoryLimit>) -> io::Result<()> {
    set_limit(rustix::process::Resource::As, bounds.memory_bytes)
}

/// Limits the allocations of this process.
#[cfg(not(all(unix, not(target_vendor = "apple"))))]
fn bound_memory(bounds: &Bounds, limit: Option<MemoryLimit>) -> io::Result<()> {
    let set = limit.ok_or(io::ErrorKind::Unsupported)?;
    if set(bounds.memory_bytes) { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

/// Forbids core dumps and written files: a crash leaves no image, and nothing here writes files.
fn bound_files() -> io::Result<()> {
    #[cfg(unix)]
    {
        set_limit(rustix::process::Resource::Core, 0)?;
        set_limit(rustix::process::Resource::Fsize, 0)?;
    }
    Ok(())
}

#[cfg(unix)]
fn set_limit(resource: rustix::process::Resource, limit: u64) -> io::Result<()> {
    use rustix::process::{Rlimit, getrlimit, setrlimit};
    // Never above the limit that this process has already.
    let old = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limit = Some(limit.min(old));
    setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    Ok(())
}

/// Limits processor time: the system ends this process (`SIGXCPU`) when all requests so far take longer, even if its
/// parent is gone. Windows has no such limit; there the parent's clock must do.
fn bound_time(seconds: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let old = getrlimit(Resource::Cpu);
        let current = seconds.min(old.maximum.unwrap_or(u64::MAX));
        setrlimit(Resource::Cpu, Rlimit { current: Some(current), maximum: old.maximum })?;
    }
    #[cfg(not(unix))]
    let _ = seconds;
    Ok(())
}
