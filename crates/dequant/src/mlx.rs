//! Checkpoints quantized by MLX: recognized by their tensors, and refused with a workaround.
//!
//! # Layout
//! `X.weight` holds codes in U32 words, `X.scales` a scale for each group of columns, `X.biases` the added minimum
//! (not for MXFP4, MXFP8 and NVFP4). The configuration has bits and groups under `quantization`, and again under
//! `quantization_config`, without `quant_method`.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{Configurations, DequantError};
use gguf_core::{ElementType, WeightMeta};

/// Configuration keys of MLX's quantization settings.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Refuses weights that MLX quantized.
pub(super) fn refuse(files: &Configurations, weights: &[WeightMeta]) -> Result<(), DequantError> {
    let Some(first) = first_coded(weights) else { return Ok(()) };
    let described = description(&files.config);
    let number = |key: &str| described.and_then(|map| map.get(key)?.as_u64());
    let mode = described.and_then(|map| map.get("mode")?.as_str()).filter(|mode| *mode != "affine");
    let parts = [
        mode.map(str::to_owned),
        number("bits").map(|bits| format!("{bits} bits")),
        number("group_size").map(|size| format!("groups of {size}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let form = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    Err(DequantError::Mlx { tensor: first.name.clone(), form })
}

/// Returns a warning if MLX's settings remain in the configuration of a model whose weights are floats again.
pub(super) fn passed_over(files: &Configurations, weights: &[WeightMeta]) -> Option<String> {
    let map = files.config.get("quantization_config")?.as_object()?;
    let is_of_mlx = map.contains_key("bits")
        && map.contains_key("group_size")
        && !map.contains_key("quant_method")
        && files.config.get("quantization").is_some_and(Value::is_object);
    let is_plain = weights.iter().all(|meta| meta.ty.is_plain_float());
    (is_of_mlx && is_plain).then(|| {
        "config.json: `quantization_config` of MLX is passed over, the weights are plain floats".to_owned()
    })
}

/// Returns the first weight of U32 words that has scales.
fn first_coded(weights: &[WeightMeta]) -> Option<&WeightMeta> {
    let scaled: HashSet<&str> = weights.iter().filter_map(|meta| meta.name.strip_suffix(".scales")).collect();
    weights.iter().find(|meta| {
        meta.ty == ElementType::U32
            && meta.name.strip_suffix(".weight").is_some_and(|module| scaled.contains(module))
    })
}

/// Returns MLX's settings in the configuration of the model or of its text part.
fn description(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let text = config.get("text_config").and_then(Value::as_object);
    let maps = [Some(config), text];
    maps.into_iter().flatten().find_map(|map| KEYS.into_iter().find_map(|key| map.get(key)?.as_object()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{Hint as _, Shape};

    fn files(json: &str) -> Configurations {
        Configurations { config: serde_json::from_str(json).unwrap(), ..Configurations::default() }
    }

    fn weights(rows: &[(&str, ElementType)]) -> Vec<WeightMeta> {
        let meta = |(name, ty): &(&str, ElementType)| WeightMeta {
            name: (*name).to_owned(),
            shape: Shape::new(vec![4, 4]).unwrap(),
            ty: *ty,
        };
        rows.iter().map(meta).collect()
    }

    #[test]
    fn words_with_scales_are_refused_whatever_the_configuration_says() {
        use ElementType::{Bf16, U8, U32};
        let affine = [("m.q.weight", U32), ("m.q.scales", Bf16), ("m.q.biases", Bf16)];
        let micro = [("m.norm.weight", Bf16), ("m.q.scales", U8), ("m.q.weight", U32)];
        for (json, rows, form) in [
            (r#"{"quantization": {"group_size": 64, "bits": 3}}"#, &affine[..], " (3 bits, groups of 64)"),
            (r#"{"quantization_config": {"bits": 8, "mode": "affine"}}"#, &affine, " (8 bits)"),
            (
                r#"{"text_config": {"quantization": {"mode": "mxfp4", "bits": 4, "group_size": 32}}}"#,
                &micro,
                " (mxfp4, 4 bits, groups of 32)",
            ),
            (r#"{"quantization_config": {"quant_method": "fp8"}}"#, &micro, ""),
            ("{}", &affine, ""),
        ] {
            let error = refuse(&files(json), &weights(rows)).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("tensor `m.q.weight`: words of integers as MLX packs them{form}"),
                "{json}"
            );
            assert!(error.hints()[0].contains("--dequantize"), "{error:?}");
        }
        // AWQ's words have another name, and an integer table has no scales.
        for rows in [&[("m.q.qweight", U32), ("m.q.scales", Bf16)][..], &[("m.q.weight", U32)]] {
            refuse(&files("{}"), &weights(rows)).unwrap();
        }
    }

    #[test]
    fn a_description_that_stayed_behind_is_passed_over() {
        use ElementType::{Bf16, F8E4M3};
        let stale = r#"{"quantization": {"bits": 4}, "quantization_config": {"bits": 4, "group_size": 64}}"#;
        assert!(passed_over(&files(stale), &weights(&[("m.q.weight", Bf16)])).is_some());
        assert!(passed_over(&files(stale), &weights(&[("m.q.weight", F8E4M3)])).is_none());
        let other = r#"{"quantization": {}, "quantization_config": {"bits": 4, "group_size": 64, "quant_method": "gptq"}}"#;
        assert!(passed_over(&files(other), &weights(&[("m.q.weight", Bf16)])).is_none());
    }
}
