//! Numbers, switches and words of a configuration: an attribute that is a number or a boolean in transformers' class is
//! one, sizes are positive, and kinds of layers are words that transformers knows. A text, a list or a value with the wrong
//! sign would give a key that means something else; an empty text or list would count as absent.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::attributes::{AttributeDefault, AttributeKind, Attributes};
use crate::error::ArchError;
use crate::judge::carried::number;

use crate::read::base;

/// Endings of keys that name tokens: several may stand in a list, and a negative one means none.
const TOKENS: [&str; 2] = ["_token_id", "_token_ids"];
/// Integers of which a negative one means none.
const SIGNED: [&str; 3] = ["sliding_window", "max_window_layers", "num_logits_to_keep"];

/// Parts that do not describe the model.
const DESCRIPTIONS: [&str; 2] = ["quantization_config", "compression_config"];

const OBJECTS: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// Key whose list may be shorter than the layers.
const BASE: &str = "rope_theta";

/// Words of `layer_types` in transformers, with those that it still reads.
const LAYER_TYPES: [&str; 20] = [
    "attention",
    "chunked_attention",
    "compressed_sparse_attention",
    "conv",
    "deepseek_sparse_attention",
    "dense",
    "full_attention",
    "heavily_compressed_attention",
    "hybrid",
    "hybrid_sliding",
    "indexed_attention",
    "linear_attention",
    "mamba",
    "minimax_m3_sparse",
    "moe",
    "qwen_sparse_attention",
    "reference_sliding_attention",
    "sliding_attention",
    "sparse",
    "window_attention",
];

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Number,
    Whole,
    Positive,
    NotNegative,
}

impl Expected {
    /// Returns the description of a number to which all of the rules apply.
    fn text(rules: &[Self]) -> &'static str {
        let is = |rule| rules.contains(&rule);
        match (is(Self::Whole), is(Self::Positive), is(Self::NotNegative)) {
            (true, true, _) => "a whole number above 0",
            (true, false, true) => "0 or a whole number above it",
            (true, false, false) => "a whole number",
            (false, true, _) => "a number above 0",
            (false, false, true) => "0 or a number above it",
            (false, false, false) => "a number",
        }
    }

    fn holds(self, number: f64) -> bool {
        match self {
            Self::Number => true,
            Self::Whole => number.fract() == 0.0 && number.abs() <= u64::MAX as f64,
            Self::Positive => number > 0.0,
            Self::NotNegative => number >= 0.0,
        }
    }
}

/// Part whose attributes are those of the text model's class.
const TEXT: &str = "text_config";

/// Checks the numbers of a configuration and its text part.
pub(crate) fn check(config: &Map<String, Json>) -> Result<()> {
    let attributes = Attributes::of_text(config);
    let text = config.get(TEXT).and_then(Json::as_object);
    // With a text part, the attributes are those of this part.
    let of_top = attributes.filter(|_| text.is_none());
    check_part(config, of_top)?;
    text.map_or(Ok(()), |text| check_part(text, attributes))?;
    check_others(config)
}

/// Checks the parts that describe towers.
pub(crate) fn check_towers(config: &Map<String, Json>) -> Result<()> {
    for key in ["vision_config", "audio_config"] {
        if let Some(value) = config.get(key).filter(|value| !value.is_object() && !value.is_null()) {
            let (key, value) = (key.to_owned(), value.to_string());
            return Err(ArchError::ConfigValue { key, value, expected: "an object" });
        }
    }
    check_others(config)
}

/// Checks the numbers of parts whose classes are not looked up: towers, and parts of parts.
fn check_others(config: &Map<String, Json>) -> Result<()> {
    for (name, part) in
        config.iter().filter(|(name, _)| name.ends_with("_config") && !DESCRIPTIONS.contains(&name.as_str()))
    {
        let Some(part) = part.as_object() else { continue };
        if name != TEXT {
            check_part(part, None)?;
        }
        check_others(part)?;
    }
    Ok(())
}

fn check_part(part: &Map<String, Json>, attributes: Option<&Attributes>) -> Result<()> {
    for (key, value) in part {
        let is_object = value.is_object() || value.is_null() || *value == Json::Bool(false);
        if OBJECTS.contains(&key.as_str()) && !is_object {
            let (key, value) = (key.clone(), value.to_string());
            return Err(ArchError::ConfigValue { key, value, expected: "an object" });
        }
        let is_boolean =
            || kind_of(key, attributes) == Some(AttributeKind::Bool) || key == "tie_word_embeddings";
        let is_word = value.as_str().is_some_and(|text| text.is_empty() || is_switch(text));
        if (is_word || value.is_array() || value.is_object()) && is_boolean() {
            let (key, value) = (key.clone(), value.to_string());
            return Err(ArchError::ConfigValue { key, value, expected: "true or false, without quotes" });
        }
        let is_known = |word: &Json| word.as_str().is_some_and(|word| LAYER_TYPES.contains(&word));
        if let ("layer_types", Some(words), Some(_)) = (key.as_str(), value.as_array(), attributes)
            && let Some(word) = words.iter().find(|word| !is_known(word))
        {
            let (key, value) = (key.clone(), word.to_string());
            return Err(ArchError::ConfigValue { key, value, expected: "kinds of layers of transformers" });
        }
        let rules = expected(key, attributes);
        let is_by_name = rules == [Expected::Number] && kind_of(key, attributes).is_none();
        let is_one =
            |value: &Json| value.as_f64().is_some_and(|number| rules.iter().all(|rule| rule.holds(number)));
        let is_right = match value {
            Json::Null => !is_required(key, attributes),
            Json::Bool(false) => true,
            Json::Array(items) if base().by_layer.contains(key) || key == BASE => {
                // A layer may have none.
                let is_none = |item: &Json| item.is_null() || item.as_f64() == Some(0.0) && key != BASE;
                !items.is_empty() && items.iter().all(|item| is_none(item) || is_one(item))
            }
            // The name alone may mean several numbers, or a switch (`dynamic_image_size`).
            Json::Array(_) | Json::Object(_) if is_by_name => {
                *value != Json::Array(Vec::new()) && *value != Json::Object(Map::new())
            }
            Json::Bool(true) if is_by_name => !is_count(key),
            // Some keys take a number or a word.
            Json::String(text) if text == "auto" => true,
            Json::String(text) if !text.is_empty() && text.parse::<f64>().is_err() => sign(key).is_none(),
            value => is_one(value),
        };
        if !is_right && !rules.is_empty() {
            let (key, value, expected) = (key.clone(), shown(value), Expected::text(&rules));
            return Err(ArchError::ConfigValue { key, value, expected });
        }
    }
    Ok(())
}

/// Returns a value as a message shows it.
pub(crate) fn shown(value: &Json) -> String {
    // Infinity and NaN are objects in a configuration that is read.
    match number(value).filter(|number| value.is_f64() || !number.is_finite()) {
        Some(number) if number.is_finite() => format!("{number:?}"),
        Some(number) => number.to_string(),
        None => value.to_string(),
    }
}

/// Returns true for a text that is meant as a boolean.
fn is_switch(text: &str) -> bool {
    ["true", "false", "yes", "no", "on", "off", "1", "0"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Returns true for a null in place of a number with which every model computes and that the class requires. A null of
/// other numbers (`head_dim`, `sliding_window`) means none, or the class's default, in older versions.
fn is_required(key: &str, attributes: Option<&Attributes>) -> bool {
    let is_computed_with = POSITIVE.iter().chain(&NOT_NEGATIVE).any(|end| key.ends_with(end));
    is_computed_with && attributes.is_some_and(|attributes| attributes.refuses_null(key))
}

fn kind_of(key: &str, attributes: Option<&Attributes>) -> Option<AttributeKind> {
    attributes.and_then(|attributes| attributes.kind_of(key))
}

/// Ends of keys whose number is above 0, and of those whose number is not below it.
const POSITIVE: [&str; 2] = ["_theta", "rope_local_base_freq"];
const NOT_NEGATIVE: [&str; 2] = ["_eps", "_epsilon"];

/// Returns what is known of the sign of a key's number in all models.
fn sign(key: &str) -> Option<Expected> {
    let ends_in = |ends: &[&str]| ends.iter().any(|end| key.ends_with(end));
    if base().counts.iter().any(|count| count == key) || ends_in(&POSITIVE) {
        Some(Expected::Positive)
    } else {
        ends_in(&NOT_NEGATIVE).then_some(Expected::NotNegative)
    }
}

/// Returns true for a key whose name says that it counts something.
fn is_count(key: &str) -> bool {
    key.starts_with("num_") || key.starts_with("n_")
}

/// Returns true for a key whose name says that it is a number, or a list or an object of several.
fn is_number(key: &str) -> bool {
    const ENDS: [&str; 8] = [
        "_size",
        "head_dim",
        "rotary_dim",
        "_rank",
        "factor",
        "_multiplier",
        "_group",
        "max_position_embeddings",
    ];
    is_count(key) || ENDS.iter().any(|end| key.ends_with(end))
}

/// Returns what a key may hold; empty if that is not known.
fn expected(key: &String, attributes: Option<&Attributes>) -> Vec<Expected> {
    let mut rules = Vec::new();
    if TOKENS.iter().any(|end| key.ends_with(end)) {
        return rules;
    }
    match kind_of(key, attributes) {
        Some(AttributeKind::Float) => rules.push(Expected::Number),
        Some(AttributeKind::Int) => {
            rules.push(Expected::Whole);
            let default = attributes.and_then(|attributes| attributes.default_of(key));
            let is_count = |default| matches!(default, AttributeDefault::Value(Json::Number(own)) if own.as_i64() >= Some(0));
            if default.is_some_and(is_count) && !SIGNED.contains(&key.as_str()) {
                rules.push(Expected::NotNegative);
            }
        }
        _ => {}
    }
    if base().counts.contains(key) {
        rules.push(Expected::Whole);
    }
    rules.extend(sign(key));
    if rules.is_empty() && is_number(key) {
        rules.push(Expected::Number);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> Option<String> {
        check(&serde_json::from_str(json).unwrap()).err().map(|error| error.to_string())
    }

    #[test]
    fn numbers_are_numbers_of_their_sign_and_switches_are_booleans() {
        for json in [
            r#"{"model_type": "llama", "tie_word_embeddings": 1, "attention_bias": null, "mlp_bias": true, "tag": "true"}"#,
            r#"{"model_type": "llama", "vocab_size": 32, "rope_theta": 10000, "head_dim": null, "hidden_size": 8.0}"#,
            r#"{"model_type": "llama", "pad_token_id": -1, "eos_token_id": [1, 2], "rms_norm_eps": 0}"#,
            r#"{"model_type": "mine", "size": "big", "hidden_size": 4, "intermediate_size": [1, 2]}"#,
            r#"{"vocab_size": "auto", "model_type": "gemma3", "text_config": {"sliding_window": -1}}"#,
            r#"{"model_type": "qwen2", "sliding_window": false, "num_hidden_layers": 1}"#,
            r#"{"vision_config": {"image_size": {"height": 4}, "num_heads": [4, 4], "patch_size": 14, "n_x": null}}"#,
            r#"{"quantization_config": {"group_size": ""}, "num_of": "auto", "mlp_only_layers": [], "dynamic_image_size": true}"#,
            r#"{"model_type": "exaone_moe", "sliding_window_pattern": "LLLG", "rope_theta": [1e4, 1e6]}"#,
        ] {
            assert_eq!(error(json), None, "{json}");
        }
        for (json, want) in [
            (
                r#"{"model_type": "mine", "vocab_size": [32]}"#,
                "`vocab_size` is [32], expected a whole number above 0",
            ),
            (r#"{"rope_scaling": "linear"}"#, "`rope_scaling` is \"linear\", expected an object"),
            (
                r#"{"text_config": {"rope_parameters": [1e4]}}"#,
                "`rope_parameters` is [10000.0], expected an object",
            ),
            (
                r#"{"model_type": "llama", "attention_bias": "False"}"#,
                "`attention_bias` is \"False\", expected true or false, without quotes",
            ),
            (
                r#"{"text_config": {"tie_word_embeddings": "no"}}"#,
                "`tie_word_embeddings` is \"no\", expected true or false, without quotes",
            ),
            (
                r#"{"model_type": "llama", "mlp_bias": []}"#,
                "`mlp_bias` is [], expected true or false, without quotes",
            ),
            (r#"{"model_type": "llama", "head_dim": ""}"#, "`head_dim` is \"\", expected a whole number"),
            (r#"{"model_type": "llama", "rope_theta": []}"#, "`rope_theta` is [], expected a number above 0"),
            (
                r#"{"model_type": "qwen2", "layer_types": ["full_attention", "sliding"]}"#,
                "`layer_types` is \"sliding\", expected kinds of layers of transformers",
            ),
            (r#"{"vision_config": {"num_heads": true}}"#, "`num_heads` is true, expected a number"),
            (r#"{"text_config": {"x_config": {"n_y": []}}}"#, "`n_y` is [], expected a number"),
            (r#"{"swa_rope_theta": -1}"#, "`swa_rope_theta` is -1, expected a number above 0"),
            (
                r#"{"model_type": "llama", "rms_norm_eps": null}"#,
                "`rms_norm_eps` is null, expected 0 or a number above it",
            ),
            (r#"{"hidden_size": 0}"#, "`hidden_size` is 0, expected a whole number above 0"),
            (r#"{"rope_theta": -1e4}"#, "`rope_theta` is -10000.0, expected a number above 0"),
            (r#"{"rms_norm_eps": "1e-5"}"#, "`rms_norm_eps` is \"1e-5\", expected 0 or a number above it"),
            (
                r#"{"model_type": "qwen3_moe", "decoder_sparse_step": "1"}"#,
                "`decoder_sparse_step` is \"1\", expected 0 or a whole number above it",
            ),
            (
                r#"{"model_type": "mamba2", "expand": 1.5}"#,
                "`expand` is 1.5, expected 0 or a whole number above it",
            ),
            (
                r#"{"text_config": {"model_type": "llama", "num_attention_heads": true}}"#,
                "`num_attention_heads` is true, expected 0 or a whole number above it",
            ),
        ] {
            assert_eq!(error(json), Some(format!("config.json: {want}")), "{json}");
        }
    }
}
