//! What a run computes: every tensor, width and constant, resolved once from the card, the metadata and the tensors
//! present. Running a plan never looks at metadata again.

mod adjugates;
mod altup;
mod attention;
mod branch;
mod compressed;
mod continued;
mod cycles;
mod experts;
mod extras;
mod footprint;
mod hyper;
mod latent;
mod mla;
mod ngrams;
mod outputs;
mod plamo2;
mod recurrent;
mod rope;
mod stream_mix;
mod switched;

use std::ops::Range;

use crate::engine::ops::prefix::Prefix;

pub use adjugates::Adjugates;
pub use altup::{AltUp, Laurel, LayerAltUp};
pub use attention::{Attention, CrossAttention, HeadNorm, HeadSpan, Mask, RelativeBias, Temperature};
pub(crate) use branch::BranchEnd;
pub use compressed::{CompressedAttention, Compressor};
pub use cycles::{HeldState, StackEntry};
pub use experts::{ExpertGroups, GatingFunction, Moe};
pub use extras::{
    DenseAndMoe, GateFunction, KvSource, LayerEmbedding, LayerEmbeddings, LayerExtras, OutputGate,
    RouterSource, Xielu,
};
pub(crate) use footprint::Footprint;
pub use hyper::{
    Connection, GatedStreams, LayerConnections, Streams, StreamsEnd, StreamsWrite, WeighedStreams,
};
pub use latent::LatentExperts;
pub use mla::{Expansion, Latent, Mla};
pub use ngrams::{NgramTable, Ngrams};
pub use outputs::{Classifier, EncoderPlan, HeadActivation, MaskedHead, ModelKind, PooledRow, Pooling};
pub use plamo2::Plamo2;
pub use recurrent::{
    ChannelMix, Conv, DeltaGates, DeltaNet, Kda, Lightning, LowRank, Mamba, Mamba2, Rwkv6, Rwkv7, ShortConv,
};
pub use rope::{LongFactors, PairLayout, Ramp, Rope, RopeScaling};
pub use stream_mix::StreamMix;
pub use switched::{Switch, SwitchToken, Switched, SwitchedAttention, SwitchedDense};

/// Consecutive elements of a tensor that is small enough to be held decoded: a bias, a norm's weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// Index of the tensor in its source.
    pub tensor: usize,
    /// First element.
    pub first: usize,
    /// Number of elements.
    pub len: usize,
}

/// Rows of a matrix tensor that are multiplied with activations: `y = scale * (W x) + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Index of the tensor in its source.
    pub tensor: usize,
    /// First row used.
    pub first_row: usize,
    /// Rows used: the width of `y`.
    pub n_rows: usize,
    /// Columns: the width of `x`.
    pub n_cols: usize,
    /// Added to the product.
    pub bias: Option<Vector>,
    /// One factor of the product, applied before the bias.
    pub scale: Option<Vector>,
    /// Which expert of a stacked tensor the rows belong to.
    pub expert: Option<usize>,
}

impl Matrix {
    /// Rows `first .. first + n` of the matrix as a matrix of its own.
    pub(crate) fn rows(&self, first: usize, n: usize) -> Self {
        let bias = self.bias.as_ref().map(|b| Vector { tensor: b.tensor, first: b.first + first, len: n });
        Self { first_row: self.first_row + first, n_rows: n, bias, ..self.clone() }
    }
}

/// Formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormFormula {
    /// `x / sqrt(mean(x²) + eps)`.
    Rms,
    /// `(x - mean) / sqrt(variance + eps)`.
    Layer,
}

/// A norm of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// What the values are divided by.
    pub formula: NormFormula,
    /// Multiplied after normalizing.
    pub weight: Option<Vector>,
    /// Added after the weight.
    pub bias: Option<Vector>,
    /// Inside the root.
    pub eps: f32,
}

/// What mixes information between positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Nothing.
    None,
    /// One matrix on each position alone.
    Linear(Matrix),
    /// Softmax attention.
    Attention(Box<Attention>),
    /// Softmax attention whose keys and values are expanded from short rows.
    Mla(Box<Mla>),
    /// The sum of two mixers of the same input.
    Twin(Box<Twin>),
    /// Mamba.
    Mamba(Box<Mamba>),
    /// Mamba 2.
    Mamba2(Box<Mamba2>),
    /// PLaMo 2's.
    Plamo2(Box<Plamo2>),
    /// A gated short convolution.
    ShortConv(Box<ShortConv>),
    /// A gated delta net.
    DeltaNet(Box<DeltaNet>),
    /// Kimi delta attention.
    Kda(Box<Kda>),
    /// Softmax attention to a window and to compressed rows.
    Compressed(Box<CompressedAttention>),
    /// Lightning attention.
    Lightning(Box<Lightning>),
    /// RWKV 6.
    Rwkv6(Box<Rwkv6>),
    /// RWKV 7.
    Rwkv7(Box<Rwkv7>),
}

/// Two mixers that read the same input and whose outputs are added.
#[derive(Clone, Debug, PartialEq)]
pub struct Twin {
    /// The first.
    pub first: Mixer,
    /// The second.
    pub second: Mixer,
    /// Width of their outputs.
    pub n_embd: usize,
}

/// An activation of one projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PlainActivation {
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// `max(u, 0)`.
    Relu,
    /// `max(u, 0)²`.
    Relu2,
    /// xIELU (Huang and Schlag 2024).
    Xielu(Xielu),
}

/// An activation of a gate, which is multiplied with the up projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedActivation {
    /// `silu(g) u`.
    Swiglu,
    /// GELU of the gate in its tanh form.
    GegluTanh,
    /// GELU of the gate by the error function.
    GegluErf,
    /// `max(g, 0) u`.
    Reglu,
    /// `g' sig(1.702 g') (u' + 1)` with `g' = min(g, 7)` and `u'` clamped to ± 7.
    SwigluOai,
    /// `silu(min(g, c)) u'` with `u'` clamped to ± c.
    SwigluLimitBefore(f32),
    /// `min(silu(g), c) u'` with `u'` clamped to ± c.
    SwigluLimitAfter(f32),
    /// `b tanh(g / b) sig(g) l tanh(u / l)`; the last factor is `u` where `l` is 0.
    Situ {
        /// b.
        beta: f32,
        /// l.
        linear_beta: f32,
    },
}

/// What becomes of the up projection.
#[derive(Clone, Debug, PartialEq)]
pub enum Activation {
    /// `act(up x)`.
    Plain(PlainActivation),
    /// `act(gate x, up x)`.
    Gated {
        /// The formula.
        act: GatedActivation,
        /// Gate projection, of the size of the up projection.
        gate: Matrix,
    },
}

impl Activation {
    /// The gate projection, if there is one.
    #[must_use]
    pub fn gate(&self) -> Option<&Matrix> {
        match self {
            Self::Plain(_) => None,
            Self::Gated { gate, .. } => Some(gate),
        }
    }
}

/// A dense feed-forward: `down(act(gate x, up x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// What becomes of the up projection.
    pub act: Activation,
    /// Up projection.
    pub up: Matrix,
    /// Down projection.
    pub down: Matrix,
    /// Norm before the down projection.
    pub sub_norm: Option<Norm>,
    /// Of the gate only what exceeds its row's mean by so many standard deviations is left.
    pub sparsity: Option<f32>,
    /// Additions to the products that tokens turn on.
    pub switched: Option<Box<SwitchedDense>>,
}

/// Feed-forward of a layer.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one value per layer")]
pub enum Ffn {
    /// Nothing.
    None,
    /// Dense.
    Dense(Dense),
    /// Routed experts.
    Moe(Box<Moe>),
    /// RWKV's, mixed with the token before.
    ChannelMix(Box<ChannelMix>),
    /// Dense and routed experts, side by side.
    Both(Box<DenseAndMoe>),
}

impl Ffn {
    /// True if a token's result depends on other tokens.
    pub(crate) fn looks_back(&self) -> bool {
        matches!(self, Self::ChannelMix(_))
    }
}

/// How mixer and feed-forward join the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// One after the other.
    Serial,
    /// Both read the layer's input; with one norm, or each with its own.
    Parallel,
    /// One after the other; the stream goes on from the scaled normed input of each.
    Normed,
    /// One after the other; the stream itself is normed after each has been added.
    PostLn,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// How the two branches join the residual stream.
    pub wiring: Wiring,
    /// Mixes of streams that the branches read instead of the stream.
    pub mix: Option<StreamMix>,
    /// Norm before the mixer.
    pub pre_mixer: Option<Norm>,
    /// The branch that mixes positions.
    pub mixer: Mixer,
    /// Norm of the mixer's output; with norms behind the sums, of the stream that it was added to.
    pub post_mixer: Option<Norm>,
    /// Norm of the stream after the layer's input has been added a second time.
    pub post_input: Option<Norm>,
    /// Attention to the encoder's states, between mixer and feed-forward.
    pub cross: Option<CrossAttention>,
    /// Norm before the feed-forward; with parallel wiring none means the mixer's.
    pub pre_ffn: Option<Norm>,
    /// The branch that sees each position alone.
    pub ffn: Ffn,
    /// Norm of the feed-forward's output; with norms behind the sums, of the stream that it was added to.
    pub post_ffn: Option<Norm>,
    /// Factor of both branches; with normed wiring, of their inputs.
    pub residual_scale: f32,
    /// Factor of the stream behind the layer.
    pub rescale: f32,
    /// What follows the branches.
    pub extras: LayerExtras,
    /// How the branches read and write the streams, of models that have several.
    pub connections: Option<Box<LayerConnections>>,
    /// TensorClaims of the layer, for reading ahead and releasing.
    pub tensors: Vec<usize>,
}

/// The whole graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// `general.architecture`.
    pub arch: String,
    /// What the outputs are: the next token's logits, or states of all tokens.
    pub kind: ModelKind,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Rows of the head.
    pub n_vocab: usize,
    /// Trained context length, if the file says.
    pub n_ctx_train: Option<usize>,
    /// Longest chunk for which the plan computes what the model does, if there is one.
    pub chunk_limit: Option<usize>,
    /// Embedding, `[n_vocab, n_embd]`.
    pub embedding: Matrix,
    /// Learned positions, `[positions, n_embd]`.
    pub positions: Option<Matrix>,
    /// Embedding of the kind of sentence, which is the first for all tokens.
    pub token_types: Option<Vector>,
    /// Factor of the embedding.
    pub embed_scale: f32,
    /// Norm of the embedding.
    pub embed_norm: Option<Norm>,
    /// Tokens that turn adapters on.
    pub switch: Option<Switch>,
    /// What layers' own embeddings of the tokens are made of.
    pub layer_embeddings: Option<LayerEmbeddings>,
    /// The streams of a token, for models that have several.
    pub altup: Option<AltUp>,
    /// The tokens of a chunk that see one another, for models that have such.
    pub prefix: Option<Prefix>,
    /// The streams between the layers, of models that have several.
    pub streams: Option<Streams>,
    /// The state beside the stream, of models whose stacks run in turn.
    pub held: Option<HeldState>,
    /// Rotations that layers refer to.
    pub ropes: Vec<Rope>,
    /// The stack that reads what is answered, for models of two stacks.
    pub encoder: Option<EncoderPlan>,
    /// Layers.
    pub layers: Vec<LayerPlan>,
    /// Mix of streams that goes on instead of the last layer's output.
    pub final_mix: Option<Norm>,
    /// Norm of the last layer's output.
    pub final_norm: Option<Norm>,
    /// What becomes of a text's states, of encoders.
    pub pooling: Pooling,
    /// What predicts masked tokens, of models that can.
    pub masked: Option<MaskedHead>,
    /// Rows that score the vocabulary; the embedding where the file has no other.
    pub head: Matrix,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Logits become `cap * tanh(z / cap)`.
    pub final_cap: Option<f32>,
    /// Tokens that are never said, whatever their logits.
    pub unsaid: Range<usize>,
    /// What the reader of a report should know.
    pub warnings: Vec<String>,
}

impl GraphPlan {
    /// The layers of all stacks.
    pub(crate) fn all_layers(&self) -> impl Iterator<Item = &LayerPlan> + Clone {
        self.encoder.iter().flat_map(|encoder| &encoder.layers).chain(&self.layers)
    }
}
