//! Child processes of the programs: jobs controlled by untrusted files run under system limits.
//!
//! The subcommand is hidden and the same in all four programs. It is the first argument and is read before clap.

use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

use crate::cli::{Exit, is_interrupted};
use crate::core::isolated::{self, Isolation, MemoryLimit, Program, child_bounds, serve};
use crate::tokenizer::{REFERENCE_JOB, reference_job};
use crate::verify::IsolatedChat;

/// Name of the hidden subcommand.
const COMMAND: &str = "isolated-job";

/// Global allocator on systems that cannot limit a process's memory: it counts, and allocates no more than the limit of
/// [`limit_memory_by`].
#[cfg(any(not(unix), target_vendor = "apple"))]
pub type CountedMemory = cap::Cap<std::alloc::System>;

/// Function that limits the memory of this process, if its system cannot.
static MEMORY_LIMIT: OnceLock<MemoryLimit> = OnceLock::new();

/// Sets the function that limits the memory of this program. Only the first call has an effect;
/// [`program!`](crate::program) makes it where it is needed.
pub fn limit_memory_by(limit: MemoryLimit) {
    let _ = MEMORY_LIMIT.set(limit);
}

/// Defines the `main` of a tool, with a counting allocator on systems that cannot limit a process's memory.
#[macro_export]
macro_rules! program {
    ($tool:ident) => {
        #[cfg(any(not(unix), target_vendor = "apple"))]
        #[global_allocator]
        static MEMORY: $crate::cli::CountedMemory =
            $crate::cli::CountedMemory::new(::std::alloc::System, usize::MAX);

        fn main() -> ::std::process::ExitCode {
            #[cfg(any(not(unix), target_vendor = "apple"))]
            $crate::cli::limit_memory_by(|n_bytes| {
                MEMORY.set_limit(usize::try_from(n_bytes).unwrap_or(usize::MAX)).is_ok()
            });
            $crate::cli::$tool::main()
        }
    };
}

/// Stack of a job, reserved rather than used: nested templates and patterns take more in a program that is not optimized.
const STACK_BYTES: usize = 64 << 20;

/// Makes jobs run in children of this program. If the system does not report the program's path, the child does not
/// start and its jobs are refused.
pub(super) fn install() {
    let program = Program::of_this_process(vec![COMMAND.into()])
        .unwrap_or_else(|_| Program::new(std::path::Path::new("(this program)"), Vec::new()));
    isolated::install(Isolation { program, is_cancelled: is_interrupted });
}

/// Runs the jobs of a parent, if this process was started for that.
pub(super) fn play_child() -> Option<Exit> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != OsStr::new(COMMAND) {
        return None;
    }
    let job = args.next()?;
    let rest: Vec<OsString> = args.collect();
    let Some(mut bounds) = child_bounds(&rest) else { return Some(Exit::Usage) };
    // Address space, of which the stack takes its part at once.
    bounds.memory_bytes = bounds.memory_bytes.saturating_add(STACK_BYTES as u64);
    let limit = MEMORY_LIMIT.get().copied();
    let run = move || match job.to_str() {
        Some(IsolatedChat::JOB) => Some(serve(&bounds, limit, IsolatedChat::job())),
        Some(REFERENCE_JOB) => Some(serve(&bounds, limit, reference_job())),
        _ => None,
    };
    // The stack is the same on every system, whatever its main threads have.
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run);
    let served = thread.map(std::thread::JoinHandle::join);
    Some(match served {
        Ok(Ok(None)) => Exit::Usage,
        Ok(Ok(Some(Ok(())))) => Exit::Done,
        _ => Exit::Failed,
    })
}
