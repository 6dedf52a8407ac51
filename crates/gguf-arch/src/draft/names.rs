//! Names and entries of a draft as text.

use toml::Value as Toml;

use super::known::targets;
use super::text;
use crate::language::names::SUFFIXES;
use gguf_core::{GgmlType, Shape, TensorMeta};

/// Returns the name of a tensor: a target with the ending of its source, unless it has its own.
pub(super) fn complete(target: &str, suffix: &str) -> String {
    if SUFFIXES.iter().any(|own| target.ends_with(own)) {
        target.to_owned()
    } else {
        format!("{target}{suffix}")
    }
}

pub(super) fn meta(name: &str, dims: &[u64]) -> Option<TensorMeta> {
    Some(TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec())?, ty: GgmlType::F32 })
}

/// Returns all texts in a value.
pub(super) fn texts(value: &Toml) -> Vec<&str> {
    match value {
        Toml::String(text) => vec![text],
        Toml::Array(items) => items.iter().flat_map(texts).collect(),
        Toml::Table(fields) => fields.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// Returns the targets of an entry with the block prefix that `[blocks]` omits.
pub(super) fn full_targets(value: &Toml, in_block: bool) -> Vec<String> {
    let front = if in_block { "blk.{bid}." } else { "" };
    targets(value).into_iter().map(|target| format!("{front}{target}")).collect()
}

/// Returns the entry as TOML. `with_block` adds the block prefix to its targets, as `[tensors]` needs it.
pub(super) fn entry_text(value: &Toml, with_block: bool) -> String {
    fn front(to: &Toml) -> Toml {
        match to {
            Toml::String(name) => Toml::from(format!("blk.{{bid}}.{name}")),
            Toml::Array(items) => Toml::Array(items.iter().map(front).collect()),
            Toml::Table(fields) => {
                let to = |(key, value): (&String, &Toml)| {
                    (key.clone(), if key == "to" { front(value) } else { value.clone() })
                };
                Toml::Table(fields.iter().map(to).collect())
            }
            other => other.clone(),
        }
    }
    if with_block { text::inline(&front(value)) } else { text::inline(value) }
}

/// Returns a kind as a pattern after the block prefix; `None` if it has more numbers than there are placeholders.
pub(super) fn numbered(kind: &str) -> Option<String> {
    let mut placeholders = ["{eid}", "{xid}"].into_iter();
    let parts = kind.split('.').map(|part| if part == "#" { placeholders.next() } else { Some(part) });
    Some(parts.collect::<Option<Vec<_>>>()?.join("."))
}

/// Returns a kind for display, with `N` for each number.
pub(super) fn display(kind: &str) -> String {
    kind.split('.').map(|part| if part == "#" { "N" } else { part }).collect::<Vec<_>>().join(".")
}
