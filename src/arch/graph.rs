//! The `[graph]` table of a card: the facts that the reference engine finds neither in the metadata nor in the
//! tensors. The vocabulary is closed: an unknown key or value is an error when the card is loaded. Only names of mixers
//! are checked later, when the engine looks them up in its table: adding a mixer does not touch this file.

use serde::Deserialize;

use crate::core::text::escape;

mod effect;

macro_rules! names {
    ($( $(#[$doc:meta])* $enum:ident { $first:ident $(, $(#[$attr:meta])* $rest:ident)* } )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
            #[serde(rename_all = "snake_case")]
            #[allow(clippy::enum_variant_names, reason = "the words are those of cards")]
            pub enum $enum { #[default] $first $(, $(#[$attr])* $rest)* }
        )*
    };
}

names! {
    /// Kind of graph; `None`: there is none, only the file's structure is checked.
    GraphKind { Decoder, Encoder, Encdec, Diffusion, None }
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
    /// Layout of the pairs of values that are rotated together.
    RopePairs { Interleaved, Half, HalfIfSections, InterleavedWhole }
    /// Rope scaling on windowed layers.
    RopeLocal { Same, Unscaled }
    /// Part of the rotated dimensions that layers without a window rotate.
    RopeGlobalPart { Whole, Half }
    /// Magnitude rule of YaRN.
    YarnMu { None, Tenth, Plain }
    /// Attention mask: the keys that a query sees.
    MaskKind { Causal, Full, Prefix }
    /// Shape of the attention window.
    WindowKind { None, Sliding, Chunked, Symmetric }
    /// Position of the norm of q and k relative to the rotation.
    QkNorm { BeforeRope, AfterRope, FreeAfterRope, ScaledAfterRope }
    /// Gate on the attention output.
    AttnGate { None, Sigmoid, Softplus }
    /// Activation of the feed-forward.
    FfnKind {
        Swiglu, GegluTanh, GegluErf, Reglu, GeluTanh, GeluErf, Relu, Relu2, Xielu, SwigluOai, Situ
    }
    /// Clamping of SwiGLU, before or after the activation.
    FfnLimit { None, Before, After }
    /// Router function, if the file does not declare one.
    Gating { Softmax, Sigmoid, SoftmaxWeight, Sparsemixer }
    /// Rule that scores a group of experts.
    GroupScoreName { Sum2, Max }
    /// Position of the multiplication by the router's weight: after or before the expert.
    Weigh { After, Before }
    /// Input of the router.
    RouterInput { Normed, Raw, RmsScaled }
    /// Quantity by which the router selects experts.
    RouterSelect { Probs, Logits }
    /// Combination of shared and routed experts.
    SharedCombine { Add, HalfSum, SumOverSqrt2 }
    /// Gate on the output of a delta net.
    GdnGate { Silu, Sigmoid }
    /// Optional parts of a layer, a closed list.
    Extra { Ple, Altup, Laurel, OutScale, StartScale, Loops, Cycles }
    /// Named scales of the embedding.
    EmbedScaleName { None, SqrtEmbd }
    /// Named scales of the residual branches.
    ResidualScaleName { One, Depth, #[serde(rename = "sqrt_2l")] Sqrt2l }
    /// Named scales of the logits.
    LogitScaleName { None, Multiply, Divide, RsqrtEmbdIfTied }
    /// Activation after the first matrix of a text-scoring head.
    HeadAct { Tanh, GeluErf }
    /// Named values of a soft cap.
    CapName { Off, Key }
    /// Named values of the rule for normalized router weights.
    NormTopkName { Key }
    /// Named values of the local rope base.
    RopeLocalBaseName { Same }
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

/// Scale of the branches that are added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ResidualScale {
    /// By rule.
    Named(ResidualScaleName),
    /// A constant.
    Number(f64),
}

/// Scale of the logits.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum LogitScale {
    /// By rule; `multiply` and `divide` read the key `logit_scale`.
    Named(LogitScaleName),
    /// Constant divided by the embedding length; the key `logit_scale`, if present, holds the inverse.
    BaseOverEmbd {
        /// The constant.
        base_over_embd: f64,
    },
    /// A constant.
    Number(f64),
}

/// Soft cap: off, read from the file's key, or a default for the absent key.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Cap {
    /// By rule.
    Named(CapName),
    /// Default if the key is absent.
    Number(f64),
}

/// Layers that rotate their queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeOn {
    /// All layers.
    #[default]
    All,
    /// Layers with a window.
    Windowed,
    /// Layers with a window, and the leading dense layers.
    WindowedOrDenseLead,
    /// Layers that the array `attention.rope_pattern` marks.
    Pattern,
    /// All layers, or none if `rope.scaling.finetuned` is false.
    Key,
    /// All layers but those with `(layer + 1) % n == 0`.
    SkipEvery(u32),
    /// All layers, but if the model has windows not those with `layer % n == 0`.
    SkipFirstOf(u32),
}

/// Windowed layers, if the file does not declare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum WindowPattern {
    /// The last of every n layers is full; 0 windows all layers, 1 none.
    DenseLast(u32),
    /// The first of every n layers is full.
    DenseFirst {
        /// The period.
        dense_first: u32,
    },
}

impl WindowPattern {
    /// True if a layer has the window. A period of 0 windows all layers.
    pub fn is_windowed(self, layer: usize) -> bool {
        match self {
            Self::DenseLast(n) => n == 0 || layer % (n as usize) < n as usize - 1,
            Self::DenseFirst { dense_first: n } => n == 0 || !layer.is_multiple_of(n as usize),
        }
    }

    /// Returns the rule with another period.
    #[must_use]
    pub fn with_period(self, n: u32) -> Self {
        match self {
            Self::DenseLast(_) => Self::DenseLast(n),
            Self::DenseFirst { .. } => Self::DenseFirst { dense_first: n },
        }
    }
}

/// Rope base of windowed layers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum RopeLocalBase {
    /// By rule.
    Named(RopeLocalBaseName),
    /// Default if `rope.freq_base_swa` is absent.
    Number(f64),
}

/// Scale of the attention scores if `attention.scale` is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttnScale {
    /// `1/sqrt(dk)`.
    #[default]
    Dk,
    /// `1/sqrt(dv)`.
    Dv,
    /// `1/dk`.
    InvDk,
    /// 1.
    One,
    /// `1/sqrt(rotated dimensions)`.
    Rot,
    /// Value of the key `attention.output_scale`.
    OutputScale,
    /// `1/sqrt(D/H)` in models with one of these numbers of layers, else `dk`.
    EmbdOverHeadsAt(Vec<u32>),
}

/// Factor of the queries: `1 + growth ln(1 + floor((position + 1) / length))`, positions from 0. The keys
/// `attention.temperature_scale` and `attention.temperature_length` override the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemperatureRule {
    /// Increase of the factor per unit of the logarithm.
    pub growth: f64,
    /// Number of positions of a step.
    pub length: u32,
}

/// Normalization of the chosen experts' weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum NormTopk {
    /// A constant of the architecture.
    Always(bool),
    /// Value of the key `expert_weights_norm`; false if absent.
    Named(NormTopkName),
}

/// Rule that scores groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum GroupScore {
    /// One rule for all gating functions.
    Named(GroupScoreName),
    /// `max` under this gating function, else the other rule.
    ByGating {
        /// Gating function that uses `max`.
        max_if: Gating,
        /// Rule of the other gating functions.
        #[serde(rename = "else")]
        otherwise: GroupScoreName,
    },
}

/// Name of the sequence mixer of a layer, as the engine's table of mixers spells it (`src/engine/ops.rs`). An unknown name is
/// refused by the engine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct MixerName(pub String);

impl Default for MixerName {
    fn default() -> Self {
        Self("attention".to_owned())
    }
}

/// Mixers of the layers: one for all, or two chosen by a rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum MixerRule {
    /// One mixer for all layers.
    All(MixerName),
    /// `full` in every n-th layer, `rest` in the others.
    Every {
        /// The period.
        every: u32,
        /// Mixer of the last of each period.
        full: MixerName,
        /// Mixer of the others.
        rest: MixerName,
    },
    /// Chosen by `head_count_kv` of the layer.
    By {
        /// The rule; only `kv_heads`.
        by: MixerBy,
        /// Mixer of layers with key-value heads.
        full: MixerName,
        /// Mixer of the others.
        rest: MixerName,
    },
}

names! {
    /// Property that chooses a layer's mixer.
    MixerBy { KvHeads }
}

/// The `[graph]` table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "each field is the key of the same name; the types explain the values")]
#[expect(clippy::struct_excessive_bools, reason = "independent features, one key each")]
pub struct GraphFeatures {
    pub kind: GraphKind,
    /// Reason why there is no graph (`kind = "none"`).
    pub reason: Option<String>,
    pub norm: NormKind,
    /// Keys of the norm's epsilon; the first present one is read. Empty: the keys that `norm` implies.
    pub norm_eps: Vec<String>,
    pub post_norm_eps: Option<f64>,
    pub pre_ffn: String,
    pub post_attn: String,
    pub post_ffn: String,
    pub final_norm: String,
    pub embed_norm: EmbedNorm,
    pub embed_scale: EmbedScale,
    pub residual: ResidualRule,
    pub residual_scale: ResidualScale,
    pub positions: Positions,
    pub alibi_bias: f64,
    pub rope: RopePairs,
    pub rope_on: RopeOn,
    pub rope_local: RopeLocal,
    pub rope_global_part: RopeGlobalPart,
    pub rope_local_base: RopeLocalBase,
    pub yarn_truncate: bool,
    pub yarn_mu: YarnMu,
    pub mask: MaskKind,
    pub window: WindowKind,
    pub window_pattern: Option<WindowPattern>,
    pub window_size: Option<u32>,
    pub mixer: MixerRule,
    pub attn_scale: AttnScale,
    pub attn_cap: Cap,
    pub final_cap: Cap,
    pub qk_norm: QkNorm,
    /// Expert counts of the models that omit `qk_norm`.
    pub qk_norm_not_at_experts: Vec<u32>,
    pub qk_norm_kind: NormKind,
    /// Epsilon of `qk_norm`, if it differs from that of the other norms.
    pub qk_norm_eps: Option<f64>,
    /// Position-dependent factor of queries that are not rotated.
    pub temperature: Option<TemperatureRule>,
    pub v_norm: bool,
    pub gated_q: bool,
    pub kv_share: bool,
    pub attn_gate: AttnGate,
    pub ffn: FfnKind,
    pub ffn_gated_if_present: bool,
    pub ffn_limit: FfnLimit,
    pub gating: Gating,
    pub norm_topk: NormTopk,
    pub group_score: GroupScore,
    /// Score of experts outside the kept groups: 0 or negative infinity.
    pub group_fill: f64,
    pub weigh: Weigh,
    pub router_input: RouterInput,
    pub router_select: RouterSelect,
    pub experts_act: Option<FfnKind>,
    pub shared_combine: SharedCombine,
    pub gdn_gate: GdnGate,
    pub logit_scale: LogitScale,
    /// Token ids that are never generated: the first, and one past the last.
    pub unsaid_tokens: Option<[u32; 2]>,
    pub head_act: HeadAct,
    /// True if text scores are probabilities (softmax over the labels).
    pub score_softmax: bool,
    /// True if a head `cls` without `cls.output` transforms the hidden state before the embedding scores masked tokens.
    pub masked_head: bool,
    pub extras: Vec<Extra>,
    pub unused: Vec<String>,
}

impl Default for GraphFeatures {
    fn default() -> Self {
        Self {
            kind: GraphKind::default(),
            reason: None,
            norm: NormKind::default(),
            norm_eps: Vec::new(),
            post_norm_eps: None,
            pre_ffn: "ffn_norm".to_owned(),
            post_attn: "post_attention_norm".to_owned(),
            post_ffn: "post_ffw_norm".to_owned(),
            final_norm: "output_norm".to_owned(),
            embed_norm: EmbedNorm::default(),
            embed_scale: EmbedScale::Named(EmbedScaleName::None),
            residual: ResidualRule::default(),
            residual_scale: ResidualScale::Named(ResidualScaleName::One),
            positions: Positions::default(),
            alibi_bias: 8.0,
            rope: RopePairs::default(),
            rope_on: RopeOn::default(),
            rope_local: RopeLocal::default(),
            rope_global_part: RopeGlobalPart::default(),
            rope_local_base: RopeLocalBase::Named(RopeLocalBaseName::Same),
            yarn_truncate: true,
            yarn_mu: YarnMu::default(),
            mask: MaskKind::default(),
            window: WindowKind::default(),
            window_pattern: None,
            window_size: None,
            mixer: MixerRule::All(MixerName::default()),
            attn_scale: AttnScale::default(),
            attn_cap: Cap::Named(CapName::Off),
            final_cap: Cap::Named(CapName::Off),
            qk_norm: QkNorm::default(),
            qk_norm_not_at_experts: Vec::new(),
            qk_norm_kind: NormKind::default(),
            qk_norm_eps: None,
            temperature: None,
            v_norm: false,
            gated_q: false,
            kv_share: false,
            attn_gate: AttnGate::default(),
            ffn: FfnKind::default(),
            ffn_gated_if_present: false,
            ffn_limit: FfnLimit::default(),
            gating: Gating::default(),
            norm_topk: NormTopk::Always(false),
            group_score: GroupScore::Named(GroupScoreName::Sum2),
            group_fill: 0.0,
            weigh: Weigh::default(),
            router_input: RouterInput::default(),
            router_select: RouterSelect::default(),
            experts_act: None,
            shared_combine: SharedCombine::default(),
            gdn_gate: GdnGate::default(),
            logit_scale: LogitScale::Named(LogitScaleName::None),
            unsaid_tokens: None,
            head_act: HeadAct::default(),
            score_softmax: false,
            masked_head: false,
            extras: Vec::new(),
            unused: Vec::new(),
        }
    }
}

impl GraphFeatures {
    /// Parses a `[graph]` table.
    ///
    /// # Errors
    /// Unknown keys or values, values of the wrong type, or a key that has no effect because of the rest of the table.
    pub fn from_toml(table: &toml::Table) -> Result<Self, GraphProblem> {
        let features: Self = table.clone().try_into().map_err(GraphProblem::Table)?;
        match effect::without_effect(&features) {
            Some((key, needs)) => Err(GraphProblem::NoEffect { key, needs }),
            None => Ok(features),
        }
    }
}

/// The message of the parser, which names the key, on one line.
fn one_line(error: &toml::de::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Error in a `[graph]` table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphProblem {
    /// Key or value outside the vocabulary.
    #[error("{}", escape(&one_line(.0)))]
    Table(toml::de::Error),
    /// Key about a part that the graph does not have.
    #[error("`{key}` has no effect without {needs}")]
    NoEffect {
        /// The key.
        key: &'static str,
        /// Condition under which it would have an effect.
        needs: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GraphFeatures, GraphProblem> {
        GraphFeatures::from_toml(&text.parse().unwrap())
    }

    #[test]
    fn the_examples_of_the_vocabulary_load() {
        for text in [
            "norm = 'rms'\nrope = 'interleaved'\nffn = 'swiglu'\nnorm_topk = true",
            "rope_on = 'key'\nlogit_scale = 'divide'\nnorm_topk = true",
            "rope = 'half'\nembed_scale = 'sqrt_embd'\nffn = 'geglu_tanh'\nwindow = 'sliding'\nwindow_pattern = 2\n\
             window_size = 4096\nattn_cap = 50\nfinal_cap = 30\nattn_scale = { embd_over_heads_at = [46] }",
            "rope_on = { skip_every = 4 }\nwindow = 'sliding'\nwindow_pattern = { dense_first = 3 }\nfinal_cap = 'key'",
            "mixer = 'mla'\nyarn_mu = 'tenth'\nnorm_topk = 'key'\n\
             group_score = { max_if = 'softmax', else = 'sum2' }",
            "mixer = { every = 4, full = 'attention', rest = 'gdn' }\ngated_q = true\nunused = ['nextn.*']",
            "positions = 'none'\nmixer = { by = 'kv_heads', full = 'attention', rest = 'mamba' }",
            "positions = 'rope_2d'\nresidual = 'normed'\nresidual_scale = 'sqrt_2l'",
            "logit_scale = { base_over_embd = 256 }\nembed_scale = 12\nresidual_scale = 'depth'",
            "group_fill = -inf",
        ] {
            if let Err(error) = read(text) {
                panic!("{text}: {error}");
            }
        }
    }

    #[test]
    fn unknown_keys_and_values_are_refused() {
        for text in ["nrom = 'rms'", "norm = 'rmsx'", "rope_on = { skip = 4 }", "window_pattern = 'two'"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_without_effect_are_refused() {
        for (text, expected) in [
            ("reason = 'none'", "`reason` has no effect without `kind = \"none\"`"),
            (
                "positions = 'alibi'\nrope_local = 'unscaled'",
                "`rope_local` has no effect without `positions` of `rope`",
            ),
            ("alibi_bias = 4", "`alibi_bias` has no effect"),
            ("window_size = 4096", "`window_size` has no effect without a `window`"),
            ("rope_local_base = 10000", "`rope_local_base` has no effect without a `window`"),
            ("qk_norm = 'free_after_rope'\nqk_norm_kind = 'layer'", "`qk_norm_kind` has no effect"),
            ("residual = 'post'\npre_ffn = 'attn_output_norm'", "`pre_ffn` has no effect"),
            ("gdn_gate = 'sigmoid'", "`gdn_gate` has no effect without a `mixer` of `gdn`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        read("gdn_gate = 'sigmoid'\nmixer = { every = 4, full = 'attention', rest = 'gdn' }").unwrap();
    }

    #[test]
    fn an_empty_table_is_the_plain_decoder() {
        let plain = read("").unwrap();
        assert_eq!(plain, GraphFeatures::default());
        assert_eq!((plain.norm, plain.ffn), (NormKind::Rms, FfnKind::Swiglu));
    }
}
