//! Findings about a file as plain data.

use std::path::PathBuf;

use serde::Serialize;

use crate::core::GgmlType;
use crate::core::written::as_path;

/// How a file was made of a source.
#[derive(Clone, Debug, Serialize)]
pub struct FileRecipe {
    /// Path of the file.
    #[serde(serialize_with = "as_path")]
    pub file: PathBuf,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: String,
    /// True if the source explains everything: each tensor is reproduced, and keys and padding are those of a run of our
    /// own.
    #[serde(rename = "explained")]
    pub is_explained: bool,
    /// Mixture of llama.cpp that explains the types of the tensors, or the nearest one.
    pub mixture: String,
    /// Types that the mixture does not give, as rules for `--tensor-type`: `NAME=TYPE`.
    pub rules: Vec<String>,
    /// Use of an importance matrix.
    pub importance: ImportanceFinding,
    /// Number of tensors that are reproduced bit for bit.
    #[serde(rename = "reproduced")]
    pub n_reproduced: usize,
    /// Number of tensors that follow the source, with blocks that differ.
    #[serde(rename = "near")]
    pub n_near: usize,
    /// Number of tensors that do not follow the tensor of their name in the source.
    #[serde(rename = "not_from_source")]
    pub n_not_from_source: usize,
    /// Number of tensors without a tensor of their name in the source.
    #[serde(rename = "no_such_tensor")]
    pub n_no_such_tensor: usize,
    /// Tensors, in file order.
    pub tensors: Vec<TensorFinding>,
    /// Tensors of the source that the file lacks; empty for one of several parts.
    pub missing: Vec<String>,
    /// Keys that a run of our own would not write like this.
    pub keys: Vec<KeyFinding>,
    /// True if the common keys are in another order than a run of our own writes.
    pub key_order_differs: bool,
    /// Padding that is not zero.
    pub padding: Vec<PaddingFinding>,
    /// Number of bytes after the last tensor and its padding.
    pub trailing_bytes: u64,
    /// Written recipe; null if none is wanted.
    pub recipe: Option<WrittenRecipe>,
    /// Duration of the run in seconds.
    pub seconds: f64,
}

/// Use of an importance matrix, found out by what reproduces the tensors.
#[derive(Clone, Debug, Serialize)]
pub struct ImportanceFinding {
    /// Use of importance: `used`, `not_used`, or `unknown` if no tensor tells.
    #[serde(rename = "use")]
    pub is_used: ImportanceUse,
    /// True if an importance matrix was given to compare with.
    #[serde(rename = "given")]
    pub is_given: bool,
    /// Number of tensors that are reproduced only with importance.
    #[serde(rename = "with")]
    pub n_with: usize,
    /// Number of tensors that are reproduced only without importance.
    #[serde(rename = "without")]
    pub n_without: usize,
    /// Keys of the file about an importance matrix.
    pub keys: Vec<ImportanceKey>,
}

/// Use of importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceUse {
    /// Some tensors are reproduced only with the importance matrix.
    Used,
    /// Tensors are reproduced only without the importance matrix.
    NotUsed,
    /// No tensor tells: the types ignore importance, none was given, or nothing is reproduced.
    Unknown,
}

/// Key about an importance matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportanceKey {
    /// The key.
    pub key: String,
    /// Its value as text.
    pub value: String,
}

/// How a tensor was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorFinding {
    /// Name of the tensor.
    pub name: String,
    /// Type of the tensor.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Relation to the source: `reproduced`, `near`, `not_from_source` or `no_such_tensor`.
    pub status: TensorStatus,
    /// How it is made: `copied`, `quantized without importance` or `quantized with importance`; null if its bytes are not
    /// those of the source.
    pub way: Option<&'static str>,
    /// Tensor of the source that it is made of, if that has another name.
    pub from: Option<String>,
    /// Blocks that differ from what is made; null if none do, and for tensors that are not made.
    pub differing: Option<BlockDifference>,
}

/// Relation of a tensor to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorStatus {
    /// Equal bit for bit to what is made of the tensor of its name.
    Reproduced,
    /// The values follow the source, and some blocks differ.
    Near,
    /// The values are not those of the tensor of its name.
    NotFromSource,
    /// The source has no tensor of its name.
    NoSuchTensor,
}

/// Blocks of a tensor that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockDifference {
    /// Index of the first block that differs, from 0.
    pub first: u64,
    /// Number of blocks that differ.
    #[serde(rename = "differing")]
    pub n_differing: u64,
    /// Number of all blocks of the tensor.
    #[serde(rename = "blocks")]
    pub n_blocks: u64,
}

/// Key that a run of our own would not write like this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyFinding {
    /// The key.
    pub key: String,
    /// Value that a run of our own writes, as text; null for a key that was added. Long values are shortened.
    pub expected: Option<String>,
    /// Value in the file, as text; null for a key that is missing. Long values are shortened.
    pub found: Option<String>,
    /// Index of the first element that differs, if both values are arrays.
    pub first_element: Option<usize>,
}

/// Padding that is not zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaddingFinding {
    /// What it follows: the name of a tensor, or `header`.
    pub after: String,
    /// Offset in the file of the first byte that is not zero.
    pub offset: u64,
    /// Number of bytes that are not zero.
    pub bytes: u64,
}

/// Written recipe.
#[derive(Clone, Debug, Serialize)]
pub struct WrittenRecipe {
    /// Path of the recipe.
    #[serde(serialize_with = "as_path")]
    pub file: PathBuf,
    /// Size of the recipe in bytes.
    pub file_bytes: u64,
    /// Compressed size in bytes of the header of the file.
    pub header_bytes: u64,
    /// Compressed size in bytes of what differs in tensors that are near.
    pub patch_bytes: u64,
    /// Compressed size in bytes of tensors that the source does not explain.
    pub stored_bytes: u64,
    /// Identity of the source: SHA-256 over names, types, shapes and values of its tensors.
    pub source_sha256: String,
    /// SHA-256 of the importance matrix; null if none is needed.
    pub imatrix_sha256: Option<String>,
}
