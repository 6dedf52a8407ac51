//! Result of applying a card to a checkpoint: every GGUF tensor with its sources and operations, and the metadata.
//! Plain data, computed from headers alone.

use std::fmt;
use std::sync::Arc;

use crate::error::lost_value::LostValue;
use crate::error::tie::Tie;
use crate::error::warning::ArchWarning;
use crate::keys::origins::Origins;
use crate::language::ops::Op;
use crate::mapping::types::{OutType, TypeRule};
use crate::read::schema::{Card, Phase};
use gguf_core::account::{Fate, Piece};
use gguf_core::{GgmlType, Shape};
use gguf_format::{Metadata, TokenizerRequest};

mod content;
pub(crate) mod generated;
pub(crate) mod heads;
pub(crate) mod inputs;
pub(crate) mod leftover;
pub(crate) mod matching;
pub(crate) mod options;
pub(crate) mod scope;
pub(crate) mod types;

/// Plan for converting a checkpoint with its card.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The model class.
    pub class: String,
    /// The card, or a variant of one.
    pub card: Card,
    /// Requested type of the file; `general.file_type` holds the same value.
    pub file_type: OutType,
    /// The tensors, in file order.
    pub outputs: Vec<OutputSpec>,
    /// Weights that are left out.
    pub dropped: Vec<Dropped>,
    /// Keys that are written before `general.type`.
    pub early: Metadata,
    /// Hyper-parameters in file order, including `general.file_type`.
    pub metadata: Metadata,
    /// Sources of the values of keys; under `tokenizer.ggml.tokens`, the source of the number of tokens.
    pub origins: Origins,
    /// Keys `gguf_foundry.*`, if `--annotate` asks for them.
    pub annotations: Metadata,
    /// The card's instructions for the tokenizer files.
    pub tokenizer: TokenizerRequest,
    /// Names of the weights whose content the plan depends on.
    pub read: Vec<String>,
    /// Configuration values that the file does not carry.
    pub lost: Vec<LostValue>,
    /// Computations of the class that runtimes replace by others: a sentence for each.
    pub differs: Vec<String>,
    /// What becomes of each key of the configuration.
    pub config_keys: Vec<Piece>,
    /// Embedding and head, if they are stored differently than the configuration declares.
    pub tie: Option<Tie>,
    /// Anomalies of the checkpoint.
    pub warnings: Vec<ArchWarning>,
}

/// One tensor of the GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// Name in the file.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Source of the elements.
    pub content: TensorContent,
    /// Rule that decides the type.
    pub type_rule: TypeRule,
    /// Section of the file that holds the tensor.
    pub phase: Phase,
}

impl OutputSpec {
    /// The tensor's type in a file of the given type.
    pub fn ggml_type(&self, file_type: OutType) -> GgmlType {
        self.type_rule.ggml_type(&self.name, self.shape.dims(), file_type)
    }
}

/// Source of the elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorContent {
    /// Weights of the checkpoint.
    Sources(Assembly),
    /// Contents of several output tensors, concatenated along an axis.
    Joined {
        /// The contents.
        parts: Vec<TensorContent>,
        /// The axis.
        axis: usize,
    },
    /// Rope factors of Llama 3.
    RopeFreqsLlama3(RopeFreqsLlama3),
    /// Rope factors of Llama 3 with wavelengths in F64, padded with ones to a number of elements.
    RopeFreqsPadded(RopeFreqsLlama3, u64),
    /// Sinusoidal positions: sines, then cosines.
    Sinusoids {
        /// Number of positions.
        length: u64,
        /// Number of values per position.
        width: u64,
    },
    /// Values from the configuration.
    Values(Arc<[f32]>),
    /// One value in all elements.
    Fill {
        /// The value.
        value: f32,
        /// Dimensions, outermost first.
        dims: Vec<u64>,
    },
}

/// Source weights with their operations, the join, and the operations after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Assembly {
    /// Weights, each with its own operations.
    pub sources: Vec<SourceWeight>,
    /// Join, if there are several sources.
    pub join: Option<JoinKind>,
    /// Operations after joining. Each step selects one result of its operation.
    pub ops: Vec<OpStep>,
}

/// Source weight of an assembly.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceWeight {
    /// Index among the checkpoint's weights.
    pub weight: usize,
    /// Operations on this weight alone.
    pub ops: Vec<OpStep>,
}

/// Operation, and the result of it that is used.
#[derive(Clone, Debug, PartialEq)]
pub struct OpStep {
    /// The operation.
    pub op: Op,
    /// Index of the result.
    pub result: usize,
}

/// Join of several sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// Stacked along a new first axis.
    Stack,
    /// Concatenated along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Interleaved along an axis, one index of each source in turn.
    Zip {
        /// The axis.
        axis: usize,
    },
    /// Multiplied element by element; the result has one dimension.
    Mul,
}

/// Parameters of Llama 3's rope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeFreqsLlama3 {
    /// Rotary dimension.
    pub dim: u64,
    /// Base of the frequencies.
    pub theta: f64,
    /// Factor by which the longest wavelengths are stretched.
    pub factor: f64,
    /// Wavelengths above `context / low` are stretched by the factor.
    pub low_freq_factor: f64,
    /// Wavelengths below `context / high` are not stretched.
    pub high_freq_factor: f64,
    /// Context length of the original training.
    pub context: f64,
}

/// Weight that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Index among the checkpoint's weights.
    pub weight: usize,
    /// Reason.
    pub why: DropReason,
}

/// Reason why a weight is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Part that a text model does not need: the tower of another modality, or its connection to the text model.
    OtherModality,
    /// Part of the text model, if only the towers are written.
    TextModel,
    /// Buffer that the runtime computes itself.
    Recomputed,
    /// Left over from training: a value head, optimizer state, quantization observers.
    Training,
    /// Content that the configuration implies; only when a GGUF file is converted back.
    FromConfiguration,
    /// Equal to another tensor, which is kept; its name.
    SameAs(String),
    /// Part of a draft head, if only the model is written.
    DraftHead,
    /// Part of the model, if only its draft heads are written.
    NotDraftHead,
    /// An `[ignore]` rule of the card, with its reason.
    Card(String),
}

impl DropReason {
    /// Returns what becomes of a weight that is left out for this reason.
    pub fn fate(&self) -> Fate {
        match self {
            Self::OtherModality | Self::DraftHead | Self::NotDraftHead | Self::TextModel => Fate::LeftOut,
            Self::Recomputed | Self::Training | Self::FromConfiguration | Self::SameAs(_) | Self::Card(_) => {
                Fate::WithoutEffect
            }
        }
    }
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
