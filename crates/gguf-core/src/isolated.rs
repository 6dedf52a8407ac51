//! Jobs controlled by untrusted input, run in a child process with resource limits.
//!
//! A chat template is a program; the rules of a `tokenizer.json` are close to one. The caller can bound steps and
//! output, but not the memory and stack that an interpreter or a regex engine uses on the way. A [`Worker`] is a child
//! of this program that does one kind of job. It limits its own memory before it reads a byte, answers one request
//! after the other, and is killed when it takes too long or the user wants to stop. Whatever happens to it becomes an
//! [`IsolatedError`] and nothing else: no message of its own, no zombie, no file.
//!
//! # Protocol
//! Requests on standard input: length (`u32`, little-endian), bytes. Replies on standard output: [`MAGIC`], a byte for
//! the kind (0 the answer, 1 the job's own error, 2 the message of a panic), length, bytes. The first request after
//! each start is the worker's setup.
//!
//! A program chooses the child's executable once ([`install`]), as it chooses its logger. Without one, a library does
//! its jobs in its own process.

mod child;
mod parent;
mod reply;
#[cfg(test)]
#[cfg(unix)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use child::{MemoryLimit, child_bounds, serve};

use parent::RunningChild;

/// Magic bytes before every reply; a child that prints anything else is not a worker.
pub const MAGIC: [u8; 4] = *b"GFj1";
/// Bytes of a child's standard error that are kept.
const STDERR_BYTES: usize = 4096;

/// Longest time until an interrupt of the user is seen.
const TICK: Duration = Duration::from_millis(50);
/// Time for a child that closed its output to end.
const GRACE: Duration = Duration::from_millis(200);

/// Resource limits of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Address space of the child in bytes, including its program's code.
    pub memory_bytes: u64,
    /// Seconds of processor time that a child has from its start. Each request adds a hundredth of a second, and each
    /// MiB of requests a second: enough for many honest requests, however much a single one takes.
    pub cpu_seconds: u64,
    /// Longest time from a request to its reply.
    pub wall: Duration,
    /// Maximum number of bytes of a reply.
    pub reply_bytes: usize,
}

impl Default for Bounds {
    /// 256 MiB, 3 s of processor time, 5 s for a request, 16 MiB of reply.
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, cpu_seconds: 3, wall: Duration::from_secs(5), reply_bytes: 16 << 20 }
    }
}

/// The child's program: started with `args`, then the name of the job and its bounds.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    args: Vec<OsString>,
}

impl Program {
    /// Creates a program from its path.
    pub fn new(path: &Path, args: Vec<OsString>) -> Self {
        Self { path: path.to_owned(), args }
    }

    /// Returns the program of this process. On Linux this also works if its file was deleted or replaced since.
    ///
    /// # Errors
    /// If the system does not report the path, and the program was started by a name that was looked up.
    pub fn of_this_process(args: Vec<OsString>) -> std::io::Result<Self> {
        let itself = Path::new("/proc/self/exe");
        let path = if cfg!(target_os = "linux") && itself.exists() {
            itself.to_owned()
        } else {
            // Without `/proc` the system does not report it; the path that the program was started by works as well.
            std::env::current_exe().or_else(|error| started_by().ok_or(error))?
        };
        Ok(Self { path, args })
    }
}

/// Returns the path that this program was started by, unless it was a name that was looked up.
fn started_by() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::args_os().next()?);
    if path.components().count() > 1 { path.canonicalize().ok().filter(|path| path.is_file()) } else { None }
}

/// Settings of this process for isolated jobs.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The child's program.
    pub program: Program,
    /// Returns true once the user wants to stop.
    pub is_cancelled: fn() -> bool,
}

/// Returns true once the user wants to stop, if the program has said how that is known.
pub fn is_cancelled() -> bool {
    installed().is_some_and(|isolation| (isolation.is_cancelled)())
}

impl Isolation {
    /// Builds the command that starts the child for a job, with its three streams piped.
    fn command(&self, job: &str, bounds: &Bounds) -> Command {
        let numbers = [bounds.memory_bytes, bounds.cpu_seconds, bounds.reply_bytes as u64];
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.args).arg(job).args(numbers.map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A further arena of glibc takes more address space than a job uses.
        command.env("RUST_BACKTRACE", "0").env("MALLOC_ARENA_MAX", "1");
        command
    }

    fn not_started(&self, error: &std::io::Error) -> IsolatedError {
        let program = crate::text::escape(&self.program.path.to_string_lossy()).into_owned();
        IsolatedError::Start { program, reason: error.to_string() }
    }
}

/// Returns the pipes to a child: its input, output and standard error.
fn pipes(child: &mut Child) -> std::io::Result<(ChildStdin, ChildStdout, ChildStderr)> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(input), Some(output), Some(errors)) = pipes else {
        return Err(std::io::ErrorKind::BrokenPipe.into());
    };
    Ok((input, output, errors))
}

/// Checks that a request may still be waited for.
fn check_wait(begun: Instant, bounds: &Bounds, is_cancelled: fn() -> bool) -> Result<(), IsolatedError> {
    if is_cancelled() {
        return Err(IsolatedError::Cancelled);
    }
    if begun.elapsed() >= bounds.wall {
        return Err(IsolatedError::Time { seconds: bounds.wall.as_secs() });
    }
    Ok(())
}

/// Returns the exit status of a child that closed its output; `None` if it does not end in time.
fn end_of(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < GRACE => std::thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

static INSTALLED: OnceLock<Isolation> = OnceLock::new();

/// Sets the program that does this process's isolated jobs. Only the first call counts.
pub fn install(isolation: Isolation) {
    let _ = INSTALLED.set(isolation);
}

/// Returns the value given to [`install`]; `None` in a library's process, where jobs run in place.
pub fn installed() -> Option<&'static Isolation> {
    INSTALLED.get()
}

/// Reasons for a missing answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum IsolatedError {
    #[error("cannot be run in a process of its own: {program}: {reason}")]
    Start { program: String, reason: String },
    #[error("out of memory: more than {} MiB", limit_bytes >> 20)]
    Memory { limit_bytes: u64 },
    #[error("out of time: more than {seconds} s")]
    Time { seconds: u64 },
    #[error("crashed with signal {signal}: stack overflow")]
    Stack { signal: i32 },
    #[error("crashed with signal {signal}{}", signal_name(*signal))]
    Signal { signal: i32 },
    #[error("crashed: {}", crate::text::escape(reason))]
    Panic { reason: String },
    #[error("ended with code {code} and no answer")]
    Ended { code: i32 },
    #[error("answered with something else than a reply")]
    Garbage,
    #[error("output of more than {limit} bytes")]
    TooLong { limit: usize },
    #[error("interrupted")]
    Cancelled,
    #[error("{}", crate::text::escape_bytes(reason))]
    Refused { reason: Vec<u8> },
}

impl IsolatedError {
    /// Returns true if the job is at fault, not its request: a repeat would take as long, or crash again.
    pub(crate) fn is_crash(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Cancelled | Self::TooLong { .. })
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// A child that does one kind of job; started with the first request, ended when dropped.
///
/// A job that its child does not survive is not tried again: every later request returns the same error at no cost. The
/// same holds for a job whose setup was refused.
#[derive(Debug)]
pub struct Worker {
    isolation: Isolation,
    job: &'static str,
    setup: Vec<u8>,
    bounds: Bounds,
    failed: Option<IsolatedError>,
    running: Option<RunningChild>,
}

impl Worker {
    /// Creates a worker for a job that begins with `setup`.
    pub fn new(isolation: &Isolation, job: &'static str, setup: Vec<u8>, bounds: Bounds) -> Self {
        let isolation = isolation.clone();
        Self { isolation, job, setup, bounds, failed: None, running: None }
    }

    /// Starts the child if there is none. Returns its answer to the setup if it was started now.
    pub fn start(&mut self) -> Result<Option<Vec<u8>>, IsolatedError> {
        if self.running.is_some() {
            return Ok(None);
        }
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let started = RunningChild::start(&self.isolation, self.job, &self.bounds).and_then(|mut running| {
            let answer = running.exchange(&self.setup, &self.bounds, self.isolation.is_cancelled)?;
            Ok((running, answer))
        });
        match started {
            Ok((running, answer)) => {
                self.running = Some(running);
                Ok(Some(answer))
            }
            Err(error) => {
                self.failed = Some(error.clone()).filter(|error| *error != IsolatedError::Cancelled);
                Err(error)
            }
        }
    }

    /// Sends one request and returns its answer.
    pub fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>, IsolatedError> {
        self.start()?;
        // Taken out so that an error drops it, unless the error is the job's own.
        let Some(mut running) = self.running.take() else { return Err(IsolatedError::Garbage) };
        let answer = running.exchange(request, &self.bounds, self.isolation.is_cancelled);
        match &answer {
            Ok(_) | Err(IsolatedError::Refused { .. }) => self.running = Some(running),
            Err(error) if error.is_crash() => self.failed = Some(error.clone()),
            Err(_) => {}
        }
        answer
    }
}
