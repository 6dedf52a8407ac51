//! Facts of a part in addition to its positions, as JSON. Floating-point numbers are stored as their bits.

use serde::{Deserialize, Serialize};

use crate::imatrix::Fingerprint;
use crate::judgement::JudgedModel;
use crate::{
    Check, Cost, Coverage, FileLabel, Finding, Model, PromptSource, Scoring, Severity, TensorWeights,
    VerifyError, Window, exact,
};
use gguf_core::progress::Progress;
use gguf_core::text::escape;

/// Digests of everything that all parts of a verification must have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Version of the program.
    version: String,
    /// Digest of the keys and of every tensor.
    model: String,
    /// Digest of the baseline, made in the same way.
    baseline: Option<String>,
    /// Digest of the prompts as their files have them. Their windows follow from the model and the options.
    prompts: String,
    /// Digest of the options that cut and score the prompts.
    options: String,
}

impl Plan {
    /// Returns the plan of a verification; equal on every machine that has the same files.
    pub(super) fn of(
        model: &Model<'_>,
        baseline: Option<&Model<'_>>,
        sources: &[PromptSource],
        scoring: &Scoring,
        progress: &dyn Progress,
    ) -> Result<Self, VerifyError> {
        let digest = |model: &Model<'_>| {
            let mut print = Fingerprint::default();
            print.model(model.metadata, model.source, progress).map_err(std::io::Error::other)?;
            Ok::<_, VerifyError>(print.hex())
        };
        let mut prompts = Fingerprint::default();
        for source in sources {
            prompts.value(source)?;
        }
        let mut options = Fingerprint::default();
        options.value(scoring)?;
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: digest(model)?,
            baseline: baseline.map(digest).transpose()?,
            prompts: prompts.hex(),
            options: options.hex(),
        })
    }

    pub(super) fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Names what differs from another plan, in the order in which people look for it.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let pairs = [
            ("version of the program", self.version == other.version),
            ("model", self.model == other.model),
            ("baseline", self.baseline == other.baseline),
            ("choice of `--ctx`, `--chunks`, `--stride` or `--score`", self.options == other.options),
            ("text of the prompts", self.prompts == other.prompts),
        ];
        pairs.into_iter().find(|(_, is_same)| !is_same).map(|(what, _)| what)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredFinding {
    check: String,
    severity: Severity,
    tensor: Option<String>,
    pub(super) message: String,
}

impl StoredFinding {
    pub(super) fn of(finding: &Finding) -> Self {
        let Finding { check, severity, tensor, message } = finding.clone();
        Self { check: check.name().to_owned(), severity, tensor, message }
    }

    /// Returns the finding; `None` if no check has its name.
    fn read(&self) -> Option<Finding> {
        Some(Finding {
            check: Check::named(&self.check)?,
            severity: self.severity,
            tensor: self.tensor.clone(),
            message: escape(&self.message).into_owned(),
        })
    }
}

/// Returns the findings, or the name of a check that does not exist.
pub(super) fn findings(stored: &[StoredFinding]) -> Result<Vec<Finding>, String> {
    let read = |stored: &StoredFinding| stored.read().ok_or_else(|| stored.check.clone());
    stored.iter().map(read).collect()
}

/// Results of the checks before the run; the same in all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartChecks {
    pub(super) arch: Option<String>,
    #[serde(with = "exact::double_if_any")]
    pub(super) bits_per_weight: Option<f64>,
    pub(super) label: Option<FileLabel>,
    pub(super) findings: Vec<StoredFinding>,
    /// Index in `findings` at which the findings about weights are inserted.
    pub(super) at_weights: usize,
    /// Index in `findings` of the first finding about limits that do not apply to the model.
    pub(super) at_limits: usize,
    pub(super) coverage: Coverage,
    /// Findings about weights that do not belong to a tensor that both models have.
    pub(super) weights: Option<Vec<StoredFinding>>,
}

/// Facts of the model and the text of a run; the same in all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunPlan {
    pub(super) judged: JudgedModel,
    /// True if the graph can predict masked tokens.
    pub(super) has_masks: bool,
    /// Cost of the file's types for a small model.
    pub(super) typical: Cost,
    /// True if there is a baseline that is run.
    pub(super) is_compared: bool,
    /// Number of tokens of each prompt.
    pub(super) prompts: Vec<u64>,
    /// Prompts that the limit on the number of chunks left without a window.
    pub(super) unreached: Vec<usize>,
    /// Prompts and number of windows of each prompt file.
    pub(super) files: Vec<FileFacts>,
    /// Number of windows of all parts.
    pub(super) n_windows: usize,
}

/// File of prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) first_prompt: usize,
    pub(super) end_prompt: usize,
    pub(super) chunks: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunFacts {
    pub(super) plan: RunPlan,
    /// Range of its windows among all.
    pub(super) first_window: usize,
    pub(super) end_window: usize,
    /// Number of tokens that were run, baseline included.
    pub(super) n_tokens: u64,
    /// Bytes of the text of the scored tokens; `None` without a tokenizer.
    pub(super) text_bytes: Option<u64>,
    /// Text before each of the tokens that diverge most: prompt, token, text.
    pub(super) contexts: Vec<(usize, usize, String)>,
    pub(super) twin: TwinFacts,
    /// Rows in the file: positions, then positions of the twin.
    pub(super) n_positions: u64,
    pub(super) n_twin: u64,
}

/// Outcome of the run of a healthy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TwinFacts {
    None,
    Positions,
    Failed(String),
}

/// Everything that a part stores in addition to its positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartFacts {
    pub(super) plan: Plan,
    pub(super) number: usize,
    pub(super) count: usize,
    pub(super) label: PartLabel,
    /// Warnings of the program that ran it.
    pub(super) notes: Vec<StoredFinding>,
    pub(super) checks: PartChecks,
    /// Tensors that this part has compared with the baseline's.
    pub(super) tensors: Vec<TensorWeights>,
    /// Run of the part; `None` if errors or a missing graph prevented it.
    pub(super) run: Option<RunFacts>,
}

/// Names of the files in the report. They may differ between machines; those of the first part count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartLabel {
    /// Path of the model, as it was given.
    pub file: String,
    /// Total bytes of the model's files, if it has any.
    pub size_bytes: Option<u64>,
    /// Type that the file declares (`Q4_K_M`).
    pub file_type: Option<String>,
    /// Files of prompts.
    pub prompts: Vec<String>,
    /// True if the baseline is the model itself, which judges nothing.
    pub is_own_baseline: bool,
}

/// Cost of each window: its tokens.
pub(super) fn costs(windows: &[Window]) -> Vec<u64> {
    windows.iter().map(|window| window.chunk.tokens.len() as u64).collect()
}
