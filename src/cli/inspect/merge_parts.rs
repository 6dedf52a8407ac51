//! `gguf-inspect merge`: joins the parts of a split model.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::inspect::written;
use crate::cli::{Session, UsageError};
use crate::inspect;

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub(super) struct MergePartsArgs {
    /// One part, or all parts of the set in any order; and the joined file, where it is not given with `-o`
    #[arg(required = true, value_name = "PART")]
    files: Vec<PathBuf>,
    /// The joined file
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

impl MergePartsArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let (parts, output) = self.sorted_out()?;
        let options = written::write_options(session);
        let report = inspect::merge(parts, output, &options, &session.progress)?;
        written::print(&report, session)
    }

    /// Separates parts and output. A last file that does not exist yet is the output, as in llama-gguf-split.
    fn sorted_out(&self) -> Result<(&[PathBuf], &Path), UsageError> {
        match (&self.output, self.files.as_slice()) {
            (Some(output), parts) => Ok((parts, output)),
            (None, [parts @ .., last]) if !parts.is_empty() && !last.exists() => Ok((parts, last)),
            (None, _) => Err(UsageError(
                "the joined file expected: `-o PATH`, or a name behind the parts under which nothing is yet"
                    .to_owned(),
            )),
        }
    }
}
