//! Well-known metadata keys and the type of each, from `keys.txt`: the keys that gguf-py writes (its `Keys` table and the writer method
//! of each key, release 0.5.0 of llama.cpp), and a few more that llama.cpp itself reads or writes.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::ValueType;

/// One well-known key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Key. `{arch}` stands for the value of `general.architecture`. Any other placeholder stands for one segment
    /// without a dot (`{id}`, `{name}`) or a part of one (`{dense}_feat_in`).
    pub pattern: &'static str,
    /// Type of the value, or of the elements if the value is always an array.
    pub value_type: ValueType,
    /// True if the value is always an array. A key that accepts one number for all layers or an array with one number
    /// per layer has the type of the single number.
    pub is_array: bool,
    /// Required number of elements of an array; [`ValueCount::One`] if arrays are not allowed.
    pub count: ValueCount,
}

/// Number of values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueCount {
    /// One value, no array.
    One,
    /// An array of any length.
    Any,
    /// An array of this length.
    Exactly(usize),
    /// An array of this length or longer.
    AtLeast(usize),
    /// An array with a value for each block, or one value for all.
    PerBlock,
    /// As `PerBlock`, but blocks of draft heads may be omitted.
    PerOwnBlock,
    /// An array whose length is the number under another key, given by its pattern.
    AsIn(&'static str),
}

/// Returns the table row of a key, in a file of architecture `arch` (`general.architecture`).
pub fn key_info(key: &str, arch: &str) -> Option<&'static KeyInfo> {
    let index = &*INDEX;
    let own = if arch.is_empty() { None } else { key.strip_prefix(arch) };
    let open = || index.open.iter().find(|row| row.fits(if row.of_arch { own } else { Some(key) }));
    // The first row that matches.
    let found = [index.exact.get(key).copied(), own.and_then(|key| index.of_arch.get(key).copied())];
    found.into_iter().chain([open().map(|row| row.at)]).flatten().min().map(|at| &KEYS[at])
}

/// Rows of [`KEYS`] by what a key must equal.
#[derive(Default)]
struct KeyIndex {
    /// Patterns without a placeholder.
    exact: HashMap<&'static str, usize>,
    /// What follows `{arch}` in patterns without another placeholder.
    of_arch: HashMap<&'static str, usize>,
    /// Rows with another placeholder, in order.
    open: Vec<OpenKey>,
}

/// Row with a placeholder other than `{arch}`, and the texts around it.
struct OpenKey {
    at: usize,
    /// True if the texts follow `{arch}`.
    of_arch: bool,
    before: &'static str,
    after: &'static str,
}

impl OpenKey {
    fn fits(&self, text: Option<&str>) -> bool {
        let filled = text.and_then(|text| text.strip_prefix(self.before)?.strip_suffix(self.after));
        filled.is_some_and(|filled| !filled.is_empty() && !filled.contains('.'))
    }
}

static INDEX: LazyLock<KeyIndex> = LazyLock::new(|| {
    let mut index = KeyIndex::default();
    for (at, row) in KEYS.iter().enumerate() {
        let own = row.pattern.strip_prefix("{arch}");
        let rest = own.unwrap_or(row.pattern);
        if let Some((before, rest)) = rest.split_once('{') {
            let after = rest.split_once('}').map_or("", |(_, after)| after);
            index.open.push(OpenKey { at, of_arch: own.is_some(), before, after });
        } else {
            let keys = if own.is_some() { &mut index.of_arch } else { &mut index.exact };
            keys.entry(rest).or_insert(at);
        }
    }
    index
});

/// Returns the scalar type of a well-known key: that of its value, or of the elements of an array. `None` for a key
/// that is not in the table.
pub fn key_type(key: &str, arch: &str) -> Option<ValueType> {
    key_info(key, arch).map(|row| row.value_type)
}

/// Prefix of this project's own keys: numbers that change a model's outputs and for which GGUF has no key, or none
/// under the model's architecture. Other runtimes ignore them.
pub const ANNOTATION_PREFIX: &str = "gguf_foundry.";

/// Keys after [`ANNOTATION_PREFIX`].
pub static ANNOTATIONS: LazyLock<Vec<KeyInfo>> = LazyLock::new(|| {
    rows()
        .filter_map(|(key, row)| Some(KeyInfo { pattern: key.strip_prefix(ANNOTATION_PREFIX)?, ..row }))
        .collect()
});

/// Returns the table row of a key without [`ANNOTATION_PREFIX`].
pub fn annotation_info(key: &str) -> Option<&'static KeyInfo> {
    ANNOTATIONS.iter().find(|row| row.pattern == key)
}

/// Returns the table row of a key that starts with [`ANNOTATION_PREFIX`].
pub fn annotation_row(key: &str) -> Option<&'static KeyInfo> {
    annotation_info(key.strip_prefix(ANNOTATION_PREFIX)?)
}

/// Keys of an architecture that do not affect a model's outputs where nothing reads them: the tensors determine the same
/// value, or the model has no part that it is about.
const WITHOUT_EFFECT: [&str; 11] = [
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "context_length",
    "expert_count",
    "expert_group_used_count",
    "feed_forward_length",
    "rope.freq_base",
    "vocab_size",
];

/// Beginnings of the keys of a tower, which Ollama writes under the architecture of the language model.
const OF_TOWERS: [&str; 3] = ["audio.", "mm.", "vision."];

/// Returns true for a key, without the architecture's prefix, that does not affect a model's outputs where nothing reads it.
pub fn is_without_effect(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name) || OF_TOWERS.iter().any(|tower| name.starts_with(tower))
}

/// All well-known keys.
pub static KEYS: LazyLock<Vec<KeyInfo>> = LazyLock::new(|| {
    rows().filter(|(key, _)| !key.starts_with(ANNOTATION_PREFIX)).map(|(_, row)| row).collect()
});

/// Reads the rows of the table.
fn rows() -> impl Iterator<Item = (&'static str, KeyInfo)> {
    let lines = include_str!("keys.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut cells = line.split(' ');
        let (pattern, ty) = (cells.next()?, cells.next()?);
        let (name, is_array) = ty.strip_suffix("[]").map_or((ty, false), |name| (name, true));
        let value_type = ValueType::from_name(name)?;
        let count = match cells.next().map(|cell| cell.split_once('=').unwrap_or((cell, ""))) {
            None if is_array => ValueCount::Any,
            None => ValueCount::One,
            Some(("per-block", _)) => ValueCount::PerBlock,
            Some(("per-own-block", _)) => ValueCount::PerOwnBlock,
            Some(("exactly", n)) => ValueCount::Exactly(n.parse().ok()?),
            Some(("at-least", n)) => ValueCount::AtLeast(n.parse().ok()?),
            Some(("as-in", key)) => ValueCount::AsIn(key),
            Some(_) => return None,
        };
        Some((pattern, KeyInfo { pattern, value_type, is_array, count }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ValueType::{F32, I32, String, U32};

    #[test]
    fn every_line_is_a_row() {
        let lines = include_str!("keys.txt").lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines.count(), KEYS.len() + ANNOTATIONS.len());
    }

    #[test]
    fn keys_are_found_by_architecture_and_placeholder() {
        assert_eq!(key_type("llama.context_length", "llama"), Some(U32));
        assert_eq!(key_type("llama.context_length", "qwen2"), None);
        assert_eq!(key_type("llama.attention.layer_norm_rms_epsilon", "llama"), Some(F32));
        assert_eq!(key_type("general.base_model.3.name", "llama"), Some(String));
        assert_eq!(key_type("general.base_model.count", "llama"), Some(U32));
        assert_eq!(key_type("gemma-embedding.dense_2_feat_in", "gemma-embedding"), Some(U32));
        assert_eq!(key_type("tokenizer.chat_template.tool_use", ""), Some(String));
        assert_eq!(key_type("tokenizer.chat_template", ""), Some(String));
        assert_eq!(key_type("tokenizer.ggml.token_type", ""), Some(I32));
        assert_eq!(key_type("split.tensors.count", "x"), Some(I32));
        assert_eq!(key_type("general.base_model..name", "x"), None);
        assert_eq!(key_type(".context_length", ""), None);
        assert!(key_info("tokenizer.ggml.tokens", "llama").is_some_and(|row| row.is_array));
        assert!(key_info("llama.attention.head_count_kv", "llama").is_some_and(|row| !row.is_array));
    }

    #[test]
    fn no_key_stands_twice_and_each_fits_its_own_row_first() {
        for row in KEYS.iter() {
            let key = row.pattern.replace("{arch}", "llama").replace(['{', '}'], "");
            assert_eq!(key_info(&key, "llama").map(|found| found.pattern), Some(row.pattern), "{key}");
        }
    }
}
