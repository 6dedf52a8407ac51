//! Text to ids and back, compared with the original tokenizers and llama.cpp.

use std::path::Path;

use gguf_format::{Array, GgufFile, Metadata, Value};
use gguf_tokenizer::{Encoder, Mode, TokenizerRequest, build, read_alike};
use proptest::prelude::*;

use super::{CASES, build_case, case};
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture, report_cases};

/// Texts with other ids than the original's, by vocabulary. Tokens that end a text in other models count as control
/// tokens by their text, as in llama.cpp, but are plain text here.
const DIFFERENT: &[(&str, &str)] = &[
    ("qwen2_5", "<s>hello</s>"),
    ("yi", "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"),
    ("yi", "word<|im_end|>  <|im_end|> word \n<|im_end|>\n"),
];

/// Test vectors of llama.cpp with other ids than the original's.
const DIFFERENT_FROM_LLAMA_CPP: &[(&str, &str)] = &[];

/// Fails unless the found texts are those of a list.
fn assert_known(known: &[(&str, &str)], found: &[(String, String, String)]) {
    let new: Vec<String> = found
        .iter()
        .filter(|(name, text, _)| !known.contains(&(name, text)))
        .map(|(name, text, how)| format!("{name}: {text:?}\n{how}"))
        .collect();
    assert!(new.is_empty(), "{} texts differ\n{}", new.len(), new.join("\n"));
    for (name, text) in known {
        assert!(
            found.iter().any(|row| row.0 == *name && row.1 == *text),
            "{name}: {text:?} is no longer different"
        );
    }
}

fn encoder(metadata: &Metadata) -> Encoder {
    Encoder::from_metadata(metadata).unwrap()
}

/// Texts with the ids of a golden file.
fn texts(path: &Path) -> Vec<(String, Vec<u32>)> {
    let ids = |ids: &serde_json::Value| serde_json::from_value(ids.clone()).unwrap();
    match files::json(path) {
        serde_json::Value::Object(rows) => rows.iter().map(|(text, row)| (text.clone(), ids(row))).collect(),
        _ => panic!("{}: no object", path.display()),
    }
}

conformance_tests!(ids_equal_those_of_released_tokenizers);
fn ids_equal_those_of_released_tokenizers(corpus: &Goldens) {
    let (mut n_cases, mut different) = (0, Vec::new());
    for (name, modes, _) in CASES {
        let Some(dir) = case(corpus, name) else { continue };
        let encoder = encoder(&build_case(&dir.join("hf"), modes).rows);
        // SentencePiece does not recognize control tokens in text.
        let parse_special = dir.join("hf/tokenizer.json").is_file();
        let notes = files::json(dir.join("tokenization_notes.json"));
        for (text, expected) in texts(&dir.join("tokenization.json")) {
            let ids = encoder.encode(&text, parse_special);
            // transformers and this encoder know special tokens that only `tokenizer_config.json` lists.
            let auto = &notes["auto_tokenizer_differs"][&text];
            let expected = serde_json::from_value(auto.clone()).unwrap_or(expected);
            if ids != expected {
                let how = format!("  ours   {ids:?}\n  theirs {expected:?}");
                different.push(((*name).to_owned(), text, how));
            } else if auto.is_null() {
                let theirs = notes["decoded_differs_from_text"][&text].as_str().unwrap_or(&text);
                // SentencePiece decodes the unknown token to a sign, and its decoder removes the first blank.
                let theirs = theirs.replace(" \u{2047} ", "<unk>");
                let ours = String::from_utf8_lossy(&encoder.decode(&ids)).into_owned();
                let equal = ours == theirs || ours.strip_prefix(' ') == Some(theirs.as_str());
                assert!(equal, "{name}: {text:?} becomes {ours:?}, theirs {theirs:?}");
            }
            n_cases += 1;
        }
    }
    let in_scope = |row: &&(&str, &str)| case(corpus, row.0).is_some();
    let known: Vec<_> = DIFFERENT.iter().filter(in_scope).copied().collect();
    assert_known(&known, &different);
    report_cases("texts of released tokenizers", n_cases);
}

conformance_tests!(ids_equal_the_test_vectors_of_llama_cpp);
fn ids_equal_the_test_vectors_of_llama_cpp(corpus: &Goldens) {
    let (mut n_cases, mut different) = (0, Vec::new());
    let mut paths = files::entries(corpus.join("vocab/_vectors"));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    for path in paths {
        let file = GgufFile::open(&path.with_extension("gguf")).unwrap();
        let encoder = encoder(file.metadata());
        let rows: Vec<(String, Vec<u32>)> =
            serde_json::from_value(files::json(&path)["tests"].clone()).unwrap();
        for (text, expected) in rows {
            let ids = encoder.encode(&text, false);
            if ids != expected {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                different.push((name, text, format!("  ours   {ids:?}\n  theirs {expected:?}")));
            }
            n_cases += 1;
        }
    }
    assert_known(DIFFERENT_FROM_LLAMA_CPP, &different);
    report_cases("llama.cpp's vectors", n_cases);
}

/// Bundled model's vocabulary, and its original.
fn bundled() -> (Metadata, tokenizers::Tokenizer) {
    let dir = fixture("tiny-llama");
    let built = build(&dir, &TokenizerRequest::of(&[Mode::Bpe])).unwrap();
    (built.rows, tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap())
}

/// Keys that llama.cpp does not look at where every byte is a token.
#[test]
fn keys_without_a_use_make_no_other_vocabulary() {
    let (metadata, _) = bundled();
    for (key, value) in [
        ("tokenizer.ggml.unknown_token_id", Value::U32(3)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(true)),
    ] {
        let mut changed = metadata.clone();
        changed.set(key, value);
        assert_eq!(read_alike(&metadata, &changed), Some(true), "{key}");
    }
    let mut changed = metadata.clone();
    changed.set("tokenizer.ggml.add_bos_token", !metadata.contains("tokenizer.ggml.add_bos_token"));
    assert_eq!(read_alike(&metadata, &changed), Some(false));
}

fn original_ids(tokenizer: &tokenizers::Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap().get_ids().to_vec()
}

#[test]
fn the_bundled_text_has_the_ids_of_the_tokenizers_library() {
    let (rows, original) = bundled();
    let encoder = encoder(&rows);
    let text = fs_err::read_to_string(fixture("tiny-llama/corpus.txt")).unwrap();
    let ids = encoder.encode(&text, false);
    assert!(ids.len() > 10_000, "{}", ids.len());
    assert_eq!(ids, original_ids(&original, &text));
    assert_eq!(encoder.decode(&ids), text.as_bytes());
    assert_eq!((encoder.start_of_text(), encoder.end_of_text()), (Some(0), None));
}

#[test]
fn special_tokens_in_text_are_found_when_asked_for() {
    let (mut rows, original) = bundled();
    let text = "a<s> b</s></s>\n<s";
    let with = encoder(&rows).encode(text, true);
    assert_eq!(with, original_ids(&original, text));
    assert_eq!(with.iter().filter(|&&id| id < 2).count(), 3);
    let without = encoder(&rows).encode(text, false);
    assert!(without.iter().all(|&id| id > 1), "{without:?}");
    assert_eq!(encoder(&rows).decode(&with), text.as_bytes());
    assert_eq!(encoder(&rows).decode(&without), text.as_bytes());
    // A user-defined token is text that always becomes one token.
    let Some(Value::Array(Array::I32(mut types))) = rows.remove("tokenizer.ggml.token_type") else {
        panic!("types are numbers")
    };
    types[0] = 4;
    rows.set("tokenizer.ggml.token_type", types);
    let ids = encoder(&rows).encode(text, false);
    assert_eq!(ids.iter().filter(|&&id| id < 2).count(), 1);
    assert_eq!(ids[1], 0);
}

/// Vocabulary of these tokens with their types, without merges.
fn small(tokens: &[(&str, i32)]) -> Metadata {
    let strings = |texts: Vec<&str>| Value::Array(Array::String(texts.into_iter().map(Into::into).collect()));
    let mut rows = Metadata::new();
    rows.set("tokenizer.ggml.model", "gpt2");
    rows.set("tokenizer.ggml.pre", "gpt-2");
    rows.set("tokenizer.ggml.tokens", strings(tokens.iter().map(|token| token.0).collect()));
    rows.set("tokenizer.ggml.token_type", tokens.iter().map(|token| token.1).collect::<Vec<_>>());
    rows.set("tokenizer.ggml.merges", strings(Vec::new()));
    rows
}

#[test]
fn of_special_tokens_the_first_and_of_these_the_longest_is_found() {
    let rows = small(&[
        ("a", 1),
        ("b", 1),
        ("c", 1),
        ("d", 1),
        ("ab", 4),
        ("abc", 3),
        ("bcda", 4),
        ("", 4),
        ("d", 1),
    ]);
    let encoder = encoder(&rows);
    assert_eq!(encoder.encode("abcda", false), [4, 2, 8, 0], "of two tokens of one text the last one");
    assert_eq!(encoder.encode("abcda", true), [5, 8, 0]);
    assert_eq!(encoder.encode("cbcdab", true), [2, 6, 1]);
    assert_eq!(encoder.encode("", true), [0; 0]);
    assert_eq!(encoder.encode("xay", false), [0], "bytes without tokens are left out");
    assert_eq!(encoder.decode(&[4, 7, 99, 3]), b"abd");
}

#[test]
fn tokens_that_end_a_text_are_control_tokens_by_their_text() {
    let tokens =
        [("<", 1), ("e", 1), ("<|im_end|>", 4), ("<|fim_prefix|>", 1), ("<|message|>", 3), ("<x>", 3)];
    let rows = small(&tokens);
    let encoder = encoder(&rows);
    assert_eq!(encoder.encode("<|im_end|><x>e", true), [2, 5, 1]);
    assert_eq!(encoder.encode("<|im_end|>", false), [0, 1]);
    assert_eq!(encoder.encode("<|fim_prefix|>", true), [3]);
    assert_eq!(encoder.encode("<|message|>", false), [4], "written out in chats");
}

#[test]
fn special_tokens_take_blanks_along_by_the_name_of_the_model() {
    let mut rows = small(&[("a", 1), ("Ġ", 1), ("</s>", 3), ("<s>", 3), ("<x>", 4), ("<mask>", 3)]);
    let ids = |rows: &Metadata| encoder(rows).encode("<s> a </s> \u{a0} a <x> <mask> a", true);
    assert_eq!(ids(&rows), [3, 1, 0, 1, 2, 1, 1, 0, 1, 4, 1, 5, 1, 0], "{rows:?}");
    rows.set("general.name", "Phi-3 mini");
    assert_eq!(ids(&rows), [3, 1, 0, 1, 2, 0, 1, 4, 5, 0]);
    rows.set("tokenizer.ggml.pre", "jina-v2-es");
    assert_eq!(ids(&rows), [3, 1, 0, 1, 2, 1, 1, 0, 1, 4, 5, 1, 0]);
}

#[test]
fn what_begins_a_text_follows_the_name_where_no_key_says() {
    let (mut rows, _) = bundled();
    rows.remove("tokenizer.ggml.add_bos_token");
    for (pre, expected) in [("llama-bpe", Some(0)), ("tekken", Some(0)), ("gpt-2", None), ("qwen2", None)] {
        rows.set("tokenizer.ggml.pre", pre);
        assert_eq!(encoder(&rows).start_of_text(), expected, "{pre}");
    }
    rows.remove("tokenizer.ggml.bos_token_id");
    rows.set("tokenizer.ggml.add_bos_token", true);
    for (pre, expected) in [("gpt-2", Some(11)), ("glm4", None)] {
        rows.set("tokenizer.ggml.pre", pre);
        assert_eq!(encoder(&rows).start_of_text(), expected, "{pre}");
    }
    rows.set("tokenizer.ggml.add_eos_token", true);
    assert_eq!(encoder(&rows).end_of_text(), Some(1));
}

#[test]
fn keys_that_cannot_be_used_are_named() {
    let (rows, _) = bundled();
    let error = |key: &str, value: Option<Value>| {
        let mut rows = rows.clone();
        match value {
            Some(value) => rows.set(key, value),
            None => drop(rows.remove(key)),
        }
        Encoder::from_metadata(&rows).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let strings = |texts: &[&str]| {
        Some(Value::Array(Array::String(texts.iter().map(|text| text.as_bytes().to_vec()).collect())))
    };
    for (key, value, expected) in [
        ("tokenizer.ggml.model", None, "`tokenizer.ggml.model` is missing, expected string"),
        (
            "tokenizer.ggml.model",
            Some("test".into()),
            "`tokenizer.ggml.model` is `test`, text is encoded for `llama`, `gpt2`, `gemma4`, `whitespace`, `hybriddna`, `bert`, `t5`, `rwkv` and `plamo2`",
        ),
        (
            "tokenizer.ggml.pre",
            Some("lama-bpe".into()),
            "`tokenizer.ggml.pre` is `lama-bpe`, which is not known, the nearest is `llama-bpe`",
        ),
        ("tokenizer.ggml.pre", Some(1u32.into()), "`tokenizer.ggml.pre` is of type u32, expected string"),
        ("tokenizer.ggml.tokens", None, "`tokenizer.ggml.tokens` is missing, expected array of strings"),
        ("tokenizer.ggml.merges", None, "`tokenizer.ggml.merges` is missing, expected array of strings"),
        (
            "tokenizer.ggml.merges",
            strings(&["a b", " b"]),
            "`tokenizer.ggml.merges[1]`: no blank between two tokens in ` b`",
        ),
        (
            "tokenizer.ggml.token_type",
            Some(vec![1i32].into()),
            "`tokenizer.ggml.token_type` has 1 elements, the vocabulary has 1024 tokens",
        ),
        (
            "tokenizer.ggml.bos_token_id",
            Some("<s>".into()),
            "`tokenizer.ggml.bos_token_id` is of type str, expected integer",
        ),
    ] {
        assert_eq!(error(key, value), expected);
    }
    // Without the key the runtime splits by a default pattern.
    assert_eq!(error("tokenizer.ggml.pre", None), "");
}

two_tiers!(a_long_text_of_one_character_is_encoded);
/// With quadratic time this would not finish.
fn a_long_text_of_one_character_is_encoded(tier: Tier) {
    let (mut rows, _) = bundled();
    let all = ["gpt-2", "llama-bpe", "superbpe", "tiny_aya", "deepseek-llm", "jais-2", "default"];
    for pre in tier.some(9, all) {
        rows.set("tokenizer.ggml.pre", pre);
        let encoder = encoder(&rows);
        for c in [" ", "e", "7", "\n", "!", "<", "é", "a "] {
            let text = c.repeat(50_000 / c.len());
            let ids = encoder.encode(&text, true);
            assert_eq!(encoder.decode(&ids).len(), text.len(), "{pre}: {c:?}");
        }
    }
}

/// Text of characters with special handling in tokenizers, and of any others.
fn awkward() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[ a-zA-Z'0-9.,!?\\n\\r\\t_-]{0,12}",
        1 => "(<s>|</s>|<|s>| {1,9}|\n{1,4}|'ll|'S|ſ|\u{a0}|\u{3000}|e\u{301}|🙂|漢字|²|½)",
        1 => any::<String>(),
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

#[test]
fn any_text_has_the_ids_of_the_tokenizers_library_and_comes_back() {
    let (rows, original) = bundled();
    let encoder = encoder(&rows);
    proptest!(ProptestConfig::with_cases(512), |(text in awkward())| {
        let ids = encoder.encode(&text, true);
        prop_assert_eq!(&ids, &original_ids(&original, &text));
        prop_assert_eq!(encoder.decode(&ids), text.as_bytes());
        prop_assert_eq!(encoder.decode(&encoder.encode(&text, false)), text.as_bytes());
    });
}
