//! Operations of graphs. Each file is one operation: its parameters and formula, their resolution from a file's keys
//! and tensors, the computation, the values that a continued sequence keeps for it, and its test.
//!
//! A mixer is a type with [`MixerOp`] and a row in the first table below. An extra of the model is a type with
//! [`ModelExtraOp`] and a row in the second.

mod adjugates;
pub(super) mod altup;
pub(super) mod attention;
mod by_token;
mod channel_mix;
mod columns;
pub(super) mod compressed;
mod conv;
pub(super) mod cross_attention;
pub(super) mod cycles;
mod delta_net;
pub(super) mod dense;
mod dense_and_moe;
mod experts;
pub(super) mod ffn;
mod gated_q;
pub(super) mod hyper;
mod kda;
pub(super) mod kept;
mod latent;
pub(super) mod laurel;
pub(super) mod layer_embedding;
mod lightning;
mod linear;
mod low_rank;
mod mamba;
mod mamba2;
pub(super) mod mixer;
pub(super) mod mla;
pub(super) mod model_extra;
pub(super) mod moe;
pub(super) mod ngrams;
mod output_gate;
mod plamo2;
pub(super) mod pooling;
pub(super) mod prefix;
mod relative;
mod rwkv;
mod rwkv6;
mod rwkv7;
mod scan;
mod shortconv;
pub(super) mod stream_mix;
pub(super) mod switched;
mod switched_dense;
mod twin;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::altup::AltUp;
use self::attention::{Attention, KvSource};
use self::compressed::CompressedAttention;
use self::cycles::HeldState;
use self::delta_net::{DeltaNet, GdnWords};
use self::hyper::Streams;
use self::kda::Kda;
use self::lightning::Lightning;
use self::mamba::Mamba;
use self::mamba2::Mamba2;
use self::mixer::MixerOp;
use self::mla::Mla;
use self::model_extra::ModelExtraOp;
use self::plamo2::Plamo2;
use self::prefix::Prefix;
use self::rwkv6::Rwkv6;
use self::rwkv7::Rwkv7;
use self::shortconv::ShortConv;
use self::switched::Switch;
use self::twin::Twin;
use crate::exec::weights::Matrix;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::{MixerChoice, MixerRule, ResidualRule};

/// Words of mixers that have none of their own in cards.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoWords {}

/// Type of a mixer's own words.
macro_rules! words_of {
    () => {
        NoWords
    };
    ($words:ty) => {
        $words
    };
}

/// Declares the mixers: for each, the names in cards, its variant and its type, and the type of its own words, if it has
/// any. Types implement [`MixerOp`] and have `resolve(&mut Resolver, layer)`, with the words as the last parameter.
macro_rules! mixers {
    ($($(#[$doc:meta])+ $($name:literal)|+ => $variant:ident($type:ty) $(with $words:ty)?;)+) => {
        /// The branch of a layer that mixes information between positions.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Mixer {
            /// No mixer.
            None,
            /// One matrix, applied to each position separately.
            Linear(Matrix),
            /// The sum of two mixers of the same input.
            Twin(Box<Twin>),
            /// Softmax attention.
            Attention(Box<Attention>),
            $($(#[$doc])+ $variant(Box<$type>),)+
        }

        impl Mixer {
            /// Returns the operation; `None` for no mixer.
            pub(crate) fn op(&self) -> Option<&dyn MixerOp> {
                match self {
                    Self::None => None,
                    Self::Linear(matrix) => Some(matrix),
                    Self::Twin(twin) => Some(&**twin),
                    Self::Attention(attention) => Some(&**attention),
                    $(Self::$variant(mixer) => Some(&**mixer),)+
                }
            }

            /// Resolves the mixer that a card chooses.
            fn chosen(
                b: &mut Resolver<'_>,
                layer: usize,
                choice: &MixerChoice,
            ) -> Result<Self> {
                match choice.name.as_str() {
                    ATTENTION => attention::resolve::mixer(b, layer),
                    $($($name)|+ => {
                        let mixer = <$type>::resolve(b, layer $(, &own_words::<$words>(choice)?)?)?;
                        Ok(Self::$variant(Box::new(mixer)))
                    })+
                    _ => Err(unknown(b.keys.arch(), choice)),
                }
            }

            /// Returns an error for a name that no mixer has, or words that the mixer does not have.
            fn check(arch: &str, choice: &MixerChoice) -> Result<()> {
                match choice.name.as_str() {
                    ATTENTION => own_words::<NoWords>(choice).map(drop),
                    $($($name)|+ => own_words::<words_of!($($words)?)>(choice).map(drop),)+
                    _ => Err(unknown(arch, choice)),
                }
            }
        }
    };
}

const ATTENTION: &str = "attention";

mixers! {
    /// Multi-head latent attention: keys and values are expanded from compressed rows.
    "mla" => Mla(Mla);
    /// Mamba.
    "mamba" => Mamba(Mamba);
    /// Mamba 2.
    "mamba2" => Mamba2(Mamba2);
    /// Mamba as PLaMo 2 uses it.
    "plamo2" => Plamo2(Plamo2);
    /// A gated short convolution.
    "shortconv" => ShortConv(ShortConv);
    /// Gated delta net.
    "gdn" => DeltaNet(DeltaNet) with GdnWords;
    /// Kimi delta attention.
    "kda" => Kda(Kda);
    /// Softmax attention to a window of keys and to compressed rows.
    "compressed" => Compressed(CompressedAttention);
    /// Lightning attention.
    "lightning" => Lightning(Lightning);
    /// RWKV 6. The presence of tensors distinguishes the two words.
    "rwkv6" | "rwkv6_qwen2" => Rwkv6(Rwkv6);
    /// RWKV 7.
    "rwkv7" => Rwkv7(Rwkv7);
}

/// Declares the extras of models: for each, its variant and its type. Types implement [`ModelExtraOp`].
macro_rules! model_extras {
    ($($(#[$doc:meta])+ $variant:ident($type:ty);)+) => {
        /// Extra of a model: what some families have in addition to embedding, layers and head.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ModelExtra {
            $($(#[$doc])+ $variant($type),)+
        }

        impl ModelExtra {
            /// Resolves the extras of the model, in the order in which a run begins with them.
            pub(crate) fn resolve(b: &mut Resolver<'_>) -> Result<Vec<Self>> {
                let all = [$(<$type>::resolve(b)?.map(Self::$variant),)+];
                Ok(all.into_iter().flatten().collect())
            }

            pub(crate) fn op(&self) -> &dyn ModelExtraOp {
                match self {
                    $(Self::$variant(extra) => extra,)+
                }
            }
        }
    };
}

model_extras! {
    /// Tokens that switch adapters on.
    Switch(Switch);
    /// Second state in addition to the stream, of models whose stacks run in turn.
    HeldState(HeldState);
    /// Streams of hyper-connections.
    Streams(Streams);
    /// AltUp streams.
    AltUp(AltUp);
    /// Prefix of a chunk, whose tokens see one another.
    Prefix(Prefix);
}

impl Mixer {
    /// Returns true if keys and values are those of an earlier layer.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Attention(attention) if matches!(attention.kv, KvSource::From(_)))
    }

    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Self> {
        if b.is_single() && has_ffn(b, layer) {
            return Ok(Self::None);
        }
        let choice = layer_choice(b, layer)?;
        let mixer = Self::chosen(b, layer, choice)?;
        if b.features.residual != ResidualRule::Twin || choice.name == ATTENTION {
            return Ok(mixer);
        }
        let first = attention::resolve::mixer(b, layer)?;
        Ok(Self::Twin(Box::new(Twin { first, second: mixer, n_embd: b.n_embd })))
    }

    /// Returns an error for names and words of a card that the mixers do not have.
    pub(crate) fn check_words(arch: &str, rule: &MixerRule) -> Result<()> {
        rule.choices().into_iter().try_for_each(|choice| Self::check(arch, choice))
    }
}

fn unknown(arch: &str, choice: &MixerChoice) -> EngineError {
    EngineError::Unsupported { arch: arch.to_owned(), feature: "mixer", value: choice.name.clone() }
}

/// Reads the words that a card gives a mixer of its own.
fn own_words<T: DeserializeOwned>(choice: &MixerChoice) -> Result<T> {
    choice.words.clone().try_into().map_err(|error: toml::de::Error| EngineError::MixerWords {
        mixer: choice.name.clone(),
        problem: error.message().to_owned(),
    })
}

/// Returns true if a layer has a feed-forward network.
fn has_ffn(b: &Resolver<'_>, layer: usize) -> bool {
    ["ffn_up", "ffn_gate_inp"].iter().any(|name| b.tensors.has(&format!("blk.{layer}.{name}.weight")))
}

/// Returns the card's choice of the mixer of a layer.
fn layer_choice<'a>(b: &Resolver<'a>, layer: usize) -> Result<&'a MixerChoice> {
    const RECURRENT: &str = "attention.recurrent_layers";
    Ok(match &b.features.mixer {
        MixerRule::All(all) => all,
        MixerRule::Every { every, full, rest } => {
            let recurrent = match b.keys.layer_flag(RECURRENT, layer)? {
                Some(recurrent) => recurrent,
                None => {
                    let every = b.keys.count("full_attention_interval")?.unwrap_or(*every as usize);
                    every == 0 || !(layer + 1).is_multiple_of(every)
                }
            };
            if recurrent { rest } else { full }
        }
        MixerRule::By { full, rest, .. } => {
            let key = "attention.head_count_kv";
            let n = b.keys.layer_count(key, layer)?.ok_or_else(|| b.keys.missing(key))?;
            if n == 0 { rest } else { full }
        }
    })
}
