//! Storage of a quantized checkpoint's weights, and their types in the output.

use std::collections::HashMap;

use serde::Serialize;

use crate::convert::{Conversion, StoredClass};
use crate::core::text::plural;
use crate::core::{GgmlType, TensorMeta, TensorSource};

/// Storage of a quantized checkpoint's weights, with the types that they get.
#[derive(Clone, Debug, Serialize)]
pub struct StoredWeights {
    /// Name of the quantization method.
    pub method: &'static str,
    /// Classes of weights with the same storage and the same types in the output.
    pub classes: Vec<ConvertedClass>,
    /// Tensors without a use in the output, such as scales of activations and caches.
    pub left_out: Vec<String>,
    /// Weights that are plain floats although the configuration targets them.
    pub plain_targets: Vec<String>,
    /// Number of quantized weights.
    #[serde(skip)]
    pub n_quantized: usize,
    /// Suggestion of the type `native`, if it was looked for and would keep something.
    #[serde(skip)]
    pub suggestion: Option<String>,
}

/// Class of weights that are stored alike, with the types of their tensors in the output.
#[derive(Clone, Debug, Serialize)]
pub struct ConvertedClass {
    /// Names and storage of the weights.
    #[serde(flatten)]
    pub stored: StoredClass,
    /// Types in the output.
    pub becomes: Vec<GgmlType>,
}

impl StoredWeights {
    /// Describes how the weights of a conversion are stored and what they become in a file of `tensors`; `None` for a
    /// checkpoint that is not quantized.
    pub(super) fn of(conversion: &Conversion, tensors: &[TensorMeta], suggests: bool) -> Option<Self> {
        let quantization = conversion.quantization()?;
        // The tensors of a quantized file may be in another order.
        let by_name: HashMap<&str, GgmlType> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.ty)).collect();
        let ty = |output: &usize| by_name.get(conversion.tensors()[*output].name.as_str()).copied();
        let classes = conversion.stored(|outputs| {
            let mut types: Vec<GgmlType> = outputs.iter().filter_map(ty).collect();
            types.sort_unstable();
            types.dedup();
            types
        });
        let is_open = suggests && conversion.kept().is_empty();
        Some(Self {
            method: quantization.method,
            classes: classes
                .into_iter()
                .map(|(stored, becomes)| ConvertedClass { stored, becomes })
                .collect(),
            left_out: quantization.left_out(),
            plain_targets: quantization.plain_targets.clone(),
            n_quantized: quantization.encodings.len(),
            suggestion: is_open.then(|| native(conversion)).flatten(),
        })
    }
}

/// Returns the suggestion of `native` if it would keep something. Unreadable scales are ignored here: the conversion
/// itself reports them.
fn native(conversion: &Conversion) -> Option<String> {
    let native = conversion.native().ok()??;
    let mut types: Vec<GgmlType> = Vec::new();
    let mut n_tensors = 0;
    for kept in native.conversion.kept() {
        n_tensors += kept.n_tensors as u64;
        if !types.contains(&kept.ty) {
            types.push(kept.ty);
        }
    }
    let names: Vec<_> = types.iter().map(ToString::to_string).collect();
    let n_tensors = plural(n_tensors, "tensor");
    (!types.is_empty())
        .then(|| format!("`--type native` would keep the codes of {n_tensors} exactly: {}", names.join(", ")))
}
