//! Storage of a quantized checkpoint's weights, and their types in the output.

use std::collections::HashMap;

use serde::Serialize;

use crate::convert::{Conversion, FloatReason, StoredClass};
use crate::core::text::{escape, plural};
use crate::core::{GgmlType, Hint, TensorMeta, TensorSource};
use crate::job::Result;

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

/// Returns the suggestion of `native` if it would keep something: exactly, or else with rounded scales. Unreadable scales are
/// ignored here: the conversion itself reports them.
fn native(conversion: &Conversion) -> Option<String> {
    [false, true].into_iter().find_map(|allow_rounding| {
        let native = conversion.native(allow_rounding).ok()??;
        let kept = native.conversion.kept();
        let mut types: Vec<GgmlType> = Vec::new();
        for kept in &kept {
            if !types.contains(&kept.ty) {
                types.push(kept.ty);
            }
        }
        let error = kept.iter().map(|kept| kept.scale_error).reduce(f32::max)?;
        let names = types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let tensors = plural(kept.iter().map(|kept| kept.n_tensors as u64).sum(), "tensor");
        Some(if allow_rounding {
            format!(
                "`--type native --allow-rounding` would keep the codes of {tensors}, with scales rounded by at most about \
                 {error:.1e}: {names}"
            )
        } else {
            format!("`--type native` would keep the codes of {tensors} exactly: {names}")
        })
    })
}

/// Refusal of `native` where it would turn integers into floats, since blocks would round their scales.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`--type native` would write floats: blocks would round the scales of {}{}",
    listed(names),
    others(names)
)]
pub struct NativeFloats {
    /// Names of the tensors, with `*` for the layer.
    names: Vec<String>,
    /// Largest relative error of a scale in blocks, as text; `None` if it is not known.
    error: Option<String>,
}

/// Maximum number of names in the refusal.
const MAX_NAMES: usize = 3;

fn listed(names: &[String]) -> String {
    names.iter().take(MAX_NAMES).map(|name| format!("`{}`", escape(name))).collect::<Vec<_>>().join(", ")
}

fn others(names: &[String]) -> String {
    match names.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        n => format!(" and {n} more"),
    }
}

impl NativeFloats {
    /// Checks a conversion to `native` without `--allow-rounding`.
    pub(super) fn check(conversion: &Conversion) -> Result<()> {
        let floats = conversion.floats().into_iter().filter(|row| row.reason == FloatReason::Rounding);
        let names: Vec<String> = floats.map(|row| row.role).collect();
        if names.is_empty() {
            return Ok(());
        }
        let error = conversion.rounding_error()?.map(|error| format!("{error:.1e}"));
        Err(Self { names, error }.into())
    }
}

impl Hint for NativeFloats {
    fn hints(&self) -> Vec<String> {
        let error = self.error.as_ref().map_or_else(String::new, |error| format!(" (by at most {error})"));
        vec![
            format!("`--allow-rounding` keeps the integers and rounds the scales{error}"),
            "`--type auto` writes floats".to_owned(),
        ]
    }
}
