//! Attributes of transformers' configuration classes with their defaults, by `model_type`.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json};

use crate::error::warning::ArchWarning;
use crate::judge::carried::same;

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
    nullable: Vec<String>,
    #[serde(default)]
    kinds: BTreeMap<String, AttributeKind>,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    #[serde(default)]
    outranked: Vec<String>,
    #[serde(default)]
    text: Option<String>,
}

/// What an attribute holds, if it is one number or one switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AttributeKind {
    /// Whole number.
    Int,
    /// Number.
    Float,
    /// Truth value.
    Bool,
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

/// Row of the table, and what it says once it was asked for: a conversion reads those of its model alone.
type Row = (&'static RawValue, OnceLock<Option<Attributes>>);

static TYPES: LazyLock<BTreeMap<&str, Row>> = LazyLock::new(|| {
    // A test covers that the table parses.
    let mut table: BTreeMap<&str, &RawValue> = serde_json::from_str(TABLE).unwrap_or_default();
    table.remove("about");
    table.into_iter().map(|(name, row)| (name, (row, OnceLock::new()))).collect()
});

impl Attributes {
    /// Returns the attributes of a `model_type`, if it is known.
    fn of_type(model_type: &str) -> Option<&'static Self> {
        let (row, read) = TYPES.get(model_type)?;
        read.get_or_init(|| serde_json::from_str(row.get()).ok()).as_ref()
    }

    /// Returns the `model_type` of the text part of a model of several parts.
    pub(super) fn text_type(model_type: &str) -> Option<&'static str> {
        Self::of_type(model_type)?.text.as_deref()
    }

    /// Returns the attributes of the text part of a configuration, if its type is known.
    pub(super) fn of_text(config: &Map<String, Json>) -> Option<&'static Self> {
        let type_of =
            |config: &Map<String, Json>| config.get("model_type").and_then(Json::as_str).map(str::to_owned);
        let outer = type_of(config);
        let Some(text) = config.get("text_config").and_then(Json::as_object) else {
            return Self::of_type(&outer?);
        };
        let inner = type_of(text).or_else(|| Self::of_type(&outer?)?.text.clone());
        Self::of_type(&inner?)
    }

    /// Leaves the value that transformers takes, where a configuration and its text part give an attribute two by its names.
    pub(super) fn settle(config: &mut Map<String, Json>) -> Vec<ArchWarning> {
        let mut warnings = Vec::new();
        let outer = config.get("model_type").and_then(Json::as_str).and_then(Self::of_type);
        let text = Self::of_text(config);
        if let (Some(text), Some(part)) = (text, config.get_mut("text_config").and_then(Json::as_object_mut))
        {
            text.settle_part(part, &mut warnings);
        }
        if let Some(outer) = outer {
            outer.settle_part(config, &mut warnings);
        }
        warnings
    }

    fn settle_part(&self, part: &mut Map<String, Json>, warnings: &mut Vec<ArchWarning>) {
        for (alias, own) in &self.aliases {
            let (Some(by_alias), Some(by_own)) = (part.get(alias).cloned(), part.get(own).cloned()) else {
                continue;
            };
            // Lists by layer have words of their own under either name.
            let is_left = |value: &Json| value.is_null() || value.is_array();
            if is_left(&by_alias) || is_left(&by_own) || same(&by_alias, &by_own) {
                continue;
            }
            let (names, values) = if self.outranked.contains(alias) {
                ([own, alias], [by_own, by_alias])
            } else {
                ([alias, own], [by_alias, by_own])
            };
            let [taken, other] = values;
            warnings.push(ArchWarning::TwoNames {
                names: names.map(Clone::clone),
                values: [taken.to_string(), other.to_string()],
            });
            // Cards count experts by either name.
            if alias.contains("experts") {
                part.insert(alias.clone(), taken.clone());
            } else {
                part.remove(alias);
            }
            part.insert(own.clone(), taken);
        }
    }

    /// Spells a configuration and its text part as their classes do: attributes under their canonical names
    /// (`num_local_experts` for `n_routed_experts`; transformers reads and writes either), and whole numbers as such (`32.0`).
    /// Names that `is_read` stay: the card tells them apart.
    pub(super) fn spell(config: &mut Map<String, Json>, is_read: &dyn Fn(&str) -> bool) {
        let outer = config.get("model_type").and_then(Json::as_str).and_then(Self::of_type);
        let text = Self::of_text(config);
        if let (Some(text), Some(part)) = (text, config.get_mut("text_config").and_then(Json::as_object_mut))
        {
            text.spell_part(part, is_read);
        }
        if let Some(outer) = outer {
            outer.spell_part(config, is_read);
        }
    }

    fn spell_part(&self, part: &mut Map<String, Json>, is_read: &dyn Fn(&str) -> bool) {
        let is_given = |part: &Map<String, Json>, key: &str| part.get(key).is_some_and(|own| !own.is_null());
        for (alias, own) in &self.aliases {
            if !is_given(part, alias) || is_given(part, own) {
                continue;
            }
            // Cards count experts by either name, also where they read one of them.
            let is_count = [alias, own].iter().all(|name| name.contains("experts"));
            if !is_count && is_read(alias) {
                continue;
            }
            let value = if is_count { part.get(alias).cloned() } else { part.remove(alias) };
            part.extend(value.map(|value| (own.clone(), value)));
        }
        for (key, value) in part {
            let is_size = key.starts_with("num_") || key.ends_with("_size") || key.ends_with("_dim");
            let default = self.defaults.get(key);
            let is_whole = default
                .is_some_and(|own| own.is_i64() || own.is_u64() || is_size && own.get("derived").is_some());
            if let Some(number) = value.as_f64().filter(|number| is_whole && number.fract() == 0.0)
                && (0.0..9e15).contains(&number)
            {
                *value = Json::from(number as u64);
            }
        }
    }

    /// Returns true for a `model_type` of transformers.
    pub(super) fn are_of(model_type: &str) -> bool {
        TYPES.contains_key(model_type)
    }

    /// Returns the names of the attributes, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.defaults.keys().map(String::as_str)
    }

    pub(super) fn default_of(&self, name: &str) -> Option<AttributeDefault> {
        let value = self.defaults.get(name)?;
        Some(match (value.get("derived"), value.get("period").and_then(Json::as_array)) {
            (Some(_), _) => AttributeDefault::Derived,
            (None, Some(beginning)) => AttributeDefault::Period(beginning.clone()),
            (None, None) => AttributeDefault::Value(value.clone()),
        })
    }

    /// Returns what an attribute holds, by its default or by the type that its class declares.
    pub(super) fn kind_of(&self, name: &str) -> Option<AttributeKind> {
        match self.defaults.get(name)? {
            Json::Bool(_) => Some(AttributeKind::Bool),
            Json::Number(default) if default.is_f64() => Some(AttributeKind::Float),
            Json::Number(_) => Some(AttributeKind::Int),
            _ => self.kinds.get(name).copied(),
        }
    }

    /// Returns true for an attribute of which a null counts as absent.
    pub(super) fn fills_null(&self, name: &str) -> bool {
        let is_nullable = self.nullable.iter().any(|nullable| nullable == name);
        self.defaults.get(name).is_some_and(|default| !default.is_null()) && !is_nullable
    }

    /// Returns true for an attribute of which the class takes no null.
    pub(super) fn refuses_null(&self, name: &str) -> bool {
        self.fills_null(name) && !self.filled.iter().any(|filled| filled == name)
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
        for name in TYPES.keys() {
            let row = Attributes::of_type(name).unwrap();
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
    fn either_name_of_an_attribute_is_read() {
        let own = |json: &str, key: &str| {
            let mut config = config(json);
            Attributes::spell(&mut config, &|_| false);
            config.get("text_config").and_then(|text| text.get(key)).or_else(|| config.get(key)).cloned()
        };
        let mixtral = r#"{"model_type": "mixtral", "num_experts": 4"#;
        assert_eq!(own(&format!("{mixtral}}}"), "num_local_experts"), Some(4.into()));
        assert_eq!(
            own(&format!("{mixtral}, \"num_local_experts\": null}}"), "num_local_experts"),
            Some(4.into())
        );
        assert_eq!(
            own(&format!("{mixtral}, \"num_local_experts\": 8}}"), "num_local_experts"),
            Some(8.into())
        );
        let nested = r#"{"model_type": "hunyuan_vl", "text_config": {"attention_head_dim": 7}}"#;
        assert_eq!(own(nested, "head_dim"), Some(7.into()));
        assert_eq!(
            own(r#"{"model_type": "llama", "num_hidden_layers": 2.0}"#, "num_hidden_layers"),
            Some(2.into())
        );
        assert_eq!(own(r#"{"model_type": "mine", "num_experts": 4}"#, "num_local_experts"), None);
    }

    #[test]
    fn defaults_are_values_or_follow_others() {
        let falcon = Attributes::of_type("falcon").unwrap();
        assert_eq!(falcon.default_of("alibi"), Some(AttributeDefault::Value(Json::Bool(false))));
        assert_eq!(falcon.default_of("ffn_hidden_size"), Some(AttributeDefault::Derived));
        assert_eq!(falcon.default_of("no such thing"), None);
        assert!(falcon.fills_null("ffn_hidden_size") && !falcon.refuses_null("ffn_hidden_size"));
        let llama = Attributes::of_type("llama").unwrap();
        assert!(llama.fills_null("rms_norm_eps") && llama.refuses_null("rms_norm_eps"));
        assert!(!falcon.fills_null("no such thing"));
        let kinds = ["alibi", "layer_norm_epsilon", "hidden_size", "ffn_hidden_size", "activation"];
        let kinds = kinds.map(|name| falcon.kind_of(name));
        let known =
            [AttributeKind::Bool, AttributeKind::Float, AttributeKind::Int, AttributeKind::Int].map(Some);
        assert_eq!((&kinds[..4], kinds[4]), (&known[..], None));
        let gpt2 = Attributes::of_type("gpt2").unwrap();
        assert!(gpt2.spellings("n_embd").any(|name| name == "hidden_size"));
    }
}
