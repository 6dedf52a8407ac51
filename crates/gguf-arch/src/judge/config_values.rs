//! Numbers and switches of a configuration: an attribute whose default is a number or a boolean in transformers' class has
//! one, and sizes are positive. A text, a list or a value with the wrong sign would give a key that means something else.

use crate::Result;
use serde_json::{Map, Value as Json};

use crate::attributes::{AttributeDefault, Attributes};
use crate::error::ArchError;
use crate::judge::carried::number;
use crate::read::base;

/// Endings of keys that name tokens: several may stand in a list, and a negative one means none.
const TOKENS: [&str; 2] = ["_token_id", "_token_ids"];
/// Integers of which a negative one means none.
const SIGNED: [&str; 3] = ["sliding_window", "max_window_layers", "num_logits_to_keep"];

const OBJECTS: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// Key whose list may be shorter than the layers.
const BASE: &str = "rope_theta";

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

/// Checks the numbers of a configuration and its text part.
pub(crate) fn check(config: &Map<String, Json>) -> Result<()> {
    let attributes = Attributes::of_text(config);
    let text = config.get("text_config").and_then(Json::as_object);
    // With a text part, the attributes are those of this part.
    let of_top = attributes.filter(|_| text.is_none());
    check_part(config, of_top)?;
    text.map_or(Ok(()), |text| check_part(text, attributes))
}

fn check_part(part: &Map<String, Json>, attributes: Option<&Attributes>) -> Result<()> {
    for (key, value) in part {
        let is_object = value.is_object() || value.is_null() || *value == Json::Bool(false);
        if OBJECTS.contains(&key.as_str()) && !is_object {
            let (key, value) = (key.clone(), value.to_string());
            return Err(ArchError::ConfigValue { key, value, expected: "an object" });
        }
        if value.as_str().is_some_and(is_switch) && is_boolean(key, attributes) {
            let (key, value) = (key.clone(), value.to_string());
            return Err(ArchError::ConfigValue { key, value, expected: "true or false, without quotes" });
        }
        let rules = expected(key, attributes);
        let is_one =
            |value: &Json| value.as_f64().is_some_and(|number| rules.iter().all(|rule| rule.holds(number)));
        let is_right = match value {
            Json::Null | Json::Bool(false) => true,
            Json::Array(items) if base().by_layer.contains(key) || key == BASE => {
                items.iter().all(|item| item.is_null() || is_one(item))
            }
            // Some keys take a number or a word.
            Json::String(text) if text == "auto" => true,
            Json::String(text) if text.parse::<f64>().is_err() => !is_listed(key),
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

/// Returns true for an attribute that transformers refuses unless it is a boolean.
fn is_boolean(key: &str, attributes: Option<&Attributes>) -> bool {
    let default = attributes.and_then(|attributes| attributes.default_of(key));
    key == "tie_word_embeddings" || matches!(default, Some(AttributeDefault::Value(Json::Bool(_))))
}

/// Returns true for a key whose sign is known for all models.
fn is_listed(key: &String) -> bool {
    [&base().counts, &base().positive, &base().not_negative].iter().any(|keys| keys.contains(key))
}

/// Returns what a key may hold; empty if that is not known.
fn expected(key: &String, attributes: Option<&Attributes>) -> Vec<Expected> {
    let mut rules = Vec::new();
    if TOKENS.iter().any(|end| key.ends_with(end)) {
        return rules;
    }
    match attributes.and_then(|attributes| attributes.default_of(key)) {
        Some(AttributeDefault::Value(Json::Number(default))) if default.is_f64() => {
            rules.push(Expected::Number);
        }
        Some(AttributeDefault::Value(Json::Number(default))) => {
            rules.push(Expected::Whole);
            if default.as_i64().is_some_and(|default| default >= 0) && !SIGNED.contains(&key.as_str()) {
                rules.push(Expected::NotNegative);
            }
        }
        _ => {}
    }
    if base().counts.contains(key) {
        rules.extend([Expected::Whole, Expected::Positive]);
    } else if base().positive.contains(key) {
        rules.push(Expected::Positive);
    } else if base().not_negative.contains(key) {
        rules.push(Expected::NotNegative);
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
