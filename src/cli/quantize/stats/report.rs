//! Report of collected statistics, or of the run that would collect them.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::calibrate::{CalibrationText, Needs, StatisticsCounts};
use crate::cli::Session;
use crate::cli::render::plural;
use crate::core::text::{bytes, escape};
use crate::core::written::as_path;
use crate::job::{KindFacts, TextFacts};

/// Statistics that were collected, or would be.
#[derive(Serialize)]
pub(super) struct StatisticsReport {
    /// The folder.
    #[serde(serialize_with = "as_path")]
    path: PathBuf,
    /// Number of tokens that were run.
    #[serde(rename = "tokens")]
    n_tokens: usize,
    /// Kinds of text.
    kinds: Vec<KindFacts>,
    /// Result of the run, or what it needs.
    #[serde(flatten)]
    outcome: StatisticsOutcome,
}

/// Result of a run, or what it needs.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum StatisticsOutcome {
    /// Nothing was run (`--dry-run`).
    Planned(Needs),
    /// The statistics were written.
    Collected(CollectedStatistics),
}

/// Contents of the folder.
#[derive(Serialize)]
pub(super) struct CollectedStatistics {
    /// Numbers of layers and matrices.
    #[serde(flatten)]
    pub(super) counts: StatisticsCounts,
    /// Size of the folder in bytes.
    #[serde(rename = "bytes")]
    pub(super) n_bytes: u64,
    /// Duration of the run in seconds.
    pub(super) seconds: f64,
}

impl StatisticsReport {
    pub(super) fn new(path: &Path, text: &CalibrationText, outcome: StatisticsOutcome) -> Self {
        let TextFacts { kinds, n_tokens, .. } = TextFacts::of(text);
        Self { path: path.to_owned(), n_tokens, kinds, outcome }
    }

    pub(super) fn print(&self, session: &Session) -> anyhow::Result<()> {
        if session.common.json {
            return session.print_json(self);
        }
        let text = self.text();
        match &self.outcome {
            StatisticsOutcome::Planned(Needs { least_bytes, all_bytes, .. }) => session.print(|out| {
                writeln!(out, "{text}")?;
                let (least, all) = (bytes(*least_bytes), bytes(*all_bytes));
                writeln!(
                    out,
                    "memory in addition to the weights: {all}, or {least} with hidden states on disk"
                )
            }),
            StatisticsOutcome::Collected(_) if session.common.quiet => Ok(()),
            StatisticsOutcome::Collected(CollectedStatistics { counts, n_bytes, .. }) => {
                let (path, size) = (self.path.display().to_string(), bytes(*n_bytes));
                let (path, n_matrices) = (escape(&path), plural(counts.n_matrices as u64, "matrix"));
                session.print(|out| writeln!(out, "{path}: statistics of {n_matrices}, {size}; {text}"))
            }
        }
    }

    /// Describes the text that is run.
    fn text(&self) -> String {
        let kinds = plural(self.kinds.len() as u64, "kind");
        let all = plural(self.n_tokens as u64, "token");
        format!("{all} of {kinds} of text")
    }
}
