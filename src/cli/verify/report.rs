//! Verdicts of files, for readers and for programs.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::render::error_line;
use crate::cli::verify::details::Details;
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
    /// Path as it was given.
    pub(super) path: PathBuf,
    /// Total bytes of all parts; `None` for a checkpoint.
    pub(super) size_bytes: Option<u64>,
    /// File type that the file declares (`Q4_K_M`).
    pub(super) file_type: Option<String>,
    /// The verdict.
    pub(super) report: Report,
    /// Further data for `--report`.
    pub(super) details: Option<Details>,
    /// Files that were read for it.
    pub(super) inputs: Vec<PathBuf>,
    /// Command that would judge what was left open for lack of a baseline.
    pub(super) next: Option<String>,
}

/// Returns the worst of all verdicts.
pub(super) fn verdict(entries: &[ModelReport]) -> Verdict {
    entries.iter().map(|entry| entry.report.verdict).max().unwrap_or(Verdict::Pass)
}

/// Document of `--json`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum VerifyDocument<'a> {
    One(Box<ModelDocument<'a>>),
    Several(ModelsDocument<'a>),
}

/// Report of one model.
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

/// Reports of several models.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ModelsDocument<'a> {
    /// Worst of all verdicts.
    verdict: Verdict,
    /// Report of each model that was judged.
    models: Vec<ModelDocument<'a>>,
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
    /// Makes the document of all models; a single one without failures stands alone.
    pub(super) fn new(entries: &'a [ModelReport], failures: &'a [(PathBuf, anyhow::Error)]) -> Self {
        if let ([entry], []) = (entries, failures) {
            return Self::One(Box::new(ModelDocument::from(entry)));
        }
        let failed =
            failures.iter().map(|(path, error)| FailedModel { file: path, error: error_line(error) });
        Self::Several(ModelsDocument {
            verdict: verdict(entries),
            models: entries.iter().map(ModelDocument::from).collect(),
            failed: failed.collect(),
        })
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
