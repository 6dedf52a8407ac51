//! Calibration in a summary: its text, its solver, and the figures of the check.

use serde_json::json;

use crate::calibrate::{CalibrationText, CheckFigures, Fidelity, Solver, Trial};
use crate::cli::render::plural;

/// Calibration in a summary.
pub(crate) struct CalibrationSummary<'a> {
    pub(super) fidelity: &'a Fidelity,
    pub(super) solver: Solver,
    pub(super) text: &'a CalibrationText,
}

impl CalibrationSummary<'_> {
    /// Returns the summary in one line.
    pub(crate) fn line(&self) -> String {
        let kinds = plural(self.text.kinds.len() as u64, "kind");
        let (n_tokens, n_check) = (self.text.n_tokens(), self.text.n_check_tokens());
        let plain = &self.fidelity.plain.mean;
        let last = self.fidelity.trials.last().zip(self.fidelity.ratio());
        let found = last.map_or_else(String::new, |(trial, ratio)| {
            let mean = &trial.check.mean;
            let what = if self.fidelity.blocks.is_some() { "solved" } else { "solved (not used)" };
            format!(", {what} {:.6} ± {:.6}, ratio {ratio:.3}", mean.value, mean.stderr)
        });
        format!(
            "calibrated on {n_tokens} tokens of {kinds} of text; mean KLD on {n_check} others: importance matrix \
             {:.6} ± {:.6}{found}",
            plain.value, plain.stderr
        )
    }

    /// Returns the summary for `--json`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let kinds: Vec<_> = self
            .text
            .kinds
            .iter()
            .map(|kind| json!({ "name": kind.name, "tokens": kind.n_tokens(), "check_tokens": kind.n_check_tokens(), "seed": kind.seed }))
            .collect();
        let estimate = |d: &CheckFigures| json!({ "mean_kld": d.mean.value, "stderr": d.mean.stderr, "kld_99": d.p99, "top1": d.top1_agreement });
        let trial = |trial: &Trial| {
            let mut found = estimate(&trial.check);
            found["shrinkage"] = trial.options.shrinkage.into();
            found
        };
        let left: Vec<_> = self
            .fidelity
            .left
            .iter()
            .map(|left| json!({ "tensor": left.tensor, "matrix": left.matrix, "reason": left.reason }))
            .collect();
        json!({
            "solver": self.solver.name(),
            "used": self.fidelity.blocks.is_some(),
            "kinds": kinds,
            "check": self.text.check.iter().map(|check| json!({ "name": check.name, "tokens": check.n_tokens() })).collect::<Vec<_>>(),
            "imatrix": estimate(&self.fidelity.plain),
            "trials": self.fidelity.trials.iter().map(trial).collect::<Vec<_>>(),
            "ratio": self.fidelity.ratio(),
            "without_solver": self.fidelity.without_solver.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            "not_solved": left,
            "resumed": self.fidelity.n_resumed,
        })
    }
}
