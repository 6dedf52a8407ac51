//! `gguf-inspect dump`: prints a file for other programs and for web pages.

mod markdown;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::cli::remote::open_header;
use crate::cli::{Session, UsageError};
use crate::core::progress::Progress;
use crate::gguf::OpenOptions;
use crate::inspect::{self, DumpOptions, dump_json};

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub(super) struct DumpArgs {
    /// File; of a split model, only this part is printed
    file: PathBuf,
    /// Print Markdown; this is the default
    #[arg(long, conflicts_with = "json_array")]
    markdown: bool,
    /// With --json: print the elements of arrays, too
    #[arg(long)]
    json_array: bool,
    /// Leave out the tensors
    #[arg(long)]
    no_tensors: bool,
    /// Print where the data of the tensors begin, in bytes from the start of the file
    #[arg(long, conflicts_with_all = ["data_alignment", "markdown", "json_array", "no_tensors"])]
    data_offset: bool,
    /// Print the alignment of the data of the tensors, in bytes
    #[arg(long, conflicts_with_all = ["markdown", "json_array", "no_tensors"])]
    data_alignment: bool,
}

impl DumpArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        if self.json_array && !session.common.json {
            bail!(UsageError("`--json-array` goes with `--json`".to_owned()));
        }
        if self.markdown && session.common.json {
            bail!(UsageError("`--markdown` and `--json`: give one of them".to_owned()));
        }
        let options = OpenOptions { join_parts: false, ..OpenOptions::default() };
        let file = open_header(session, &self.file, &options)?;
        let number = match (self.data_offset, self.data_alignment) {
            (true, _) => Some(("data_offset", inspect::data_begin(&file))),
            (_, true) => Some(("data_alignment", file.alignment())),
            _ => None,
        };
        if let Some((name, number)) = number {
            if session.common.json {
                return session.print_json(&json!({ name: number }));
            }
            return session.print(|out| writeln!(out, "{number}"));
        }
        for warning in inspect::warnings(&file) {
            session.progress.warn(&warning);
        }
        if session.common.json {
            let options = DumpOptions { has_arrays: self.json_array, has_tensors: !self.no_tensors };
            return session.print_json(&dump_json(&file, options));
        }
        session.print(|out| markdown::write(&file, !self.no_tensors, out))
    }
}
