//! How much of a model an importance matrix covers.

use crate::gguf::ImatrixEntry;

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

/// What an importance matrix leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of tensors that are quantized with importance weights.
    pub n_covered: usize,
    /// Tensors whose type uses importance weights, but that have none. Embeddings and the output are not listed:
    /// they are hardly ever measured.
    pub missing: Vec<String>,
    /// Tensors with experts that were never seen.
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

    /// Counts a tensor that uses this entry.
    pub(crate) fn add(&mut self, tensor: &str, entry: &ImatrixEntry) {
        self.n_covered += 1;
        let unseen = |(expert, &count): (usize, &i64)| (count <= 0).then_some(expert);
        let experts: Vec<_> = entry.counts.iter().enumerate().filter_map(unseen).collect();
        if !experts.is_empty() {
            self.unseen.push(UnseenExperts { tensor: tensor.to_owned(), experts, of: entry.counts.len() });
        }
    }
}
