//! Findings and summary line of the comparison of weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::weights::tensor::split_name;
use crate::weights::{Cause, TensorWeights, WeightOutcome, WeightReport};
use crate::{Check, Finding};
use gguf_core::text::plural;

const CHECK: Check = Check::Weights;
/// Number of damaged tensors that are reported one by one.
const SHOWN: usize = 24;
/// Share of the damaged tensors that must have no specific cause for a common diagnosis.
const ALIKE: f64 = 0.9;
/// Share of the matrices that must differ for the file to count as made from something else.
const MOST: f64 = 0.6;
/// Relative error from which nothing is in common: independent values have 1.4.
const UNRELATED: f64 = 0.9;
/// Number of tensors of a layer that must hold those of one other layer for the layers to count as exchanged.
const SAME_LAYER: usize = 3;

impl WeightReport {
    /// Returns the tensors with this outcome.
    pub fn with(&self, outcome: WeightOutcome) -> impl Iterator<Item = &TensorWeights> {
        self.tensors.iter().filter(move |tensor| tensor.outcome == outcome)
    }

    /// Returns true if every tensor equals, byte for byte, the baseline's quantized to its type.
    pub fn is_reproduced(&self) -> bool {
        !self.tensors.is_empty() && self.with(WeightOutcome::Reproduced).count() == self.tensors.len()
    }

    /// Returns true if every tensor of both models is the plain quantization of the baseline's, as a reference copy has
    /// it: not by way of another type, without factors, and without tensors that only one model has.
    pub(crate) fn is_copy(&self) -> bool {
        !self.tensors.is_empty()
            && self.findings.is_empty()
            && self.tensors.iter().all(|tensor| tensor.is_copy)
    }

    /// Returns up to `n` tensors that are not reproduced, damaged ones first, then by descending ratio.
    pub fn worst(&self, n: usize) -> Vec<&TensorWeights> {
        let mut worst: Vec<_> =
            self.tensors.iter().filter(|tensor| tensor.outcome != WeightOutcome::Reproduced).collect();
        // Damaged before healthy ones; NaN ratios count as the largest.
        worst.sort_by(|a, b| {
            let damaged = |tensor: &TensorWeights| tensor.outcome == WeightOutcome::Damaged;
            damaged(b).cmp(&damaged(a)).then(b.ratio.total_cmp(&a.ratio))
        });
        worst.truncate(n);
        worst
    }

    /// Returns one line with the number of tensors that are identical to a fresh quantization, that have the error
    /// expected of their types, and that are damaged.
    pub fn summary(&self) -> String {
        let count = |outcome| self.with(outcome).count();
        let is_coded = |tensor: &TensorWeights| tensor.ty.is_quantized();
        let is_rounded = |tensor: &TensorWeights| tensor.error > 0.0;
        let what = match &self.tensors {
            all if all.iter().any(is_coded) => "a fresh quantization",
            _ if self.with(WeightOutcome::Reproduced).any(is_rounded) => "the baseline after rounding",
            _ => "the baseline",
        };
        let (n, all) = (count(WeightOutcome::Reproduced), self.tensors.len());
        let mut line = format!("{n} of {all} identical to {what}");
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
            let worst = self.with(WeightOutcome::Within).map(|tensor| tensor.ratio).fold(0.0, f64::max);
            let _ = write!(
                line,
                ", {within} as close as {what} can be (error up to {worst:.2} times that of a fresh quantization)"
            );
        }
        if count(WeightOutcome::Moved) > 0 {
            let worst = self.with(WeightOutcome::Moved).map(|tensor| tensor.error).fold(0.0, f64::max);
            let n = count(WeightOutcome::Moved);
            let _ = write!(line, ", {n} moved by calibration (relative error up to {worst:.4})");
        }
        for (outcome, word) in [(WeightOutcome::Damaged, "damaged"), (WeightOutcome::Unjudged, "not judged")]
        {
            if count(outcome) > 0 {
                let _ = write!(line, ", {} {word}", count(outcome));
            }
        }
        line
    }

    /// Adds findings: exchanged layers, then tensors, the first of them one by one.
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
                    format!(
                        "layer {layer} holds layer {from} of the baseline: {}",
                        plural(n as u64, "tensor")
                    )
                },
            ));
        }
        let is_told = |tensor: &TensorWeights| {
            let from = tensor.layer.and_then(|layer| Some((layer, layers.get(&layer)?.0)));
            from.is_some_and(|(_, from)| held_layer(tensor) == Some(from))
        };
        let mut damaged: Vec<_> =
            self.with(WeightOutcome::Damaged).filter(|tensor| !is_told(tensor)).collect();
        // Matrices before vectors, whose few values are weaker evidence; the largest error first.
        let size = |tensor: &TensorWeights| if tensor.error.is_nan() { f64::INFINITY } else { tensor.error };
        damaged.sort_by(|a, b| is_matrix(b).cmp(&is_matrix(a)).then_with(|| size(b).total_cmp(&size(a))));
        findings.extend(self.diagnosis(&damaged));
        for tensor in damaged.iter().take(SHOWN) {
            let mut message = tensor.message.clone().unwrap_or_default();
            if let Some(cause) = &tensor.cause {
                let _ = write!(message, ": {cause}");
            }
            // One more rounding than needed is a loss, not damage.
            let finding = match tensor.cause {
                Some(Cause::RoundedThrough { .. }) => Finding::warning(CHECK, message),
                _ => Finding::error(CHECK, message),
            };
            findings.push(finding.of(&tensor.name));
        }
        if damaged.len() > SHOWN {
            let message = format!("{} more damaged", plural((damaged.len() - SHOWN) as u64, "tensor"));
            findings.push(Finding::error(CHECK, message));
        }
        for tensor in self.with(WeightOutcome::Unjudged) {
            let reason = tensor.message.clone().unwrap_or_default();
            findings.push(Finding::unchecked(CHECK, reason).of(&tensor.name));
        }
        self.findings.extend(findings);
    }

    /// Returns a finding for a common cause of many damaged tensors, if there is one.
    fn diagnosis(&self, damaged: &[&TensorWeights]) -> Option<Finding> {
        let broken = |tensor: &&&TensorWeights| !matches!(tensor.cause, Some(Cause::RoundedThrough { .. }));
        let damaged: Vec<&TensorWeights> = damaged.iter().filter(broken).copied().collect();
        let n_matrices = self.tensors.iter().filter(|tensor| is_matrix(tensor)).count();
        let matrices: Vec<&&TensorWeights> = damaged.iter().filter(|tensor| is_matrix(tensor)).collect();
        let is_most = matrices.len() >= SAME_LAYER && matrices.len() as f64 >= MOST * n_matrices as f64;
        let kinds: BTreeSet<&str> =
            damaged.iter().map(|tensor| tensor.cause.as_ref().map_or("", Cause::name)).collect();
        // A fine-tune moves every value a little: no cause is found, or only conspicuous blocks.
        let is_vague = |tensor: &&TensorWeights| {
            matches!(tensor.cause, None | Some(Cause::Blocks { .. } | Cause::Unrelated))
        };
        let is_alike =
            damaged.iter().filter(|tensor| is_vague(tensor)).count() as f64 >= ALIKE * damaged.len() as f64;
        let errors = || matrices.iter().map(|tensor| tensor.error);
        let (least, largest) = (errors().fold(f64::INFINITY, f64::min), errors().fold(0.0, f64::max));
        let n = matrices.len();
        if is_most && is_alike && least > UNRELATED {
            let message = format!(
                "another model of the same shape: {n} of {n_matrices} matrices have nothing in common with the baseline's"
            );
            return Some(Finding::error(CHECK, message));
        }
        if is_most && is_alike {
            let message = format!(
                "not made from this baseline: {n} of {n_matrices} matrices differ alike (relative errors {least:.3} to \
                 {largest:.3}): a fine-tune, or another version of the model"
            );
            return Some(Finding::error(CHECK, message));
        }
        let layers: BTreeSet<Option<usize>> = damaged.iter().map(|tensor| tensor.layer).collect();
        let all: BTreeSet<Option<usize>> = self.tensors.iter().map(|tensor| tensor.layer).collect();
        let (n, only) = (damaged.len(), layers.first().copied().flatten());
        match (layers.len(), only) {
            (1, Some(layer)) if n >= SAME_LAYER && all.len() > 2 => {
                let message = format!("only tensors of layer {layer} are wrong, {n} of them");
                Some(Finding::error(CHECK, message))
            }
            _ if n > SAME_LAYER && kinds.len() == 1 && !kinds.contains("") => {
                let kind = damaged.first().and_then(|tensor| tensor.cause.as_ref()).map_or("", Cause::kind);
                Some(Finding::error(CHECK, format!("{kind} in {}", plural(n as u64, "tensor"))))
            }
            _ => None,
        }
    }

    /// Maps each layer with several tensors of one other layer to that layer and the number of tensors.
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

/// Returns true for matrices; false for norms, biases and other vectors.
fn is_matrix(tensor: &TensorWeights) -> bool {
    tensor.shape.n_rows() > 1
}

/// Layer whose tensor of the same role a tensor holds.
fn held_layer(tensor: &TensorWeights) -> Option<usize> {
    let Some(Cause::Holds { tensor: held }) = &tensor.cause else { return None };
    let (layer, role) = split_name(held);
    layer.filter(|_| role == tensor.role)
}
