//! `gguf-inspect rename`: renames tensors.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::inspect::edit::{EditArgs, usage};
use crate::inspect::Edit;

/// Arguments of `rename`.
#[derive(Debug, Args)]
pub(super) struct RenameArgs {
    file: PathBuf,
    /// A tensor's name and its new one; repeatable
    #[arg(required = true, value_name = "OLD=NEW")]
    renames: Vec<String>,
    #[command(flatten)]
    edit: EditArgs,
}

impl RenameArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let edits = self.renames.iter().map(|text| Edit::rename(text));
        let edits = edits.collect::<Result<Vec<_>, _>>().map_err(usage)?;
        self.edit.run(&self.file, &edits, &[], session)
    }
}
