//! The programs as children of themselves: what strangers' files decide over is done under limits of the system's.
//!
//! The sub-command is hidden, and the same in all four: it comes before every other argument and is read before clap.

use std::ffi::{OsStr, OsString};

use crate::cli::{Exit, is_interrupted};
use crate::core::isolated::{self, Isolation, Program, child_bounds, serve};
use crate::tokenizer::{REFERENCE_JOB, reference_job};
use crate::verify::IsolatedChat;

/// The sub-command.
const COMMAND: &str = "isolated-job";

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
    let served = match job.to_str() {
        Some(IsolatedChat::JOB) => serve(&bounds, IsolatedChat::job()),
        Some(REFERENCE_JOB) => serve(&bounds, reference_job()),
        _ => return Some(Exit::Usage),
    };
    Some(if served.is_ok() { Exit::Done } else { Exit::Failed })
}
