//! `gguf-inspect drop`: leaves tensors out.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::inspect::edit::{EditArgs, usage};
use crate::inspect::Edit;

/// Arguments of `drop`.
#[derive(Debug, Args)]
pub(super) struct DropArgs {
    file: PathBuf,
    /// Regular expression: tensors whose names contain a match are left out. `^v\.` matches names that begin with `v.`
    #[arg(required = true, value_name = "REGEX")]
    patterns: Vec<String>,
    #[command(flatten)]
    edit: EditArgs,
}

impl DropArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let edits = self.patterns.iter().map(|pattern| Edit::drop(pattern));
        let edits = edits.collect::<Result<Vec<_>, _>>().map_err(usage)?;
        self.edit.run(&self.file, &edits, &[], session)
    }
}
