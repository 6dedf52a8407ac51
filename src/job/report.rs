//! Report of a finished job as plain data.

use std::path::PathBuf;

use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::core::{GgmlType, TensorMeta};
use crate::gguf::WriteReport;
use crate::job::calibration::CalibrationReport;
use crate::job::plan::{IntegerCodes, allocation_json, summary_json};
use crate::job::stored::StoredWeights;
use crate::quant::SmallRows;
use crate::quantize::{Allocation, FileType, Summary};

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
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Self::Convert(report) => &report.written.paths,
            Self::Quantize(report) => &report.written.paths,
        }
    }
}

/// Rows of a tensor whose values were too small for its type.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallTensorRows {
    /// Name of the tensor.
    pub tensor: String,
    /// Type of the tensor.
    pub ty: GgmlType,
    /// Number of the rows, and the first of them.
    pub rows: SmallRows,
}

impl SmallTensorRows {
    pub(super) fn of(found: &[(&TensorMeta, SmallRows)]) -> Vec<Self> {
        let of = |(tensor, rows): &(&TensorMeta, SmallRows)| Self {
            tensor: tensor.name.clone(),
            ty: tensor.ty,
            rows: *rows,
        };
        found.iter().map(of).collect()
    }
}

fn small_rows_json(found: &[SmallTensorRows]) -> Json {
    let row = |small: &SmallTensorRows| {
        let first = small.rows.first?;
        Some(json!({
            "tensor": small.tensor,
            "type": small.ty.name(),
            "rows": small.rows.n_rows,
            "first_row": first.row,
            "largest": first.largest,
        }))
    };
    found.iter().filter_map(row).collect::<Vec<_>>().into()
}

fn paths_json(written: &WriteReport) -> Vec<String> {
    written.paths.iter().map(|path| path.display().to_string()).collect()
}

/// Report of a conversion without quantization.
#[derive(Clone, Debug)]
pub struct ConversionReport {
    /// Written files.
    pub written: WriteReport,
    /// Name of the file type.
    pub encoding: String,
    /// Number of tensors in the written files.
    pub n_tensors: usize,
    /// Number of elements of these tensors.
    pub n_elems: u64,
    /// Rows that were too small for their type.
    pub small_rows: Vec<SmallTensorRows>,
    /// Duration of the run.
    pub seconds: f64,
    /// Integer codes that were kept or lost.
    pub codes: IntegerCodes,
    /// Storage of the weights of a quantized checkpoint.
    pub stored: Option<StoredWeights>,
}

impl ConversionReport {
    /// Bits per weight of the tensors, without padding and metadata.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.written.tensor_bytes as f64 * 8.0 / self.n_elems.max(1) as f64
    }
}

impl Serialize for ConversionReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = &self.written;
        json!({
            "files": paths_json(written), "type": self.encoding, "tensors": self.n_tensors,
            "parameters": self.n_elems, "tensor_bytes": written.tensor_bytes, "file_bytes": written.file_bytes,
            "bits_per_weight": self.bits_per_weight(), "small_rows": small_rows_json(&self.small_rows),
            "seconds": self.seconds, "missing_parts": written.missing, "kept": self.codes.kept_json(),
            "floats": self.codes.floats_json(), "quantization": self.stored,
        })
        .serialize(serializer)
    }
}

/// Report of a quantization.
#[derive(Clone, Debug)]
pub struct QuantizationReport {
    /// Written files.
    pub written: WriteReport,
    /// Type of the file.
    pub file_type: FileType,
    /// Sizes before and after, by class of tensors.
    pub summary: Summary,
    /// Number of tensors whose type was replaced because of their columns.
    pub n_fallbacks: usize,
    /// Rows that were too small for their type.
    pub small_rows: Vec<SmallTensorRows>,
    /// Duration of the run.
    pub seconds: f64,
    /// Choice of types, if a size decided.
    pub allocation: Option<Allocation>,
    /// Calibration, if there was one.
    pub calibration: Option<CalibrationReport>,
}

impl QuantizationReport {
    /// Megabytes of the source per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.summary.total.bytes_before as f64 / 1e6 / self.seconds.max(1e-9)
    }
}

impl Serialize for QuantizationReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = summary_json(&self.summary);
        document["files"] = paths_json(&self.written).into();
        document["type"] = self.file_type.name().into();
        document["file_bytes"] = self.written.file_bytes.into();
        document["missing_parts"] = json!(self.written.missing);
        document["fallbacks"] = self.n_fallbacks.into();
        document["small_rows"] = small_rows_json(&self.small_rows);
        document["seconds"] = self.seconds.into();
        document["mb_per_second"] = self.rate().into();
        if let Some(calibration) = &self.calibration {
            document["calibration"] = json!(calibration);
        }
        if let Some(allocation) = &self.allocation {
            document["target"] = allocation_json(allocation);
        }
        document.serialize(serializer)
    }
}
