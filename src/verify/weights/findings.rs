//! The comparison in sentences: findings, and the line of the summary.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::verify::Finding;
use crate::verify::weights::tensor::split_name;
use crate::verify::weights::{Cause, TensorWeights, WeightOutcome, WeightReport};

const CHECK: &str = "weights";
/// Damaged tensors that have a finding of their own.
const SHOWN: usize = 24;
/// Tensors of a layer that must hold those of one other layer for the layers to be called exchanged.
const SAME_LAYER: usize = 3;

impl WeightReport {
    /// Tensors with this outcome.
    pub fn with(&self, outcome: WeightOutcome) -> impl Iterator<Item = &TensorWeights> {
        self.tensors.iter().filter(move |tensor| tensor.outcome == outcome)
    }

    /// True if every tensor is, byte for byte, what its type makes of the baseline's.
    #[must_use]
    pub fn is_reproduced(&self) -> bool {
        !self.tensors.is_empty() && self.with(WeightOutcome::Reproduced).count() == self.tensors.len()
    }

    /// The tensors that are not reproduced, the one with the largest ratio first.
    #[must_use]
    pub fn worst(&self, n: usize) -> Vec<&TensorWeights> {
        let mut worst: Vec<_> =
            self.tensors.iter().filter(|tensor| tensor.outcome != WeightOutcome::Reproduced).collect();
        // Damaged before healthy ones; ratios that are no numbers are the largest.
        worst.sort_by(|a, b| {
            let damaged = |tensor: &TensorWeights| tensor.outcome == WeightOutcome::Damaged;
            damaged(b).cmp(&damaged(a)).then(b.ratio.total_cmp(&a.ratio))
        });
        worst.truncate(n);
        worst
    }

    /// One line: how many tensors are reproduced, within what their types do, or damaged.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |outcome| self.with(outcome).count();
        let mut line = format!("{} of {} reproduced", count(WeightOutcome::Reproduced), self.tensors.len());
        let within = count(WeightOutcome::Within);
        if within > 0 {
            let mut types: Vec<&str> =
                self.with(WeightOutcome::Within).map(|tensor| tensor.ty.name()).collect();
            types.sort_unstable();
            types.dedup();
            let what = match types.as_slice() {
                [one] => one,
                _ => "their types",
            };
            let does = if matches!(types.as_slice(), [_]) { "does" } else { "do" };
            let worst = self.with(WeightOutcome::Within).map(|tensor| tensor.ratio).fold(0.0, f64::max);
            let _ = write!(line, ", {within} within what {what} {does} (worst {worst:.2})");
        }
        for (outcome, word) in [(WeightOutcome::Damaged, "damaged"), (WeightOutcome::Unjudged, "not judged")]
        {
            if count(outcome) > 0 {
                let _ = write!(line, ", {} {word}", count(outcome));
            }
        }
        line
    }

    /// Says what is wrong: layers that changed places, then tensors, the first of them one by one.
    pub(crate) fn add_findings(&mut self) {
        let layers = self.exchanged_layers();
        let mut findings = Vec::new();
        for (&layer, &(from, n)) in &layers {
            let back = layers.get(&from).is_some_and(|&(other, _)| other == layer);
            if back && from < layer {
                continue;
            }
            findings.push(Finding::error(
                CHECK,
                if back {
                    format!(
                        "layers {layer} and {from} are swapped: {n} tensors of each hold the other's values"
                    )
                } else {
                    format!("layer {layer} holds layer {from} of the baseline: {n} tensors")
                },
            ));
        }
        let is_told = |tensor: &TensorWeights| {
            let from = tensor.layer.and_then(|layer| Some((layer, layers.get(&layer)?.0)));
            from.is_some_and(|(_, from)| held_layer(tensor) == Some(from))
        };
        let damaged: Vec<_> = self.with(WeightOutcome::Damaged).filter(|tensor| !is_told(tensor)).collect();
        for tensor in damaged.iter().take(SHOWN) {
            let mut message = tensor.message.clone().unwrap_or_default();
            if let Some(cause) = &tensor.cause {
                let _ = write!(message, ": {cause}");
            }
            // Rounded once more than needed is a loss, not damage.
            let finding = match tensor.cause {
                Some(Cause::RoundedThrough { .. }) => Finding::warning(CHECK, message),
                _ => Finding::error(CHECK, message),
            };
            findings.push(finding.of(&tensor.name));
        }
        if damaged.len() > SHOWN {
            let message = format!("{} more tensors are damaged", damaged.len() - SHOWN);
            findings.push(Finding::error(CHECK, message));
        }
        for tensor in self.with(WeightOutcome::Unjudged) {
            let reason = tensor.message.clone().unwrap_or_default();
            findings.push(Finding::unchecked(CHECK, reason).of(&tensor.name));
        }
        self.findings.extend(findings);
    }

    /// Layers of which several tensors hold those of one other layer: which, and how many.
    fn exchanged_layers(&self) -> BTreeMap<usize, (usize, usize)> {
        let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for tensor in &self.tensors {
            if let (Some(layer), Some(from)) = (tensor.layer, held_layer(tensor)) {
                *counts.entry((layer, from)).or_default() += 1;
            }
        }
        let several = counts.into_iter().filter(|(_, n)| *n >= SAME_LAYER);
        several.map(|((layer, from), n)| (layer, (from, n))).collect()
    }
}

/// The layer whose tensor of the same role a tensor holds.
fn held_layer(tensor: &TensorWeights) -> Option<usize> {
    let Some(Cause::Holds { tensor: held }) = &tensor.cause else { return None };
    let (layer, role) = split_name(held);
    layer.filter(|_| role == tensor.role)
}
