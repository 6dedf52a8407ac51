//! Account of `adapter_config.json`: no key passes whose effect is unknown.

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::lora::{AdapterError, mlx};
use gguf_checkpoint::AdapterDir;
use gguf_checkpoint::pieces::{NOTHING, is_nothing, is_off};
use gguf_core::account::{Fate, Piece, PieceKind};
use gguf_core::text::escape;
use gguf_core::{WeightMeta, WeightSource as _};

/// Table with a line for each key of PEFT: its effect on the merge of a trained adapter.
const TABLE: &str = include_str!("peft.tsv");

/// Returns what becomes of each key. Refuses keys by which the adapter is no sum W + scale · B · A over the base's own
/// weights, and unknown keys that are on.
pub(super) fn check(path: &Path, config: &Map<String, Json>) -> Result<Vec<Piece>, AdapterError> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let mut pieces = Vec::with_capacity(config.len());
    for (key, value) in config {
        let fact = || (path.to_owned(), key.clone(), shown(value));
        let none = |why: &str| Piece::not(PieceKind::Key, key, Fate::WithoutEffect, why);
        let piece = match effect_of(key) {
            _ if is_nothing(value) => none(NOTHING),
            Some(("read", kind)) if let Some(expected) = other_kind(kind, value) => {
                let (path, key, _) = fact();
                return Err(AdapterError::Value { path, key, expected });
            }
            Some(("read", _)) => {
                Piece::written(PieceKind::Key, key, vec!["matrices and their strength".to_owned()])
            }
            Some(("none", _)) => none("it is of the training, or of how PEFT loads the adapter"),
            Some(("only", values)) if has(values, value) => {
                none("with this value PEFT keeps the base's weights")
            }
            Some(("only", _)) => {
                let (path, key, found) = fact();
                return Err(AdapterError::ChangesBase { path, key, found });
            }
            _ if is_off(value) => none("it is off"),
            Some((_, why)) => {
                let (path, key, _) = fact();
                return Err(AdapterError::NoSum { path, key, why });
            }
            None => {
                let (path, key, found) = fact();
                return Err(AdapterError::UnknownKey { path, key, found });
            }
        };
        pieces.push(piece.within(&file));
    }
    Ok(pieces)
}

/// Returns what a value should be, if it is of another kind. PEFT takes `"false"` and 1 for a switch that is on.
fn other_kind(kind: &str, value: &Json) -> Option<&'static str> {
    let (is_it, expected) = match kind {
        "switch" => (value.is_boolean(), "`true` or `false`"),
        "map" => (value.is_object(), "an object of names and numbers"),
        "text" => (value.is_string(), "a text"),
        "number" => (value.is_u64(), "a whole number"),
        _ => return None,
    };
    (!is_it).then_some(expected)
}

/// Names of the head of a classifier.
const CLASSIFIERS: [&str; 2] = ["classifier", "score"];

/// Returns warnings about what the configuration names and the file lacks, and about integers in place of numbers.
pub(super) fn doubts(adapter: &AdapterDir) -> Vec<String> {
    let (config, weights) = (adapter.config(), adapter.weights());
    let has = |part: &str| weights.iter().any(|meta| meta.name.contains(part));
    let listed = config.get("modules_to_save").and_then(Json::as_array).into_iter().flatten();
    let mut lacking: Vec<&str> = listed.filter_map(Json::as_str).filter(|name| !has(name)).collect();
    // PEFT lists both names of a classifier.
    if CLASSIFIERS.iter().any(|name| has(name)) {
        lacking.retain(|name| !CLASSIFIERS.contains(name));
    }
    let mut doubts = Vec::new();
    let mut add = |key: &str, what: &str| {
        doubts.push(format!(
            "adapter_config.json: `{key}` {what}, and the adapter has no such tensor: the base model's stays; save the \
             adapter anew if it was trained"
        ));
    };
    if let Some(first) = lacking.first() {
        add("modules_to_save", &format!("names `{}`", escape(first)));
    }
    let is_bias = |name: &str| {
        name.split_once(".lora_B.").is_some_and(|(_, end)| end.rsplit('.').next() == Some("bias"))
    };
    let has_biases = weights.iter().any(|meta| is_bias(&meta.name));
    for (key, is_there) in
        [("trainable_token_indices", has(".trainable_tokens_delta")), ("lora_bias", has_biases)]
    {
        if config.get(key).is_some_and(|value| !is_off(value)) && !is_there {
            add(key, "is on");
        }
    }
    doubts.extend(mlx::other_scale(config));
    let is_integer = |meta: &&WeightMeta| !meta.ty.is_plain_float();
    if let Some(first) = weights.iter().find(is_integer) {
        doubts.push(format!(
            "tensor `{}` of the adapter is {}: taken as plain numbers, which quantized matrices are not",
            escape(&first.name),
            first.ty
        ));
    }
    doubts
}

/// Returns the effect of a key, and what belongs to it.
fn effect_of(key: &str) -> Option<(&'static str, &'static str)> {
    let row = TABLE.lines().filter_map(|line| line.split_once('\t')).find(|row| row.0 == key)?.1;
    Some(row.split_once('\t').unwrap_or((row, "")))
}

/// Returns true if the list of values has this one; PEFT ignores the case of words.
fn has(values: &str, value: &Json) -> bool {
    let lower = value.as_str().map_or_else(|| value.clone(), |text| text.to_ascii_lowercase().into());
    serde_json::from_str::<Vec<Json>>(values).is_ok_and(|values| values.contains(&lower))
}

fn shown(value: &Json) -> String {
    const MAX_CHARS: usize = 60;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= MAX_CHARS {
        text
    } else {
        text.chars().take(MAX_CHARS).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(config: &Json) -> Option<String> {
        check(Path::new("c.json"), config.as_object().unwrap()).err().map(|error| error.to_string())
    }

    #[test]
    fn rows_of_the_table_are_complete() {
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let key = line.split_once('\t').unwrap().0;
            let (effect, rest) = effect_of(key).unwrap();
            assert!(["read", "none", "only", "off"].contains(&effect), "{line}");
            assert!(effect == "read" || rest.is_empty() == (effect == "none"), "{line}");
            let kinds = ["", "switch", "map", "text", "number"];
            assert!(effect != "read" || kinds.contains(&rest), "{line}");
            assert!(effect != "only" || serde_json::from_str::<Vec<Json>>(rest).is_ok(), "{line}");
        }
    }

    #[test]
    fn settings_of_every_training_pass() {
        for config in [
            json!({"init_lora_weights": true, "layer_replication": null, "use_qalora": false, "qalora_group_size": 16}),
            json!({"init_lora_weights": "Gaussian", "loftq_config": {}, "corda_config": null, "megatron_core": "megatron.core"}),
            json!({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}, "lora_dropout": 0.1, "runtime_config": {"a": false}}),
            json!({"init_lora_weights": false, "velora_config": {"scale": 1.0}, "layers_to_transform": [1, 2], "task_type": "X"}),
            json!({"unsloth_fixed": true, "peft_version": "0.21.2", "revision": "main", "auto_mapping": {"parent_library": "p"}}),
            // Keys of a later version that are off.
            json!({"use_new": false, "new_config": null, "new_list": [], "new_map": {}, "new_text": "", "new_number": 0}),
        ] {
            assert_eq!(refused(&config), None);
        }
    }

    #[test]
    fn what_changes_the_model_is_named() {
        for (config, want) in [
            (
                json!({"init_lora_weights": "pissa_niter_4"}),
                "`init_lora_weights` is `pissa_niter_4`: PEFT changes the base",
            ),
            (json!({"init_lora_weights": "PiSSA"}), "`init_lora_weights` is `PiSSA`: PEFT changes the base"),
            (json!({"init_lora_weights": "loftq"}), "`init_lora_weights` is `loftq`: PEFT changes the base"),
            (
                json!({"init_lora_weights": "lora_ga"}),
                "`init_lora_weights` is `lora_ga`: PEFT changes the base",
            ),
            (
                json!({"init_lora_weights": "of_tomorrow"}),
                "`init_lora_weights` is `of_tomorrow`: PEFT changes the base",
            ),
            (
                json!({"layer_replication": [[0, 2]]}),
                "`layer_replication` is `[[0,2]]`: PEFT changes the base",
            ),
            (
                json!({"kasa_config": {"beta": 1e-4}}),
                "`kasa_config` is `{\"beta\":0.0001}`: PEFT changes the base",
            ),
            (json!({"use_qalora": true}), "`use_qalora` is on: QA-LoRA averages groups of inputs"),
            (json!({"use_bdlora": {"nblocks": 2}}), "`use_bdlora` is on: the matrices are block-diagonal"),
            (json!({"arrow_config": {"top_k": 3}}), "`arrow_config` is on: several adapters are mixed"),
            (json!({"enable_lora": [true, false]}), "`enable_lora` is on: some outputs"),
            (json!({"use_rslora": "true"}), "`use_rslora` is not `true` or `false`"),
            (json!({"use_dora": 1}), "`use_dora` is not `true` or `false`"),
            (json!({"ensure_weight_tying": "True"}), "`ensure_weight_tying` is not `true` or `false`"),
            (json!({"alpha_pattern": ["q_proj"]}), "`alpha_pattern` is not an object"),
            (json!({"rank_pattern": "q_proj"}), "`rank_pattern` is not an object"),
            (json!({"r": "8"}), "`r` is not a whole number"),
            (json!({"peft_type": ["LORA"]}), "`peft_type` is not a text"),
            (json!({"use_mora": true}), "`use_mora` is `true`, a setting that is not known"),
            (
                json!({"gate_config": {"kind": 1}}),
                "`gate_config` is `{\"kind\":1}`, a setting that is not known",
            ),
        ] {
            let error = refused(&config).unwrap();
            assert!(error.starts_with(&format!("c.json: {want}")), "{error}");
        }
    }
}
