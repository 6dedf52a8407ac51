//! Shared parts of the commands that write a file.

use std::path::PathBuf;

use crate::cli::Session;
use crate::cli::render::plural;
use crate::core::text::{bytes, escape};
use crate::gguf::{WriteOptions, WriteReport};

pub(in crate::cli) fn write_options(session: &Session) -> WriteOptions {
    WriteOptions {
        sync: !session.common.no_sync,
        memory_bytes: session.common.memory_bytes(),
        ..WriteOptions::default()
    }
}

/// Prints a report of the files that were written.
pub(in crate::cli) fn print(written: &WriteReport, session: &Session) -> anyhow::Result<()> {
    if session.common.json {
        return session.print_json(written);
    }
    if session.common.quiet {
        return Ok(());
    }
    session.print(|out| lines(written).iter().try_for_each(|line| writeln!(out, "{line}")))
}

/// Returns the report as lines: the files, then their size.
pub(in crate::cli) fn lines(written: &WriteReport) -> Vec<String> {
    let path = |path: &PathBuf| escape(&path.display().to_string()).into_owned();
    let size = format!("{}, {}", plural(written.tensors.len() as u64, "tensor"), bytes(written.file_bytes));
    written.paths.iter().map(path).chain([size]).collect()
}
