//! The programs as children of themselves: what strangers' files decide over is done under limits of the system's.
//!
//! The sub-command is hidden, and the same in all four: it comes before every other argument and is read before clap.

use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

use crate::cli::{Exit, is_interrupted};
use crate::core::isolated::{self, Isolation, MemoryLimit, Program, child_bounds, serve};
use crate::tokenizer::{REFERENCE_JOB, reference_job};
use crate::verify::IsolatedChat;

/// The sub-command.
const COMMAND: &str = "isolated-job";

/// The allocator of a program on systems that bound no process's memory: it counts, and gives no more than [`limit_memory_by`]
/// has been told to.
#[cfg(any(not(unix), target_vendor = "apple"))]
pub type CountedMemory = cap::Cap<std::alloc::System>;

/// What bounds the memory of this process, where its system does not.
static MEMORY_LIMIT: OnceLock<MemoryLimit> = OnceLock::new();

/// Says what bounds the memory that this program allocates. The first call counts; [`program!`](crate::program) makes it where it
/// is needed.
pub fn limit_memory_by(limit: MemoryLimit) {
    let _ = MEMORY_LIMIT.set(limit);
}

/// The `main` of a tool, with an allocator that counts on systems that bound no process's memory.
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

/// Says that jobs are done in children of this program. Where the system does not say which program this is, they are
/// refused by the child that does not start.
pub(super) fn install() {
    let program = Program::of_this_process(vec![COMMAND.into()])
        .unwrap_or_else(|_| Program::new(std::path::Path::new("(this program)"), Vec::new()));
    isolated::install(Isolation { program, is_cancelled: is_interrupted });
}

/// Does the jobs of a parent, if that is what this process was started for.
pub(super) fn play_child() -> Option<Exit> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != OsStr::new(COMMAND) {
        return None;
    }
    let job = args.next()?;
    let rest: Vec<OsString> = args.collect();
    let Some(bounds) = child_bounds(&rest) else { return Some(Exit::Usage) };
    let limit = MEMORY_LIMIT.get().copied();
    let served = match job.to_str() {
        Some(IsolatedChat::JOB) => serve(&bounds, limit, IsolatedChat::job()),
        Some(REFERENCE_JOB) => serve(&bounds, limit, reference_job()),
        _ => return Some(Exit::Usage),
    };
    Some(if served.is_ok() { Exit::Done } else { Exit::Failed })
}
