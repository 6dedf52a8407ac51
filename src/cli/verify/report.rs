//! Verdicts of files, for readers and for programs.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::render::error_line;
use crate::cli::verify::details::Details;
use crate::cli::verify::pairs::{Pair, pairs};
use crate::core::written::as_path;
use crate::verify::{Report, ReportDocument, Verdict};

/// Level of detail of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The answer, the figures that decide, and warnings.
    Brief,
    /// Also each prompt, all quantiles, the tokens that differ most, and what was checked.
    Full,
}

/// File with its verdict.
pub(super) struct ModelReport {
    pub(super) path: PathBuf,
    /// Total bytes of all parts; `None` for a checkpoint.
    pub(super) size_bytes: Option<u64>,
    /// File type that the file declares (`Q4_K_M`).
    pub(super) file_type: Option<String>,
    pub(super) report: Report,
    /// Further data for `--report`.
    pub(super) details: Option<Details>,
    /// Files that were read for it.
    pub(super) inputs: Vec<PathBuf>,
    /// Command that would judge what was left open for lack of a baseline.
    pub(super) next: Option<String>,
    /// Figure of each scored token, if there are several models.
    pub(super) losses: Vec<f64>,
}

impl ModelReport {
    /// Makes the report of a model of which nothing else is known.
    pub(super) fn new(path: PathBuf, report: Report, losses: Vec<f64>) -> Self {
        let (size_bytes, file_type, details) = (None, None, None);
        Self { path, size_bytes, file_type, report, details, inputs: Vec::new(), next: None, losses }
    }
}

/// Iterates over the files with the figures of their tokens.
pub(super) fn scored(entries: &[ModelReport]) -> impl Iterator<Item = (&Path, &[f64])> {
    entries.iter().map(|entry| (entry.path.as_path(), entry.losses.as_slice()))
}

/// Returns the worst of all verdicts; `partial` at best if a file could not be judged.
pub(super) fn verdict(entries: &[ModelReport], has_failed: bool) -> Verdict {
    let best = if has_failed { Verdict::Partial } else { Verdict::Pass };
    entries.iter().map(|entry| entry.report.verdict).fold(best, Verdict::max)
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ModelDocument<'a> {
    /// Path of the model, as it was given.
    #[serde(serialize_with = "as_path")]
    file: &'a Path,
    /// Total bytes of all parts; null for a checkpoint.
    size_bytes: Option<u64>,
    /// File type that the file declares: `Q4_K_M`.
    #[serde(rename = "type")]
    file_type: Option<&'a str>,
    #[serde(flatten)]
    report: ReportDocument<'a>,
}

/// Document of `--json`: the same form for one model and for several.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VerifyDocument<'a> {
    /// Worst of all verdicts; `partial` at best if a model could not be judged.
    verdict: Verdict,
    /// Report of each model that was judged.
    models: Vec<ModelDocument<'a>>,
    /// Comparison of each model with the next worse one, over the same tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pairs: Vec<Pair<'a>>,
    /// Models that could not be judged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FailedModel<'a>>,
}

#[derive(Clone, Debug, Serialize)]
struct FailedModel<'a> {
    /// Path of the model, as it was given.
    #[serde(serialize_with = "as_path")]
    file: &'a Path,
    /// Reason of the failure, in one line.
    error: String,
}

impl<'a> VerifyDocument<'a> {
    /// Makes the document of all models.
    pub(super) fn new(entries: &'a [ModelReport], failures: &'a [(PathBuf, anyhow::Error)]) -> Self {
        let failed =
            failures.iter().map(|(path, error)| FailedModel { file: path, error: error_line(error) });
        Self {
            verdict: verdict(entries, !failures.is_empty()),
            models: entries.iter().map(ModelDocument::from).collect(),
            pairs: pairs(scored(entries)),
            failed: failed.collect(),
        }
    }
}

impl<'a> From<&'a ModelReport> for ModelDocument<'a> {
    fn from(entry: &'a ModelReport) -> Self {
        Self {
            file: &entry.path,
            size_bytes: entry.size_bytes,
            file_type: entry.file_type.as_deref(),
            report: ReportDocument::from(&entry.report),
        }
    }
}
