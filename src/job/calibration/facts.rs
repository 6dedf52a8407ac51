//! Calibration in plans and reports, as plain data.

use serde::{Serialize, Serializer};

use crate::calibrate::{
    CalibrationText, Fidelity, Forecast, HeldOutFigures, Needs, NotSolved, Outlook, Solver, Trial,
};
use crate::core::GgmlType;

/// Calibration text in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct TextFacts {
    /// Kinds of text.
    pub kinds: Vec<KindFacts>,
    /// Separate held-out texts (`--check-text`).
    #[serde(rename = "check")]
    pub held_out: Vec<HeldOutFacts>,
    /// Number of tokens to calibrate with.
    #[serde(skip)]
    pub n_tokens: usize,
    /// Number of held-out tokens, to measure the result on.
    #[serde(skip)]
    pub n_held_out_tokens: usize,
}

/// One kind of text in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct KindFacts {
    /// Name of the kind.
    pub name: String,
    /// Number of tokens to calibrate with.
    #[serde(rename = "tokens")]
    pub n_tokens: usize,
    /// Number of tokens that are held out.
    #[serde(rename = "check_tokens")]
    pub n_held_out_tokens: usize,
    /// Seed of text that the model wrote or will write.
    pub seed: Option<u64>,
}

/// A separate held-out text in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct HeldOutFacts {
    /// Name of the text.
    pub name: String,
    /// Number of tokens to measure the result on.
    #[serde(rename = "tokens")]
    pub n_tokens: usize,
}

impl TextFacts {
    pub(crate) fn of(text: &CalibrationText) -> Self {
        let kinds = text.kinds.iter().map(|kind| KindFacts {
            name: kind.name.clone(),
            n_tokens: kind.n_tokens(),
            n_held_out_tokens: kind.n_held_out_tokens(),
            seed: kind.seed,
        });
        let held_out = text.held_out.iter();
        let held_out = held_out.map(|own| HeldOutFacts { name: own.name.clone(), n_tokens: own.n_tokens() });
        Self {
            kinds: kinds.collect(),
            held_out: held_out.collect(),
            n_tokens: text.n_tokens(),
            n_held_out_tokens: text.n_held_out_tokens(),
        }
    }
}

/// Resources that a calibration would take.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationPlan {
    /// Method that chooses codes and scales.
    pub solver: Solver,
    /// Text that would be used; text that the model would write is only counted.
    #[serde(flatten)]
    pub text: TextFacts,
    /// Number of tensors that would be solved.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Number of their matrices: more than one per tensor for experts.
    #[serde(rename = "matrices")]
    pub n_matrices: u64,
    /// Tensors whose types have no solver, in the order of their names.
    #[serde(serialize_with = "as_names")]
    pub without_solver: Vec<(String, GgmlType)>,
    /// Memory that the run needs.
    #[serde(flatten)]
    pub needs: Needs,
    /// True if hidden states are moved to disk, because they exceed the budget.
    pub is_spilling: bool,
    /// Bytes of memory needed to write text, if the model is to write some.
    #[serde(rename = "self_text_bytes")]
    pub self_bytes: Option<u64>,
    /// Bytes of memory needed to tune, if the solver does.
    pub tuning_bytes: Option<u64>,
    /// Memory budget in bytes.
    pub budget_bytes: u64,
    /// Bytes of unnamed temporary files: blocks until the output is written, and hidden states that exceed the memory
    /// budget.
    pub disk_bytes: u64,
    /// Expected seconds of each phase on this machine; null if they cannot be found without a run.
    #[serde(rename = "seconds")]
    pub forecast: Option<Forecast>,
}

impl CalibrationPlan {
    pub(super) fn of(
        outlook: Outlook,
        text: TextFacts,
        solver: Solver,
        self_bytes: Option<u64>,
        forecast: Option<Forecast>,
    ) -> Self {
        Self {
            forecast,
            solver,
            text,
            n_tensors: outlook.n_tensors,
            n_matrices: outlook.n_matrices,
            needs: outlook.needs,
            is_spilling: outlook.is_spilling(),
            self_bytes,
            tuning_bytes: outlook.tuning_bytes,
            budget_bytes: outlook.budget_bytes,
            disk_bytes: outlook.disk_bytes(),
            without_solver: outlook.without_solver,
        }
    }
}

/// Writes the names of tensors without their types.
fn as_names<S: Serializer>(tensors: &[(String, GgmlType)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tensors.iter().map(|(name, _)| name))
}

/// Calibration of a finished job, with its figures on held-out text.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationReport {
    /// Method that was asked for to choose codes and scales.
    pub solver: Solver,
    /// True if the solved blocks are in the file; else the importance matrix alone was better.
    #[serde(rename = "used")]
    pub is_used: bool,
    /// Text that was used.
    #[serde(flatten)]
    pub text: TextFacts,
    /// Divergence of the file that the importance matrix of the same tokens alone gives, on held-out tokens.
    #[serde(rename = "imatrix")]
    pub plain: HeldOutFigures,
    /// Attempts of the solver, in order; the last one counts.
    pub trials: Vec<Trial>,
    /// The last attempt's mean divergence as a share of the importance matrix's, if there was an attempt.
    pub ratio: Option<f64>,
    /// Tensors whose types have no solver.
    pub without_solver: Vec<String>,
    /// Matrices that the last attempt left to the importance matrix.
    #[serde(rename = "not_solved")]
    pub left: Vec<NotSolved>,
    /// Number of matrices that an interrupted run with the same `--work-dir` had solved.
    #[serde(rename = "resumed")]
    pub n_resumed: usize,
}

impl CalibrationReport {
    pub(super) fn of(fidelity: &Fidelity, text: &CalibrationText, solver: Solver) -> Self {
        Self {
            solver,
            is_used: fidelity.blocks.is_some(),
            text: TextFacts::of(text),
            plain: fidelity.plain,
            trials: fidelity.trials.clone(),
            ratio: fidelity.ratio(),
            without_solver: fidelity.without_solver.iter().map(|(name, _)| name.clone()).collect(),
            left: fidelity.left.clone(),
            n_resumed: fidelity.n_resumed,
        }
    }
}
