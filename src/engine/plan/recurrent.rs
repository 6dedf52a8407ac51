//! Mixers whose state goes from token to token. State is zero at the start of every chunk.

use crate::arch::graph::GdnGate;
use crate::engine::ops::columns::{TOKENS, state_floats};
use crate::engine::plan::footprint::Footprint;
use crate::engine::plan::{GraphPlan, LayerPlan, Matrix, Mixer, Norm, Vector};

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
    /// Least step size.
    pub step_min: f32,
    /// Decay rates, one per head, negative.
    pub a: Vector,
    /// What of the values goes straight to the output, one per head.
    pub d: Vector,
    /// Norm of the gated output, of each group alone.
    pub norm: Option<Norm>,
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
        4 * (state_floats(self.n_states, self.head_dim) + TOKENS * (self.n_states + self.head_dim))
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
    /// Function of the output's gate.
    pub gate: GdnGate,
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
        4 * (state_floats(self.dk, self.dv) + TOKENS * (3 * self.dk + self.dv))
    }
}

/// Linear attention whose heads forget at a rate of their own (lightning attention).
#[derive(Clone, Debug, PartialEq)]
pub struct Lightning {
    /// Per head its query, key and value.
    pub qkv: Matrix,
    /// Gate of the output.
    pub gate: Matrix,
    /// Norm of all heads together, before the gate.
    pub norm: Norm,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Width of a query, key or value head.
    pub head_dim: usize,
    /// How fast each head forgets.
    pub slopes: Vec<f32>,
}

impl Footprint for Lightning {
    fn widest(&self) -> usize {
        self.qkv.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        self.qkv.n_rows + 2 * self.gate.n_rows
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.head_dim, self.head_dim) + TOKENS * 4 * self.head_dim)
    }
}

/// One or two matrices, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// The first, or only one.
    pub first: Matrix,
    /// The second.
    pub second: Option<Matrix>,
}

impl LowRank {
    /// Columns of the result.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.second.as_ref().unwrap_or(&self.first).n_rows
    }

    /// Floats per token of the result and what is between.
    fn floats_per_token(&self) -> usize {
        self.n_rows() + self.first.n_rows
    }
}

/// Kimi delta attention: a delta net whose keys forget each at a rate of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Kda {
    /// Queries.
    pub q: Matrix,
    /// Keys.
    pub k: Matrix,
    /// Values.
    pub v: Matrix,
    /// Convolutions of queries, keys and values.
    pub convs: [Conv; 3],
    /// How much each key forgets, before its function.
    pub forget: LowRank,
    /// Added to that.
    pub forget_bias: Vector,
    /// Rates, one per head; the sign is that of the file.
    pub a: Vector,
    /// The logarithm of the strongest forgetting, where it is bounded.
    pub bound: Option<f32>,
    /// Write gates, one per head.
    pub beta: Matrix,
    /// Gate of the output.
    pub gate: LowRank,
    /// Norm of each head's output, before the gate.
    pub norm: Norm,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Footprint for Kda {
    fn widest(&self) -> usize {
        self.q.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        5 * self.q.n_rows + self.n_heads + self.forget.floats_per_token() + self.gate.floats_per_token()
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.head_dim, self.head_dim) + TOKENS * 4 * self.head_dim)
    }
}

/// RWKV 6: heads that forget by key, mixed with the token before by what the tokens say.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv6 {
    /// Share of the token before in what chooses the shares.
    pub lerp_x: Vector,
    /// Shares of the token before in what makes decays, keys, values, receptances and gates.
    pub lerp: [Vector; 5],
    /// What is added to the shares: the narrow parts.
    pub mix_in: [Matrix; 5],
    /// What is added to the shares: from narrow parts to the stream's width.
    pub mix_out: [Matrix; 5],
    /// Receptance projection.
    pub r: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Gate projection.
    pub g: Matrix,
    /// Decays.
    pub decay: LowRank,
    /// Added to the decays.
    pub decay_bias: Vector,
    /// Weight of the current token; without it, states are read after they are written.
    pub first: Option<Vector>,
    /// Norm of each head's output.
    pub norm: Option<Norm>,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Key-value heads; head `h` uses `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Footprint for Rwkv6 {
    fn widest(&self) -> usize {
        self.r.n_cols.max(self.out.n_cols).max(self.decay.first.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        let narrow: usize = self.mix_in.iter().map(|m| m.n_rows).sum();
        3 * self.r.n_cols
            + narrow
            + 2 * self.r.n_rows
            + self.k.n_rows
            + self.v.n_rows
            + self.g.n_rows
            + self.decay.floats_per_token()
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.head_dim, self.head_dim) + TOKENS * 2 * self.head_dim)
    }
}

/// RWKV 7: a delta rule whose keys are removed and written by gates of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Rwkv7 {
    /// Shares of the token before in what makes receptances, decays, keys, values, learning rates and gates.
    pub lerp: Vec<Vector>,
    /// Receptance projection.
    pub r: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Decays, with what is added to them.
    pub w: (LowRank, Vector),
    /// Shares of the first layer's values, with what is added to them; none in the first layer, which gives them.
    pub v_mix: Option<(LowRank, Vector)>,
    /// Learning rates, with what is added to them.
    pub a: (LowRank, Vector),
    /// Gate of the output.
    pub g: Option<LowRank>,
    /// Factor of the keys that are removed.
    pub k_k: Vector,
    /// How much learning rates weigh in keys.
    pub k_a: Vector,
    /// Weight of the current token.
    pub r_k: Vector,
    /// Norm of each head's output.
    pub norm: Option<Norm>,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Footprint for Rwkv7 {
    fn widest(&self) -> usize {
        self.r.n_cols.max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        let low_ranks =
            [Some(&self.w.0), self.v_mix.as_ref().map(|v| &v.0), Some(&self.a.0), self.g.as_ref()];
        let low_rank = |part: &LowRank| part.floats_per_token();
        2 * self.r.n_cols + 5 * self.r.n_rows + low_ranks.into_iter().flatten().map(low_rank).sum::<usize>()
    }

    fn thread_bytes(&self, _: usize) -> usize {
        4 * (state_floats(self.head_dim, self.head_dim) + TOKENS * 3 * self.head_dim)
    }
}

/// The feed-forward of RWKV: mixed with the token before.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMix {
    /// Share of the token before in what the keys see.
    pub lerp_k: Vector,
    /// Key projection, squared where it is positive.
    pub key: Matrix,
    /// Value projection.
    pub value: Matrix,
    /// Gate: the token before's share in what it sees, and its projection.
    pub receptance: Option<(Vector, Matrix)>,
}

impl ChannelMix {
    /// Columns of the widest matrix.
    pub(crate) fn widest(&self) -> usize {
        self.key.n_cols.max(self.value.n_cols)
    }

    /// Floats per token of intermediates.
    pub(crate) fn floats_per_token(&self) -> usize {
        3 * self.key.n_cols + self.key.n_rows
    }
}

impl GraphPlan {
    /// Floats per token that stay from the layer that makes them to the last.
    pub(crate) fn carried_floats(&self) -> usize {
        let carried = |layer: &LayerPlan| match &layer.mixer {
            Mixer::Rwkv7(mixer) if mixer.v_mix.is_none() => mixer.v.n_rows,
            _ => 0,
        };
        self.layers.iter().map(carried).sum()
    }
}
