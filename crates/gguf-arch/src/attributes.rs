//! Attributes of transformers' configuration classes with their defaults, by `model_type`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// Written by `lab/peers/config_attributes.py`, where the members are explained.
const TABLE: &str = include_str!("attributes.json");

/// Attributes of one `model_type`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attributes {
    #[serde(rename = "attributes")]
    defaults: BTreeMap<String, Json>,
    #[serde(default)]
    filled: Vec<String>,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    #[serde(default)]
    text: Option<String>,
}

/// Default of an absent attribute in its class.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeDefault {
    /// Fixed value.
    Value(Json),
    /// Start of a list by layer, which repeats it.
    Period(Vec<Json>),
    /// Value that depends on other attributes.
    Derived,
}

static TYPES: LazyLock<BTreeMap<String, Attributes>> = LazyLock::new(|| {
    // A test covers that the table parses.
    let mut table: Map<String, Json> = serde_json::from_str(TABLE).unwrap_or_default();
    table.remove("about");
    let read = |(name, row)| Some((name, serde_json::from_value(row).ok()?));
    table.into_iter().filter_map(read).collect()
});

impl Attributes {
    /// Returns the attributes of the text part of a configuration, if its type is known.
    pub(super) fn of_text(config: &Map<String, Json>) -> Option<&'static Self> {
        let type_of =
            |config: &Map<String, Json>| config.get("model_type").and_then(Json::as_str).map(str::to_owned);
        let outer = type_of(config);
        let Some(text) = config.get("text_config").and_then(Json::as_object) else {
            return TYPES.get(&outer?);
        };
        let inner = type_of(text).or_else(|| TYPES.get(&outer?)?.text.clone());
        TYPES.get(&inner?)
    }

    /// Returns true for a `model_type` of transformers.
    pub(super) fn are_of(model_type: &str) -> bool {
        TYPES.contains_key(model_type)
    }

    /// Returns the names of the attributes, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.defaults.keys().map(String::as_str)
    }

    /// Returns the default of an attribute of the class.
    pub(super) fn default_of(&self, name: &str) -> Option<AttributeDefault> {
        let value = self.defaults.get(name)?;
        Some(match (value.get("derived"), value.get("period").and_then(Json::as_array)) {
            (Some(_), _) => AttributeDefault::Derived,
            (None, Some(beginning)) => AttributeDefault::Period(beginning.clone()),
            (None, None) => AttributeDefault::Value(value.clone()),
        })
    }

    /// Returns true if a null counts as absent.
    pub(super) fn fills_null(&self, name: &str) -> bool {
        self.filled.iter().any(|filled| filled == name)
    }

    /// Returns all names of an attribute, its canonical name first.
    pub(super) fn spellings<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> {
        let aliases = self.aliases.iter().filter(move |(_, own)| *own == name);
        std::iter::once(name).chain(aliases.map(|(alias, _)| alias.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Map<String, Json> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_whole_table_is_read() {
        let table: Map<String, Json> = serde_json::from_str(TABLE).unwrap();
        assert_eq!(TYPES.len() + 1, table.len());
        assert!(TABLE.len() < 400 << 10);
        for (name, row) in TYPES.iter() {
            assert!(!row.defaults.is_empty() || row.text.is_some(), "{name}");
        }
    }

    #[test]
    fn the_type_is_that_of_the_text_part() {
        let known = |json: &str| Attributes::of_text(&config(json));
        assert!(known(r#"{"model_type": "llama"}"#).unwrap().default_of("rms_norm_eps").is_some());
        let outer = r#"{"model_type": "gemma3", "text_config": {"hidden_size": 8}}"#;
        let period = known(outer).unwrap().default_of("layer_types").unwrap();
        assert!(matches!(period, AttributeDefault::Period(beginning) if beginning.len() == 6));
        assert!(known(r#"{"model_type": "of somebody's own"}"#).is_none());
        assert!(known(r#"{"model_type": "llava", "text_config": {"model_type": "x"}}"#).is_none());
        assert!(known("{}").is_none());
    }

    #[test]
    fn defaults_are_values_or_follow_others() {
        let falcon = &TYPES["falcon"];
        assert_eq!(falcon.default_of("alibi"), Some(AttributeDefault::Value(Json::Bool(false))));
        assert_eq!(falcon.default_of("ffn_hidden_size"), Some(AttributeDefault::Derived));
        assert_eq!(falcon.default_of("no such thing"), None);
        assert!(falcon.fills_null("ffn_hidden_size"));
        assert!(TYPES["gpt2"].spellings("n_embd").any(|name| name == "hidden_size"));
    }
}
