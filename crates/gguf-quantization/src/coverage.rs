//! Coverage of a model by an importance matrix.

use crate::class::n_matrices;
use crate::importance::Importance;
use gguf_core::TensorMeta;

/// Experts of one tensor that no token of the calibration text reached; all their columns have the same weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenExperts {
    /// Name of the tensor.
    pub tensor: String,
    /// Indices of the experts, from 0.
    pub experts: Vec<usize>,
    /// Number of all experts of the tensor.
    pub of: usize,
}

/// Tensor and another one with the same input, whose importance it uses or could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// Name of the tensor.
    pub tensor: String,
    /// Name of the (first) entry of the other tensor.
    pub entry: String,
}

/// Gaps of an importance matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of tensors that are quantized with importance weights.
    pub(crate) n_covered: usize,
    /// Tensors whose type uses importance weights, but that have none. Embeddings and the output are not listed, since
    /// they are rarely measured.
    pub missing: Vec<String>,
    /// Missing tensors for which another tensor with the same input has an entry.
    pub elsewhere: Vec<StandIn>,
    /// Tensors that use the importance of another tensor with the same input.
    pub stand_ins: Vec<StandIn>,
    /// Matrices whose columns all get the same weight, because their importance is zero.
    pub level: Vec<String>,
    /// Tensors with experts that no token reached, or whose importance is all zero.
    pub unseen: Vec<UnseenExperts>,
    /// Tensors with groups of columns without any importance, which their type therefore stores as zeros or nearly
    /// zeros.
    pub lost: Vec<String>,
    /// Entries that match no tensor of the model.
    pub foreign: Vec<String>,
    /// Number of tokens that the matrix saw, if they are too few for a mean.
    pub few_tokens: Option<i64>,
}

/// Number of tokens below which a matrix says more about its text than about the model.
pub(crate) const FEW_TOKENS: i64 = 1000;

impl Coverage {
    /// Returns true if no tensor, expert or entry is left out.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unseen.is_empty() && self.foreign.is_empty()
    }

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
