//! Checks that the keys of the tokenizer agree with one another. [`super::shapes`] compares them with the rows of the
//! embedding.

use std::collections::{HashMap, HashSet};

use crate::checks::towers::is_towers;
use crate::{Aspect, Check, Finding, Report};
use gguf_core::TensorMeta;
use gguf_core::text::{escape, escape_bytes};
use gguf_format::name_fault::name_fault;
use gguf_format::{Array, Metadata, Value};
use gguf_tokenizer::{emit::missing_bytes, is_pre_tokenizer};

const CHECK: Check = Check::Tokenizer;
/// Share of the tokens that no merge may make before it is an error: some models are shipped with a few such tokens.
const UNREACHABLE: f64 = 0.01;
/// Token type "normal". Merges need not make tokens of other types: unknown, control, user-defined, unused, byte.
const NORMAL: i32 = 1;

/// Values of `tokenizer.ggml.model` that llama.cpp reads.
const MODELS: [&str; 9] =
    ["llama", "bert", "gpt2", "hybriddna", "whitespace", "t5", "rwkv", "plamo2", "gemma4"];
/// Tokenizer models that need merges.
const MERGED: [&str; 4] = ["gpt2", "hybriddna", "whitespace", "gemma4"];
/// Pre-tokenizer of vocabularies without merges.
const WITHOUT_MERGES: &str = "kimi-k2";
const MERGES: &str = "tokenizer.ggml.merges";

/// Returns the strings of a key; `None` if it is not an array of strings.
pub(super) fn strings<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a [Vec<u8>]> {
    match metadata.get(key)?.as_array()? {
        Array::String(strings) => Some(strings),
        _ => None,
    }
}

/// Returns true for a file with a vocabulary and no tensor at all (`--vocab-only`).
pub(crate) fn is_alone(metadata: &Metadata, tensors: &[TensorMeta]) -> bool {
    tensors.is_empty() && strings(metadata, "tokenizer.ggml.tokens").is_some()
}

/// Returns true unless the file declares that it has no vocabulary, or needs none.
pub(crate) fn is_expected(metadata: &Metadata) -> bool {
    !is_towers(metadata) && metadata.get("tokenizer.ggml.model").and_then(Value::as_str) != Some("none")
}

/// Reports that a file holds only a vocabulary, and which aspects are therefore not judged.
pub(crate) fn leave_out(report: &mut Report) {
    const ALONE: &str = "there are no tensors";
    report.add(Finding::unchecked(Check::Graph, "no tensors: a vocabulary alone, which no program can run"));
    for aspect in [Aspect::Metadata, Aspect::Weights, Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, ALONE, "a file with tensors");
    }
}

/// Checks the keys of the tokenizer.
pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    let model = metadata.get("tokenizer.ggml.model").and_then(Value::as_str).unwrap_or("none");
    if matches!(model, "none" | "no_vocab") {
        return findings;
    }
    if !MODELS.contains(&model) {
        let message = format!("`tokenizer.ggml.model` is `{}`: llama.cpp knows no such kind", escape(model));
        findings.push(Finding::error(CHECK, message));
    }
    let Some(tokens) = strings(metadata, "tokenizer.ggml.tokens").filter(|tokens| !tokens.is_empty()) else {
        findings.push(Finding::error(CHECK, "key `tokenizer.ggml.tokens` is missing, empty or not strings"));
        return findings;
    };
    findings.extend(check_equal(tokens));
    findings.extend(name_fault(metadata).map(|fault| Finding::error(CHECK, fault)));
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
    findings.extend(check_charsmap(metadata));
    let missing = missing_bytes(metadata);
    findings.extend(missing.map(|missing| Finding::warning(CHECK, missing.to_string())));
    let pre = metadata.get("tokenizer.ggml.pre").and_then(Value::as_str).filter(|pre| !pre.is_empty());
    if MERGED.contains(&model) {
        if !metadata.contains(MERGES) && pre != Some(WITHOUT_MERGES) {
            findings.push(Finding::error(CHECK, format!("key `{MERGES}` is missing")));
        } else if model == "gpt2" {
            findings.extend(check_merges(metadata, tokens));
        }
    }
    // `gemma4` has a pre-tokenizer of its own.
    if MERGED.contains(&model) && model != "gemma4" {
        match pre {
            None => findings
                .push(Finding::warning(CHECK, "`tokenizer.ggml.pre` is missing: readers guess how to split")),
            Some(pre) if !is_pre_tokenizer(pre) => {
                let message = format!(
                    "`tokenizer.ggml.pre` is `{}`: llama.cpp knows no such pre-tokenizer",
                    escape(pre)
                );
                findings.push(Finding::error(CHECK, message));
            }
            Some(_) => {}
        }
    }
    findings
}

/// Finds two tokens with the same text: llama.cpp aborts when it loads such a vocabulary. It renames empty tokens.
fn check_equal(tokens: &[Vec<u8>]) -> Option<Finding> {
    let mut first = HashMap::with_capacity(tokens.len());
    let mut equal =
        tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()).filter_map(|(at, token)| {
            let before = *first.entry(token).or_insert(at);
            (before != at).then_some((before, at, token))
        });
    let (before, at, token) = equal.next()?;
    let more = match equal.count() {
        0 => String::new(),
        n => format!(", and {n} more are repeated"),
    };
    let message = format!("tokens {before} and {at} are both `{}`{more}", escape_bytes(token));
    Some(Finding::error(CHECK, message))
}

/// Finds a character map whose first number, the size of its table, points beyond its end.
fn check_charsmap(metadata: &Metadata) -> Option<Finding> {
    const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
    let Some(Array::U8(map)) = metadata.get(CHARSMAP).and_then(Value::as_array) else { return None };
    let table = map.first_chunk().map(|size| u64::from(u32::from_le_bytes(*size)));
    let is_whole = table.is_some_and(|table| table + 4 < map.len() as u64);
    (!is_whole).then(|| {
        let size = table.map_or_else(|| "no size".to_owned(), |table| format!("a table of {table} bytes"));
        Finding::error(CHECK, format!("`{CHARSMAP}` has {} bytes and declares {size}", map.len()))
    })
}

/// Finds tokens that no merge makes and no encoder can return: a sign of truncated merges.
fn check_merges(metadata: &Metadata, tokens: &[Vec<u8>]) -> Option<Finding> {
    // A key of another type is reported with the other keys.
    let merges = strings(metadata, MERGES)?;
    let mut made: HashSet<Vec<u8>> = HashSet::with_capacity(merges.len());
    for merge in merges {
        // The split is at the first space after the first character: each part may begin with a space.
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
        let example = escape_bytes(example);
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
        assert!(check(&vocabulary(&["a b", "ab c"])).is_empty());
        let findings = check(&vocabulary(&["a b"]));
        assert!(
            findings[0].message.contains("1 of 2 tokens are made by no merge, first `abc`"),
            "{findings:?}"
        );
    }

    #[test]
    fn pieces_without_byte_tokens_are_a_warning() {
        let mut metadata = vocabulary(&[]);
        metadata.set("tokenizer.ggml.model", "llama");
        let messages: Vec<String> = check(&metadata).into_iter().map(|f| f.message).collect();
        assert!(
            messages.len() == 1 && messages[0].contains("lacks 253 of the 256 byte tokens"),
            "{messages:?}"
        );
    }

    #[test]
    fn a_missing_bos_and_foreign_ids_are_found() {
        let mut metadata = vocabulary(&["a b", "ab c"]);
        metadata.set("tokenizer.ggml.add_bos_token", true);
        metadata.set("tokenizer.ggml.eos_token_id", 6u32);
        metadata.remove("tokenizer.ggml.bos_token_id");
        let messages: Vec<String> = check(&metadata).into_iter().map(|f| f.message).collect();
        assert!(messages[0].contains("eos_token_id`: 6 is not a token"), "{messages:?}");
        assert!(messages[1].contains("no BOS id"), "{messages:?}");
    }

    #[test]
    fn what_llama_cpp_does_not_load_is_an_error() {
        let found = |change: &dyn Fn(&mut Metadata)| {
            let mut metadata = vocabulary(&["a b", "ab c"]);
            change(&mut metadata);
            let show = |f: Finding| format!("{}: {}", f.severity.name(), f.message);
            check(&metadata).into_iter().map(show).collect::<Vec<_>>()
        };
        let strings = |items: &[&str]| {
            Value::Array(Array::String(items.iter().map(|s| s.as_bytes().to_vec()).collect()))
        };
        assert_eq!(found(&|m| drop(m.remove(MERGES))), ["error: key `tokenizer.ggml.merges` is missing"]);
        assert_eq!(
            found(&|m| {
                m.remove(MERGES);
                m.set("tokenizer.ggml.pre", "kimi-k2");
            }),
            [""; 0]
        );
        assert_eq!(
            found(&|m| m.set("tokenizer.ggml.pre", "gpt-3")),
            ["error: `tokenizer.ggml.pre` is `gpt-3`: llama.cpp knows no such pre-tokenizer"]
        );
        assert_eq!(
            found(&|m| m.set("tokenizer.ggml.model", "spm")),
            ["error: `tokenizer.ggml.model` is `spm`: llama.cpp knows no such kind"]
        );
        assert_eq!(
            found(&|m| m.set("tokenizer.ggml.tokens", strings(&["a", "b", "c", "ab", "abc", "b"]))),
            ["error: tokens 1 and 5 are both `b`"]
        );
        assert_eq!(
            found(&|m| m.set("tokenizer.ggml.tokens", strings(&["a", "", "", "ab", "abc", "x"]))),
            [""; 0]
        );
        for tokens in [None, Some(strings(&[])), Some(Value::from("a"))] {
            let found = found(&|m| match &tokens {
                Some(tokens) => m.set("tokenizer.ggml.tokens", tokens.clone()),
                None => drop(m.remove("tokenizer.ggml.tokens")),
            });
            assert_eq!(found, ["error: key `tokenizer.ggml.tokens` is missing, empty or not strings"]);
        }
        let map = |bytes: &[u8]| Value::Array(Array::U8(bytes.to_vec()));
        let charsmap = "tokenizer.ggml.precompiled_charsmap";
        assert_eq!(found(&|m| m.set(charsmap, map(&[4, 0, 0, 0, 1, 2, 3, 4, 5]))), [""; 0]);
        assert_eq!(
            found(&|m| m.set(charsmap, map(&[5, 0, 0, 0, 1, 2, 3, 4, 5]))),
            [format!("error: `{charsmap}` has 9 bytes and declares a table of 5 bytes")]
        );
    }
}
