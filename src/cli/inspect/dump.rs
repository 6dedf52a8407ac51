//! `gguf-inspect dump`: prints a file for other programs and for web pages.

mod markdown;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::cli::remote::open_header;
use crate::cli::{Session, UsageError};
use crate::core::progress::Progress;
use crate::gguf::OpenOptions;
use crate::inspect::{self, DumpOptions, FileDump};

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

/// Report of `dump`: the file, or one number of it.
#[derive(Serialize)]
#[serde(untagged)]
enum DumpReport<'a> {
    File(FileDump<'a>),
    Data(DataExtent),
}

/// Start or alignment of the data of the tensors.
#[derive(Serialize)]
struct DataExtent {
    /// Offset of the data in bytes, with `--data-offset` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_offset: Option<u64>,
    /// Alignment of the data in bytes, with `--data-alignment` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_alignment: Option<u64>,
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
        let data = DataExtent {
            data_offset: self.data_offset.then(|| inspect::data_begin(&file)),
            data_alignment: self.data_alignment.then(|| file.alignment()),
        };
        if let Some(number) = data.data_offset.or(data.data_alignment) {
            if session.common.json {
                return session.print_json(&DumpReport::Data(data));
            }
            return session.print(|out| writeln!(out, "{number}"));
        }
        for warning in inspect::warnings(&file) {
            session.progress.warn(&warning);
        }
        if session.common.json {
            let options = DumpOptions { has_arrays: self.json_array, has_tensors: !self.no_tensors };
            return session.print_json(&DumpReport::File(inspect::dump(&file, options)));
        }
        session.print(|out| markdown::write(&file, !self.no_tensors, out))
    }
}
