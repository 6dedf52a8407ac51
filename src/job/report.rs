//! Report of a finished job as plain data.

use std::path::PathBuf;

use serde::Serialize;

use crate::convert::Piece;
use crate::core::written::{as_paths, as_text};
use crate::core::{GgmlType, TensorMeta};
use crate::job::calibration::CalibrationReport;
use crate::job::like::LikeReport;
use crate::job::plan::IntegerCodes;
use crate::job::size::TargetReport;
use crate::job::stored::StoredWeights;
use crate::quant::SmallRows;
use crate::quantize::{FileType, Summary};

/// Report of a finished job.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum JobReport {
    /// The converter wrote the types.
    Convert(Box<ConversionReport>),
    /// The tensors were quantized.
    Quantize(Box<QuantizationReport>),
}

impl JobReport {
    /// Written files, in the order of their parts.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Self::Convert(report) => &report.files,
            Self::Quantize(report) => &report.files,
        }
    }
}

/// Rows of a tensor whose values were too small for its type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallTensorRows {
    /// Name of the tensor.
    pub tensor: String,
    /// Type of the tensor in the output.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Number of such rows.
    #[serde(rename = "rows")]
    pub n_rows: u64,
    /// Index of the first such row.
    pub first_row: u64,
    /// Largest magnitude of that row.
    pub largest: f32,
}

impl SmallTensorRows {
    pub(super) fn of(found: &[(&TensorMeta, SmallRows)]) -> Vec<Self> {
        let of = |(tensor, rows): &(&TensorMeta, SmallRows)| {
            let first = rows.first?;
            Some(Self {
                tensor: tensor.name.clone(),
                ty: tensor.ty,
                n_rows: rows.n_rows,
                first_row: first.row,
                largest: first.largest,
            })
        };
        found.iter().filter_map(of).collect()
    }
}

/// Report of a conversion without quantization.
#[derive(Clone, Debug, Serialize)]
pub struct ConversionReport {
    /// Written files, in the order of their parts.
    #[serde(serialize_with = "as_paths")]
    pub files: Vec<PathBuf>,
    /// Name of the file type: `BF16`, `NATIVE`.
    #[serde(rename = "type")]
    pub encoding: String,
    /// Number of tensors in the written files.
    #[serde(rename = "tensors")]
    pub n_tensors: usize,
    /// Number of elements of these tensors.
    #[serde(rename = "parameters")]
    pub n_elems: u64,
    /// Size of these tensors in bytes, without padding.
    pub tensor_bytes: u64,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Bits per weight of the tensors, without padding and metadata.
    pub bits_per_weight: f64,
    /// Tensors with rows that became zeros or nearly zeros, because they were too small for their type.
    pub small_rows: Vec<SmallTensorRows>,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Numbers of the parts of a common file (`--into`) that are still missing; the file gets its final name after
    /// them.
    pub missing_parts: Vec<usize>,
    /// Integer codes that were kept or lost.
    #[serde(flatten)]
    pub codes: IntegerCodes,
    /// Storage of the weights of a quantized checkpoint.
    #[serde(rename = "quantization")]
    pub stored: Option<StoredWeights>,
    /// What becomes of each file, key and tensor of a checkpoint or adapter.
    pub account: Vec<Piece>,
}

/// Report of a quantization.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizationReport {
    /// Sizes before and after, by class of tensors.
    #[serde(flatten)]
    pub summary: Summary,
    /// Written files, in the order of their parts.
    #[serde(serialize_with = "as_paths")]
    pub files: Vec<PathBuf>,
    /// Type of the file: `Q4_K_M`.
    #[serde(rename = "type", serialize_with = "as_text")]
    pub file_type: FileType,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Numbers of the parts of a common file (`--into`) that are still missing; the file gets its final name after
    /// them.
    pub missing_parts: Vec<usize>,
    /// Number of tensors whose type was replaced because of their number of columns.
    #[serde(rename = "fallbacks")]
    pub n_fallbacks: usize,
    /// Tensors with rows that became zeros or nearly zeros, because they were too small for their type.
    pub small_rows: Vec<SmallTensorRows>,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Megabytes (1,000,000 bytes) of the source per second.
    pub mb_per_second: f64,
    /// Calibration, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationReport>,
    /// Choice of types, if a size decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// Types that are those of another file, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub like: Option<LikeReport>,
    /// What becomes of each file, key and tensor of a checkpoint; empty for a GGUF file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub account: Vec<Piece>,
}
