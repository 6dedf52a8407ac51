//! Plan of a job as plain data: everything about the output that is known before the first weight is written.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::convert::{Conversion, FloatRole, KeptRole, Piece};
use crate::core::written::as_paths;
use crate::core::{GgmlType, Shape, TensorSource};
use crate::job::calibration::CalibrationPlan;
use crate::job::like::LikeReport;
use crate::job::size::TargetReport;
use crate::job::stored::StoredWeights;
use crate::quantize::{Allocation, QuantizePlan, Reason, Summary, TensorClass};

/// Plan of a job.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum JobPlan {
    /// The converter writes the types.
    Convert(Box<ConversionPlan>),
    /// The tensors are quantized.
    Quantize(Box<QuantizationPlan>),
}

/// Integer codes of a quantized checkpoint that are kept, and those that become floats.
#[derive(Clone, Debug, Default, Serialize)]
pub struct IntegerCodes {
    /// Tensors that keep the integer codes of a quantized checkpoint, by role.
    pub kept: Vec<KeptRole>,
    /// Tensors whose codes become floats although they should be kept, by role.
    pub floats: Vec<FloatRole>,
}

impl IntegerCodes {
    pub(super) fn of(conversion: &Conversion) -> Self {
        Self { kept: conversion.kept(), floats: conversion.floats() }
    }
}

/// Plan of a conversion without quantization.
#[derive(Clone, Debug, Serialize)]
pub struct ConversionPlan {
    /// Paths of the files to write.
    #[serde(serialize_with = "as_paths")]
    pub files: Vec<PathBuf>,
    /// Name of the file type.
    #[serde(rename = "type")]
    pub encoding: String,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Free bytes where the files go, if the system reports them.
    pub free_bytes: Option<u64>,
    /// Number of metadata keys.
    #[serde(rename = "keys")]
    pub n_keys: usize,
    /// Tensors of the files to write, in their order.
    pub tensors: Vec<ConvertedTensorPlan>,
    /// Integer codes that are kept or lost.
    #[serde(flatten)]
    pub codes: IntegerCodes,
    /// Storage of the weights of a quantized checkpoint.
    #[serde(rename = "quantization")]
    pub stored: Option<StoredWeights>,
    /// What becomes of each file, key and tensor of a checkpoint or adapter.
    pub account: Vec<Piece>,
}

/// Tensor of a conversion.
#[derive(Clone, Debug, Serialize)]
pub struct ConvertedTensorPlan {
    /// Name in the output.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Type in the output.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Size in bytes, unless it overflows.
    #[serde(rename = "bytes")]
    pub n_bytes: Option<u64>,
    /// Names of the weights that it is made of; none for computed tensors.
    pub sources: Vec<String>,
}

/// Plan of a quantization.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizationPlan {
    /// Sizes before and after, by class of tensors.
    #[serde(flatten)]
    pub summary: Summary,
    /// Tensors of the output, in its order.
    pub tensors: Vec<QuantizedTensorPlan>,
    /// Problems that would stop a run.
    pub obstacles: Vec<String>,
    /// Choice of types, if a size decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// Types that are those of another file, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub like: Option<LikeReport>,
    /// Resources that a calibration would take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationPlan>,
    /// What becomes of each file, key and tensor of a checkpoint; empty for a GGUF file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub account: Vec<Piece>,
    /// Integer codes that are kept or lost.
    #[serde(skip)]
    pub codes: IntegerCodes,
    /// Storage of the weights of a quantized checkpoint.
    #[serde(skip)]
    pub stored: Option<StoredWeights>,
}

/// Tensor of a quantization.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizedTensorPlan {
    /// Name in the output.
    pub name: String,
    /// Name in the source.
    pub source: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Class of the tensor, by which its type is chosen.
    pub class: TensorClass,
    /// Type in the source.
    pub from: GgmlType,
    /// Type in the output.
    pub to: GgmlType,
    /// Reason for the type: `kept`, `option`, `like`, `mixture`, `instead of …`; `size` if a size decides.
    pub reason: String,
    /// True if it is quantized with importance weights.
    #[serde(rename = "imatrix")]
    pub has_importance: bool,
    /// Size in the source in bytes.
    pub bytes_before: Option<u64>,
    /// Size in the output in bytes.
    pub bytes_after: Option<u64>,
    /// Expected increase of the mean KLD (nats), if a size decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_kld: Option<f64>,
}

impl QuantizationPlan {
    /// Describes a plan; `allocation` is the choice of its types, if a size decides.
    pub(super) fn of(plan: &QuantizePlan<'_>, allocation: Option<&Allocation>) -> Self {
        let types = allocation.map(|found| found.types.as_slice()).unwrap_or_default();
        let costs: HashMap<usize, f64> = types.iter().map(|chosen| (chosen.place, chosen.cost)).collect();
        let mut tensors = Vec::with_capacity(plan.steps().len());
        for (place, (step, after)) in plan.steps().iter().zip(plan.tensors()).enumerate() {
            let before = &plan.source_tensors()[step.source];
            let expected_kld = costs.get(&place).copied();
            tensors.push(QuantizedTensorPlan {
                name: after.name.clone(),
                source: before.name.clone(),
                shape: after.shape.clone(),
                class: step.choice.class,
                from: before.ty,
                to: after.ty,
                reason: expected_kld.map_or_else(|| reason(step.choice.reason), |_| "size".to_owned()),
                has_importance: step.weights.is_some(),
                bytes_before: before.n_bytes(),
                bytes_after: after.n_bytes(),
                expected_kld,
            });
        }
        Self {
            summary: plan.summary(),
            tensors,
            obstacles: plan.obstacles().iter().map(ToString::to_string).collect(),
            target: allocation.map(TargetReport::from),
            like: None,
            calibration: None,
            account: Vec::new(),
            codes: IntegerCodes::default(),
            stored: None,
        }
    }
}

fn reason(reason: Reason) -> String {
    match reason {
        Reason::Kept => "kept".to_owned(),
        Reason::Option => "option".to_owned(),
        Reason::Like => "like".to_owned(),
        Reason::Mixture => "mixture".to_owned(),
        Reason::Fallback { wanted } => format!("instead of {wanted}"),
    }
}
