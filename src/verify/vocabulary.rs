//! The tokenizer's keys: consistent in themselves and with the embedding.

use std::collections::HashSet;

use crate::core::TensorMeta;
use crate::gguf::{Array, Metadata, Value};
use crate::verify::Finding;

const CHECK: &str = "tokenizer";
/// Share of a vocabulary that may be out of reach of the merges: some are shipped with a few such tokens.
const UNREACHABLE: f64 = 0.01;
/// Token types that no merge makes: unknown, control, user-defined, unused, byte.
const NORMAL: i32 = 1;

/// The strings of a key.
pub(super) fn strings<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a [Vec<u8>]> {
    match metadata.get(key)?.as_array()? {
        Array::String(strings) => Some(strings),
        _ => None,
    }
}

/// Checks the keys of the tokenizer.
pub(super) fn check(metadata: &Metadata, tensors: &[TensorMeta]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let model = metadata.get("tokenizer.ggml.model").and_then(Value::as_str).unwrap_or("none");
    if model == "none" {
        return findings;
    }
    let Some(tokens) = strings(metadata, "tokenizer.ggml.tokens") else {
        findings.push(Finding::error(CHECK, "key `tokenizer.ggml.tokens` is missing or not strings"));
        return findings;
    };
    let rows = tensors.iter().find(|meta| meta.name == "token_embd.weight").map(|meta| meta.shape.n_rows());
    if let Some(rows) = rows.filter(|&rows| rows < tokens.len() as u64) {
        let message = format!("{} tokens, but the embedding has {rows} rows", tokens.len());
        findings.push(Finding::error(CHECK, message));
    }
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        let found = metadata.get(key).and_then(Value::as_array).map(Array::len);
        if let Some(found) = found.filter(|&found| found != tokens.len()) {
            findings
                .push(Finding::error(CHECK, format!("`{key}`: {found} entries for {} tokens", tokens.len())));
        }
    }
    for name in ["bos", "eos", "unknown", "padding", "seperator", "mask", "eot"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = metadata.get(&key).and_then(Value::as_u64);
        if let Some(id) = id.filter(|&id| id >= tokens.len() as u64) {
            findings.push(Finding::error(CHECK, format!("`{key}`: {id} is not a token of {}", tokens.len())));
        }
    }
    let adds_bos = metadata.get("tokenizer.ggml.add_bos_token").and_then(Value::as_bool) == Some(true);
    if adds_bos && !metadata.contains("tokenizer.ggml.bos_token_id") {
        findings
            .push(Finding::error(CHECK, "`tokenizer.ggml.add_bos_token` is true, but there is no BOS id"));
    }
    if model == "gpt2" {
        findings.extend(check_merges(metadata, tokens));
        if !metadata.contains("tokenizer.ggml.pre") {
            findings
                .push(Finding::warning(CHECK, "`tokenizer.ggml.pre` is missing: readers guess how to split"));
        }
    }
    findings
}

/// Tokens that no merge makes cannot come out of an encoder: a sign of merges that were cut off.
fn check_merges(metadata: &Metadata, tokens: &[Vec<u8>]) -> Option<Finding> {
    let Some(merges) = strings(metadata, "tokenizer.ggml.merges") else {
        return Some(Finding::error(CHECK, "key `tokenizer.ggml.merges` is missing or not strings"));
    };
    let mut made: HashSet<Vec<u8>> = HashSet::with_capacity(merges.len());
    for merge in merges {
        // A space inside a part is part of it only at the very start of the right one; the split is at the first
        // space after the first character.
        let at = merge.iter().skip(1).position(|&byte| byte == b' ')? + 1;
        made.insert([&merge[..at], &merge[at + 1..]].concat());
    }
    let types = match metadata.get("tokenizer.ggml.token_type").and_then(Value::as_array) {
        Some(Array::I32(types)) => types.as_slice(),
        _ => &[],
    };
    let is_long = |token: &[u8]| std::str::from_utf8(token).is_ok_and(|text| text.chars().count() > 1);
    let normal = tokens
        .iter()
        .enumerate()
        .filter(|(at, token)| types.get(*at).is_none_or(|&ty| ty == NORMAL) && is_long(token));
    let (mut n, mut unreachable, mut example) = (0usize, 0usize, None);
    for (_, token) in normal {
        n += 1;
        if !made.contains(token) {
            unreachable += 1;
            example.get_or_insert(token);
        }
    }
    let example = example?;
    (unreachable as f64 > UNREACHABLE * n as f64).then(|| {
        let example = crate::core::text::escape_bytes(example);
        Finding::error(CHECK, format!("{unreachable} of {n} tokens are made by no merge, first `{example}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(merges: &[&str]) -> Metadata {
        let mut metadata = Metadata::new();
        let array = |items: &[&str]| {
            Value::Array(Array::String(items.iter().map(|s| s.as_bytes().to_vec()).collect()))
        };
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.pre", "gpt-2");
        metadata.set("tokenizer.ggml.tokens", array(&["a", "b", "c", "ab", "abc", "<s>"]));
        metadata.set("tokenizer.ggml.token_type", vec![1, 1, 1, 1, 1, 3]);
        metadata.set("tokenizer.ggml.merges", array(merges));
        metadata.set("tokenizer.ggml.bos_token_id", 5u32);
        metadata
    }

    #[test]
    fn whole_merges_pass_and_truncated_ones_do_not() {
        assert!(check(&vocabulary(&["a b", "ab c"]), &[]).is_empty());
        let findings = check(&vocabulary(&["a b"]), &[]);
        assert!(
            findings[0].message.contains("1 of 2 tokens are made by no merge, first `abc`"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_missing_bos_and_foreign_ids_are_found() {
        let mut metadata = vocabulary(&["a b", "ab c"]);
        metadata.set("tokenizer.ggml.add_bos_token", true);
        metadata.set("tokenizer.ggml.eos_token_id", 6u32);
        metadata.remove("tokenizer.ggml.bos_token_id");
        let messages: Vec<String> = check(&metadata, &[]).into_iter().map(|f| f.message).collect();
        assert!(messages[0].contains("eos_token_id`: 6 is not a token"), "{messages:?}");
        assert!(messages[1].contains("no BOS id"), "{messages:?}");
    }
}
