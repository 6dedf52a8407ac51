//! Words of the keys of `[graph]` itself: kind, norms, residual stream, positions, embedding, feed-forward, extras.

use serde::Deserialize;

/// Kind of graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphKind {
    /// Logits of the next token.
    #[default]
    Decoder,
    /// Vectors or scores of texts.
    Encoder,
    /// An encoder, and a decoder that attends to its states.
    Encdec,
    /// Logits of masked tokens.
    Diffusion,
    /// No graph, for this reason: only the file's structure is checked.
    None(String),
}

names! {
    /// Formula of the norms; `rms_by_key`: RMS if the file has the key of its epsilon.
    NormKind { Rms, Layer, RmsFree, LayerFree, RmsByKey }
    /// Norm of the embedding.
    EmbedNorm { None, RmsFree, TokenEmbdNorm }
    /// Order in which mixer, feed-forward and norms are applied to the residual stream.
    ResidualRule {
        Serial, Post, PostIfSwinNorm, Parallel, Parallel2, ParallelKey, ParallelIfNoFfnNorm, PostLn, Normed, Arctic, Twin, Single, Hyper
    }
    /// Kind of positional encoding.
    Positions { Rope, None, Alibi, AlibiKey, Learned, Relative, #[serde(rename = "rope_2d")] Rope2d, ByDepth }
    /// Activation of the feed-forward.
    FfnKind {
        Swiglu, GegluTanh, GegluErf, Reglu, GeluTanh, GeluErf, Relu, Relu2, Xielu, SwigluOai, Situ
    }
    /// Clamping of SwiGLU, before or after the activation.
    FfnLimit { None, Before, After }
    /// Optional parts of a layer, a closed list.
    Extra { Ple, Altup, Laurel, OutScale, StartScale, Loops, Cycles }
    /// Named scales of the embedding.
    EmbedScaleName { None, SqrtEmbd }
    /// Named scales of the residual branches.
    ResidualScaleName { One, Depth, #[serde(rename = "sqrt_2l")] Sqrt2l }
}

/// Scale of the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum EmbedScale {
    /// By rule.
    Named(EmbedScaleName),
    /// A constant.
    Number(f64),
}

impl Default for EmbedScale {
    fn default() -> Self {
        Self::Named(EmbedScaleName::None)
    }
}

/// Scale of the branches that are added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ResidualScale {
    /// By rule.
    Named(ResidualScaleName),
    /// A constant.
    Number(f64),
}

impl Default for ResidualScale {
    fn default() -> Self {
        Self::Named(ResidualScaleName::One)
    }
}
