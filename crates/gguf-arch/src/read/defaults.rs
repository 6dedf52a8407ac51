//! Defaults of absent configuration keys: `[defaults]` of a card, and those of transformers' classes.

use std::sync::OnceLock;

use indexmap::IndexMap;
use toml::{Table, Value as Toml};

use super::{CardTable, Read, expr, kind};
use crate::error::CardProblem;
use crate::language::names::nearest;
use crate::read::schema::{ConfigDefault, DefaultValue};

pub(super) const DEFAULT_KEYS: &[&str] = &["value", "expr", "null", "auto"];

type Defaults = IndexMap<String, ConfigDefault>;

/// Defaults of transformers' classes, by model type.
const TRANSFORMERS: &str = include_str!("defaults.toml");

/// Reads the defaults of the model types that a card names. The card's own defaults take precedence.
pub(super) fn defaults(top: &CardTable<'_>) -> Read<IndexMap<String, Defaults>> {
    let mut all = IndexMap::new();
    for model_type in top.texts("model_types")? {
        let known = transformers()?;
        let table = known.get(&model_type).ok_or_else(|| CardProblem::UnknownChoice {
            at: top.at("model_types"),
            what: "model type",
            nearest: nearest(&model_type, known.keys().map(String::as_str)).map(str::to_owned),
            name: model_type.clone(),
        })?;
        all.insert(model_type, table.clone());
    }
    for (model_type, own) in tables(top.tables("defaults")?)? {
        all.entry(model_type).or_insert_with(IndexMap::new).extend(own);
    }
    Ok(all)
}

/// Returns the parsed [`TRANSFORMERS`]; they are parsed once per process.
fn transformers() -> Read<&'static IndexMap<String, Defaults>> {
    static READ: OnceLock<IndexMap<String, Defaults>> = OnceLock::new();
    if let Some(known) = READ.get() {
        return Ok(known);
    }
    let table: Table = TRANSFORMERS
        .parse()
        .map_err(|error: toml::de::Error| CardProblem::Toml(error.message().to_owned()))?;
    let known = tables(table.iter())?;
    Ok(READ.get_or_init(|| known))
}

fn tables<'t>(all: impl Iterator<Item = (&'t String, &'t Toml)>) -> Read<IndexMap<String, Defaults>> {
    all.map(|(model_type, table)| {
        let at = format!("[defaults.{model_type}]");
        let table = table.as_table().ok_or_else(|| kind(&at, "a table", table))?;
        let rules =
            table.iter().map(|(key, value)| Ok((key.clone(), default(value, &format!("{at} `{key}`"))?)));
        Ok((model_type.clone(), rules.collect::<Read<_>>()?))
    })
    .collect()
}

fn default(value: &Toml, at: &str) -> Read<ConfigDefault> {
    let is_rule = |table: &&Table| table.contains_key("value") || table.contains_key("expr");
    let Some(table) = value.as_table().filter(is_rule) else {
        return Ok(ConfigDefault { value: DefaultValue::Literal(json(value, at)?), null: None, auto: false });
    };
    let fields = CardTable::of(table, at, DEFAULT_KEYS)?;
    let value = match (table.get("value"), fields.expr("expr")?) {
        (Some(value), None) => DefaultValue::Literal(json(value, at)?),
        (None, Some(expr)) => DefaultValue::Expr(expr),
        _ => return Err(kind(at, "either `value` or `expr`", value)),
    };
    let null = match table.get("null") {
        None | Some(Toml::Boolean(false)) => None,
        Some(Toml::Boolean(true)) => Some(value.clone()),
        Some(other) => Some(DefaultValue::Expr(expr(other, at)?)),
    };
    Ok(ConfigDefault { value, null, auto: fields.bool("auto")? })
}

fn json(value: &Toml, at: &str) -> Read<serde_json::Value> {
    Ok(match value {
        Toml::String(text) => text.as_str().into(),
        Toml::Integer(value) => (*value).into(),
        Toml::Float(value) => (*value).into(),
        Toml::Boolean(value) => (*value).into(),
        Toml::Array(items) => items.iter().map(|item| json(item, at)).collect::<Read<Vec<_>>>()?.into(),
        Toml::Table(table) => {
            let members = table.iter().map(|(key, value)| Ok((key.clone(), json(value, at)?)));
            serde_json::Value::Object(members.collect::<Read<_>>()?)
        }
        Toml::Datetime(_) => return Err(kind(at, "a JSON value", value)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_transformers_fills_in_is_read() {
        let known = transformers().unwrap();
        assert!(known.len() > 70, "{}", known.len());
        assert_eq!(known["llama"]["rms_norm_eps"].value, DefaultValue::Literal(serde_json::json!(1e-6)));
    }

    #[test]
    fn every_model_type_is_named_by_a_card() {
        let registry = crate::Registry::embedded().unwrap();
        for model_type in transformers().unwrap().keys() {
            let is_named = registry.cards().iter().any(|card| card.defaults.contains_key(model_type));
            assert!(is_named, "{model_type}");
        }
    }
}
