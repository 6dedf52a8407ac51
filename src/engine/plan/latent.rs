//! Experts in a space narrower than the stream: all of a layer share the matrices that lead there and back.

use crate::engine::plan::{Matrix, Norm};

/// The way to a space of routed experts and back.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentExperts {
    /// What the experts read, of the feed-forward's input.
    pub down: Matrix,
    /// Norm of the experts' weighted sum.
    pub norm: Option<Norm>,
    /// Back to the width of the stream.
    pub up: Matrix,
}

impl LatentExperts {
    /// Columns of the widest matrix.
    pub(super) fn widest(&self) -> usize {
        self.down.n_cols.max(self.up.n_cols)
    }

    /// Floats per token besides those of the experts: their input, their sum, and what is made of it.
    pub(super) fn floats_per_token(&self) -> usize {
        2 * self.down.n_rows + self.up.n_rows
    }
}
