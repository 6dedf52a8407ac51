//! Conditions on the keys of a file without which llama.cpp stops, by architecture. The rows are in `conditions.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use indexmap::IndexMap;
use serde::Deserialize;

use crate::language::eval::Scope;
use crate::language::expr::Expr;
use crate::language::names::Captures;
use gguf_format::Metadata;

const TEXT: &str = include_str!("conditions.toml");

/// The text of the table.
#[derive(Deserialize)]
struct Table {
    conditions: Vec<(String, String, String)>,
    #[serde(rename = "let")]
    lets: BTreeMap<String, String>,
}

/// Row of the table: architectures, condition, and what is told of a file that does not meet it.
struct Condition {
    archs: String,
    holds: Expr,
    rule: String,
}

#[derive(Default)]
struct Conditions {
    lets: IndexMap<String, Expr>,
    rows: Vec<Condition>,
}

// A test covers that the table parses.
static CONDITIONS: LazyLock<Conditions> = LazyLock::new(|| read().unwrap_or_default());

fn read() -> Option<Conditions> {
    let table: Table = toml::from_str(TEXT).ok()?;
    let lets = table.lets.into_iter().map(|(name, text)| Some((name, Expr::parse(&text).ok()?)));
    let rows = table.conditions.into_iter().map(|(archs, holds, rule)| {
        let holds = Expr::parse(&holds).ok()?;
        Some(Condition { archs, holds, rule })
    });
    Some(Conditions { lets: lets.collect::<Option<_>>()?, rows: rows.collect::<Option<_>>()? })
}

fn has(archs: &str, arch: &str) -> bool {
    archs.split(' ').any(|own| own == arch)
}

/// Returns the rules that the keys of a file with tensors of these names break.
pub(super) fn broken<'n>(
    arch: &str,
    metadata: &Metadata,
    names: impl Iterator<Item = &'n str>,
) -> Vec<&'static str> {
    let (lets, gguf, tensors) = (Some(&CONDITIONS.lets), Some((arch, metadata)), names.collect());
    let scope = Scope { lets, tensors, gguf, ..Scope::default() };
    let own = CONDITIONS.rows.iter().filter(|row| has(&row.archs, arch));
    // What cannot be computed lacks a key, or has another form.
    let broken = own.filter(|row| scope.holds(Some(&row.holds), Captures::default()) == Ok(false));
    broken.map(|row| row.rule.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use gguf_format::{Array, Value};
    use serde_json::Value as Json;

    /// Keys of a file that meets all rows of its architecture, and what each row says of other values.
    const CASES: &str = include_str!("conditions.tsv");

    fn value(json: &Json) -> Value {
        let list = |items: &[Json]| match items.first() {
            Some(Json::Bool(_)) => Array::Bool(items.iter().map(|item| item == true).collect()),
            _ => Array::U32(items.iter().map(|item| item.as_u64().unwrap() as u32).collect()),
        };
        match json {
            Json::Array(items) => Value::Array(list(items)),
            Json::Bool(bool) => Value::Bool(*bool),
            number => Value::U32(number.as_u64().unwrap() as u32),
        }
    }

    fn keys(arch: &str, texts: &[&str]) -> Metadata {
        let mut metadata = Metadata::new();
        for text in texts {
            let json: serde_json::Map<String, Json> = serde_json::from_str(text).unwrap();
            for (key, json) in json {
                metadata.set(format!("{arch}.{key}"), value(&json));
            }
        }
        metadata
    }

    #[test]
    fn every_row_is_told() {
        let n_rows = CONDITIONS.rows.len();
        assert!(n_rows > 0, "the table does not parse");
        let mut told = Vec::new();
        for line in CASES.lines().skip(1) {
            let [arch, right, wrong, rule] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let broken = |arch: &str, values: &[&str]| {
                broken(arch, &keys(arch, values), ["rope_freqs.weight"].into_iter())
            };
            assert_eq!(broken(arch, &[right]), [""; 0], "{line}");
            let found = broken(arch, &[right, wrong]);
            assert!(found.len() == 1 && found[0].contains(rule), "{line}: {found:?}");
            assert_eq!(broken("llama2", &[right, wrong]), [""; 0]);
            told.push(CONDITIONS.rows.iter().position(|row| has(&row.archs, arch) && row.rule == found[0]));
        }
        for (at, row) in CONDITIONS.rows.iter().enumerate() {
            assert!(told.contains(&Some(at)), "no case of {}: {}", row.archs, row.rule);
            for arch in row.archs.split(' ') {
                assert!(registry::is_embedded(arch), "{arch}");
            }
        }
    }
}
