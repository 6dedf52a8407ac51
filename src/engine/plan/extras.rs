//! What some models have besides the two branches of a layer, and inside them.

use crate::engine::plan::{
    Dense, Ffn, GraphPlan, LatentExperts, Laurel, LayerAltUp, LayerPlan, Matrix, Mixer, Moe, Ngrams, Norm,
    StackEntry, Vector,
};

/// Function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// The logistic function.
    Sigmoid,
    /// `ln(1 + e^a)`.
    Softplus,
}

/// A gate on the heads' outputs, before they are projected.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputGate {
    /// Of the layer's normed input; a row per value, or one per head.
    pub matrix: Matrix,
    /// What is made of the product.
    pub function: GateFunction,
}

/// Where a layer's keys and values come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvSource {
    /// Its own projections.
    #[default]
    Own,
    /// Its own projections, which later layers use too.
    Kept,
    /// Those of an earlier layer.
    From(usize),
}

/// Parameters of xIELU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor of the square of positive values.
    pub positive: f32,
    /// Factor of the exponential part of the others.
    pub negative: f32,
    /// Factor of the linear part.
    pub beta: f32,
    /// Largest exponent.
    pub eps: f32,
}

/// What the router of a layer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouterSource {
    /// The experts' input.
    #[default]
    Input,
    /// The residual stream before the layer.
    Entry,
    /// The residual stream before the feed-forward, normalized, times the router's scale.
    Stream,
}

/// A dense feed-forward beside routed experts.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseAndMoe {
    /// The dense branch.
    pub dense: Dense,
    /// Norm of its output.
    pub dense_post: Option<Norm>,
    /// The experts.
    pub moe: Moe,
    /// Norm before the experts, if it is not the one before the dense branch.
    pub moe_pre: Option<Norm>,
    /// The experts read the residual stream before the layer, not the one before the feed-forward.
    pub moe_from_entry: bool,
    /// Norm of the experts' output.
    pub moe_post: Option<Norm>,
    /// Factor of the sum.
    pub scale: f32,
}

/// What the layers' own embeddings of a token are made of, for the whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerEmbeddings {
    /// Embedding, a row per token, a part of it per layer.
    pub embedding: Matrix,
    /// Norm of the projected part of a layer.
    pub norm: Norm,
    /// Width of a layer's part.
    pub width: usize,
}

/// A layer's own embedding of the token, added after its branches.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerEmbedding {
    /// First value of the layer's part in a row of the embedding.
    pub first: usize,
    /// Projection of the model's embedding to the layer's part.
    pub model: Matrix,
    /// Gate, of the stream.
    pub gate: Matrix,
    /// Projection back to the stream.
    pub proj: Matrix,
    /// Norm of what is added.
    pub post: Norm,
}

/// What a layer has besides its two branches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerExtras {
    /// The layer's own embedding of the token.
    pub embedding: Option<LayerEmbedding>,
    /// Factor of the stream.
    pub out_scale: Option<Vector>,
    /// Factor of the stream before the first layer, which is added once more.
    pub start_scale: Option<Vector>,
    /// How the layer moves the streams of a token along, of which it computes one.
    pub altup: Option<LayerAltUp>,
    /// What n-grams of tokens add to the streams before the branches.
    pub ngrams: Option<Box<Ngrams>>,
    /// A residual beside the mixer.
    pub laurel: Option<Laurel>,
    /// Norm of the stream: the end of a stack that is run again.
    pub exit_norm: Option<Norm>,
    /// What precedes the branches, where a stack begins that runs in turn with another.
    pub entry: Option<StackEntry>,
}

impl Dense {
    /// Columns of the widest matrix.
    pub(super) fn widest(&self) -> usize {
        self.up.n_cols.max(self.down.n_cols)
    }

    /// Floats per token of the intermediates.
    pub(super) fn floats_per_token(&self, n_embd: usize) -> usize {
        // A gate that is looked at row by row is kept whole.
        let inner = if self.sparsity.is_some() { 2 } else { 1 };
        // Beside additions the gate is kept whole too.
        let switched = self.switched.as_ref().map_or(0, |own| self.up.n_rows + own.floats_per_token());
        inner * self.up.n_rows + n_embd + switched
    }
}

impl Moe {
    /// Columns of the widest matrix.
    pub(super) fn widest(&self) -> usize {
        let latent = self.latent.as_ref().map_or(0, LatentExperts::widest);
        let adjugates = self.adjugates.iter().flat_map(|adjugates| &adjugates.experts);
        let experts = self.experts.iter().chain(adjugates).chain(&self.shared);
        experts.map(Dense::widest).max().unwrap_or(0).max(latent)
    }

    /// Floats per token of the intermediates.
    pub(super) fn floats_per_token(&self, n_embd: usize) -> usize {
        // Every token may choose the same expert, whose rows are gathered.
        let adjugates = self.adjugates.iter().flat_map(|adjugates| &adjugates.experts);
        let experts = self.experts.iter().chain(adjugates);
        let expert = experts.map(|d| d.floats_per_token(n_embd)).max().unwrap_or(0);
        // A group's choices are put together.
        let joined = self.adjugates.as_ref().map_or(0, |adjugates| 2 * adjugates.per_group.min(self.n_used));
        let shared = self.shared.as_ref().map_or(0, |d| d.floats_per_token(n_embd));
        let router = if self.router_source == RouterSource::Stream { n_embd } else { 0 };
        let latent = self.latent.as_ref().map_or(0, LatentExperts::floats_per_token);
        router + self.experts.len() + 2 * self.n_used + joined + expert + n_embd + shared + latent
    }
}

impl LayerPlan {
    /// True if the feed-forward reads the residual stream as it was before the layer.
    pub(crate) fn needs_entry(&self) -> bool {
        match &self.ffn {
            Ffn::None | Ffn::Dense(_) | Ffn::ChannelMix(_) => false,
            Ffn::Moe(moe) => moe.router_source == RouterSource::Entry,
            Ffn::Both(both) => both.moe_from_entry || both.moe.router_source == RouterSource::Entry,
        }
    }

    /// Floats per token that are kept of the stream before the layer, and of what follows the branches.
    pub(super) fn entry_floats(&self, n_embd: usize) -> usize {
        let entry = if self.needs_entry() { n_embd } else { 0 };
        // What a branch reads.
        let mix = if self.mix.is_some() { n_embd } else { 0 };
        let embedding = self.extras.embedding.as_ref().map_or(0, |e| 2 * e.gate.n_rows);
        let ngrams = self.extras.ngrams.as_ref().map_or(0, |ngrams| ngrams.floats_per_token());
        entry + mix + embedding + ngrams + self.stream_floats(n_embd)
    }
}

impl GraphPlan {
    /// True if a layer reads the stream as it was before the first.
    pub(crate) fn needs_start(&self) -> bool {
        self.layer_embeddings.is_some() || self.layers.iter().any(|layer| layer.extras.start_scale.is_some())
    }

    /// True if a layer looks something up by the token.
    pub(crate) fn needs_tokens(&self) -> bool {
        let by_token = |layer: &LayerPlan| {
            layer.extras.ngrams.is_some() || matches!(&layer.ffn, Ffn::Moe(moe) if moe.by_token.is_some())
        };
        self.needs_start() || self.layers.iter().any(by_token)
    }

    /// Floats per token that layers hand on besides the stream.
    pub(crate) fn handed_floats(&self) -> usize {
        let kept = self.layers.iter().map(|layer| match &layer.mixer {
            Mixer::Attention(a) if a.kv == KvSource::Kept => a.n_kv_heads * (a.dk + a.dv),
            _ => 0,
        });
        // The start of the stream, and the token.
        let start = if self.needs_start() { self.n_embd + 1 } else { usize::from(self.needs_tokens()) };
        let held = if self.held.is_some() { self.n_embd } else { 0 };
        let slot = usize::from(self.switch.is_some());
        kept.sum::<usize>() + start + held + slot + self.n_kept_streams() * self.n_embd
    }
}
