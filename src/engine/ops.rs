//! Operations of graphs. Each file is one operation: its parameters and formula, their resolution from a file's keys
//! and tensors, the computation, the values that a continued sequence keeps for it, and its test.
//!
//! A mixer is a type with [`MixerOp`] and a row in the table below.

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

use self::attention::Attention;
use self::compressed::CompressedAttention;
use self::delta_net::DeltaNet;
use self::kda::Kda;
use self::lightning::Lightning;
use self::mamba::Mamba;
use self::mamba2::Mamba2;
use self::mixer::MixerOp;
use self::mla::Mla;
use self::plamo2::Plamo2;
use self::rwkv6::Rwkv6;
use self::rwkv7::Rwkv7;
use self::shortconv::ShortConv;
use self::twin::Twin;
use crate::arch::graph::{MixerRule, ResidualRule};
use crate::engine::EngineError;
use crate::engine::exec::weights::Matrix;
use crate::engine::resolve::resolver::Resolver;

/// Declares the mixers: for each, the words that name it in cards, its variant and its type. Types implement
/// [`MixerOp`] and have `resolve(&mut Resolver, layer)`.
macro_rules! mixers {
    ($($(#[$doc:meta])+ $($word:literal)|+ => $variant:ident($type:ty);)+) => {
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

            /// Resolves the mixer that a card calls `word`.
            fn named(b: &mut Resolver<'_>, layer: usize, word: &str) -> Result<Self, EngineError> {
                match word {
                    ATTENTION => attention::resolve::mixer(b, layer),
                    $($($word)|+ => <$type>::resolve(b, layer).map(|mixer| Self::$variant(Box::new(mixer))),)+
                    _ => Err(unknown(b.keys.arch(), word)),
                }
            }

            /// Returns true if cards may call a mixer `word`.
            fn is_word(word: &str) -> bool {
                word == ATTENTION || matches!(word, $($($word)|+)|+)
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
    "gdn" => DeltaNet(DeltaNet);
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

impl Mixer {
    /// Resolves the mixer of a layer.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Self, EngineError> {
        if b.is_single() && has_ffn(b, layer) {
            return Ok(Self::None);
        }
        let word = layer_word(b, layer)?;
        let mixer = Self::named(b, layer, word)?;
        if b.features.residual != ResidualRule::Twin || word == ATTENTION {
            return Ok(mixer);
        }
        let first = Self::named(b, layer, ATTENTION)?;
        Ok(Self::Twin(Box::new(Twin { first, second: mixer, n_embd: b.n_embd })))
    }

    /// Returns an error for words of a card that name no mixer.
    pub(crate) fn check_words(arch: &str, rule: &MixerRule) -> Result<(), EngineError> {
        let words = match rule {
            MixerRule::All(word) => vec![word],
            MixerRule::Every { full, rest, .. } | MixerRule::By { full, rest, .. } => vec![full, rest],
        };
        match words.into_iter().find(|word| !Self::is_word(&word.0)) {
            Some(word) => Err(unknown(arch, &word.0)),
            None => Ok(()),
        }
    }
}

fn unknown(arch: &str, word: &str) -> EngineError {
    EngineError::Unsupported { arch: arch.to_owned(), feature: "mixer", value: word.to_owned() }
}

/// Returns true if a layer has a feed-forward network.
fn has_ffn(b: &Resolver<'_>, layer: usize) -> bool {
    ["ffn_up", "ffn_gate_inp"].iter().any(|name| b.tensors.has(&format!("blk.{layer}.{name}.weight")))
}

/// Returns the card's word for the mixer of a layer.
fn layer_word<'a>(b: &Resolver<'a>, layer: usize) -> Result<&'a str, EngineError> {
    const RECURRENT: &str = "attention.recurrent_layers";
    Ok(match &b.features.mixer {
        MixerRule::All(word) => &word.0,
        MixerRule::Every { every, full, rest } => {
            let recurrent = match b.keys.layer_flag(RECURRENT, layer)? {
                Some(recurrent) => recurrent,
                None => {
                    let every = b.keys.count("full_attention_interval")?.unwrap_or(*every as usize);
                    every == 0 || !(layer + 1).is_multiple_of(every)
                }
            };
            if recurrent { &rest.0 } else { &full.0 }
        }
        MixerRule::By { full, rest, .. } => {
            let key = "attention.head_count_kv";
            let n = b.keys.layer_count(key, layer)?.ok_or_else(|| b.keys.missing(key))?;
            if n == 0 { &rest.0 } else { &full.0 }
        }
    })
}
