//! What a part says beside its positions, as JSON. Floating-point numbers are kept as their bits.

use serde::{Deserialize, Serialize};

use crate::core::text::escape;
use crate::verify::imatrix::Fingerprint;
use crate::verify::judgement::Judged;
use crate::verify::report::check_named;
use crate::verify::routing::watch::RouteCounts;
use crate::verify::{
    Cost, Coverage, FileLabel, Finding, Model, PromptSource, Scoring, Severity, TensorWeights, VerifyError,
    Window, exact,
};

/// What all parts of a verification have in common, each as a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The program.
    version: String,
    /// Keys and the first row of every tensor.
    model: String,
    /// The same of the baseline.
    baseline: Option<String>,
    /// The prompts as their files have them: what windows they have follows from the model and the options.
    prompts: String,
    /// How they are cut and scored.
    options: String,
}

impl Plan {
    /// The plan of a verification; the same on every machine that has the same files.
    pub(super) fn of(
        model: &Model<'_>,
        baseline: Option<&Model<'_>>,
        sources: &[PromptSource],
        scoring: &Scoring,
    ) -> Result<Self, VerifyError> {
        let digest = |model: &Model<'_>| {
            let mut print = Fingerprint::new();
            print.model(model.metadata, model.source).map_err(std::io::Error::other)?;
            Ok::<_, VerifyError>(print.hex())
        };
        let mut prompts = Fingerprint::new();
        for source in sources {
            prompts.bytes(format!("{source:?}").as_bytes());
        }
        let mut options = Fingerprint::new();
        options.bytes(format!("{scoring:?}").as_bytes());
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

    /// What differs from another plan, in the order in which people look for it.
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

/// A finding as it is stored.
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
        Self { check: check.to_owned(), severity, tensor, message }
    }

    /// The finding; `None` of a check that there is not.
    fn read(&self) -> Option<Finding> {
        Some(Finding {
            check: check_named(&self.check)?,
            severity: self.severity,
            tensor: self.tensor.clone(),
            message: escape(&self.message).into_owned(),
        })
    }
}

/// The findings; else the name of a check that there is not.
pub(super) fn findings(stored: &[StoredFinding]) -> Result<Vec<Finding>, String> {
    let read = |stored: &StoredFinding| stored.read().ok_or_else(|| stored.check.clone());
    stored.iter().map(read).collect()
}

/// What was found before anything was run; the same in all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Checks {
    pub(super) arch: Option<String>,
    #[serde(with = "exact::double_if_any")]
    pub(super) bits_per_weight: Option<f64>,
    pub(super) label: Option<FileLabel>,
    pub(super) findings: Vec<StoredFinding>,
    /// Where those of the weights come in.
    pub(super) at_weights: usize,
    /// Where those of limits that the model has no figures for come in.
    pub(super) at_limits: usize,
    pub(super) coverage: Coverage,
    /// What the weights say that is not said of one of the tensors that both have.
    pub(super) weights: Option<Vec<StoredFinding>>,
}

/// The model and the text of a run; the same in all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunPlan {
    pub(super) judged: Judged,
    /// Whether the graph can predict masked tokens.
    pub(super) has_masks: bool,
    /// What the file's types cost a small model.
    pub(super) typical: Cost,
    /// Whether there is a baseline that is run.
    pub(super) is_compared: bool,
    /// Tokens of each prompt.
    pub(super) prompts: Vec<u64>,
    /// Prompts of which the limit on the number of chunks left nothing.
    pub(super) unreached: Vec<usize>,
    /// Prompts of each file and its windows.
    pub(super) files: Vec<FileFacts>,
    /// Windows of all parts.
    pub(super) n_windows: usize,
}

/// A file of prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) first_prompt: usize,
    pub(super) end_prompt: usize,
    pub(super) chunks: usize,
}

/// The run of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunFacts {
    pub(super) plan: RunPlan,
    /// Its windows among all.
    pub(super) first_window: usize,
    pub(super) end_window: usize,
    /// Tokens that were run, baseline included.
    pub(super) n_tokens: u64,
    /// Bytes of the text of the scored tokens, where a tokenizer tells them.
    pub(super) text_bytes: Option<u64>,
    /// The text before the tokens that diverge most: prompt, token, text.
    pub(super) contexts: Vec<(usize, usize, String)>,
    pub(super) routing: Option<RouteCounts>,
    pub(super) twin: TwinFacts,
    /// Rows in the file: positions, then those of the twin.
    pub(super) n_positions: u64,
    pub(super) n_twin: u64,
}

/// What came of the run of a healthy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TwinFacts {
    None,
    Positions,
    Failed(String),
}

/// What a part says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) plan: Plan,
    pub(super) number: usize,
    pub(super) count: usize,
    pub(super) label: PartLabel,
    /// Warnings of the program that ran it.
    pub(super) notes: Vec<StoredFinding>,
    pub(super) checks: Checks,
    /// The tensors that this part has compared with the baseline's.
    pub(super) tensors: Vec<TensorWeights>,
    /// `None` if errors or the lack of a graph kept the model from being run.
    pub(super) run: Option<RunFacts>,
}

/// What the reader of a report calls the files; each machine may call them otherwise, and those of the first part count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartLabel {
    /// The model, as it was given.
    pub file: String,
    /// Bytes of all its files, where it has some.
    pub size_bytes: Option<u64>,
    /// What the file says that it is (`Q4_K_M`).
    pub file_type: Option<String>,
    /// The files of prompts.
    pub prompts: Vec<String>,
    /// The baseline is the model itself, which judges nothing.
    pub is_own_baseline: bool,
}

/// What each window costs: its tokens.
pub(super) fn costs(windows: &[Window]) -> Vec<u64> {
    windows.iter().map(|window| window.chunk.tokens.len() as u64).collect()
}
