//! Files of checkpoints and their keys: what becomes of each, by a table.

use std::collections::{BTreeMap, HashMap};
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
}

/// Rows of the names of a group; the first one of the table that fits a name counts.
#[derive(Default)]
struct Group {
    rows: Vec<Row>,
    /// Row of each whole name.
    names: HashMap<&'static str, usize>,
    /// What names begin and end with, where the table has a `*`, with the row.
    patterns: Vec<(&'static str, &'static str, usize)>,
}

/// Groups by what they are called in the table.
static GROUPS: LazyLock<BTreeMap<&str, Group>> = LazyLock::new(|| {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for line in include_str!("pieces.tsv").lines().filter(|line| !line.starts_with('#')) {
        let mut cells = line.split('\t');
        let mut next = || cells.next().unwrap_or_default();
        let Group { rows, names, patterns } = groups.entry(next()).or_default();
        rows.push(Row { fate: next(), text: next() });
        let at = rows.len() - 1;
        for name in next().split(' ') {
            match name.split_once('*') {
                None => _ = names.entry(name).or_insert(at),
                Some((start, end)) => patterns.push((start, end, at)),
            }
        }
    }
    groups
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

fn find(group: &str, name: &str) -> Option<&'static Row> {
    let group = GROUPS.get(group)?;
    let fits = |(start, end, _): &&(&str, &str, usize)| {
        name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
    };
    let by_pattern = group.patterns.iter().find(fits).map(|(_, _, at)| *at);
    let at = [group.names.get(name).copied(), by_pattern].into_iter().flatten().min()?;
    group.rows.get(at)
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
        let mut n_found = 0;
        for (group, Group { rows, names, patterns }) in GROUPS.iter() {
            for Row { fate, text } in rows {
                assert!(["written", "none", "lost", "members"].contains(fate), "{group}: {fate}");
                assert!(!text.is_empty(), "{group}: {fate}");
            }
            let starred = patterns.iter().map(|(start, end, at)| (format!("{start}*{end}"), *at));
            for (name, at) in names.iter().map(|(name, at)| ((*name).to_owned(), *at)).chain(starred) {
                assert!(!name.is_empty(), "{group}: {}", rows[at].text);
                assert!(
                    std::ptr::eq(find(group, &name).unwrap(), &raw const rows[at]),
                    "{group}: `{name}` is in two rows"
                );
                n_found += 1;
            }
        }
        let lines = include_str!("pieces.tsv").lines().filter(|line| !line.starts_with('#'));
        let n_names: usize = lines.map(|line| line.split('\t').nth(3).unwrap().split(' ').count()).sum();
        assert_eq!(n_found, n_names, "a name is there twice");
        assert!(n_found > 300);
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
