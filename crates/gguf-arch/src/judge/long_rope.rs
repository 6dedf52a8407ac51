//! Rope with one list of factors for texts up to the original context length and one for longer texts (`longrope`,
//! formerly `su`).
//!
//! Cards whose models always have this rope write the factors themselves. For other cards, the factors are written only
//! if llama.cpp's graph of the architecture reads them.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::error::ArchError;
use crate::error::warning::ArchWarning;
use crate::language::eval::{Root, Scope};
use crate::mapping::{Mapping, TensorContent, generated};
use crate::read::base;
use crate::read::metadata_rows::full_key;
use crate::read::schema::Card;
use gguf_core::numeric::held_by_f32;
use gguf_format::{Metadata, Value, ValueType};

/// Tensors, and the configuration lists that they are made of.
const LISTS: [(&str, &str); 2] =
    [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")];

const TYPE: &str = "rope.scaling.type";
const CONTEXT: &str = "rope.scaling.original_context_length";
const MAGNITUDE: &str = "rope.scaling.attn_factor";

/// Returns the rope parameters of the configuration if they are of this type. All of them are written, or reported as
/// not read.
pub(crate) fn parameters(scope: &Scope<'_>) -> Option<Map<String, Json>> {
    let (_, Root::Value(rope)) = scope.roots.iter().find(|root| root.0 == "rope_full")? else { return None };
    let is_long = |ty: &Json| matches!(ty.as_str(), Some("su" | "longrope"));
    rope.as_object().filter(|rope| rope.get("rope_type").is_some_and(is_long)).cloned()
}

/// Adds tensors and keys that the card did not write. `keys_only`: no tensors are planned.
///
/// # Errors
/// A list is missing, or its length differs from half of the rotated dimensions.
pub(crate) fn complete(card: &Card, scope: &Scope<'_>, keys_only: bool, mapping: &mut Mapping) -> Result<()> {
    let Some(rope) = parameters(scope) else { return Ok(()) };
    let Some(found) = rope.get("rope_type").and_then(Json::as_str) else { return Ok(()) };
    let arch = card.gguf.as_str();
    if !base().long_rope.iter().any(|reader| reader == arch) {
        mapping.metadata.remove(&format!("{arch}.{TYPE}"));
        let (found, arch) = (found.to_owned(), arch.to_owned());
        mapping.warnings.push(ArchWarning::FactorsNotRead { found, arch });
        return Ok(());
    }
    // Cards with their own lists write the related keys as well.
    let by_card = if keys_only {
        card.generate.iter().any(|rule| rule.to.text() == LISTS[0].0)
    } else {
        mapping.outputs.iter().any(|output| output.name == LISTS[0].0)
    };
    if by_card {
        return Ok(());
    }
    let n_dims = PlannedKeys { arch, mapping: &*mapping }.rotated();
    let mut outputs = Vec::new();
    for (name, key) in LISTS {
        let values = factors(&rope, key, n_dims)?;
        outputs.push(generated::output(
            name,
            vec![values.len() as u64],
            TensorContent::Values(values.into()),
        )?);
    }
    if !keys_only {
        mapping.outputs.extend(outputs);
        mapping.outputs.sort_by_key(|output| output.phase);
    }
    set(&mut mapping.metadata, TYPE, arch, "longrope");
    let keys = PlannedKeys { arch, mapping: &*mapping };
    let lengths =
        (keys.count("context_length"), rope.get("original_max_position_embeddings").and_then(Json::as_u64));
    let (has_context, has_magnitude) = (keys.get(CONTEXT).is_some(), keys.get(MAGNITUDE).is_some());
    if let Some(original) = lengths.1.and_then(|n| u32::try_from(n).ok()).filter(|_| !has_context) {
        set(&mut mapping.metadata, CONTEXT, arch, original);
    }
    let magnitude = magnitude(&rope, lengths).filter(|&magnitude| !has_magnitude && magnitude != 1.0);
    if let Some(magnitude) = magnitude {
        set(&mut mapping.metadata, MAGNITUDE, arch, magnitude as f32);
    }
    Ok(())
}

fn set(metadata: &mut Metadata, key: &str, arch: &str, value: impl Into<Value>) {
    if let Some(key) = full_key(key, arch) {
        metadata.set(key, value);
    }
}

fn factors(rope: &Map<String, Json>, key: &'static str, n_dims: Option<u64>) -> Result<Vec<f32>> {
    let list = rope.get(key).and_then(Json::as_array);
    let values = list.and_then(|list| list.iter().map(Json::as_f64).collect::<Option<Vec<f64>>>());
    let values = values.ok_or_else(|| ArchError::Required {
        message: format!("rope: `{key}` must be a list of numbers where the type is longrope"),
        found: Vec::new(),
    })?;
    if let Some(n_dims) = n_dims.filter(|n| values.len() as u64 != n / 2) {
        let n = values.len();
        return Err(ArchError::Required {
            message: format!(
                "rope: `{key}` has {n} factors, {n_dims} rotated dimensions need {}",
                n_dims / 2
            ),
            found: Vec::new(),
        });
    }
    let held = |value: f64| {
        let (key, value) = (key.to_owned(), (value, held_by_f32(value)));
        value.1.ok_or(ArchError::KeyValue { key, value: value.0.to_string(), expected: ValueType::F32 })
    };
    values.into_iter().map(held).collect()
}

/// Returns the factor of sine and cosine: the given one, else one computed from the extension of the context length.
///
/// # Exactness
/// Equals `_compute_longrope_parameters` of transformers 5.24.
fn magnitude(rope: &Map<String, Json>, lengths: (Option<u64>, Option<u64>)) -> Option<f64> {
    let number = |key: &str| rope.get(key).and_then(Json::as_f64);
    if let Some(given) = number("attention_factor") {
        return Some(given);
    }
    let original = lengths.1.filter(|&n| n > 1)? as f64;
    let stretch = number("factor").or_else(|| Some(lengths.0? as f64 / original))?;
    Some(if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() })
}

/// Keys of the planned file.
struct PlannedKeys<'a> {
    arch: &'a str,
    mapping: &'a Mapping,
}

impl PlannedKeys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        let full = format!("{}.{key}", self.arch);
        self.mapping.metadata.get(&full).or_else(|| self.mapping.early.get(&full))
    }

    fn count(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64).filter(|&n| n > 0)
    }

    /// Returns the number of rotated dimensions of a head.
    fn rotated(&self) -> Option<u64> {
        let of_width = || Some(self.count("embedding_length")? / self.count("attention.head_count")?);
        self.count("rope.dimension_count").or_else(|| self.count("attention.key_length")).or_else(of_width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn magnitudes_grow_with_the_length() {
        let of = |rope: Json, context| {
            magnitude(
                rope.as_object().unwrap(),
                (Some(context), rope["original_max_position_embeddings"].as_u64()),
            )
        };
        let original = json!({"original_max_position_embeddings": 4096});
        assert_eq!(of(original.clone(), 4096), Some(1.0));
        assert_eq!(of(original, 131_072), Some((1.0f64 + 32f64.ln() / 4096f64.ln()).sqrt()));
        assert_eq!(of(json!({"attention_factor": 1.5}), 9), Some(1.5));
        assert_eq!(of(json!({"factor": 2.0}), 9), None);
    }

    #[test]
    fn lists_must_fit() {
        let rope = json!({"long_factor": [1, 2.5], "short_factor": [1, null]});
        let rope = rope.as_object().unwrap();
        assert_eq!(factors(rope, "long_factor", Some(4)).unwrap(), [1.0, 2.5]);
        let error = factors(rope, "long_factor", Some(8)).unwrap_err().to_string();
        assert_eq!(error, "config.json: rope: `long_factor` has 2 factors, 8 rotated dimensions need 4");
        assert!(factors(rope, "short_factor", None).is_err());
    }
}
