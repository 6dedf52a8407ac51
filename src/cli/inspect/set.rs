//! `gguf-inspect set`: sets metadata keys.

use std::path::PathBuf;

use clap::Args;

use crate::cli::Session;
use crate::cli::inspect::edit::{EditArgs, usage};
use crate::inspect::Edit;

/// Arguments of `set`.
#[derive(Debug, Args)]
pub(super) struct SetArgs {
    /// File; of a split model the part is found that has the key
    file: PathBuf,
    /// KEY=VALUE or KEY=TYPE:VALUE, for example general.name=Tiny or a.b=arr[u32]:[1,2]
    #[arg(required_unless_present = "special", value_name = "KEY=VALUE")]
    assignments: Vec<String>,
    /// Set the id of a special token by its text, for example eos='<|im_end|>'; repeatable
    #[arg(long, value_name = "ROLE=TOKEN")]
    special: Vec<String>,
    #[command(flatten)]
    edit: EditArgs,
}

impl SetArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let assignments = self.assignments.iter().map(|text| Edit::set(text));
        let special = self.special.iter().map(|text| Edit::special(text));
        let edits = assignments.chain(special).collect::<Result<Vec<_>, _>>().map_err(usage)?;
        let values: Vec<_> = self.assignments.iter().filter_map(|text| Edit::value_file(text)).collect();
        self.edit.run(&self.file, &edits, &values, session)
    }
}
