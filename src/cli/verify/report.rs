//! Verdicts of files, and their JSON.

use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};

use crate::cli::render::error_line;
use crate::cli::verify::details::Details;
use crate::verify::{Report, Verdict};

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

impl ModelReport {
    fn to_json(&self) -> Json {
        let mut map = Map::new();
        map.insert("file".to_owned(), json!(self.path.display().to_string()));
        map.insert("size_bytes".to_owned(), json!(self.size_bytes));
        map.insert("type".to_owned(), json!(self.file_type));
        if let Json::Object(report) = self.report.to_json() {
            map.extend(report);
        }
        Json::Object(map)
    }
}

/// Returns the worst of all verdicts.
pub(super) fn verdict(entries: &[ModelReport]) -> Verdict {
    entries.iter().map(|entry| entry.report.verdict).max().unwrap_or(Verdict::Pass)
}

/// Returns one report as it is; several under `models`, with the worst verdict, and failed files under `failed`.
pub(super) fn to_json(entries: &[ModelReport], failures: &[(PathBuf, anyhow::Error)]) -> Json {
    if let ([entry], []) = (entries, failures) {
        return entry.to_json();
    }
    let mut document = json!({
        "verdict": verdict(entries).name(),
        "models": entries.iter().map(ModelReport::to_json).collect::<Vec<_>>(),
    });
    if !failures.is_empty() {
        let failed = failures
            .iter()
            .map(|(path, error)| json!({ "file": path.display().to_string(), "error": error_line(error) }));
        document["failed"] = failed.collect();
    }
    document
}
