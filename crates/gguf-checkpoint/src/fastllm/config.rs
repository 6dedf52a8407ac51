//! Conversion of the `.flm` dictionary back to a `config.json` object.

use serde_json::{Map, Value as Json};

use crate::fastllm::error::FlmError;
use crate::fastllm::header::FlmHeader;
use crate::fastllm::literal;

/// Keys whose values stay text even if they look like another type.
const TEXT_KEYS: [&str; 9] = [
    "_name_or_path",
    "bot_role",
    "chat_template",
    "history_sep",
    "model_type",
    "pre_prompt",
    "tokenizer_class",
    "tokenizer_serialized",
    "user_role",
];

/// Keys that describe the storage of vocabulary and adapters, not the model.
const CONTAINER_KEYS: [&str; 7] = [
    "peft_size",
    "tokenizer_add_dummy_prefix",
    "tokenizer_byte_as_char",
    "tokenizer_has_special_tokens",
    "tokenizer_remove_extra_whitespaces",
    "tokenizer_serialized",
    "tokenizer_use_score",
];

/// Keys whose members may be written each under a key of its own: `rope_scaling.factor`.
const NESTED_KEYS: [&str; 2] = ["rope_parameters", "rope_scaling"];

impl FlmHeader {
    /// The dictionary with the types and the nesting of `config.json`.
    pub fn configuration(&self) -> Map<String, Json> {
        let mut config = Map::new();
        for (key, text) in &self.dictionary {
            if CONTAINER_KEYS.contains(&key.as_str()) {
                continue;
            }
            let value = value(key, text);
            match key.split_once('.').filter(|(outer, _)| NESTED_KEYS.contains(outer)) {
                None => {
                    config.insert(key.clone(), value);
                }
                Some((outer, inner)) => {
                    let members = config.entry(outer).or_insert_with(|| Json::Object(Map::new()));
                    if !members.is_object() {
                        *members = Json::Object(Map::new());
                    }
                    members[inner] = value;
                }
            }
        }
        // Key names of the first exporters.
        for (old, new) in [("bos", "bos_token_id"), ("eos", "eos_token_id")] {
            if !config.contains_key(new)
                && let Some(id) = config.remove(old)
            {
                config.insert(new.to_owned(), id);
            }
        }
        config
    }

    /// Returns the value of `model_type`.
    ///
    /// # Errors
    /// [`FlmError::NoModelType`]: the first exporters wrote none.
    pub fn model_type(&self) -> Result<&str, FlmError> {
        self.get("model_type").filter(|name| !name.is_empty()).ok_or(FlmError::NoModelType)
    }

    /// Returns a boolean of the dictionary: `true`/`false` in any case, or `1`/`0`.
    pub fn flag(&self, key: &str) -> Option<bool> {
        let text = self.get(key)?;
        let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        if is(&["true", "1"]) {
            Some(true)
        } else if is(&["false", "0"]) {
            Some(false)
        } else {
            None
        }
    }
}

fn value(key: &str, text: &str) -> Json {
    let as_text = || Json::String(text.to_owned());
    match key {
        "torch_dtype" | "dtype" => Json::String(text.strip_prefix("torch.").unwrap_or(text).to_owned()),
        _ if TEXT_KEYS.contains(&key) => as_text(),
        _ => literal::parse(text).unwrap_or_else(as_text),
    }
}
