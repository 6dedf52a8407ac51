//! Plan of a job as plain data: everything about the output that is known before the first weight is written.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::convert::{Conversion, FloatRole, KeptRole};
use crate::core::{GgmlType, Shape, TensorSource};
use crate::job::calibration::CalibrationPlan;
use crate::job::stored::StoredWeights;
use crate::quantize::{Allocation, QuantizePlan, Reason, Sizes, Summary, TensorClass};

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
#[derive(Clone, Debug, Default)]
pub struct IntegerCodes {
    /// Tensors that keep their codes, by role.
    pub kept: Vec<KeptRole>,
    /// Tensors whose codes become floats although they should be kept, by role.
    pub floats: Vec<FloatRole>,
}

impl IntegerCodes {
    pub(super) fn of(conversion: &Conversion) -> Self {
        Self { kept: conversion.kept(), floats: conversion.floats() }
    }

    pub(super) fn kept_json(&self) -> Vec<Json> {
        let row = |kept: &KeptRole| {
            json!({
                "role": kept.role, "type": kept.ty.name(), "tensors": kept.n_tensors,
                "scale_error": kept.scale_error,
            })
        };
        self.kept.iter().map(row).collect()
    }

    pub(super) fn floats_json(&self) -> Vec<Json> {
        let row = |row: &FloatRole| {
            json!({
                "role": row.role, "tensors": row.n_tensors, "reason": row.reason.to_string(),
            })
        };
        self.floats.iter().map(row).collect()
    }
}

/// Plan of a conversion without quantization.
#[derive(Clone, Debug)]
pub struct ConversionPlan {
    /// Paths of the files to write.
    pub files: Vec<PathBuf>,
    /// Name of the file type.
    pub encoding: String,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Free bytes where the files go, if the system reports them.
    pub free_bytes: Option<u64>,
    /// Number of metadata keys.
    pub n_keys: usize,
    /// Tensors of the files to write.
    pub tensors: Vec<ConvertedTensorPlan>,
    /// Integer codes that are kept or lost.
    pub codes: IntegerCodes,
    /// Storage of the weights of a quantized checkpoint.
    pub stored: Option<StoredWeights>,
}

/// Tensor of a conversion.
#[derive(Clone, Debug)]
pub struct ConvertedTensorPlan {
    /// Name in the output.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Type in the output.
    pub ty: GgmlType,
    /// Size in bytes; `None` if it overflows.
    pub n_bytes: Option<u64>,
    /// Names of the weights that it is made of.
    pub sources: Vec<String>,
}

impl Serialize for ConversionPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = |tensor: &ConvertedTensorPlan| {
            json!({
                "name": tensor.name, "shape": tensor.shape.dims(), "type": tensor.ty.name(),
                "bytes": tensor.n_bytes, "sources": tensor.sources,
            })
        };
        let paths: Vec<_> = self.files.iter().map(|path| path.display().to_string()).collect();
        json!({
            "files": paths, "type": self.encoding, "file_bytes": self.file_bytes,
            "free_bytes": self.free_bytes, "keys": self.n_keys,
            "tensors": self.tensors.iter().map(row).collect::<Vec<_>>(), "kept": self.codes.kept_json(),
            "floats": self.codes.floats_json(), "quantization": self.stored,
        })
        .serialize(serializer)
    }
}

/// Plan of a quantization.
#[derive(Clone, Debug)]
pub struct QuantizationPlan {
    /// Tensors of the output, in its order.
    pub tensors: Vec<QuantizedTensorPlan>,
    /// Sizes before and after, by class of tensors.
    pub summary: Summary,
    /// Errors at which a run would stop.
    pub obstacles: Vec<String>,
    /// Choice of types, if a size decides.
    pub allocation: Option<Allocation>,
    /// Resources that a calibration would take.
    pub calibration: Option<CalibrationPlan>,
    /// Integer codes that are kept or lost.
    pub codes: IntegerCodes,
    /// Storage of the weights of a quantized checkpoint.
    pub stored: Option<StoredWeights>,
}

/// Tensor of a quantization.
#[derive(Clone, Debug)]
pub struct QuantizedTensorPlan {
    /// Name in the output.
    pub name: String,
    /// Name in the source.
    pub source: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Role of the tensor.
    pub class: TensorClass,
    /// Type in the source.
    pub from: GgmlType,
    /// Type in the output.
    pub to: GgmlType,
    /// Reason for the type; `size` if a size decides.
    pub reason: String,
    /// True if importance weights are used.
    pub has_importance: bool,
    /// Size in the source in bytes.
    pub bytes_before: Option<u64>,
    /// Size in the output in bytes.
    pub bytes_after: Option<u64>,
    /// Expected increase of the mean KLD (nats), if a size decides.
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
            tensors,
            summary: plan.summary(),
            obstacles: plan.obstacles().iter().map(ToString::to_string).collect(),
            allocation: allocation.cloned(),
            calibration: None,
            codes: IntegerCodes::default(),
            stored: None,
        }
    }
}

impl Serialize for QuantizationPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = |tensor: &QuantizedTensorPlan| {
            let mut row = json!({
                "name": tensor.name,
                "source": tensor.source,
                "shape": tensor.shape.dims(),
                "class": tensor.class.name(),
                "from": tensor.from.name(),
                "to": tensor.to.name(),
                "reason": tensor.reason,
                "imatrix": tensor.has_importance,
                "bytes_before": tensor.bytes_before,
                "bytes_after": tensor.bytes_after,
            });
            if let Some(cost) = tensor.expected_kld {
                row["expected_kld"] = cost.into();
            }
            row
        };
        let mut document = summary_json(&self.summary);
        document["tensors"] = self.tensors.iter().map(row).collect::<Vec<_>>().into();
        document["obstacles"] = self.obstacles.clone().into();
        if let Some(allocation) = &self.allocation {
            document["target"] = allocation_json(allocation);
        }
        if let Some(calibration) = &self.calibration {
            document["calibration"] = json!(calibration);
        }
        document.serialize(serializer)
    }
}

fn reason(reason: Reason) -> String {
    match reason {
        Reason::Kept => "kept".to_owned(),
        Reason::Option => "option".to_owned(),
        Reason::Mixture => "mixture".to_owned(),
        Reason::Fallback { wanted } => format!("instead of {wanted}"),
    }
}

pub(super) fn allocation_json(allocation: &Allocation) -> Json {
    let mix = allocation.mix.as_ref().map(|mix| {
        let mut found = json!({
            "type": mix.file_type.name(),
            "file_bytes": mix.file_bytes,
            "expected_kld": mix.expected_kld,
        });
        if let Some((kld, stderr)) = mix.measured {
            found["imatrix"] = json!({ "mean_kld": kld, "stderr": stderr });
        }
        found
    });
    json!({
        "bytes": allocation.target_bytes,
        "file_bytes": allocation.file_bytes,
        "file_bits_per_weight": allocation.bits_per_weight(),
        "expected_kld": allocation.expected_kld,
        "runs": allocation.n_runs,
        "near": allocation.is_near(),
        "standard_mix": mix,
    })
}

fn sizes_json(sizes: &Sizes) -> Json {
    json!({
        "tensors": sizes.n_tensors,
        "weights": sizes.n_elems,
        "bytes_before": sizes.bytes_before,
        "bytes_after": sizes.bytes_after,
        "bits_per_weight": sizes.bits_per_weight(),
    })
}

pub(super) fn summary_json(summary: &Summary) -> Json {
    let classes: serde_json::Map<_, _> =
        summary.classes.iter().map(|(class, sizes)| (class.name().to_owned(), sizes_json(sizes))).collect();
    json!({ "total": sizes_json(&summary.total), "classes": classes })
}
