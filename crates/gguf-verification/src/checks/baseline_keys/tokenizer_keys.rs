//! Comparison of the keys of the tokenizer, and of keys around the model.

use crate::checks::baseline_keys::class::{Class, class_of};
use crate::checks::baseline_keys::same::{difference, is_same, show};
use crate::checks::baseline_keys::{arch, union};
use crate::{Check, Finding};
use gguf_core::text::escape;
use gguf_format::{Metadata, Value};
use gguf_tokenizer::read_alike;

const PREFIX: &str = "tokenizer.";
const NAME: &str = "general.name";
const MODEL: &str = "tokenizer.ggml.model";
/// Keys that no default replaces.
const NEEDED: [&str; 3] = [MODEL, "tokenizer.ggml.tokens", "tokenizer.ggml.merges"];

/// Compares the keys of the tokenizer with those of a baseline or a source.
pub(crate) fn tokenizer(model: &Metadata, other: &Metadata, check: Check, whose: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for local in union(model, other, [PREFIX, PREFIX]) {
        let key = format!("{PREFIX}{local}");
        let name = escape(&key);
        let class = class_of(&key, "");
        let (is_error, message) = match (model.get(&key), other.get(&key)) {
            (Some(a), Some(b)) if is_same(a, b) => continue,
            // A missing vocabulary, declared or not.
            (Some(value), None) | (None, Some(value)) if key == MODEL && value.as_str() == Some("none") => {
                continue;
            }
            (Some(a), Some(b)) => {
                let message = format!("`{name}` differs from {whose}'s: {}", difference(a, b));
                (matches!(class, Class::Encoding | Class::Turn), message)
            }
            (own, _) => {
                let is_error = class == Class::Encoding && !is_default(model, other, &key);
                let mut message = match own {
                    None => format!("`{name}` is missing, {whose} has it"),
                    Some(_) => format!("`{name}` is not in {whose}"),
                };
                if is_error && !NEEDED.contains(&key.as_str()) {
                    message.push_str(": without it, text becomes other tokens");
                }
                (is_error, message)
            }
        };
        findings.push(if is_error {
            Finding::error(check, message)
        } else {
            Finding::warning(check, message)
        });
    }
    findings.extend(name(model, other, check, whose));
    findings
}

/// Returns true if a key that one side lacks has the default value.
fn is_default(model: &Metadata, other: &Metadata, key: &str) -> bool {
    if NEEDED.contains(&key) {
        return false;
    }
    let changed = |metadata: &Metadata, value: Option<&Value>| {
        let mut changed = metadata.clone();
        match value {
            Some(value) => changed.set(key, value.clone()),
            None => {
                changed.remove(key);
            }
        }
        read_alike(metadata, &changed)
    };
    let [a, b] = [changed(model, other.get(key)), changed(other, model.get(key))];
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => false,
        (Some(true), _) | (_, Some(true)) => true,
        // Unknown kind of vocabulary: flags and scores have defaults, ids and tables do not.
        (None, None) => ["add_", "remove_", "normalizer.", "scores"].iter().any(|part| key.contains(part)),
    }
}

/// Warns if `general.name` differs and matters: runtimes recognize some models only by it, and then strip blanks around
/// special tokens.
fn name(model: &Metadata, other: &Metadata, check: Check, whose: &str) -> Option<Finding> {
    let (own, value) = (model.get(NAME)?, other.get(NAME)?);
    if own == value {
        return None;
    }
    let mut renamed = model.clone();
    renamed.set(NAME, value.clone());
    (read_alike(model, &renamed) == Some(false)).then(|| {
        let message = format!(
            "`{NAME}` is {}, not {}, as {whose} has it: runtimes read special tokens by it",
            show(own),
            show(value)
        );
        Finding::warning(check, message)
    })
}

/// Maximum number of keys that one warning names.
const SHOWN: usize = 8;

/// Reports differing keys that change nothing in the model but that programs and people act on, in one warning.
pub(super) fn around(model: &Metadata, baseline: &Metadata) -> Option<Finding> {
    let arch = arch(model);
    let differs = |key: &&str| {
        let values = (model.get(key), baseline.get(key));
        let is_both = values.0.is_some() && values.1.is_some();
        let is_listed = match class_of(key, arch) {
            // A key that a converter leaves out is no difference, except for sampling.
            Class::Runtime => !key.starts_with(PREFIX) && (key.starts_with("general.sampling.") || is_both),
            Class::Foreign => is_both,
            _ => false,
        };
        is_listed && !matches!(values, (Some(a), Some(b)) if is_same(a, b))
    };
    let names: Vec<String> =
        union(model, baseline, ["", ""]).filter(differs).map(|key| format!("`{}`", escape(key))).collect();
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let shown = names.get(..SHOWN.min(names.len())).unwrap_or_default().join(", ");
    (!names.is_empty()).then(|| {
        Finding::warning(Check::Metadata, format!("other values than in the baseline: {shown}{rest}"))
    })
}
