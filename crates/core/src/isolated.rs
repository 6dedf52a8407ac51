//! Jobs that strangers decide over, in a process with bounds of its own.
//!
//! A chat template is a program; the rules of a `tokenizer.json` come near to one. Whoever runs them can bound steps
//! and output, but not what an interpreter or a regex engine takes of memory and stack on the way. A [`Worker`] is a
//! child of this program that does one kind of job: it bounds its own memory before it reads a byte, answers one
//! request after the other, and is killed when it takes too long or the user wants to stop. Whatever happens to it is an
//! [`IsolatedError`] and nothing else: no message of its own, no zombie, no file.
//!
//! # Protocol
//! Requests on standard input: length (`u32`, little-endian), bytes. Replies on standard output: [`MAGIC`], a byte that
//! says what follows (0 the answer, 1 the job's own error, 2 the message of a panic), length, bytes. The first request
//! after each start is the worker's setup.
//!
//! Which program plays the child is for programs to say ([`install`]), once, as they say who logs. Without one a
//! library does its jobs in its own process.

mod child;
#[cfg(unix)]
mod parent;
#[cfg(any(not(unix), test))]
mod parent_threads;
mod reply;
#[cfg(test)]
#[cfg(unix)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use child::{MemoryLimit, child_bounds, serve};

#[cfg(unix)]
use parent::Running;
#[cfg(not(unix))]
use parent_threads::Running;

/// Before every reply: what prints anything else is no worker.
pub const MAGIC: [u8; 4] = *b"GFj1";
/// Bytes of a child's standard error that are looked at.
const STDERR_BYTES: usize = 4096;

/// How long the user waits until an interrupt is seen, at most.
const TICK: Duration = Duration::from_millis(50);
/// What a child that closed its output has to end.
const GRACE: Duration = Duration::from_millis(200);

/// What a job may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Address space of the child, its program's code included.
    pub memory_bytes: u64,
    /// Seconds of processor time that a child has from its start. Each request adds a hundredth of a second to them, and
    /// each MiB of requests a second: what many honest ones take, no matter what one takes.
    pub cpu_seconds: u64,
    /// Time from a request to its reply.
    pub wall: Duration,
    /// Bytes of a reply.
    pub reply_bytes: usize,
}

impl Default for Bounds {
    /// 256 MiB, 3 s of processor time, 5 s for a request, 16 MiB of reply.
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, cpu_seconds: 3, wall: Duration::from_secs(5), reply_bytes: 16 << 20 }
    }
}

/// The program that plays the child: started with `args`, then the name of the job and its bounds.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    args: Vec<OsString>,
}

impl Program {
    /// A program by its path.
    #[must_use]
    pub fn new(path: &Path, args: Vec<OsString>) -> Self {
        Self { path: path.to_owned(), args }
    }

    /// The program of this process, wherever it lies. On Linux also where its file was deleted or replaced since.
    ///
    /// # Errors
    /// A system that does not say where it lies, and a program that was looked up by its name.
    pub fn of_this_process(args: Vec<OsString>) -> std::io::Result<Self> {
        let itself = Path::new("/proc/self/exe");
        let path = if cfg!(target_os = "linux") && itself.exists() {
            itself.to_owned()
        } else {
            // Without `/proc` the system does not tell; a path that the program was started by says it as well.
            std::env::current_exe().or_else(|error| started_by().ok_or(error))?
        };
        Ok(Self { path, args })
    }
}

/// The path that this program was started by, if it was one and not a name that was looked up.
fn started_by() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::args_os().next()?);
    if path.components().count() > 1 { path.canonicalize().ok().filter(|path| path.is_file()) } else { None }
}

/// How this process does isolated jobs.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The program that plays the child.
    pub program: Program,
    /// True once the user wants to stop.
    pub is_cancelled: fn() -> bool,
}

impl Isolation {
    /// What starts the child for a job, with its three streams in our hands.
    fn command(&self, job: &str, bounds: &Bounds) -> Command {
        let numbers = [bounds.memory_bytes, bounds.cpu_seconds, bounds.reply_bytes as u64];
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.args).arg(job).args(numbers.map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("RUST_BACKTRACE", "0");
        command
    }

    fn not_started(&self, error: &std::io::Error) -> IsolatedError {
        let program = crate::text::escape(&self.program.path.to_string_lossy()).into_owned();
        IsolatedError::Start { program, reason: error.to_string() }
    }
}

/// How a child that closed its output ended; `None` where it does not end.
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

/// Says which program does this process's isolated jobs. The first call counts.
pub fn install(isolation: Isolation) {
    let _ = INSTALLED.set(isolation);
}

/// What [`install`] was given; `None` in a library's process, where jobs run in place.
#[must_use]
pub fn installed() -> Option<&'static Isolation> {
    INSTALLED.get()
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum IsolatedError {
    /// No child.
    #[error("cannot be run in a process of its own: {program}: {reason}")]
    Start { program: String, reason: String },
    /// It asked for more than it may have.
    #[error("out of memory: more than {} MiB", limit_bytes >> 20)]
    Memory { limit_bytes: u64 },
    /// It took longer than it may.
    #[error("out of time: more than {seconds} s")]
    Time { seconds: u64 },
    /// Recursion without end, or deeper than the stack.
    #[error("crashed with signal {signal}: stack overflow")]
    Stack { signal: i32 },
    /// A signal ended it.
    #[error("crashed with signal {signal}{}", signal_name(*signal))]
    Signal { signal: i32 },
    /// A defect of the interpreter.
    #[error("crashed: {}", crate::text::escape(reason))]
    Panic { reason: String },
    /// It ended instead of answering.
    #[error("ended with code {code} and no answer")]
    Ended { code: i32 },
    /// Its reply is none.
    #[error("answered with something else than a reply")]
    Garbage,
    /// Its reply is longer than it may be.
    #[error("output of more than {limit} bytes")]
    TooLong { limit: usize },
    /// The user wants to stop.
    #[error("interrupted")]
    Cancelled,
    /// The job's own error.
    #[error("{}", crate::text::escape_bytes(reason))]
    Refused { reason: Vec<u8> },
}

impl IsolatedError {
    /// True if the job is at fault, not its request: it would take as long, or crash, once more.
    #[must_use]
    pub fn is_crash(&self) -> bool {
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
/// A job that its child does not survive is not tried again: every later request has the same error, at no cost. So has
/// one whose setup was refused.
#[derive(Debug)]
pub struct Worker {
    isolation: Isolation,
    job: &'static str,
    setup: Vec<u8>,
    bounds: Bounds,
    failed: Option<IsolatedError>,
    running: Option<Running>,
}

impl Worker {
    /// A worker for a job that begins with `setup`.
    #[must_use]
    pub fn new(isolation: &Isolation, job: &'static str, setup: Vec<u8>, bounds: Bounds) -> Self {
        let isolation = isolation.clone();
        Self { isolation, job, setup, bounds, failed: None, running: None }
    }

    /// Starts the child if there is none, and gives what it answers to the setup where it is started.
    ///
    /// # Errors
    /// See [`IsolatedError`].
    pub fn start(&mut self) -> Result<Option<Vec<u8>>, IsolatedError> {
        if self.running.is_some() {
            return Ok(None);
        }
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let started = Running::start(&self.isolation, self.job, &self.bounds).and_then(|mut running| {
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

    /// One request and its answer.
    ///
    /// # Errors
    /// See [`IsolatedError`].
    pub fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>, IsolatedError> {
        self.start()?;
        // Taken out, so that an error drops it, unless it is the job's own.
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
