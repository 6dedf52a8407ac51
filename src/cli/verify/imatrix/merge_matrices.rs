//! `gguf-verify imatrix merge`: merges several matrices into one.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::verify::imatrix::contents::MatrixContents;
use crate::cli::verify::imatrix::coverage;
use crate::cli::verify::imatrix::save::MatrixOutput;
use crate::cli::{Exit, Session, UsageError};
use crate::core::output::{Destination, OutputKind, same_file};
use crate::core::progress::Progress;
use crate::core::text;
use crate::core::text::{escape, plural};
use crate::core::written::as_path;
use crate::gguf::{ImatrixError, ImatrixFormat, ImatrixPart, StoredImatrix, merge_imatrices};
use crate::job::Guard;
use crate::verify::{ExpertCoverage, expert_coverage};

/// Tokens of a chunk if no file declares it, as in a run without `--ctx`.
const DEFAULT_CHUNK: usize = 512;

#[derive(Debug, Args)]
pub(super) struct MergeMatricesArgs {
    /// Importance matrices of either format
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// File to write
    #[arg(short, value_name = "FILE", required = true)]
    pub(super) output: PathBuf,
    /// The format before GGUF
    #[arg(long)]
    pub(super) legacy: bool,
    /// Tokens of a chunk, by which chunks are counted and files of the older format are weighted [default: as the files
    /// declare, else 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) ctx: Option<u32>,
}

/// Report of a matrix that was merged from several.
#[derive(Serialize)]
struct MergedMatrixReport<'a> {
    /// Written file.
    #[serde(serialize_with = "as_path")]
    file: &'a Path,
    /// Size of the file in bytes.
    file_bytes: u64,
    /// Number of files that were added up.
    #[serde(rename = "merged")]
    n_merged: usize,
    #[serde(flatten)]
    contents: MatrixContents,
    /// Coverage of experts by layer; empty for models without experts.
    experts: Vec<ExpertCoverage>,
}

impl MergeMatricesArgs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        Destination::of(&self.output)?;
        let mut guard = Guard::new(&session.progress, false);
        guard.read_all("a matrix to add", &self.files)?;
        guard.write("-o", &self.output, OutputKind::Imatrix)?;
        for (at, file) in self.files.iter().enumerate() {
            if self.files[..at].iter().any(|other| same_file(file, other)) {
                session.progress.warn(&format!("`{}` is added twice", shown(file)));
            }
        }
        let files = self.files.iter().map(|path| StoredImatrix::open(path)).collect::<Result<Vec<_>, _>>()?;
        for file in &files {
            if let Some(run) = file.unfinished() {
                if let Some(ImatrixPart { number, count, .. }) = run.part {
                    let path = file.path().to_owned();
                    return Err(ImatrixError::IsPart { path, number, count }.into());
                }
                session.progress.warn(&format!(
                    "`{}` is of a run that was not finished: {} of {}",
                    shown(file.path()),
                    run.n_done,
                    plural(run.n_total as u64, "chunk")
                ));
            }
        }
        let merged = merge_imatrices(&files, self.chunk_size(&files, session)?)?;
        let target = MatrixOutput {
            path: &self.output,
            legacy: self.legacy,
            sync: !session.common.no_sync,
            inputs: self.files.clone(),
        };
        target.warn_of_name(session);
        let report = MergedMatrixReport {
            file: &self.output,
            file_bytes: target.write(&merged, None)?,
            n_merged: files.len(),
            contents: MatrixContents::of(&merged),
            experts: expert_coverage(&merged),
        };
        if let Some(text) = coverage::warning(&report.experts) {
            session.progress.warn(&text);
        }
        if session.common.json {
            session.print_json(&report)?;
        } else if !session.common.quiet {
            session.print(|out| {
                writeln!(
                    out,
                    "{}: {}, {}, {} of {}, {}",
                    shown(report.file),
                    plural(report.n_merged as u64, "file"),
                    plural(report.contents.n_tensors as u64, "tensor"),
                    plural(report.contents.n_chunks as u64, "chunk"),
                    report.contents.chunk_tokens,
                    text::bytes(report.file_bytes)
                )
            })?;
        }
        Ok(Exit::Done)
    }

    /// Returns the tokens of a chunk. Files of the older format hold multiples of it, so it must be known if there are
    /// others.
    fn chunk_size(&self, files: &[StoredImatrix], session: &Session) -> anyhow::Result<usize> {
        if let Some(n) = self.ctx {
            return Ok(usize::try_from(n)?);
        }
        let mut sizes: Vec<usize> = files.iter().filter_map(StoredImatrix::chunk_size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let old = files.iter().find(|file| file.format() == ImatrixFormat::Legacy);
        match (sizes.as_slice(), old) {
            ([], _) => Ok(DEFAULT_CHUNK),
            ([size], None) => Ok(*size),
            ([size], Some(file)) => {
                let name = shown(file.path());
                session.note(&format!("`{name}` does not declare the length of its chunks: {size} tokens, like the others"));
                Ok(*size)
            }
            ([.., size], None) => {
                session.progress.warn(&format!("chunks of {sizes:?} tokens: they are counted in {size}"));
                Ok(*size)
            }
            (_, Some(file)) => Err(UsageError(format!(
                "{}: the older format does not declare the length of chunks, and the other files have chunks of {sizes:?}: \
                 give `--ctx N`",
                shown(file.path())
            ))
            .into()),
        }
    }
}

fn shown(path: &Path) -> String {
    escape(&path.display().to_string()).into_owned()
}
