//! The state-space mixer of PLaMo 2.

use crate::engine::ops::columns::{TOKENS, state_floats};
use crate::engine::plan::footprint::Footprint;
use crate::engine::plan::{Conv, Matrix, Norm, Vector};

/// Heads of Mamba 2 whose steps, and what enters and is read from their states, are made of the convolved values and
/// normed, as in Mamba.
#[derive(Clone, Debug, PartialEq)]
pub struct Plamo2 {
    /// Per head its gate, then its values.
    pub zx: Matrix,
    /// Convolution of the values.
    pub conv: Conv,
    /// What enters the states, of the convolved values.
    pub b: Matrix,
    /// What is read from the states, of the convolved values.
    pub c: Matrix,
    /// Step sizes before they are widened, of the convolved values.
    pub step_in: Matrix,
    /// Norm of `b`.
    pub b_norm: Norm,
    /// Norm of `c`.
    pub c_norm: Norm,
    /// Norm of the narrow step sizes.
    pub step_norm: Norm,
    /// Step sizes, one per head.
    pub step: Matrix,
    /// Decay rates, one per head, negative.
    pub a: Vector,
    /// What of the values goes straight to the output, one per head.
    pub d: Vector,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Values that a state has for each value of its head.
    pub n_states: usize,
}

impl Footprint for Plamo2 {
    fn widest(&self) -> usize {
        self.zx.n_cols.max(self.out.n_cols).max(self.step.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        // Gates and values; the values before and behind the convolution; y.
        let inner = self.zx.n_rows + 3 * self.out.n_cols;
        inner + self.step_in.n_rows + self.b.n_rows + self.c.n_rows + self.n_heads
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.n_states, self.head_dim) + TOKENS * (self.n_states + self.head_dim))
    }
}
