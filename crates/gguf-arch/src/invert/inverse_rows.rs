//! Runs rows backwards: computes the configuration values for which a row writes the value in the file.

use serde_json::{Map, Value as Json, json};

use super::member::set_member;
use crate::language::datum::Datum;
use crate::language::eval::Scope;
use crate::language::expr::{BinaryOp, Expr, Function, Path, PathStep};
use crate::read::roots::ROOTS;
use crate::read::schema::{Card, MetadataRow};
use crate::read::{base, metadata_rows};
use gguf_format::keys::ANNOTATION_PREFIX;

/// Maximum depth of definitions that refer to definitions.
const MAX_DEPTH: u32 = 8;

/// Sets the configuration keys that the card's rows read, if a row's value determines them.
pub(super) fn take_back(card: &Card, scope: &Scope<'_>, config: &mut Map<String, Json>) {
    let own = card.annotate.iter().map(|row| (row, ANNOTATION_PREFIX));
    let rows = card.early.iter().chain(&card.metadata).map(|row| (row, ""));
    for (row, prefix) in rows.chain(own) {
        match row {
            // Keys that most decoders have were restored before. A key that the card's own row writes may not come from
            // the configuration.
            MetadataRow::Base => {
                let is_own = |key: &str| {
                    card.metadata
                        .iter()
                        .any(|row| matches!(row, MetadataRow::Key { key: own, .. } if own == key))
                };
                let is_known = |key: &str| base().inverse.values().any(|known| known == key);
                for row in metadata_rows::base_rows() {
                    if !matches!(row, MetadataRow::Key { key, .. } if is_known(key) || is_own(key)) {
                        take_row(card, scope, row, "", config);
                    }
                }
            }
            MetadataRow::Key { .. } => take_row(card, scope, row, prefix, config),
        }
    }
}

fn take_row(card: &Card, scope: &Scope<'_>, row: &MetadataRow, prefix: &str, config: &mut Map<String, Json>) {
    let MetadataRow::Key { key, value: expr, when } = row else { return };
    let value = scope.kv(&format!("{prefix}{key}"));
    if value.is_null() {
        return;
    }
    let found = source(card, expr, &value, MAX_DEPTH);
    if let Some((path, value)) = found.or_else(|| condition(expr, when.as_ref()?, &value)) {
        set_member(config, &path, Some(value));
    }
}

/// Returns the configuration key and its value under which a row writes this constant: `key == literal`.
fn condition(constant: &Expr, when: &Expr, value: &Datum) -> Option<(String, Json)> {
    let literal = |expr: &Expr| match expr {
        Expr::Bool(value) => Some(json!(value)),
        Expr::Float(value) => Some(json!(value)),
        Expr::Text(value) => Some(json!(value)),
        _ => None,
    };
    let Expr::Binary(BinaryOp::Eq, sides) = when else { return None };
    let Expr::Path(path) = &sides[0] else { return None };
    (literal(constant)? == value.to_json()).then_some(())?;
    Some((place(path)?, literal(&sides[1])?))
}

/// Returns the configuration key that an expression with this value reads, and the value of that key.
fn source(card: &Card, expr: &Expr, value: &Datum, depth: u32) -> Option<(String, Json)> {
    let depth = depth.checked_sub(1)?;
    let of = |expr: &Expr| source(card, expr, value, depth);
    match expr {
        Expr::Path(path) => {
            if let Some(definition) = card.lets.get(&path.root).filter(|_| path.steps.is_empty())
                && !is_itself(definition, &path.root)
            {
                return of(definition);
            }
            Some((place(path)?, value.to_json()))
        }
        Expr::Call(Function::First, names) => {
            // Of several names, the one that the model's own class uses.
            let is_default = |expr: &&Expr| match expr {
                Expr::Path(path) => card.defaults.values().any(|table| table.contains_key(&path.root)),
                _ => false,
            };
            of(names.iter().find(is_default).or_else(|| names.first())?)
        }
        // A value that may have been computed does not determine the key.
        Expr::Binary(BinaryOp::Coalesce | BinaryOp::Or, sides) => {
            let is_fixed = matches!(sides[1], Expr::Int(_) | Expr::Float(_) | Expr::Bool(_) | Expr::Text(_));
            of(&sides[0]).filter(|_| is_fixed)
        }
        Expr::Call(Function::Labels, arguments) => {
            let Datum::List(labels) = value else { return None };
            let labels = labels.iter().enumerate().map(|(n, label)| (n.to_string(), label.to_json()));
            let (path, _) = of(arguments.first()?)?;
            Some((path, Json::Object(labels.collect())))
        }
        Expr::Call(Function::Lookup, arguments) => {
            let [Expr::Path(table), key] = arguments.as_slice() else { return None };
            let number = value.as_int()?;
            let rows = card.tables.get(&table.root)?;
            let (name, _) = rows.iter().find(|row| i128::from(*row.1) == number)?;
            Some((of(key)?.0, json!(name)))
        }
        Expr::Call(Function::Layers, arguments) => match arguments.as_slice() {
            [Expr::Path(path)] => {
                let (PathStep::Index(index), before) = path.steps.split_last()? else { return None };
                let is_block =
                    matches!(index, Expr::Path(path) if path.root == "bid" && path.steps.is_empty());
                let whole = Path { steps: before.to_vec(), ..path.clone() };
                of(&Expr::Path(whole)).filter(|_| is_block)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns true for a definition in which its own name is the configuration key: `x = "first(x, 7)"`.
fn is_itself(definition: &Expr, name: &str) -> bool {
    let mut found = false;
    definition.walk(&mut |expr| found |= matches!(expr, Expr::Path(path) if path.root == name));
    found
}

/// Returns the dotted name of a path into the configuration.
fn place(path: &Path) -> Option<String> {
    if ROOTS.contains(&path.root.as_str()) || matches!(path.root.as_str(), "bid" | "eid" | "xid") {
        return None;
    }
    let mut place = path.root.clone();
    for step in &path.steps {
        let PathStep::Field(name) = step else { return None };
        place = place + "." + name;
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use toml::Table;

    use super::*;
    use crate::Registry;
    use crate::invert::config;
    use gguf_format::keys::key_type;
    use gguf_format::{Metadata, Value, ValueType};

    /// Returns metadata with all keys that a card may write and those that are restored for all cards. Each has another
    /// number.
    fn numbered(card: &Card) -> Metadata {
        let mut metadata = Metadata::new();
        let shared = base().inverse.values().filter_map(|key| metadata_rows::full_key(key, &card.gguf));
        for (n, key) in (2u16..).zip(metadata_rows::derived_keys(card).into_iter().chain(shared)) {
            let value = match key_type(&key, &card.gguf) {
                Some(ValueType::U32) => Value::U32(n.into()),
                Some(ValueType::F32) => Value::F32(n.into()),
                Some(ValueType::Bool) => Value::Bool(true),
                _ => continue,
            };
            metadata.set(key, value);
        }
        metadata
    }

    /// Returns true if the rows of a card give a configuration key the value of a GGUF key, and no value without it.
    fn follows(card: &Card, name: &str, key: &str) -> bool {
        let value = |metadata: &Metadata| {
            let gguf = Some((card.gguf.as_str(), metadata));
            let scope =
                Scope { lets: Some(&card.lets), tables: Some(&card.tables), gguf, ..Scope::default() };
            let rebuilt = config::rebuilt(card, &scope, &[], None).get(name).cloned();
            (rebuilt.unwrap_or_default(), scope.kv(key).to_json())
        };
        let mut metadata = numbered(card);
        let (with, number) = value(&metadata);
        metadata.remove(&metadata_rows::full_key(key, &card.gguf).unwrap_or_default());
        !number.is_null() && with == number && value(&metadata).0.is_null()
    }

    /// A rule may also replace that of a parent, or hold the place of a child's rule among the keys. Nested keys are
    /// exempt: the facts about a card list their names, where rows name only the object.
    #[test]
    fn cards_do_not_repeat_what_their_rows_give() {
        let registry = Registry::embedded().unwrap();
        let tables: BTreeMap<&str, &Table> = registry.own_tables().collect();
        let rules = |stem: &str| tables.get(stem)?.get("inverse")?.as_table();
        let mut repeated = Vec::new();
        for stem in tables.keys() {
            for (name, rule) in rules(stem).into_iter().flatten() {
                let key = rule.as_str().and_then(|rule| rule.strip_prefix("kv('")?.strip_suffix("')"));
                let Some(key) = key.filter(|key| !key.contains('\'') && !name.contains('.')) else {
                    continue;
                };
                let own = Expr::Call(Function::Kv, vec![Expr::Text(key.to_owned())]);
                let is_needed = |card: &Card| {
                    card.inverse.get(name).is_some_and(|rule| rule.value != own || !follows(card, name, key))
                };
                let mut children =
                    registry.cards().iter().filter(|card| registry.lineage(card.base()).contains(stem));
                let replaces = |parent: &&str| rules(parent).is_some_and(|rules| rules.contains_key(name));
                if !children.any(is_needed) && !registry.lineage(stem).iter().skip(1).any(replaces) {
                    repeated.push(format!("{stem}: [inverse] `{name}`"));
                }
            }
        }
        assert!(repeated.is_empty(), "{repeated:?}");
    }

    #[test]
    fn a_constant_says_what_its_condition_asks_for() {
        let of = |text: &str| Expr::parse(text).unwrap();
        let found = |when: &str, value| condition(&of("false"), &of(when), &Datum::Bool(value));
        assert_eq!(found("is_causal? == false", false), Some(("is_causal".to_owned(), json!(false))));
        assert_eq!(found("is_causal? == false", true), None);
        assert_eq!(found("class == 'LlamaModel'", false), None);
        assert_eq!(found("is_causal? != true", false), None);
    }

    #[test]
    fn expressions_say_where_their_value_stood() {
        let registry = Registry::embedded().unwrap();
        let card = registry.by_gguf("llama").unwrap();
        let number = || Datum::Int(2);
        let labels = || Datum::List(vec![Datum::Text("a".into()), Datum::Text("b".into())].into());
        for (text, value, want) in [
            ("n_inner", number(), Some(("n_inner", json!(2)))),
            ("n_inner?", number(), Some(("n_inner", json!(2)))),
            ("ffn_config.ffn_dim?", number(), Some(("ffn_config.ffn_dim", json!(2)))),
            ("first(n_inner, n_embd)", number(), Some(("n_inner", json!(2)))),
            ("first(n_embd, hidden_size)", number(), Some(("hidden_size", json!(2)))),
            ("n_inner? ?? 4", number(), Some(("n_inner", json!(2)))),
            ("n_inner? or 4", number(), Some(("n_inner", json!(2)))),
            ("n_inner? ?? n_embd", number(), None),
            ("rope_theta * 2", number(), None),
            ("rope.factor", number(), None),
            ("lookup(gating, scoring_func)", number(), Some(("scoring_func", json!("sigmoid")))),
            ("lookup(gating, scoring_func)", Datum::Int(77), None),
            ("labels(id2label)", labels(), Some(("id2label", json!({"0": "a", "1": "b"})))),
            ("layers(layer_types[bid])", labels(), Some(("layer_types", json!(["a", "b"])))),
            ("layers(layer_types[0])", labels(), None),
            ("heads", number(), Some(("num_attention_heads", json!(2)))),
        ] {
            let found = source(card, &Expr::parse(text).unwrap(), &value, MAX_DEPTH);
            assert_eq!(found, want.map(|(path, value)| (path.to_owned(), value)), "{text}");
        }
    }
}
