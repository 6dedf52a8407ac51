//! Storage of a quantized checkpoint's weights, and their types in the output.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::json;

use crate::convert::{Conversion, Quantization, StoredClass};
use crate::core::text::plural;
use crate::core::{GgmlType, TensorMeta, TensorSource};

/// Storage of a quantized checkpoint's weights, with the types that they get.
#[derive(Clone, Debug)]
pub struct StoredWeights {
    /// Quantization of the checkpoint.
    pub quantization: Quantization,
    /// Classes of weights that are stored alike, with the types of their tensors in the output.
    pub classes: Vec<StoredClass<Vec<GgmlType>>>,
    /// Suggestion of the type `native`, if it was looked for and would keep something.
    pub suggestion: Option<String>,
}

impl StoredWeights {
    /// Describes how the weights of a conversion are stored and what they become in a file of `tensors`; `None` for a
    /// checkpoint that is not quantized.
    pub(super) fn of(conversion: &Conversion, tensors: &[TensorMeta], suggests: bool) -> Option<Self> {
        let quantization = conversion.quantization()?.clone();
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
        Some(Self { quantization, classes, suggestion: is_open.then(|| native(conversion)).flatten() })
    }
}

impl Serialize for StoredWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let class = |class: &StoredClass<Vec<GgmlType>>| {
            let becomes: Vec<&str> = class.becomes.iter().map(|ty| ty.name()).collect();
            json!({
                "weights": class.pattern, "method": class.method, "form": class.form, "count": class.n_weights,
                "elements": class.n_elems, "bytes": class.n_bytes, "becomes": becomes,
            })
        };
        json!({
            "method": self.quantization.method,
            "classes": self.classes.iter().map(class).collect::<Vec<_>>(),
            "left_out": self.quantization.left_out,
            "plain_targets": self.quantization.plain_targets,
        })
        .serialize(serializer)
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
