//! How much of a model an importance matrix covers.

use crate::core::TensorMeta;
use crate::quantize::importance::Importance;
use crate::quantize::plan::n_matrices;

/// Experts of one tensor that no token of the calibration text reached; all their columns weigh the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenExperts {
    /// The tensor.
    pub tensor: String,
    /// The experts, from 0.
    pub experts: Vec<usize>,
    /// Number of all experts.
    pub of: usize,
}

/// A tensor and another one with the same input, whose importance it uses or could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// The tensor.
    pub tensor: String,
    /// The (first) entry of the other.
    pub entry: String,
}

/// What an importance matrix leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of tensors that are quantized with importance weights.
    pub n_covered: usize,
    /// Tensors whose type uses importance weights, but that have none. Embeddings and the output are not listed:
    /// they are hardly ever measured.
    pub missing: Vec<String>,
    /// Tensors among the missing ones for which another one, with the same input, has an entry.
    pub elsewhere: Vec<StandIn>,
    /// Tensors that use the importance of another one, which has the same input.
    pub stand_ins: Vec<StandIn>,
    /// Matrices whose columns all weigh the same, because the importance of all of them is zero.
    pub level: Vec<String>,
    /// Tensors with experts that were never seen, or whose importance is zero throughout.
    pub unseen: Vec<UnseenExperts>,
    /// Tensors with groups of columns that have no importance at all, which their type therefore writes as zeros (or
    /// nearly).
    pub lost: Vec<String>,
    /// Entries that name no tensor of the model.
    pub foreign: Vec<String>,
}

impl Coverage {
    /// True if nothing is left open.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unseen.is_empty() && self.foreign.is_empty()
    }

    /// Counts a tensor that uses this importance.
    pub(crate) fn add(&mut self, tensor: &TensorMeta, importance: &Importance<'_>) {
        self.n_covered += 1;
        let name = || tensor.name.clone();
        if let [entry, ..] = importance.stand_in.as_slice() {
            self.stand_ins.push(StandIn { tensor: name(), entry: entry.clone() });
        }
        let of = usize::try_from(n_matrices(tensor)).unwrap_or(usize::MAX);
        match importance.unseen.as_slice() {
            [] => {}
            _ if of == 1 => self.level.push(name()),
            experts => self.unseen.push(UnseenExperts { tensor: name(), experts: experts.to_vec(), of }),
        }
    }
}
