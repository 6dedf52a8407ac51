//! `gguf-inspect remove`: removes metadata keys.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::inspect::edit::EditArgs;
use crate::inspect::Edit;

/// Arguments of `remove`.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// File; of a split model the part is found that has the key
    file: PathBuf,
    /// Keys
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    edit: EditArgs,
}

impl RemoveArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let edits: Vec<_> = self.keys.iter().cloned().map(Edit::Remove).collect();
        self.edit.run(&self.file, &edits, &[], session)
    }
}
