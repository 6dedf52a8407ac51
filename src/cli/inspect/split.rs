//! `gguf-inspect split`: cuts a model into parts.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::Session;
use crate::cli::inspect::written;
use crate::cli::render::{Align, Table, count, plural};
use crate::core::output::OutputKind;
use crate::core::text::{bytes, escape};
use crate::core::{TensorMeta, TensorSource};
use crate::gguf::{GgufFile, PlannedFile, SplitSpec, SplitStyle};
use crate::inspect;
use crate::job::Guard;

/// Maximum number of tensors in a part if no limit is given, as in llama.cpp.
const DEFAULT_MAX_TENSORS: u64 = 128;

/// Arguments of `split`.
#[derive(Debug, Args)]
pub(super) struct SplitArgs {
    /// File
    file: PathBuf,
    /// Name of the parts: PATH-00001-of-00003.gguf
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Most bytes of tensors in a part, with K, M or G; powers of 1000 here, as in llama.cpp
    #[arg(long, value_name = "SIZE", value_parser = crate::cli::split_size)]
    split_max_size: Option<u64>,
    /// Most tensors in a part [default: 128, if no size is given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "split_max_size")]
    split_max_tensors: Option<u64>,
    /// Keep tensors out of the first part
    #[arg(long)]
    no_tensor_first_split: bool,
    /// Leave out the key gguf_foundry.split.id, by which mixed parts are found: the bytes of llama-gguf-split
    #[arg(long)]
    no_split_id: bool,
    /// Show the parts and what would go into each, and write nothing
    #[arg(long)]
    dry_run: bool,
}

impl SplitArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<()> {
        let default = self.split_max_size.is_none().then_some(DEFAULT_MAX_TENSORS);
        let spec = SplitSpec {
            max_bytes: self.split_max_size,
            max_tensors: self.split_max_tensors.or(default),
            no_tensor_first: self.no_tensor_first_split,
            style: SplitStyle::GgufSplit,
            without_id: self.no_split_id,
            share: None,
        };
        let file = GgufFile::open(&self.file)?;
        if self.dry_run {
            return self.plan(&file, &spec, session);
        }
        let options = written::write_options(session);
        let report = inspect::split_file(&file, &self.output, spec, &options, &session.progress)?;
        written::print(&report, session)
    }

    /// Prints the parts with their tensors.
    fn plan(&self, file: &GgufFile, spec: &SplitSpec, session: &Session) -> anyhow::Result<()> {
        let parts = inspect::plan_split(file, &self.output, spec)?;
        let mut guard = Guard::new(&session.progress, true);
        guard.read_all("the model", file.paths())?;
        parts.iter().try_for_each(|part| guard.write("a part", &part.path, OutputKind::Model))?;
        let _ = parts.first().and_then(|part| session.destination(&part.path));
        let name = |part: &PlannedFile| part.path.display().to_string();
        if session.common.json {
            let parts: Vec<_> = parts
                .iter()
                .map(|part| {
                    let tensors: Vec<_> = tensors(file, part).iter().map(|tensor| &tensor.name).collect();
                    json!({ "path": name(part), "tensors": tensors, "file_bytes": part.plan.file_bytes })
                })
                .collect();
            return session.print_json(&json!({ "dry_run": true, "parts": parts }));
        }
        if session.common.quiet {
            return Ok(());
        }
        let mut table = Table::new(&[
            ("part", Align::Left),
            ("tensors", Align::Right),
            ("size", Align::Right),
            ("first tensor", Align::Left),
            ("last tensor", Align::Left),
        ]);
        for part in &parts {
            let own = tensors(file, part);
            let end = |tensor: Option<&TensorMeta>| {
                tensor
                    .map_or_else(|| "(metadata only)".to_owned(), |tensor| escape(&tensor.name).into_owned())
            };
            let first_and_last =
                [end(own.first()), own.last().map_or_else(String::new, |last| end(Some(last)))];
            let row =
                [escape(&name(part)).into_owned(), count(own.len() as u64), bytes(part.plan.file_bytes)];
            table.row(row.into_iter().chain(first_and_last));
        }
        session.print(|out| {
            table.print(out)?;
            let n_tensors = plural(file.tensors().len() as u64, "tensor");
            writeln!(out, "\n{}, {n_tensors}\nnothing was written", plural(parts.len() as u64, "part"))
        })
    }
}

/// Returns the tensors of a part.
fn tensors<'a>(file: &'a GgufFile, part: &PlannedFile) -> &'a [TensorMeta] {
    file.tensors().get(part.tensors.clone()).unwrap_or_default()
}
