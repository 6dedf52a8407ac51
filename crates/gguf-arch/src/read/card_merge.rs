//! Merges a card into its parent key by key, on TOML tables before they are interpreted.

use toml::{Table, Value as Toml};

use crate::error::CardProblem;
use crate::graph::SECTIONS;
use crate::language::names::nearest;
use crate::read::kept_ops;

/// Keys that children do not inherit.
const NOT_INHERITED: &[&str] = &["abstract", "classes", "examples", "extends", "gguf", "variant", "when"];
/// Lists of rows in which `["include", "parent"]` and `["-key"]` are instructions.
const ROW_LISTS: &[&str] = &["annotate", "differs", "early", "metadata", "metadata_set", "require", "set"];
/// Lists to which a child's items are added.
const UNITED: &[&str] = &["config_keys", "model_types"];
const TABLES: &[&str] = &[
    "assumes",
    "audio_blocks",
    "blocks",
    "ignore",
    "inverse",
    "let",
    "names",
    "required",
    "tensors",
    "tokenizer",
];
/// Tables of tables, merged by key at both levels.
const DEEP_TABLES: &[&str] = &["aliases", "defaults", "tables"];
/// Table of values, some of which are tables merged by key.
const GRAPH: &str = "graph";
/// Tables in which `false` removes the parent's entry; in other tables it is a value.
const REMOVABLE: &[&str] =
    &["assumes", "audio_blocks", "blocks", "ignore", "inverse", "required", "tensors", "aliases", "tables"];

/// Merges a child (or variant) into its parent.
///
/// # Errors
/// Removal of a key that does not exist; an entry that must state its operations.
pub(crate) fn merge(parent: &Table, child: &Table) -> Result<Table, CardProblem> {
    let mut merged: Table = parent
        .iter()
        .filter(|(key, _)| !NOT_INHERITED.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    for (key, value) in &kept_ops::keep(parent, child)? {
        let value = match (merged.get(key), value) {
            (old, Toml::Table(new)) if TABLES.contains(&key.as_str()) => {
                Toml::Table(merge_table(key, old.and_then(Toml::as_table), new, replaced)?)
            }
            (old, Toml::Table(new)) if DEEP_TABLES.contains(&key.as_str()) => {
                Toml::Table(merge_table(key, old.and_then(Toml::as_table), new, extended)?)
            }
            (old, Toml::Table(new)) if key == GRAPH => {
                Toml::Table(merge_table(key, old.and_then(Toml::as_table), new, extended_section)?)
            }
            (old, Toml::Array(rows)) if ROW_LISTS.contains(&key.as_str()) => {
                let old = old.and_then(Toml::as_array).map_or(&[][..], Vec::as_slice);
                Toml::Array(merge_rows(key, old, rows)?)
            }
            // A child reads its parent's keys, and a model of the parent's type may use the child's class.
            (Some(Toml::Array(old)), Toml::Array(new)) if UNITED.contains(&key.as_str()) => {
                let further = new.iter().filter(|item| !old.contains(item));
                Toml::Array(old.iter().chain(further).cloned().collect())
            }
            _ => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    Ok(merged)
}

/// Merges an entry with the parent's entry of the same key.
type MergeEntry = fn(key: &str, old: &Toml, new: &Toml) -> Toml;

fn replaced(_: &str, _: &Toml, new: &Toml) -> Toml {
    new.clone()
}

/// Merges two tables of entries by key.
fn extended(_: &str, old: &Toml, new: &Toml) -> Toml {
    match (old, new) {
        (Toml::Table(old), Toml::Table(new)) => {
            let mut entries = old.clone();
            entries.extend(new.iter().map(|(key, value)| (key.clone(), value.clone())));
            Toml::Table(entries)
        }
        _ => new.clone(),
    }
}

/// Merges a table of `[graph]`, or replaces a value.
fn extended_section(key: &str, old: &Toml, new: &Toml) -> Toml {
    if SECTIONS.contains(&key) { extended(key, old, new) } else { new.clone() }
}

fn merge_table(
    name: &str,
    parent: Option<&Table>,
    child: &Table,
    meet: MergeEntry,
) -> Result<Table, CardProblem> {
    let mut merged = parent.cloned().unwrap_or_default();
    for (key, value) in child {
        match (merged.get(key), value) {
            (Some(_), Toml::Boolean(false)) if REMOVABLE.contains(&name) => {
                merged.remove(key);
            }
            (None, Toml::Boolean(false)) if REMOVABLE.contains(&name) => {
                return Err(nothing_removed(&format!("[{name}]"), key, merged.keys().map(String::as_str)));
            }
            (Some(old), new) => {
                let value = meet(key, old, new);
                merged.insert(key.clone(), value);
            }
            (None, new) => {
                merged.insert(key.clone(), new.clone());
            }
        }
    }
    Ok(merged)
}

fn merge_rows(name: &str, parent: &[Toml], child: &[Toml]) -> Result<Vec<Toml>, CardProblem> {
    // For `metadata`, a parent without a list has the base rows.
    let base = [Toml::from(vec!["include", "base"])];
    let parent = if parent.is_empty() && name == "metadata" { &base } else { parent };
    let mut rows: Vec<Toml> = Vec::new();
    for row in child {
        match words(row).as_slice() {
            ["include", "parent"] => rows.extend(parent.iter().cloned()),
            [only] if only.starts_with('-') => {
                let key = only.trim_start_matches('-');
                let n_before = rows.len();
                rows.retain(|row| first(row) != Some(key));
                if rows.len() == n_before {
                    let known: Vec<&str> = rows.iter().filter_map(first).collect();
                    return Err(nothing_removed(&format!("`{name}`"), key, known));
                }
            }
            _ => rows.push(row.clone()),
        }
    }
    Ok(rows)
}

/// Returns the members of a row; empty unless all are strings.
fn words(row: &Toml) -> Vec<&str> {
    let items = row.as_array().map_or(&[][..], Vec::as_slice);
    items.iter().map(Toml::as_str).collect::<Option<_>>().unwrap_or_default()
}

fn first(row: &Toml) -> Option<&str> {
    row.get(0).and_then(Toml::as_str)
}

fn nothing_removed<'k>(at: &str, key: &str, known: impl IntoIterator<Item = &'k str>) -> CardProblem {
    let nearest = nearest(key, known).map(str::to_owned);
    CardProblem::NothingRemoved { at: at.to_owned(), key: key.to_owned(), nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_can_include_and_remove() {
        let rows = |text: &str| text.parse::<Table>().unwrap()["r"].as_array().cloned().unwrap();
        let parent = rows(r#"r = [["a", "1"], ["b", "2"]]"#);
        let child = rows(r#"r = [["include", "parent"], ["-a"], ["c", "3"]]"#);
        let merged = merge_rows("set", &parent, &child);
        assert_eq!(merged, Ok(rows(r#"r = [["b", "2"], ["c", "3"]]"#)));
    }

    #[test]
    fn tables_of_a_graph_are_merged_and_its_values_replaced() {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let parent = table(
            "[graph]\nmixer = { every = 4, full = 'a', rest = 'b' }\nrope = { pairs = 'half', on = 'key' }",
        );
        let child =
            table("[graph]\nmixer = { by = 'kv_heads', full = 'a', rest = 'c' }\nrope.on = 'pattern'");
        let merged = merge(&parent, &child).unwrap();
        assert_eq!(merged["graph"]["mixer"], child["graph"]["mixer"]);
        assert_eq!(merged["graph"]["rope"], Toml::Table(table("pairs = 'half'\non = 'pattern'")));
    }

    #[test]
    fn a_removal_removes_something() {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let parent = table("[blocks]\nq = \"attn_q\"\n[defaults.a]\nx = 1\n[aliases.a]\ny = \"x\"");
        let message = |child: &str| merge(&parent, &table(child)).unwrap_err().to_string();
        assert_eq!(message("[blocks]\nqq = false"), "[blocks]: `qq` is not there to be removed");
        assert_eq!(message("[tensors]\nx = false"), "[tensors]: `x` is not there to be removed");
        assert_eq!(message("set = [[\"-x\"]]"), "`set`: `x` is not there to be removed");
        let merged =
            merge(&parent, &table("[blocks]\nq = false\n[defaults.a]\nx = false\n[aliases]\na = false"));
        assert_eq!(merged, Ok(table("[blocks]\n[defaults.a]\nx = false\n[aliases]")));
    }
}
