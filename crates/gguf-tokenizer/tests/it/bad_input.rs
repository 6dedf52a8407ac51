//! Missing, damaged or inconsistent files: each has its own message.

use std::path::Path;

use gguf_core::Hint;
use gguf_format::{Array, Value};
use gguf_tokenizer::{Mode, TokenizerError, TokenizerRequest, build};
use serde_json::{Value as Json, json};

/// Byte-level BPE of the letters a, b and c.
fn byte_level() -> Json {
    json!({
        "added_tokens": [{"id": 5, "content": "<|end|>", "special": true, "normalized": false,
                          "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
                  "merges": ["a b", ["ab", "c"]]},
    })
}

fn write(dir: &Path, name: &str, content: &Json) {
    fs_err::write(dir.join(name), content.to_string()).unwrap();
}

/// Error for a directory with these files, without the directory's path.
fn error_of(modes: &[Mode], size: Option<u64>, files: &[(&str, &[u8])]) -> (String, TokenizerError) {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs_err::write(dir.path().join(name), content).unwrap();
    }
    let mut request = TokenizerRequest::of(modes);
    request.size = size;
    let error = build(dir.path(), &request).unwrap_err();
    (error.to_string().replace(&format!("{}", dir.path().display()), "DIR"), error)
}

fn json_error(size: Option<u64>, edit: impl FnOnce(&mut Json)) -> String {
    let mut file = byte_level();
    edit(&mut file);
    error_of(&[Mode::Bpe], size, &[("tokenizer.json", file.to_string().as_bytes())]).0
}

#[test]
fn a_small_tokenizer_becomes_keys() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &byte_level());
    let mut request = TokenizerRequest::of(&[Mode::Spm, Mode::Bpe]);
    request.size = Some(7);
    let built = build(dir.path(), &request).unwrap();
    assert_eq!(built.mode, Mode::Bpe);
    let strings = |items: &[&str]| {
        Value::Array(Array::String(items.iter().map(|item| item.as_bytes().to_vec()).collect()))
    };
    let rows: Vec<(&str, Value)> = built.rows.iter().map(|(key, value)| (key, value.clone())).collect();
    assert_eq!(
        rows,
        [
            ("tokenizer.ggml.model", "gpt2".into()),
            ("tokenizer.ggml.pre", "gpt-2".into()),
            ("tokenizer.ggml.tokens", strings(&["a", "b", "c", "ab", "abc", "<|end|>", "[PAD6]"])),
            ("tokenizer.ggml.token_type", vec![1i32, 1, 1, 1, 1, 3, 5].into()),
            ("tokenizer.ggml.merges", strings(&["a b", "ab c"])),
        ]
    );
}

#[test]
fn without_files_every_mode_says_what_it_misses() {
    let (message, error) = error_of(&[Mode::Spm, Mode::LlamaHf, Mode::Bpe, Mode::Unigram], None, &[]);
    assert_eq!(
        message,
        "DIR: no tokenizer found\n  spm: tokenizer.model is missing\n  llama_hf: tokenizer.json is missing\n  \
         bpe: tokenizer.json is missing\n  unigram: tokenizer.model or spiece.model is missing"
    );
    assert!(error.hints().iter().any(|hint| hint.contains("--no-tokenizer")));
    assert!(error.hints()[0].starts_with("put tokenizer.json or tokenizer.model"), "{:?}", error.hints());
    let (_, error) = error_of(&[Mode::Mistral], None, &[]);
    assert!(error.hints()[0].starts_with("put tekken.json"), "{:?}", error.hints());
}

#[test]
fn no_tokenizer_is_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let built = build(dir.path(), &TokenizerRequest::of(&[Mode::None])).unwrap();
    assert_eq!(built.rows.iter().collect::<Vec<_>>(), [("tokenizer.ggml.model", &"none".into())]);
}

#[test]
fn ids_must_fit_and_be_unique() {
    assert_eq!(
        json_error(Some(5), |file| file["model"]["vocab"]["d"] = 6.into()),
        "DIR/tokenizer.json: `model.vocab`: id 6 of token `d` is beyond the vocabulary of 5 tokens"
    );
    assert_eq!(
        json_error(None, |file| file["model"]["vocab"]["b"] = 77.into()),
        "DIR/tokenizer.json: `model.vocab`: id 77 of token `b` is beyond the vocabulary of 6 tokens"
    );
    assert_eq!(
        json_error(None, |file| file["model"]["vocab"]["b"] = 0.into()),
        "DIR/tokenizer.json: token id 0 belongs to `a` and to `b`"
    );
    assert_eq!(
        json_error(Some(1 << 40), |_| {}),
        "DIR/tokenizer.json: a vocabulary of 1099511627776 tokens is asked for, at most 4194304 are written"
    );
    let negative = json_error(None, |file| file["model"]["vocab"]["b"] = (-1).into());
    assert!(
        negative.starts_with("DIR/tokenizer.json: invalid value: integer `-1`, expected u64"),
        "{negative}"
    );
}

#[test]
fn merges_must_be_made_of_tokens() {
    assert_eq!(
        json_error(None, |file| file["model"]["merges"] = json!(["a b", "b c"])),
        "DIR/tokenizer.json: `model.merges[1]`: `bc` is not in the vocabulary"
    );
    assert_eq!(
        json_error(None, |file| file["model"]["merges"] = json!(["a b", "a b c"])),
        "DIR/tokenizer.json: `model.merges[1]`: `a b c` is not two tokens with a blank between"
    );
    assert!(
        json_error(None, |file| file["model"]["merges"] = json!([["a"]]))
            .contains("a merge needs two tokens")
    );
}

/// huggingface/transformers#45488 and #48206, ollama/ollama#10930, axolotl-ai-cloud/axolotl#2488.
#[test]
fn what_other_programs_leave_of_a_vocabulary_is_refused() {
    let no_merges = |file: &mut Json| file["model"]["merges"] = json!([]);
    assert_eq!(
        json_error(None, no_merges),
        "DIR/tokenizer.json: `model.merges` is empty, and 2 tokens such as `ab` need merges: llama.cpp loads no such vocabulary"
    );
    let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false});
    for (normalizer, pre_tokenizer) in
        [(Json::Null, metaspace.clone()), (prepend.clone(), Json::Null), (prepend, metaspace)]
    {
        let found = json_error(None, |file| {
            file["model"]["vocab"]["\u{120}"] = 5.into();
            file["added_tokens"] = json!([]);
            (file["normalizer"], file["pre_tokenizer"]) = (normalizer.clone(), pre_tokenizer.clone());
        });
        assert!(found.contains("byte-level BPE") && found.contains("SentencePiece's"), "{found}");
    }
    let taken = json_error(Some(5), |file| file["added_tokens"][0]["id"] = 2.into());
    assert_eq!(
        taken,
        "DIR/tokenizer.json: added token `<|end|>` has the id 5, not 2, which the file declares and which is `c` in \
         `model.vocab`: that is beyond the vocabulary of 5 tokens"
    );
    // Letters alone need no merge, and the key is there for llama.cpp.
    let mut file = byte_level();
    file["model"] = json!({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []});
    file["added_tokens"] = json!([]);
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &file);
    let built = build(dir.path(), &TokenizerRequest::of(&[Mode::Bpe])).unwrap();
    assert_eq!(built.rows.get("tokenizer.ggml.merges"), Some(&Value::Array(Array::String(Vec::new()))));
}

#[test]
fn an_unknown_pre_tokenizer_shows_pattern_nearest_and_way_out() {
    let mut file = byte_level();
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{N}{1,4}"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    let (message, error) = error_of(&[Mode::Bpe], None, &[("tokenizer.json", file.to_string().as_bytes())]);
    assert_eq!(
        message,
        "DIR/tokenizer.json: unknown pre-tokenizer\n  \
         found:   split isolated \\p{N}{1,4} + byte_level regex\n  \
         nearest: `smollm`: digits individual + byte_level regex"
    );
    assert!(error.hints()[0].contains("--pre smollm"), "{:?}", error.hints());
    // With a name from the user it works; a name that no runtime knows is refused.
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &file);
    let mut request = TokenizerRequest::of(&[Mode::Bpe]);
    request.pre = Some("qwen2".to_owned());
    let built = build(dir.path(), &request).unwrap();
    assert_eq!(built.rows.get("tokenizer.ggml.pre"), Some(&"qwen2".into()));
    request.pre = Some("qwen\u{1b}".to_owned());
    let error = build(dir.path(), &request).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("`--pre qwen\\u{1b}`: not a pre-tokenizer that llama.cpp knows"),
        "{message}"
    );
    // Users of the program cannot look up names in its source.
    let hint = error.hints().join("\n");
    assert!(hint.starts_with("the names are a.x-4.0, ") && hint.contains(", qwen2, "), "{hint}");
}

#[test]
fn damaged_model_files() {
    let read = |bytes: &[u8]| error_of(&[Mode::Spm], None, &[("tokenizer.model", bytes)]).0;
    assert_eq!(read(b""), "DIR/tokenizer.model: the file is empty: fetch it again");
    // A list of tokens and ranks happens to parse as a message of unknown fields.
    assert_eq!(
        read(b"IQ== 0\nIg== 1\n"),
        "DIR/tokenizer.model: ranks of tokens (tiktoken), not a SentencePiece model"
    );
    // One piece (field 1, 3 bytes) with a text (field 1) of one byte that is not UTF-8.
    assert_eq!(
        read(&[0x0a, 3, 0x0a, 1, 0xff]),
        "DIR/tokenizer.model: piece 0: not UTF-8 at byte 0 of the piece"
    );
    // A piece that claims 2^35 bytes.
    assert!(read(&[0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01]).contains("not a SentencePiece model"));
}

#[test]
fn a_model_file_of_another_format_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &byte_level());
    fs_err::write(dir.path().join("tokenizer.model"), "IQ== 0\nIg== 1\n").unwrap();
    let built = build(dir.path(), &TokenizerRequest::of(&[Mode::Spm, Mode::Bpe])).unwrap();
    assert_eq!(built.mode, Mode::Bpe);
    assert!(
        built.warnings[0].to_string().starts_with("tokenizer mode `spm` passed over"),
        "{:?}",
        built.warnings
    );
}

#[test]
fn malformed_text_files() {
    let (message, _) = error_of(&[Mode::Bpe], None, &[("tokenizer.json", b"{\"model\": ")]);
    assert_eq!(message, "DIR/tokenizer.json: EOF while parsing a value at line 1 column 10");
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let (message, _) = error_of(&[Mode::Bpe], None, &[("tokenizer.json", &deep)]);
    assert!(message.starts_with("DIR/tokenizer.json: "), "{message}");
    let file = byte_level().to_string();
    let files: &[(&str, &[u8])] = &[
        ("tokenizer.json", file.as_bytes()),
        ("tokenizer_config.json", b"{}"),
        ("chat_template.jinja", b"a\xff"),
    ];
    let (message, _) = error_of(&[Mode::Bpe], None, files);
    assert_eq!(message, "DIR/chat_template.jinja: byte 1: not UTF-8");
}
