//! The `[graph]` table of a card: the facts that the reference engine finds neither in the metadata nor in the
//! tensors. Keys that one part of the graph reads are in the table of that part. The vocabulary is closed: an unknown key
//! or value is an error when the card is loaded. Only names and words of mixers are checked later, when the engine looks
//! them up in its table: adding a mixer does not touch these files.

use serde::Deserialize;

use gguf_core::text::escape;

/// Declares enums whose values are the words of cards in snake case; the first is the default.
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

mod attention;
mod effect;
mod head;
mod mixer;
mod moe;
mod norms;
mod place;
mod rope;
mod window;
mod words;

pub use self::attention::{AttentionFeatures, AttnGate, AttnScale, Cap, CapName, MaskKind, QkNorm};
pub use self::head::{HeadAct, HeadFeatures, LogitScale, LogitScaleName};
pub use self::mixer::{MixerChoice, MixerRule};
pub use self::moe::{
    Gating, GroupScore, GroupScoreName, MoeFeatures, NormTopk, RouterInput, RouterSelect, SharedCombine,
    Weigh,
};
pub use self::norms::NormsFeatures;
pub use self::rope::{Magnitudes, RopeFeatures, RopeOn, RopePairs, YarnMu, log_magnitude, log_multiplier};
pub use self::window::{GlobalRope, WindowFeatures, WindowKind, WindowPattern, WindowRope};
pub use self::words::{
    EmbedNorm, EmbedScale, EmbedScaleName, Extra, FfnKind, FfnLimit, GraphKind, NormKind, Positions,
    ResidualRule, ResidualScale, ResidualScaleName,
};

/// Tables inside `[graph]`. A child's is merged into its parent's key by key; other values are replaced.
pub(super) const SECTIONS: [&str; 6] = ["attention", "head", "moe", "norms", "rope", "window"];

/// The `[graph]` table.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "each field is the key of the same name; the types explain the values")]
pub struct GraphFeatures {
    pub kind: GraphKind,
    pub norm: NormKind,
    pub norms: NormsFeatures,
    pub embed_norm: EmbedNorm,
    pub embed_scale: EmbedScale,
    pub residual: ResidualRule,
    pub residual_scale: ResidualScale,
    pub positions: Positions,
    pub rope: RopeFeatures,
    pub window: WindowFeatures,
    pub mixer: MixerRule,
    pub attention: AttentionFeatures,
    pub ffn: FfnKind,
    pub ffn_gated_if_present: bool,
    pub ffn_limit: FfnLimit,
    pub moe: MoeFeatures,
    pub head: HeadFeatures,
    pub extras: Vec<Extra>,
    /// Tensors that the graph ignores; a pattern may end in `*`.
    pub unused: Vec<String>,
}

impl GraphFeatures {
    /// Parses a `[graph]` table.
    ///
    /// # Errors
    /// Unknown keys or values, values of the wrong type, or a key that has no effect because of the rest of the table.
    pub fn from_toml(table: &toml::Table) -> Result<Self, GraphProblem> {
        let table = moved(table.clone())?;
        let features: Self = table.try_into().map_err(GraphProblem::Table)?;
        match effect::without_effect(&features) {
            Some((key, needs)) => Err(GraphProblem::NoEffect { key, needs }),
            None => Ok(features),
        }
    }
}

/// Moves the keys of a `[graph]` table that are written without the table of their part into it.
pub(super) fn moved(table: toml::Table) -> Result<toml::Table, GraphProblem> {
    place::moved(table).map_err(|(key, place)| GraphProblem::Misplaced { key, place })
}

/// The message of the parser, which names the key, on one line.
fn one_line(error: &toml::de::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Error in a `[graph]` table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum GraphProblem {
    #[error("{}", escape(&one_line(.0)))]
    Table(toml::de::Error),
    #[error("`{key}` has another place")]
    Misplaced { key: &'static str, place: &'static str },
    #[error("`{key}` has no effect without {needs}")]
    NoEffect { key: &'static str, needs: &'static str },
}

impl GraphProblem {
    /// Returns suggestions for the user.
    pub(super) fn hints(&self) -> Vec<String> {
        match self {
            Self::Misplaced { place, .. } => vec![format!("write `{place}`")],
            Self::Table(_) | Self::NoEffect { .. } => Vec::new(),
        }
    }
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
            "norm = 'rms'\nrope.pairs = 'interleaved'\nffn = 'swiglu'\nmoe.norm_topk = true",
            "rope.on = 'key'\nhead.scale = 'divide'\nmoe = { norm_topk = true }",
            "rope.pairs = 'half'\nembed_scale = 'sqrt_embd'\nffn = 'geglu_tanh'\n\
             window = { kind = 'sliding', pattern = 2, size = 4096 }\n\
             attention = { cap = 50, scale = { embd_over_heads_at = [46] } }\nhead.cap = 30",
            "rope.on = { skip_every = 4 }\nwindow = { kind = 'sliding', pattern = { dense_first = 3 } }\nhead.cap = 'key'",
            "mixer = 'mla'\nrope.yarn_mu = 'tenth'\n\
             moe = { norm_topk = 'key', group_score = { max_if = 'softmax', else = 'sum2' } }",
            "mixer = { every = 4, full = 'attention', rest = 'gdn' }\nattention.gated_q = true\nunused = ['nextn.*']",
            "positions = 'none'\nmixer = { by = 'kv_heads', full = 'attention', rest = 'mamba' }",
            "positions = 'rope_2d'\nresidual = 'normed'\nresidual_scale = 'sqrt_2l'",
            "head.scale = { base_over_embd = 256 }\nembed_scale = 12\nresidual_scale = 'depth'",
            "moe.group_fill = -inf",
            "kind = { none = 'a draft model' }",
        ] {
            if let Err(error) = read(text) {
                panic!("{text}: {error}");
            }
        }
    }

    #[test]
    fn unknown_keys_and_values_are_refused() {
        for text in [
            "nrom = 'rms'",
            "norm = 'rmsx'",
            "rope.on = { skip = 4 }",
            "window.pattern = 'two'",
            "moe.gatng = 'sigmoid'",
            "kind = 'none'",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_moved_is_named_with_its_place() {
        let error = read("attn_cap = 50\nattention.cap = 30").unwrap_err();
        assert!(error.to_string().ends_with("has another place"), "{error}");
        assert_eq!(error.hints(), ["write `attention.cap`"]);
        assert_eq!(read("attn_cap = 50").unwrap(), read("attention.cap = 50").unwrap());
    }

    #[test]
    fn an_empty_table_is_the_plain_decoder() {
        let plain = read("").unwrap();
        assert_eq!(plain, GraphFeatures::default());
        assert_eq!((plain.norm, plain.ffn), (NormKind::Rms, FfnKind::Swiglu));
    }
}
