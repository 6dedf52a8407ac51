//! What a card makes of a checkpoint: every GGUF tensor with its sources and operations, and the metadata. Plain
//! data, made from headers alone.

use std::fmt;
use std::sync::Arc;

use crate::arch::carried::Lost;
use crate::arch::ops::Op;
use crate::arch::origins::Origins;
use crate::arch::schema::{Card, Phase};
use crate::arch::tied::Tie;
use crate::arch::types::{OutType, TypeRule};
use crate::arch::warning::ArchWarning;
use crate::core::{GgmlType, Shape};
use crate::gguf::{Metadata, TokenizerRequest};

/// A checkpoint seen through its card.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The model class.
    pub class: String,
    /// The card, or variant of one.
    pub card: Card,
    /// Type asked for the file; `general.file_type` says the same.
    pub file_type: OutType,
    /// The tensors, in file order.
    pub outputs: Vec<OutputSpec>,
    /// Weights that are left out.
    pub dropped: Vec<Dropped>,
    /// Keys that stand before `general.type`.
    pub early: Metadata,
    /// Hyper-parameters, `general.file_type` among them, in file order.
    pub metadata: Metadata,
    /// Where the values of keys come from; under `tokenizer.ggml.tokens`, the number of tokens.
    pub origins: Origins,
    /// Keys `gguf_foundry.*`, if they were asked for.
    pub annotations: Metadata,
    /// What to make of the tokenizer files, as the card says it.
    pub tokenizer: TokenizerRequest,
    /// Names of the weights whose content the plan depends on.
    pub read: Vec<String>,
    /// Values of the configuration that the file does not say.
    pub lost: Vec<Lost>,
    /// Embedding and head, where they are stored otherwise than the configuration says.
    pub tie: Option<Tie>,
    /// What is odd about the checkpoint.
    pub warnings: Vec<ArchWarning>,
}

/// One tensor of the GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// Name in the file.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Where the elements come from.
    pub content: Content,
    /// What decides the type.
    pub type_rule: TypeRule,
    /// Part of the file.
    pub phase: Phase,
}

impl OutputSpec {
    /// The tensor's type in a file of the given type.
    #[must_use]
    pub fn ggml_type(&self, file_type: OutType) -> GgmlType {
        self.type_rule.ggml_type(&self.name, self.shape.dims(), file_type)
    }
}

/// Where the elements of a tensor come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// From weights.
    Sources(Assembly),
    /// Tensors of the file's own, one after the other along an axis.
    Joined {
        /// The contents.
        parts: Vec<Content>,
        /// The axis.
        axis: usize,
    },
    /// Llama 3's rope factors.
    RopeFreqsLlama3(RopeFreqsLlama3),
    /// The same with wavelengths in F64, and ones behind them up to a number of elements.
    RopeFreqsPadded(RopeFreqsLlama3, u64),
    /// Positions as sines and cosines.
    Sinusoids {
        /// Number of positions.
        length: u64,
        /// Numbers of a position.
        width: u64,
    },
    /// Numbers of the configuration.
    Values(Arc<[f32]>),
    /// One number everywhere.
    Fill {
        /// The number.
        value: f32,
        /// Dimensions, outermost first.
        dims: Vec<u64>,
    },
}

/// Weights, what happens to each, how they join, and what happens then.
#[derive(Clone, Debug, PartialEq)]
pub struct Assembly {
    /// Weights with the operations on each.
    pub sources: Vec<Source>,
    /// How several become one.
    pub join: Option<JoinKind>,
    /// Operations after joining. An operation that yields several tensors says which one is meant.
    pub ops: Vec<Step>,
}

/// One source of an assembly.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Index among the checkpoint's weights.
    pub weight: usize,
    /// Operations on this weight alone.
    pub ops: Vec<Step>,
}

/// An operation, and which of its results goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// Which result.
    pub result: usize,
}

/// How sources join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// Along a new first axis.
    Stack,
    /// One after the other along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// In turns along an axis, one index each.
    Zip {
        /// The axis.
        axis: usize,
    },
    /// Element by element, multiplied; a list.
    Mul,
}

/// The parameters of Llama 3's rope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeFreqsLlama3 {
    /// Rotary dimension.
    pub dim: u64,
    /// Base of the frequencies.
    pub theta: f64,
    /// How much the longest wavelengths are stretched.
    pub factor: f64,
    /// Wavelengths above `context / low` are stretched by the factor.
    pub low_freq_factor: f64,
    /// Wavelengths below `context / high` are not stretched.
    pub high_freq_factor: f64,
    /// Context length the model was first trained with.
    pub context: f64,
}

/// A weight that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Index among the checkpoint's weights.
    pub weight: usize,
    /// Why.
    pub why: DropReason,
}

/// Why a weight is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Part of the model that a text model does without: the tower of another modality, or what joins it to the text.
    OtherModality,
    /// Part of the text model, where the towers alone are written.
    TextModel,
    /// A buffer that the runtime computes.
    Recomputed,
    /// What a training left beside the model: a value head, states of the optimizer, observers of a quantization.
    Training,
    /// The way back only: the configuration says it.
    FromConfiguration,
    /// The same tensor under another name, which is kept.
    SameAs(String),
    /// Part of a draft head, where the model alone is written.
    DraftHead,
    /// Part of the model, where its draft heads alone are written.
    NotDraftHead,
    /// An `[ignore]` rule of the card, with its reason.
    Card(String),
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherModality => f.write_str("belongs to another modality"),
            Self::TextModel => f.write_str("belongs to the text model"),
            Self::Recomputed => f.write_str("recomputed by the runtime"),
            Self::Training => f.write_str("left by a training, no part of the model"),
            Self::FromConfiguration => f.write_str("computed from the configuration"),
            Self::DraftHead => f.write_str("belongs to a draft head (`--no-mtp`)"),
            Self::NotDraftHead => f.write_str("belongs to the model, not to a draft head (`--mtp`)"),
            Self::SameAs(kept) => write!(f, "the same tensor as {kept}"),
            Self::Card(why) => f.write_str(why),
        }
    }
}
