//! `gguf-inspect merge`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::inspect::written;
use crate::inspect;

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// One part
    file: PathBuf,
    /// The joined file
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
}

impl MergeArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let options = written::write_options(session);
        let report = inspect::merge(&self.file, &self.output, &options, &session.progress)?;
        written::print(&report, session)
    }
}
