//! Mixers whose state goes from token to token. State is zero at the start of every chunk.

use crate::engine::plan::footprint::Footprint;
use crate::engine::plan::{Matrix, Norm, Vector};

/// A causal convolution of every channel alone: `y_t = Σ_j w_j u_(t - n_taps + 1 + j) + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Taps, `[n_channels, n_taps]`.
    pub weight: Vector,
    /// Added to the sum, one per channel.
    pub bias: Option<Vector>,
    /// Tokens that a sum spans.
    pub n_taps: usize,
}

/// Mamba: a state of every channel alone, with a decay of its own for each of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba {
    /// What goes through the convolution.
    pub x: Matrix,
    /// Gate of the output.
    pub z: Matrix,
    /// Convolution of `x`.
    pub conv: Conv,
    /// Step sizes before they are widened, of the convolved `x`.
    pub step_in: Matrix,
    /// What enters the state, of the convolved `x`.
    pub b: Matrix,
    /// What is read from the state, of the convolved `x`.
    pub c: Matrix,
    /// Norm of the narrow step sizes.
    pub step_norm: Option<Norm>,
    /// Norm of `b`.
    pub b_norm: Option<Norm>,
    /// Norm of `c`.
    pub c_norm: Option<Norm>,
    /// Step sizes, one per channel.
    pub step: Matrix,
    /// Decay rates, `[n_channels, n_states]`, negative.
    pub a: Vector,
    /// What of `x` goes straight to the output, one per channel.
    pub d: Vector,
    /// Output projection.
    pub out: Matrix,
    /// Values of a channel's state.
    pub n_states: usize,
}

impl Footprint for Mamba {
    fn widest(&self) -> usize {
        self.x.n_cols.max(self.out.n_cols).max(self.step.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        // x and z before and after the convolution, step sizes, y.
        5 * self.x.n_rows + self.step_in.n_rows + self.b.n_rows + self.c.n_rows
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (self.n_states + 2) * self.x.n_rows.min(crate::engine::ops::mamba::CHANNELS)
    }
}

/// Mamba 2: heads with one decay each, groups of which share what enters and leaves their states.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Gate of the output.
    pub z: Matrix,
    /// Values, and per group what enters and what is read from the states.
    pub xbc: Matrix,
    /// Step sizes, one per head.
    pub step: Matrix,
    /// Convolution of `xbc`.
    pub conv: Conv,
    /// Added to the step sizes.
    pub step_bias: Vector,
    /// Decay rates, one per head, negative.
    pub a: Vector,
    /// What of the values goes straight to the output, one per head.
    pub d: Vector,
    /// Norm of the gated output.
    pub norm: Option<Norm>,
    /// Parts of a row that are normed alone.
    pub n_norm_parts: usize,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Groups; head `h` belongs to `h / (n_heads / n_groups)`.
    pub n_groups: usize,
    /// Values that a state has for each value of its head.
    pub n_states: usize,
}

impl Footprint for Mamba2 {
    fn widest(&self) -> usize {
        self.z.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        // z, y, the convolution's input and output, step sizes.
        2 * self.z.n_rows + 2 * self.xbc.n_rows + self.n_heads
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (self.n_states * (self.head_dim + 1) + self.head_dim)
    }
}

/// A gated short convolution: `out(c conv(b x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    /// Gate before the convolution.
    pub b: Matrix,
    /// Gate behind the convolution.
    pub c: Matrix,
    /// What is convolved.
    pub x: Matrix,
    /// The convolution.
    pub conv: Conv,
    /// Output projection.
    pub out: Matrix,
}

impl Footprint for ShortConv {
    fn widest(&self) -> usize {
        self.x.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        4 * self.x.n_rows
    }

    fn thread_bytes(&self, _: usize) -> usize {
        0
    }
}

/// Where a delta net's gates come from.
#[derive(Clone, Debug, PartialEq)]
pub enum DeltaGates {
    /// One matrix; per key head first the write gates of its value heads, then their step sizes. A value head `h`
    /// uses key head `h / (n_heads / n_key_heads)`.
    Packed(Matrix),
    /// A matrix each. A value head `h` uses key head `h % n_key_heads`.
    Apart {
        /// Write gates, one per value head.
        beta: Matrix,
        /// Step sizes, one per value head.
        alpha: Matrix,
    },
}

/// Gated delta net: a matrix per value head that forgets by a gate and corrects what its keys recall.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNet {
    /// Queries, keys, values.
    pub qkv: Matrix,
    /// Convolution of all three.
    pub conv: Conv,
    /// Gate of the output.
    pub z: Matrix,
    /// Write gates and step sizes.
    pub gates: DeltaGates,
    /// Added to the step sizes, one per value head.
    pub step_bias: Vector,
    /// Decay rates, one per value head, negative.
    pub a: Vector,
    /// Norm of each head's output, before the gate.
    pub norm: Norm,
    /// Output projection.
    pub out: Matrix,
    /// Value heads.
    pub n_heads: usize,
    /// Query and key heads.
    pub n_key_heads: usize,
    /// Width of a query or key head.
    pub dk: usize,
    /// Width of a value head.
    pub dv: usize,
}

impl Footprint for DeltaNet {
    fn widest(&self) -> usize {
        self.qkv.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        2 * self.qkv.n_rows + 2 * self.z.n_rows + 2 * self.n_heads
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (self.dk * (self.dv + 3) + self.dv)
    }
}
