//! Calibration in plans and reports, as plain data.

use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::calibrate::{CalibrationText, Fidelity, HeldOutFigures, NotSolved, Outlook, Solver, Trial};

/// Calibration text in numbers.
#[derive(Clone, Debug)]
pub struct TextFacts {
    /// Kinds of text.
    pub kinds: Vec<KindFacts>,
    /// Names of separate held-out texts, with their numbers of tokens.
    pub held_out: Vec<(String, usize)>,
    /// Number of tokens to calibrate with.
    pub n_tokens: usize,
    /// Number of held-out tokens, to measure the result on.
    pub n_held_out_tokens: usize,
}

/// One kind of text in numbers.
#[derive(Clone, Debug)]
pub struct KindFacts {
    /// Name of the kind.
    pub name: String,
    /// Number of tokens to calibrate with.
    pub n_tokens: usize,
    /// Number of tokens that are held out.
    pub n_held_out_tokens: usize,
    /// Seed of text that the model wrote or will write.
    pub seed: Option<u64>,
    /// True for text that the model will write.
    pub is_to_come: bool,
}

impl TextFacts {
    pub(super) fn of(text: &CalibrationText) -> Self {
        let kinds = text.kinds.iter().map(|kind| KindFacts {
            name: kind.name.clone(),
            n_tokens: kind.n_tokens(),
            n_held_out_tokens: kind.n_held_out_tokens(),
            seed: kind.seed,
            is_to_come: kind.n_run == 0 && kind.seed.is_some(),
        });
        Self {
            kinds: kinds.collect(),
            held_out: text.held_out.iter().map(|own| (own.name.clone(), own.n_tokens())).collect(),
            n_tokens: text.n_tokens(),
            n_held_out_tokens: text.n_held_out_tokens(),
        }
    }

    fn kinds_json(&self) -> Vec<Json> {
        let kind = |kind: &KindFacts| {
            json!({
                "name": kind.name,
                "tokens": kind.n_tokens,
                "check_tokens": kind.n_held_out_tokens,
                "seed": kind.seed,
            })
        };
        self.kinds.iter().map(kind).collect()
    }

    fn held_out_json(&self) -> Vec<Json> {
        self.held_out.iter().map(|(name, n_tokens)| json!({ "name": name, "tokens": n_tokens })).collect()
    }
}

/// Resources that a calibration would take.
#[derive(Clone, Debug)]
pub struct CalibrationPlan {
    /// Forecast of memory and disk.
    pub outlook: Outlook,
    /// Text that would be used.
    pub text: TextFacts,
    /// Method that chooses codes and scales.
    pub solver: Solver,
    /// Bytes of memory needed to write text, if the model is to write some.
    pub self_bytes: Option<u64>,
}

impl Serialize for CalibrationPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = self.outlook.without_solver.iter().map(|(name, _)| name);
        json!({
            "solver": self.solver.name(),
            "kinds": self.text.kinds_json(),
            "check": self.text.held_out_json(),
            "tensors": self.outlook.n_tensors,
            "matrices": self.outlook.n_matrices,
            "without_solver": names.collect::<Vec<_>>(),
            "needed_bytes": self.outlook.needs.least_bytes,
            "in_memory_bytes": self.outlook.needs.all_bytes,
            "is_spilling": self.outlook.is_spilling(),
            "self_text_bytes": self.self_bytes,
            "budget_bytes": self.outlook.budget_bytes,
            "disk_bytes": self.outlook.disk_bytes(),
        })
        .serialize(serializer)
    }
}

/// Calibration of a finished job, with its figures on held-out text.
#[derive(Clone, Debug)]
pub struct CalibrationReport {
    /// Method that chose codes and scales.
    pub solver: Solver,
    /// Text that was used.
    pub text: TextFacts,
    /// True if the solved blocks are in the file; else the importance matrix alone was better.
    pub is_used: bool,
    /// Divergence of the file that the importance matrix alone gives.
    pub plain: HeldOutFigures,
    /// Attempts of the solver, in order.
    pub trials: Vec<Trial>,
    /// The last attempt's mean divergence as a share of the importance matrix's.
    pub ratio: Option<f64>,
    /// Tensors whose types have no solver.
    pub without_solver: Vec<String>,
    /// Matrices that the last attempt left to the importance matrix.
    pub left: Vec<NotSolved>,
    /// Number of matrices that an interrupted run had solved.
    pub n_resumed: usize,
}

impl CalibrationReport {
    pub(super) fn of(fidelity: &Fidelity, text: &CalibrationText, solver: Solver) -> Self {
        Self {
            solver,
            text: TextFacts::of(text),
            is_used: fidelity.blocks.is_some(),
            plain: fidelity.plain,
            trials: fidelity.trials.clone(),
            ratio: fidelity.ratio(),
            without_solver: fidelity.without_solver.iter().map(|(name, _)| name.clone()).collect(),
            left: fidelity.left.clone(),
            n_resumed: fidelity.n_resumed,
        }
    }
}

impl Serialize for CalibrationReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let estimate = |d: &HeldOutFigures| {
            json!({
                "mean_kld": d.mean.value, "stderr": d.mean.stderr, "kld_99": d.p99, "top1": d.top1_agreement,
            })
        };
        let trial = |trial: &Trial| {
            let mut found = estimate(&trial.figures);
            found["shrinkage"] = trial.options.shrinkage.into();
            found
        };
        let left = self.left.iter();
        let left =
            left.map(|left| json!({ "tensor": left.tensor, "matrix": left.matrix, "reason": left.reason }));
        json!({
            "solver": self.solver.name(),
            "used": self.is_used,
            "kinds": self.text.kinds_json(),
            "check": self.text.held_out_json(),
            "imatrix": estimate(&self.plain),
            "trials": self.trials.iter().map(trial).collect::<Vec<_>>(),
            "ratio": self.ratio,
            "without_solver": self.without_solver,
            "not_solved": left.collect::<Vec<_>>(),
            "resumed": self.n_resumed,
        })
        .serialize(serializer)
    }
}
