//! Keys of a file that its checkpoint does not give again: the card is run forwards on what it gave backwards.

use serde_json::{Map, Value as Json, json};

use super::config::of_all_layers;
use crate::apply::resolve::resolve;
use crate::judge::carried::same;
use crate::keys::target;
use crate::language::datum::Datum;
use crate::language::expr::Expr;
use crate::mapping::OutputSpec;
use crate::mapping::inputs::{Inputs, Pooling};
use crate::mapping::options::ResolveOptions;
use crate::read::metadata_rows::{base_keys, derived_keys};
use crate::read::schema::Card;
use crate::registry::Registry;
use gguf_core::{ElementType, WeightMeta};
use gguf_format::keys::ANNOTATION_PREFIX;
use gguf_format::{Metadata, Value};

/// Keys that follow from the tensors, whatever their value.
const OF_TENSORS: [&str; 2] = ["vocab_size", "rope.scaling.original_context_length"];

/// Returns the keys, with their values, that matter to the runtime and that the card does not write for this checkpoint.
/// Nothing is said of a checkpoint that needs another one beside it.
pub(super) fn lost(
    registry: &Registry,
    card: &Card,
    metadata: &Metadata,
    config: &Map<String, Json>,
    outputs: &[OutputSpec],
) -> Vec<String> {
    let meta = |output: &OutputSpec| WeightMeta {
        name: output.name.clone(),
        shape: output.shape.clone(),
        ty: output.type_rule.source.unwrap_or(ElementType::F32),
    };
    let weights: Vec<WeightMeta> = outputs.iter().map(meta).collect();
    let of_file = |name: &str| {
        let value = metadata.get(&format!("{}.{name}", card.gguf));
        value.map(|value| Datum::from_value(value).to_json()).unwrap_or_default()
    };
    let pooling = of_file("pooling_type").as_u64();
    let pooling =
        [Pooling::Mean, Pooling::Cls, Pooling::Last].into_iter().find(|own| Some(*own as u64) == pooling);
    let inputs = Inputs { pooling, ..Inputs::of_headers(config, &weights) };
    let options = ResolveOptions { metadata_only: true, annotate: true, ..ResolveOptions::default() };
    let Ok(again) = resolve(registry, &inputs, &options) else { return Vec::new() };
    if target::is_used_by(card) || again.card.gguf != card.gguf {
        return Vec::new();
    }
    let mut known = derived_keys(card);
    known.extend(base_keys().map(|key| format!("{}.{key}", card.gguf)));
    let is_lost = |key: &str, value: &Value| {
        let own = key.strip_prefix(card.gguf.as_str()).and_then(|rest| rest.strip_prefix('.'));
        let Some(name) = own.or_else(|| key.strip_prefix(ANNOTATION_PREFIX)) else { return false };
        if OF_TENSORS.contains(&name) || is_tensor_of(card, name) || !known.iter().any(|known| known == key) {
            return false;
        }
        let found =
            [&again.early, &again.metadata, &again.annotations].into_iter().find_map(|keys| keys.get(key));
        let found = found.map_or_else(|| assumed(name, &of_file), |found| Datum::from_value(found).to_json());
        let value = of_all_layers(Datum::from_value(value).to_json());
        !same(&of_all_layers(found), &value) && (name == "attention.causal" || has_effect(name, &value))
    };
    let lost = metadata.iter().filter(|(key, value)| is_lost(key, value));
    lost.map(|(key, value)| format!("{key} = {}", Datum::from_value(value).to_json())).collect()
}

/// Returns true for a key that comes back as a tensor.
fn is_tensor_of(card: &Card, name: &str) -> bool {
    let mut found = false;
    for rule in card.inverse.values().filter(|rule| rule.tensor.is_some()) {
        rule.value.walk(&mut |expr| found |= matches!(expr, Expr::Text(text) if text == name));
    }
    found
}

/// Returns true for a value other than what the runtime takes for an absent key of any name.
fn has_effect(name: &str, value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => false,
        Json::String(text) => {
            let is_linear = name == "rope.scaling.type" && text == "linear";
            !is_linear && !matches!(text.as_str(), "" | "none")
        }
        Json::Number(number) => number.as_f64() != Some(0.0),
        Json::Array(items) => items.iter().any(|item| has_effect(name, item)),
        _ => true,
    }
}

/// Returns what the runtime takes for an absent key, or null.
fn assumed(name: &str, of_file: &dyn Fn(&str) -> Json) -> Json {
    let width = || {
        let heads = of_all_layers(of_file("attention.head_count")).as_u64().filter(|heads| *heads > 0);
        heads.and_then(|heads| Some(json!(of_file("embedding_length").as_u64()? / heads))).unwrap_or_default()
    };
    let or_width = |value: Json| if value.is_null() { width() } else { value };
    match name {
        "attention.causal" => json!(true),
        "attention.head_count_kv" => of_file("attention.head_count"),
        "attention.key_length" | "attention.value_length" => width(),
        "rope.dimension_count" => or_width(of_file("attention.key_length")),
        "rope.freq_base" => json!(10000),
        "rope.freq_base_swa" => of_file("rope.freq_base"),
        "rope.scaling.factor" | "rope.scaling.attn_factor" => json!(1),
        _ => Json::Null,
    }
}
