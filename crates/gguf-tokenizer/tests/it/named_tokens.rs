//! Special tokens that only files beside `tokenizer.json` name, and a `vocab.txt` alone.

use gguf_tokenizer::{Built, Mode, TokenizerRequest, build};
use serde_json::{Value as Json, json};

/// Builds a vocabulary of three tokens with a further file, for that many rows.
fn built(file: &str, content: &Json, rows: Option<u64>) -> Built {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "</s>", "special": true, "normalized": false, "single_word": false,
                          "lstrip": false, "rstrip": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    });
    fs_err::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs_err::write(dir.path().join("config.json"), json!({"eos_token_id": 2}).to_string()).unwrap();
    fs_err::write(dir.path().join(file), content.to_string()).unwrap();
    let request = TokenizerRequest { size: rows, ..TokenizerRequest::of(&[Mode::Bpe]) };
    build(dir.path(), &request).unwrap()
}

fn tokens(built: &Built) -> Vec<String> {
    let tokens = gguf_testkit::in_json(built.rows.get("tokenizer.ggml.tokens").unwrap()).1;
    serde_json::from_value(tokens).unwrap()
}

#[test]
fn every_form_of_a_special_token_is_read() {
    const CONFIG: &str = "tokenizer_config.json";
    for (file, content) in [
        (CONFIG, json!({"extra_special_tokens": ["<image>"]})),
        (CONFIG, json!({"extra_special_tokens": {"image_token": "<image>"}})),
        (CONFIG, json!({"model_specific_special_tokens": {"image_token": "<image>"}})),
        (CONFIG, json!({"additional_special_tokens": [{"content": "<image>", "lstrip": false}]})),
        (CONFIG, json!({"image_token": "<image>", "add_bos_token": false})),
        ("special_tokens_map.json", json!({"extra_special_tokens": ["<image>"]})),
    ] {
        let written = built(file, &content, None);
        assert_eq!(tokens(&written), ["a", "b", "</s>", "<image>"], "{content}");
        let types = gguf_testkit::in_json(written.rows.get("tokenizer.ggml.token_type").unwrap()).1;
        assert_eq!(types[3], 3, "{content}");
    }
    // transformers 5 takes no token from the name of Llama's class.
    assert_eq!(
        tokens(&built(CONFIG, &json!({"tokenizer_class": "LlamaTokenizerFast"}), None)),
        ["a", "b", "</s>"]
    );
}

#[test]
fn a_token_without_a_row_is_told_by_the_file_and_key_that_name_it() {
    const CONFIG: &str = "tokenizer_config.json";
    for (file, content, want) in [
        (
            CONFIG,
            json!({"extra_special_tokens": {"i": "<x>"}}),
            "tokenizer_config.json: `<x>` of `extra_special_tokens` is",
        ),
        (
            CONFIG,
            json!({"additional_special_tokens": ["<x>"]}),
            "tokenizer_config.json: `<x>` of `additional_special_tokens` is",
        ),
        (CONFIG, json!({"image_token": "<x>"}), "tokenizer_config.json: `<x>` of `image_token` is"),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"3": {"content": "<x>"}}}),
            "tokenizer_config.json: `<x>` of `added_tokens_decoder` is",
        ),
        ("added_tokens.json", json!({"<x>": 3, "<y>": 1}), "added_tokens.json: `<y>`, `<x>` are"),
    ] {
        let written = built(file, &content, Some(3));
        assert_eq!(tokens(&written), ["a", "b", "</s>"], "{content}");
        let said: Vec<String> = written.warnings.iter().map(ToString::to_string).collect();
        assert!(said.len() == 1 && said[0].starts_with(want), "{content}: {said:?}");
    }
}

/// Keys and warnings of a `vocab.txt` with a configuration.
fn of_lines(lines: &str, config: &Json) -> (impl Fn(&str) -> Option<Json> + use<>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("vocab.txt"), lines).unwrap();
    fs_err::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let built = build(dir.path(), &TokenizerRequest::of(&[Mode::WordPiece])).unwrap();
    let said = built.warnings.iter().map(ToString::to_string).collect();
    let key = move |key: &str| {
        built.rows.get(&format!("tokenizer.ggml.{key}")).map(|value| gguf_testkit::in_json(value).1)
    };
    (key, said)
}

#[test]
fn lines_have_the_roles_and_settings_of_their_class() {
    const LINES: &str = "[MASK]\n[SEP]\n[UNK]\n[PAD]\n[CLS]\na\n##b\n";
    let (key, said) = of_lines(LINES, &json!({}));
    assert_eq!(said, Vec::<String>::new());
    for (name, want) in [
        ("bos_token_id", json!(4)),
        ("eos_token_id", json!(1)),
        ("unknown_token_id", json!(2)),
        ("seperator_token_id", json!(1)),
        ("padding_token_id", json!(3)),
        ("mask_token_id", json!(0)),
        ("add_bos_token", json!(true)),
        ("add_eos_token", json!(true)),
        ("normalizer.lowercase", json!(true)),
    ] {
        assert_eq!(key(name), Some(want), "{name}");
    }
    assert_eq!(key("normalizer.strip_accents"), None);
    let own = json!({"do_lower_case": false, "strip_accents": true, "cls_token": "a", "tokenize_chinese_chars": false});
    let (key, said) = of_lines(LINES, &own);
    assert_eq!(key("bos_token_id"), Some(json!(5)));
    assert_eq!(key("normalizer.lowercase"), Some(json!(false)));
    assert_eq!(key("normalizer.strip_accents"), Some(json!(true)));
    assert!(
        said.len() == 1 && said[0].starts_with("tokenizer_config.json: `tokenize_chinese_chars`"),
        "{said:?}"
    );
}
