//! Report about a checkpoint.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use gguf_conversion::{ConvertError, Piece, Quantization, StoredClass};
use gguf_core::written::{as_path, as_text};
use gguf_core::{ElementType, GgmlType, Hint, Shape, WeightMeta};

/// Description of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointReport {
    /// Inspected path, as it was given.
    #[serde(serialize_with = "as_path")]
    pub path: PathBuf,
    /// Value of `general.name` of the output; null without a conversion.
    pub name: Option<String>,
    /// Value of `model_type` in the configuration.
    pub model_type: Option<String>,
    /// Classes that the configuration lists.
    pub classes: Vec<String>,
    /// Architecture card; null if no card reads the checkpoint.
    pub architecture: Option<Architecture>,
    /// The files with the weights; null if they cannot be read.
    pub container: Option<WeightFiles>,
    /// Number of weights, after dequantization.
    #[serde(rename = "weights")]
    pub n_weights: Option<usize>,
    /// Number of elements of these weights.
    #[serde(rename = "parameters")]
    pub n_elems: Option<u64>,
    /// Element types in the files, the type with the most bytes first.
    pub types: Vec<ElementShare>,
    /// Quantization of the weights; null if the checkpoint is not quantized.
    pub quantization: Option<CheckpointQuantization>,
    /// The vocabulary that a conversion would write; null without one.
    #[serde(rename = "tokenizer")]
    pub vocabulary: Option<VocabularyFacts>,
    /// Files that a conversion would write.
    pub outputs: Vec<PlannedOutput>,
    /// Problems that prevent conversion.
    pub problems: Vec<Problem>,
    /// Oddities that do not prevent conversion.
    pub warnings: Vec<String>,
    /// Tensors as stored in the files, in the order of the checkpoint.
    pub tensors: Vec<ListedTensor>,
    /// What becomes of each file, each of its keys, and each tensor; empty without a conversion.
    pub account: Vec<Piece>,
}

/// The architecture card that converts a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Architecture {
    /// Class in the configuration that selected the card.
    pub class: String,
    /// Name of the card, with the variant after a slash.
    pub card: String,
    /// Value of `general.architecture` of the output.
    pub gguf: String,
}

/// The files that hold the weights.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WeightFiles {
    /// Name of the format.
    pub format: &'static str,
    /// The files.
    pub files: Vec<ListedFile>,
    /// Size of all files in bytes.
    pub file_bytes: u64,
}

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedFile {
    /// File name within the directory.
    pub name: String,
    /// Size in bytes.
    #[serde(rename = "bytes")]
    pub n_bytes: u64,
}

/// Share of a checkpoint's tensors that have one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ElementShare {
    /// Element type.
    #[serde(rename = "type", serialize_with = "as_text")]
    pub ty: ElementType,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Number of elements.
    #[serde(rename = "elements")]
    pub n_elems: u64,
    /// Number of bytes.
    #[serde(rename = "bytes")]
    pub n_bytes: u64,
}

/// A tensor as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Element type.
    #[serde(rename = "type", serialize_with = "as_text")]
    pub ty: ElementType,
    /// Shape, outermost dimension first.
    pub shape: Shape,
    /// Size in bytes.
    #[serde(rename = "bytes")]
    pub n_bytes: u64,
    /// Name of its file.
    pub file: String,
}

/// Quantization of a checkpoint's weights.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointQuantization {
    /// Name of the quantization method.
    pub method: &'static str,
    /// Weights with the same storage and the same types in the output.
    pub classes: Vec<CheckpointClass>,
    /// Tensors without a use in the output, such as scales of activations and caches.
    pub left_out: Vec<String>,
    /// Weights that are plain floats although the configuration targets them.
    pub plain_targets: Vec<String>,
    /// Number of quantized weights.
    #[serde(skip)]
    pub n_quantized: usize,
}

/// Class of weights that are stored alike, with the types to which they are converted.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointClass {
    /// Names and storage of the weights.
    #[serde(flatten)]
    pub stored: StoredClass,
    /// Bits per weight, including scales and the like.
    pub bits_per_weight: f64,
    /// Types in the output.
    #[serde(flatten)]
    pub targets: TargetTypes,
}

/// GGML types to which a quantized weight is converted, by default and with `--type native`.
///
/// Empty if a card leaves the weight out, or if there is no conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TargetTypes {
    /// Types in the output by default.
    pub auto: Vec<GgmlType>,
    /// Types in the output with `--type native`.
    pub native: Vec<GgmlType>,
}

/// The vocabulary that a conversion would write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VocabularyFacts {
    /// Mode in which it was read.
    pub mode: String,
    /// Value of `tokenizer.ggml.model`.
    pub model: String,
    /// Value of `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Number of tokens.
    #[serde(rename = "tokens")]
    pub n_tokens: usize,
    /// True if there is a chat template.
    #[serde(rename = "chat_template")]
    pub has_chat_template: bool,
}

/// A file that a conversion would write.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedOutput {
    /// Value of `--type`.
    pub option: &'static str,
    /// Name of the file type.
    #[serde(rename = "type")]
    pub file_type: String,
    /// Default name of the file.
    pub file_name: String,
    /// Size in bytes.
    pub file_bytes: u64,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Types of the tensors, the type with the most bytes first.
    pub types: Vec<TypeCount>,
    /// Quantized weights whose scales were read to predict the file; null if none were needed.
    pub sampled: Option<SampledWeights>,
}

/// Number of tensors of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TypeCount {
    /// Type of the tensors.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
}

/// Quantized weights whose scales were read; the others are assumed to be similar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SampledWeights {
    /// Number of weights whose scales were read.
    #[serde(rename = "weights_read")]
    pub n_read: usize,
    /// Number of all quantized weights.
    #[serde(rename = "weights")]
    pub n_all: usize,
}

/// A problem that prevents conversion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Affected part: `weights`, `quantization`, `architecture`, `tensors`, `tokenizer` or `output`.
    #[serde(serialize_with = "as_text")]
    pub part: Aspect,
    /// Kind of the problem: `unsupported` or `broken`.
    pub kind: ProblemKind,
    /// Error message.
    pub message: String,
    /// Suggestions for the user.
    pub hints: Vec<String>,
}

/// Part of a checkpoint that a problem concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// The weight files.
    Weights,
    /// The quantization.
    Quantization,
    /// The configuration, which no card supports.
    Architecture,
    /// The tensors, which do not fit the card.
    Tensors,
    /// The tokenizer files.
    Tokenizer,
    /// The output file.
    Output,
}

/// Kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProblemKind {
    /// The checkpoint may be valid but is not supported.
    Unsupported,
    /// The checkpoint is broken or incomplete.
    Broken,
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::Quantization => "quantization",
            Self::Architecture => "architecture",
            Self::Tensors => "tensors",
            Self::Tokenizer => "tokenizer",
            Self::Output => "output",
        })
    }
}

impl Problem {
    pub(super) fn new(part: Aspect, error: &ConvertError) -> Self {
        let kind = if error.is_unsupported() { ProblemKind::Unsupported } else { ProblemKind::Broken };
        Self { part, kind, message: error.to_string(), hints: error.hints() }
    }
}

impl WeightFiles {
    pub(super) fn new(format: &'static str, files: Vec<ListedFile>) -> Self {
        let file_bytes = files.iter().map(|file| file.n_bytes).fold(0, u64::saturating_add);
        Self { format, files, file_bytes }
    }
}

impl CheckpointQuantization {
    /// Describes a quantization before anything is known about the output.
    pub(super) fn of(quantization: &Quantization, weights: &[WeightMeta]) -> Self {
        let class = |stored| CheckpointClass::of(stored, TargetTypes::default());
        Self {
            method: quantization.method,
            classes: quantization.classes(weights).into_iter().map(class).collect(),
            left_out: quantization.left_out(),
            plain_targets: quantization.plain_targets.clone(),
            n_quantized: quantization.encodings.len(),
        }
    }
}

impl CheckpointClass {
    pub(super) fn of(stored: StoredClass, targets: TargetTypes) -> Self {
        Self { bits_per_weight: stored.bits_per_weight(), stored, targets }
    }
}
