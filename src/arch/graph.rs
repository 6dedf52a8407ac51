//! The `[graph]` table of a card: what the reference engine must know that neither metadata nor the tensors present
//! can tell. A closed vocabulary: an unknown key or value is an error when the card is loaded.

use serde::Deserialize;

use crate::arch::Registry;
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
    /// What the model is run as. `None`: structure checks only.
    GraphKind { Decoder, Encoder, Encdec, Diffusion, None }
    /// Formula of the norms; `rms_by_key`: RMS where the file has its epsilon.
    NormKind { Rms, Layer, RmsFree, LayerFree, RmsByKey }
    /// Norm of the embedding.
    EmbedNorm { None, RmsFree, TokenEmbdNorm }
    /// How mixer and feed-forward are wired to the residual stream.
    ResidualRule {
        Serial, Post, PostIfSwinNorm, Parallel, Parallel2, ParallelKey, ParallelIfNoFfnNorm, PostLn, Normed, Arctic, Twin, Single, Hyper
    }
    /// Where positions enter.
    Positions { Rope, None, Alibi, AlibiKey, Learned, Relative, #[serde(rename = "rope_2d")] Rope2d, ByDepth }
    /// Which values a rotation pairs.
    RopePairs { Interleaved, Half, HalfIfSections, InterleavedWhole }
    /// Scaling of the rotation on windowed layers.
    RopeLocal { Same, Unscaled }
    /// Part of the rotated dimensions that layers without a window rotate.
    RopeGlobalPart { Whole, Half }
    /// The magnitude rule of yarn.
    YarnMu { None, Tenth, Plain }
    /// Which keys a query sees.
    MaskKind { Causal, Full, Prefix }
    /// Shape of the attention window.
    WindowKind { None, Sliding, Chunked, Symmetric }
    /// When q and k are normed.
    QkNorm { BeforeRope, AfterRope, FreeAfterRope, ScaledAfterRope }
    /// Gate on the attention output.
    AttnGate { None, Sigmoid, Softplus }
    /// Activation of the feed-forward.
    FfnKind {
        Swiglu, GegluTanh, GegluErf, Reglu, GeluTanh, GeluErf, Relu, Relu2, Xielu, SwigluOai, Situ
    }
    /// Clamped SwiGLU.
    FfnLimit { None, Before, After }
    /// Function of the router where the file does not say.
    Gating { Softmax, Sigmoid, SoftmaxWeight, Sparsemixer }
    /// How a group of experts is scored.
    GroupScoreName { Sum2, Max }
    /// When the router's weight is applied.
    Weigh { After, Before }
    /// What the router reads.
    RouterInput { Normed, Raw, RmsScaled }
    /// What the router selects by.
    RouterSelect { Probs, Logits }
    /// How shared experts join the routed ones.
    SharedCombine { Add, HalfSum, SumOverSqrt2 }
    /// Gate on the output of a delta net.
    GdnGate { Silu, Sigmoid }
    /// Closed extras of a layer.
    Extra { Ple, Altup, Laurel, OutScale, StartScale, Loops, Cycles }
    /// Named scales of the embedding.
    EmbedScaleName { None, SqrtEmbd }
    /// Named scales of the residual branches.
    ResidualScaleName { One, Depth, #[serde(rename = "sqrt_2l")] Sqrt2l }
    /// Named scales of the logits.
    LogitScaleName { None, Multiply, Divide, RsqrtEmbdIfTied }
    /// What follows the first matrix of a head that scores texts.
    HeadAct { Tanh, GeluErf }
    /// Names of caps.
    CapName { Off, Key }
    /// Names of the rule that says whether router weights are normalized.
    NormTopkName { Key }
    /// Names of the local rope base.
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
    /// By rule; `multiply` and `divide` take the key `logit_scale`.
    Named(LogitScaleName),
    /// A constant divided by the embedding length; the key, where there is one, holds the inverse.
    BaseOverEmbd {
        /// The constant.
        base_over_embd: f64,
    },
    /// A constant.
    Number(f64),
}

/// A soft cap: off, the file's key, or a number when the key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Cap {
    /// By rule.
    Named(CapName),
    /// Default of the key.
    Number(f64),
}

/// Which layers rotate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeOn {
    /// All.
    #[default]
    All,
    /// Those with a window.
    Windowed,
    /// Those with a window, and the leading dense layers.
    WindowedOrDenseLead,
    /// The array `attention.rope_pattern`.
    Pattern,
    /// None if `rope.scaling.finetuned` is false.
    Key,
    /// None where `(layer + 1) % n == 0`.
    SkipEvery(u32),
    /// None where `layer % n == 0`, if there are windows; else all.
    SkipFirstOf(u32),
}

/// Which layers are windowed where the file does not say.
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

    /// The same rule with another period.
    #[must_use]
    pub fn with_period(self, n: u32) -> Self {
        match self {
            Self::DenseLast(_) => Self::DenseLast(n),
            Self::DenseFirst { .. } => Self::DenseFirst { dense_first: n },
        }
    }
}

/// Base of the rotation on windowed layers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum RopeLocalBase {
    /// By rule.
    Named(RopeLocalBaseName),
    /// Default of `rope.freq_base_swa`.
    Number(f64),
}

/// Scale of the scores where `attention.scale` is absent.
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
    /// The key `attention.output_scale`.
    OutputScale,
    /// `1/sqrt(D/H)` at these depths, else `dk`.
    EmbdOverHeadsAt(Vec<u32>),
}

/// A factor of the queries that grows with their position, counted from 1; the keys `attention.temperature_scale` and
/// `attention.temperature_length` win.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemperatureRule {
    /// What each step adds, as a logarithm grows.
    pub growth: f64,
    /// Positions of a step.
    pub length: u32,
}

/// Whether the chosen experts' weights are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum NormTopk {
    /// A constant of the architecture.
    Always(bool),
    /// The key `expert_weights_norm`, absent meaning false.
    Named(NormTopkName),
}

/// How groups of experts are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum GroupScore {
    /// One rule.
    Named(GroupScoreName),
    /// `max` under this gating function, the other rule else.
    ByGating {
        /// Gating function that takes the maximum.
        max_if: Gating,
        /// Rule of the others.
        #[serde(rename = "else")]
        otherwise: GroupScoreName,
    },
}

/// Sequence mixer of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixerName {
    #[default]
    Attention,
    Mla,
    Mamba,
    Mamba2,
    Plamo2,
    Rwkv6,
    Rwkv6Qwen2,
    Rwkv7,
    Gdn,
    Compressed,
    Kda,
    Lightning,
    Shortconv,
}

/// Mixers of the layers: one for all, or two chosen by rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum MixerRule {
    /// All layers.
    All(MixerName),
    /// `full` every n layers, `rest` between.
    Every {
        /// The period.
        every: u32,
        /// Mixer of the last of each period.
        full: MixerName,
        /// Mixer of the others.
        rest: MixerName,
    },
    /// By `head_count_kv` of the layer.
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
    /// What chooses a layer's mixer.
    MixerBy { KvHeads }
}

/// The `[graph]` table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "each field is the key of the same name; the types explain the values")]
#[expect(clippy::struct_excessive_bools, reason = "independent features, one key each")]
pub struct GraphFeatures {
    pub kind: GraphKind,
    /// Why there is no graph (`kind = "none"`).
    pub reason: Option<String>,
    pub norm: NormKind,
    /// Keys of the norm's epsilon, first present wins; empty: implied by the norm.
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
    /// Numbers of experts of the models that do without `qk_norm`.
    pub qk_norm_not_at_experts: Vec<u32>,
    pub qk_norm_kind: NormKind,
    /// Epsilon of `qk_norm` where it is not that of the others.
    pub qk_norm_eps: Option<f64>,
    /// Factor of queries that are not rotated.
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
    /// First of the tokens that are never said, and the one behind the last.
    pub unsaid_tokens: Option<[u32; 2]>,
    pub head_act: HeadAct,
    /// Scores of texts are probabilities: softmax over the labels.
    pub score_softmax: bool,
    /// A head `cls` without `cls.output` is what reads masked tokens, before the embedding's rows score the vocabulary.
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
            mixer: MixerRule::All(MixerName::Attention),
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
    /// The features of an architecture, by `general.architecture`: the `[graph]` table of its card. `None` if nobody
    /// has described its graph; an empty table describes nothing.
    #[must_use]
    pub fn of(arch: &str) -> Option<Self> {
        Registry::embedded().ok()?.by_gguf(arch)?.graph.clone()
    }

    /// Reads the table.
    ///
    /// # Errors
    /// Unknown keys, unknown values, values of the wrong type; a key that the rest of the table makes meaningless.
    pub fn from_toml(table: &toml::Table) -> Result<Self, GraphProblem> {
        let features: Self = table.clone().try_into().map_err(GraphProblem::Table)?;
        match effect::without_effect(&features) {
            Some((key, needs)) => Err(GraphProblem::NoEffect { key, needs }),
            None => Ok(features),
        }
    }
}

/// The message, with the key that it is about.
fn one_line(error: &toml::de::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is wrong with a `[graph]` table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphProblem {
    /// It does not follow the vocabulary.
    #[error("{}", escape(&one_line(.0)))]
    Table(toml::de::Error),
    /// A key about something that the graph does not have.
    #[error("`{key}` has no effect without {needs}")]
    NoEffect {
        /// The key.
        key: &'static str,
        /// What would give it one.
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
    fn a_card_is_refused_with_its_graph() {
        let text = |graph: &str| format!("schema = 1\ngguf = 'x'\nextends = 'llama'\n[graph]\n{graph}");
        for (graph, expected) in [
            ("nrom = 'rms'", "card `x`: [graph]: unknown field `nrom`"),
            ("norm = 'rmsx'", "card `x`: [graph]: unknown variant `rmsx`"),
            ("window_pattern = 'x'", "card `x`: [graph]: data did not match any variant"),
            ("alibi_bias = 4", "card `x`: [graph]: `alibi_bias` has no effect"),
        ] {
            let error = Registry::embedded().unwrap().add("x", &text(graph)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn every_embedded_table_is_found_by_its_architecture() {
        let cards = Registry::embedded().unwrap();
        let described = cards.cards().iter().filter(|card| card.graph.is_some() && !card.is_abstract);
        for card in described {
            assert!(GraphFeatures::of(&card.gguf).is_some(), "{}", card.gguf);
        }
        assert_eq!(GraphFeatures::of("no such architecture"), None);
    }

    #[test]
    fn an_empty_table_is_the_plain_decoder() {
        let plain = read("").unwrap();
        assert_eq!(plain, GraphFeatures::default());
        assert_eq!((plain.norm, plain.ffn), (NormKind::Rms, FfnKind::Swiglu));
    }
}
