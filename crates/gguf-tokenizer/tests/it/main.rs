//! Tests of `gguf-tokenizer`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gguf_format::{Array, Metadata, Value};
use gguf_tokenizer::{Built, Mode, TokenizerRequest, build};
use serde_json::Value as Json;

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, fixture, in_json, report_cases, sha256};

mod account;
mod around;
mod bad_input;
mod encoding;
mod model_file;
mod modes;
mod named_tokens;
mod pieces;
mod pretokenizers;
mod rebuild;
mod request;

/// Intentional differences from the reference; each is listed in `docs/differences.md`.
enum Difference {
    /// Scores follow the merge ranks; the reference writes -1000 for every token.
    Scores,
    /// `add_space_prefix = false` if the normalizer adds no leading blank.
    NoSpacePrefix,
    /// Tokens are padded to the rows of the embedding; the reference's list is a prefix.
    Padded,
}

use Difference::{NoSpacePrefix, Padded, Scores};

/// Vocabularies: modes of their card, differences.
const CASES: &[(&str, &[Mode], &[Difference])] = &[
    ("chatglm3_as_llama", LLAMA, &[Scores, Padded]),
    ("deepseek_v3", &[Mode::Bpe], &[]),
    ("gpt2", &[Mode::Bpe], &[]),
    ("internlm2_as_llama", LLAMA, &[Scores, NoSpacePrefix]),
    ("llama2", LLAMA, &[Scores]),
    ("llama3_1", LLAMA, &[]),
    ("mistral_nemo", LLAMA, &[]),
    ("mistral_v1_spm", LLAMA, &[]),
    ("mistral_v3_spm", LLAMA, &[]),
    ("olmo", &[Mode::Bpe], &[]),
    ("qwen2_5", &[Mode::Spm, Mode::Bpe], &[]),
    ("t5_unigram_spm", &[Mode::Unigram], &[]),
    ("yi", LLAMA, &[Scores, NoSpacePrefix]),
];

#[test]
fn every_vocabulary_is_read_by_a_test() {
    let templates = files::json(fixture("chat/expected.json"));
    for name in files::names(Goldens::selection().join("vocab")) {
        let is_template = templates["corpus"].get(&name).is_some();
        let is_case = CASES.iter().any(|row| row.0 == name);
        assert!(name == "_vectors" || is_template || is_case, "no test reads vocab/{name}");
    }
}

const LLAMA: &[Mode] = &[Mode::Spm, Mode::LlamaHf, Mode::Bpe];

fn case(corpus: &Goldens, name: &str) -> Option<PathBuf> {
    corpus.find(format!("vocab/{name}/expect.json"))?.parent().map(Path::to_owned)
}

/// Builds the vocabulary of a checkpoint directory as the card of its architecture would.
fn build_case(dir: &Path, modes: &[Mode]) -> Built {
    let mut request = TokenizerRequest::of(modes);
    request.size = files::json(dir.join("config.json"))["vocab_size"].as_u64();
    let config = dir.join("tokenizer_config.json");
    if modes == LLAMA
        && config.is_file()
        && let Some(prefix) = files::json(config)["add_prefix_space"].as_bool()
    {
        request.before.set("tokenizer.ggml.add_space_prefix", prefix);
    }
    build(dir, &request).unwrap()
}

/// Bytes of an array's elements as a GGUF file stores them.
fn element_bytes(array: &Array) -> Vec<u8> {
    match array {
        Array::String(items) => {
            let mut bytes = Vec::new();
            for item in items {
                bytes.extend((item.len() as u64).to_le_bytes());
                bytes.extend(item);
            }
            bytes
        }
        Array::F32(items) => items.iter().flat_map(|item| item.to_le_bytes()).collect(),
        Array::I32(items) => items.iter().flat_map(|item| item.to_le_bytes()).collect(),
        Array::U8(items) => items.clone(),
        other => panic!("no such array in a vocabulary: {:?}", other.element_type()),
    }
}

fn prefix(array: &Array, n: usize) -> Array {
    match array {
        Array::String(items) => Array::String(items[..n].to_vec()),
        Array::I32(items) => Array::I32(items[..n].to_vec()),
        other => other.clone(),
    }
}

/// Name of a value's type, and its content, in the format of the corpus.
fn shown(value: &Value) -> (String, Json) {
    let (kind, shown) = in_json(value);
    let Value::Array(array) = value else { return (kind, shown) };
    (kind, serde_json::json!({"sha256": sha256(&element_bytes(array)), "length": array.len()}))
}

fn check_case(name: &str, rows: &Metadata, expected: &Json, differences: &[Difference]) {
    let has = |wanted: fn(&Difference) -> bool| differences.iter().any(wanted);
    let mut rows: Vec<(String, Value)> =
        rows.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    if has(|d| matches!(d, Difference::NoSpacePrefix)) {
        let at = rows.iter().position(|row| row.0 == "tokenizer.ggml.add_space_prefix").unwrap();
        assert_eq!(rows.remove(at).1, Value::Bool(false), "{name}");
    }
    let expected = expected["kv"].as_array().unwrap();
    let keys: Vec<&str> = rows.iter().map(|row| row.0.as_str()).collect();
    let expected_keys: Vec<&str> = expected.iter().map(|row| row[0].as_str().unwrap()).collect();
    assert_eq!(keys, expected_keys, "{name}: keys and their order");
    for ((key, value), row) in rows.iter().zip(expected) {
        let mut value = value.clone();
        if has(|d| matches!(d, Difference::Padded))
            && let Value::Array(array) = &mut value
            && let Some(n) = row[2]["length"].as_u64()
        {
            assert!(array.len() as u64 > n, "{name}: {key}: nothing is padded");
            *array = prefix(array, n as usize);
        }
        let (kind, shown) = shown(&value);
        assert_eq!(kind, row[1], "{name}: {key}");
        if key == "tokenizer.ggml.scores" && has(|d| matches!(d, Difference::Scores)) {
            assert_ne!(shown["sha256"], row[2]["sha256"], "{name}: scores are no longer different");
            continue;
        }
        match row[2].get("sha256") {
            Some(hash) => {
                assert_eq!((&shown["sha256"], &shown["length"]), (hash, &row[2]["length"]), "{name}: {key}");
            }
            None => assert_eq!(shown, row[2], "{name}: {key}"),
        }
    }
}

conformance_tests!(released_vocabularies_become_the_reference_keys);
fn released_vocabularies_become_the_reference_keys(corpus: &Goldens) {
    let mut n_cases = 0;
    for (name, modes, differences) in CASES {
        let Some(case) = case(corpus, name) else { continue };
        let built = build_case(&case.join("hf"), modes);
        for warning in &built.warnings {
            println!("{name}: {warning}");
        }
        check_case(name, &built.rows, &files::json(case.join("expect.json")), differences);
        n_cases += 1;
    }
    let cases = files::entries(corpus.join("vocab")).into_iter();
    let on_disk = cases.filter(|case| case.join("expect.json").is_file()).count();
    assert_eq!(on_disk, n_cases, "a vocabulary of the corpus is not tested");
    report_cases("vocab", n_cases);
}

conformance_tests!(scores_from_merge_ranks_order_pieces_as_the_sentencepiece_model_does);

/// Llama 2's tokenizer.json and Mistral's tokenizer.model hold the same vocabulary. The scores that are derived from
/// the merges must put its pieces in the order of the model file.
fn scores_from_merge_ranks_order_pieces_as_the_sentencepiece_model_does(corpus: &Goldens) {
    let rows = |name: &str| build_case(&corpus.join("vocab").join(name).join("hf"), LLAMA).rows;
    let (derived, original) = (rows("llama2"), rows("mistral_v1_spm"));
    let tokens = |rows: &Metadata| match rows.get("tokenizer.ggml.tokens") {
        Some(Value::Array(Array::String(tokens))) => tokens.clone(),
        _ => panic!("no tokens"),
    };
    let scores = |rows: &Metadata| match rows.get("tokenizer.ggml.scores") {
        Some(Value::Array(Array::F32(scores))) => scores.clone(),
        _ => panic!("no scores"),
    };
    assert!(tokens(&derived) == tokens(&original));
    let texts = tokens(&derived);
    let (derived, original) = (scores(&derived), scores(&original));
    // Merges make only pieces of several characters. Bytes and control tokens come first.
    let mut pieces: Vec<usize> = (259..texts.len())
        .filter(|&id| std::str::from_utf8(&texts[id]).unwrap().chars().count() > 1)
        .collect();
    assert!(pieces.len() > 28_000);
    pieces.sort_by(|&a, &b| derived[b].total_cmp(&derived[a]));
    for pair in pieces.windows(2) {
        assert!(derived[pair[0]] > derived[pair[1]], "{pair:?} share a score");
        assert!(original[pair[0]] >= original[pair[1]], "{pair:?} are in another order");
    }
    let lowest = derived[*pieces.last().unwrap()];
    let of_merges: BTreeSet<usize> = pieces.into_iter().collect();
    let single = (259..texts.len()).filter(|id| !of_merges.contains(id)).map(|id| derived[id]);
    assert!(single.fold(f32::MIN, f32::max) < lowest, "a single character ranks above a merge");
}
