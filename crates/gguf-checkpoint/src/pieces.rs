//! Files of checkpoints and their keys: what becomes of each, by a table.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::Part;
use gguf_core::account::{Fate, Piece, PieceKind};

/// Reason for keys with an empty value.
pub const NOTHING: &str = "it says nothing";

/// Member of a safetensors header with notes of the program that saved the file.
const NOTES: &str = "__metadata__";

struct Row {
    /// `written`, `none`, `lost`, or `members`: those of the key are listed instead.
    fate: &'static str,
    /// Key of the output, or the reason.
    text: &'static str,
    /// Names; `*` stands for any text.
    names: Vec<&'static str>,
}

/// Rows by the group that their names belong to.
static ROWS: LazyLock<BTreeMap<&str, Vec<Row>>> = LazyLock::new(|| {
    let mut rows: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
    for line in include_str!("pieces.tsv").lines().filter(|line| !line.starts_with('#')) {
        let mut cells = line.split('\t');
        let mut next = || cells.next().unwrap_or_default();
        let group = next();
        let row = Row { fate: next(), text: next(), names: next().split(' ').collect() };
        rows.entry(group).or_default().push(row);
    }
    rows
});

/// Returns true for values that say nothing: null, and lists, maps and texts without content.
pub fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns true for values that switch something off.
pub fn is_off(value: &Value) -> bool {
    is_nothing(value) || *value == Value::Bool(false) || value.as_f64() == Some(0.0)
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

fn find(group: &str, name: &str) -> Option<&'static Row> {
    ROWS.get(group)?.iter().find(|row| row.names.iter().any(|own| fits(own, name)))
}

/// Returns why a key has no effect, by the rows of a group; `None` for a key that has one, or that no row knows.
pub fn why(group: &str, name: &str) -> Option<&'static str> {
    find(group, name).filter(|row| row.fate == "none").map(|row| row.text)
}

/// Reason for a file with tensors that no other row knows.
pub(crate) const OF_OTHERS: &str = "the weights are read from other files of the folder";

/// Returns what becomes of a file of a folder.
pub fn of_file(name: &str) -> Piece {
    piece(PieceKind::File, name, find(".", name), &Value::Bool(true))
}

/// Returns what becomes of the keys of a file, by the rows of a group. The first row of the table that fits counts.
pub fn of_keys(group: &str, file: &str, map: &Map<String, Value>) -> Vec<Piece> {
    of_members(group, "", map).into_iter().map(|piece| piece.within(file)).collect()
}

/// Returns what becomes of the notes in the headers of weight files.
pub fn of_notes(parts: &[Part<'_>]) -> Vec<Piece> {
    let of_part = |part: &Part<'_>| {
        let entries = part.metadata.iter().map(|(key, value)| (key.clone(), value.as_str().into()));
        let own = of_members(NOTES, &format!("{NOTES}."), &entries.collect());
        own.into_iter().map(|piece| piece.within(part.name)).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

/// Returns what becomes of the members of a key with this name and a dot in front.
fn of_members(group: &str, parent: &str, map: &Map<String, Value>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (key, value) in map {
        let name = format!("{parent}{key}");
        let row = find(group, &name);
        match value.as_object().filter(|map| !map.is_empty() && row.is_some_and(|row| row.fate == "members"))
        {
            Some(map) => pieces.extend(of_members(group, &format!("{name}."), map)),
            None => pieces.push(piece(PieceKind::Key, &name, row, value)),
        }
    }
    pieces
}

fn piece(kind: PieceKind, name: &str, row: Option<&Row>, value: &Value) -> Piece {
    let not = |fate, why: &str| Piece::not(kind, name, fate, why);
    match row.map(|row| (row.fate, row.text)) {
        _ if is_nothing(value) => not(Fate::WithoutEffect, NOTHING),
        Some(("written" | "members", to)) => Piece::written(kind, name, vec![to.to_owned()]),
        Some(("none", why)) => not(Fate::WithoutEffect, why),
        Some((_, why)) if !is_off(value) => not(Fate::LeftOut, why),
        _ if is_off(value) => not(Fate::WithoutEffect, "it is off"),
        _ if kind == PieceKind::File => not(Fate::Unknown, "no rule knows this file: it is not read"),
        _ => not(Fate::Unknown, "no rule knows this key: it is not read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_complete_and_none_hides_another() {
        let mut seen = Vec::new();
        for (group, row) in ROWS.iter().flat_map(|(group, rows)| rows.iter().map(move |row| (group, row))) {
            assert!(["written", "none", "lost", "members"].contains(&row.fate), "{group}: {}", row.fate);
            assert!(!row.text.is_empty() && row.names.iter().all(|name| !name.is_empty()), "{}", row.text);
            for name in &row.names {
                let first = find(group, name).unwrap();
                assert!(std::ptr::eq(first, row), "{group}: `{name}` is in two rows");
                assert!(!seen.contains(&(group, name)), "{group}: `{name}` is there twice");
                seen.push((group, name));
            }
        }
        assert!(seen.len() > 300);
    }

    #[test]
    fn values_decide_where_a_row_says_so() {
        let keys = serde_json::json!({"split_special_tokens": true, "odd": 1, "odd_off": false, "odd_null": null,
            "bos_token": "<s>"});
        let found = of_keys("tokenizer_config.json", "f", keys.as_object().unwrap());
        let fates: Vec<_> = found.iter().map(|piece| (piece.name.as_str(), piece.fate)).collect();
        let (lost, unknown, none) = (Fate::LeftOut, Fate::Unknown, Fate::WithoutEffect);
        assert_eq!(
            fates,
            [
                ("split_special_tokens", lost),
                ("odd", unknown),
                ("odd_off", none),
                ("odd_null", none),
                ("bos_token", Fate::Written),
            ]
        );
    }
}
