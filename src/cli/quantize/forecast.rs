//! Forecast of a calibration, below the plan: what would be solved, the text, memory and disk.

use std::io::Write;

use serde_json::json;

use crate::calibrate::{CalibrationText, Outlook, Solver, TextKind};
use crate::cli::render::{count, plural};
use crate::core::text::{bytes, escape};

/// Forecast of a calibration, for a plan.
pub(crate) struct Forecast {
    pub(super) outlook: Outlook,
    pub(super) text: CalibrationText,
    pub(super) solver: Solver,
    /// Bytes of memory needed to write text, if the model is to write some.
    pub(super) self_bytes: Option<u64>,
}

impl Forecast {
    /// Prints the lines below the plan.
    pub(crate) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Outlook { n_tensors, n_matrices, without_solver, needs, budget_bytes, .. } = &self.outlook;
        writeln!(
            out,
            "calibration by `{}`: {} of {} to solve",
            self.solver.name(),
            if *n_matrices == 1 { "1 matrix".to_owned() } else { format!("{n_matrices} matrices") },
            plural(*n_tensors as u64, "tensor"),
        )?;
        if let Some((tensor, ty)) = without_solver.first() {
            let n = plural(without_solver.len() as u64, "tensor");
            writeln!(out, "without a solver for their type: {n}: `{}` ({ty}), for example", escape(tensor))?;
        }
        let kind = |kind: &TextKind| {
            let to_come =
                if kind.n_run == 0 && kind.seed.is_some() { ", to be written by the model" } else { "" };
            format!("{} ({} tokens{to_come})", escape(&kind.name), count(kind.n_tokens() as u64))
        };
        let kinds: Vec<String> = self.text.kinds.iter().map(kind).collect();
        let is_spilling = self.outlook.is_spilling();
        let n_check = count(self.text.n_check_tokens() as u64);
        writeln!(out, "text: {}; {n_check} other tokens to judge the result by", kinds.join(", "))?;
        writeln!(
            out,
            "memory in addition to the weights: {}{} of {} allowed{}; {} of disk until the output is written",
            bytes(if is_spilling { needs.least_bytes } else { needs.all_bytes }),
            self.self_bytes.map_or_else(String::new, |n| format!(", {} to write the text,", bytes(n))),
            bytes(*budget_bytes),
            if is_spilling {
                format!(", hidden states on disk ({} would hold them)", bytes(needs.all_bytes))
            } else {
                String::new()
            },
            bytes(self.outlook.disk_bytes()),
        )
    }

    /// Returns the content for `--json`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let kind = |kind: &TextKind| {
            json!({
                "name": kind.name,
                "tokens": kind.n_tokens(),
                "check_tokens": kind.n_check_tokens(),
                "seed": kind.seed,
            })
        };
        let check = self.text.check.iter();
        let check = check.map(|check| json!({ "name": check.name, "tokens": check.n_tokens() }));
        let names = self.outlook.without_solver.iter().map(|(name, _)| name);
        json!({
            "solver": self.solver.name(),
            "kinds": self.text.kinds.iter().map(kind).collect::<Vec<_>>(),
            "check": check.collect::<Vec<_>>(),
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
    }
}
