//! Softmax attention: heads, masks, and what is added to the scores.

use crate::engine::plan::{KvSource, Matrix, Norm, OutputGate, SwitchedAttention, Vector};

/// What a q or k norm spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSpan {
    /// Every head alone, all with the same weight.
    Head,
    /// Every head alone, each with its own row of the weight.
    HeadRows,
    /// Every head alone, then times one factor of its own.
    HeadFactor,
    /// The whole projection before it is cut into heads.
    Projection,
}

/// A norm of q or k.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// Formula, weights, epsilon.
    pub norm: Norm,
    /// What it spans.
    pub span: HeadSpan,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All earlier keys and its own.
    Causal,
    /// Of those the last n, its own included.
    Window(usize),
    /// Of those the ones in the same block of n positions.
    Chunked(usize),
    /// All keys.
    Full,
    /// Those at most half of n positions away, to both sides.
    Symmetric(usize),
}

impl Mask {
    /// First key that the query at `position` sees.
    #[must_use]
    pub fn first_key(self, position: usize) -> usize {
        match self {
            Self::Causal | Self::Full => 0,
            Self::Symmetric(n) => position.saturating_sub(n / 2),
            Self::Window(n) => (position + 1).saturating_sub(n),
            Self::Chunked(n) => position - position % n.max(1),
        }
    }

    /// Position behind the last key, of `n_keys`, that the query at `position` sees.
    #[must_use]
    pub fn end_key(self, position: usize, n_keys: usize) -> usize {
        match self {
            Self::Causal | Self::Window(_) | Self::Chunked(_) => position + 1,
            Self::Full => n_keys,
            Self::Symmetric(n) => position.saturating_add(n / 2 + 1).min(n_keys),
        }
    }

    /// True if no window narrows what is seen.
    #[must_use]
    pub fn is_global(self) -> bool {
        matches!(self, Self::Causal | Self::Full)
    }
}

/// `1 + growth ln(1 + floor((position + first) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// What each step adds, as a logarithm grows.
    pub growth: f64,
    /// Positions of a step.
    pub length: usize,
    /// What the first position counts.
    pub first: usize,
}

/// A learned bias of the scores by head and bucket of relative positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeBias {
    /// A row per bucket, a value per head.
    pub table: Vector,
    /// Number of buckets.
    pub n_buckets: usize,
    /// Distance from which on all keys share the last bucket.
    pub max_distance: usize,
    /// Half of the buckets are for later keys.
    pub both_sides: bool,
}

/// Attention to the states of another stack of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossAttention {
    /// Norm of the stream before it.
    pub norm: Norm,
    /// Queries from the stream, keys and values from the other stack.
    pub attention: Box<Attention>,
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query projection, `n_heads * dk` rows, or twice as many if each head has its gate behind its query.
    pub q: Matrix,
    /// Key projection, `n_kv_heads * dk` rows.
    pub k: Matrix,
    /// Value projection, `n_kv_heads * dv` rows.
    pub v: Matrix,
    /// Output projection.
    pub out: Matrix,
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads; query head `h` uses `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Width of a query or key head.
    pub dk: usize,
    /// Width of a value head.
    pub dv: usize,
    /// Norm of the queries.
    pub q_norm: Option<HeadNorm>,
    /// Norm of the keys.
    pub k_norm: Option<HeadNorm>,
    /// The norms follow the rotation.
    pub norm_after_rope: bool,
    /// Index into the plan's rotations.
    pub rope: Option<usize>,
    /// The two halves of a head are rotated by a position each.
    pub rope_2d: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Visible keys.
    pub mask: Mask,
    /// q, k, v are clamped to ± this.
    pub clamp: Option<f32>,
    /// One extra logit per head that takes probability and has no value.
    pub sinks: Option<Vector>,
    /// Slope per head of a penalty proportional to distance.
    pub alibi: Option<Vec<f32>>,
    /// A bias by relative position.
    pub relative: Option<RelativeBias>,
    /// Factor of the queries that grows with their position.
    pub temperature: Option<Temperature>,
    /// Norm of each head's values.
    pub v_norm: Option<Norm>,
    /// Where keys and values come from.
    pub kv: KvSource,
    /// Gate on the heads' outputs.
    pub gate: Option<OutputGate>,
    /// Norm of the heads' outputs, all together.
    pub sub_norm: Option<Norm>,
    /// Factor of the projected output.
    pub out_scale: Option<f32>,
    /// Additions to the projections that tokens turn on.
    pub switched: Option<Box<SwitchedAttention>>,
}
