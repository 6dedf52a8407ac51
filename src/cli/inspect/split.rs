//! `gguf-inspect split`: cuts a model into parts.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::Session;
use crate::cli::inspect::written;
use crate::cli::render::{Align, Table, count, plural};
use crate::core::TensorSource;
use crate::core::output::OutputKind;
use crate::core::progress::Progress;
use crate::core::text::{bytes, escape};
use crate::core::written::as_path;
use crate::gguf::{GgufFile, PlannedFile, SplitSpec, SplitStyle};
use crate::inspect;
use crate::job::{Guard, in_parts};

/// Maximum number of tensors in a part if no limit is given, as in llama.cpp.
const DEFAULT_MAX_TENSORS: u64 = 128;

/// Arguments of `split`.
#[derive(Debug, Args)]
pub(super) struct SplitArgs {
    file: PathBuf,
    /// Name of the parts: PATH-00001-of-00003.gguf
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    /// Largest size of the tensors in a part, with K, M or G (powers of 1000, as in llama.cpp)
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

/// Report of `split --dry-run`.
#[derive(Serialize)]
struct SplitPlan<'a> {
    /// True: nothing was written.
    dry_run: bool,
    /// Files that would be written.
    parts: Vec<PlannedPart<'a>>,
}

/// File that would be written.
#[derive(Serialize)]
struct PlannedPart<'a> {
    /// Path of the file.
    #[serde(serialize_with = "as_path")]
    path: &'a Path,
    /// Names of the tensors in it.
    tensors: Vec<&'a str>,
    /// Size of the file in bytes.
    file_bytes: u64,
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
        warn_of_parts(&file, &report.paths, session);
        written::print(&report, session)
    }

    /// Prints the parts with their tensors.
    fn plan(&self, file: &GgufFile, spec: &SplitSpec, session: &Session) -> anyhow::Result<()> {
        let parts = inspect::plan_split(file, &self.output, spec)?;
        let mut guard = Guard::new(&session.progress, true);
        guard.read_all("the model", file.paths())?;
        parts.iter().try_for_each(|part| guard.write("a part", &part.path, OutputKind::Model))?;
        let _ = parts.first().and_then(|part| session.destination(&part.path));
        let paths: Vec<PathBuf> = parts.iter().map(|part| part.path.clone()).collect();
        warn_of_parts(file, &paths, session);
        let part = |part| PlannedPart::of(file, part);
        let plan = SplitPlan { dry_run: true, parts: parts.iter().map(part).collect() };
        if session.common.json {
            return session.print_json(&plan);
        }
        if session.common.quiet {
            return Ok(());
        }
        session.print(|out| {
            plan.table().print(out)?;
            let n_tensors = plural(file.tensors().len() as u64, "tensor");
            writeln!(out, "\n{}, {n_tensors}\nnothing was written", plural(parts.len() as u64, "part"))
        })
    }
}

fn warn_of_parts(file: &GgufFile, paths: &[PathBuf], session: &Session) {
    if let Some(text) = in_parts(paths, file.metadata(), file.tensors()) {
        session.progress.warn(&text);
    }
}

impl SplitPlan<'_> {
    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("part", Align::Left),
            ("tensors", Align::Right),
            ("size", Align::Right),
            ("first tensor", Align::Left),
            ("last tensor", Align::Left),
        ]);
        let name = |tensor: &&str| escape(tensor).into_owned();
        for part in &self.parts {
            table.row([
                escape(&part.path.display().to_string()).into_owned(),
                count(part.tensors.len() as u64),
                bytes(part.file_bytes),
                part.tensors.first().map_or_else(|| "(metadata only)".to_owned(), name),
                part.tensors.last().map_or_else(String::new, name),
            ]);
        }
        table
    }
}

impl<'a> PlannedPart<'a> {
    fn of(file: &'a GgufFile, part: &'a PlannedFile) -> Self {
        let tensors = file.tensors().get(part.tensors.clone()).unwrap_or_default();
        Self {
            path: &part.path,
            tensors: tensors.iter().map(|tensor| tensor.name.as_str()).collect(),
            file_bytes: part.plan.file_bytes,
        }
    }
}
