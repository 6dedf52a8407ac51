//! Every part of a request changes the keys that are written.

use gguf_format::{Metadata, OtherFiles};
use gguf_tokenizer::{
    Mode, ModeRequest, RankCode, SpecialToken, Template, TokenizerError, TokenizerRequest, build,
};
use serde_json::json;

/// Files of a byte-level vocabulary, a copy with the name of another mode's file, and a file of ranks.
fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let vocab = json!({"a": 0, "b": 1, "ab": 2, "</s>": 3});
    let tokenizer = json!({
        "added_tokens": [{"id": 3, "content": "</s>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
    });
    let config = json!({"eos_token": "</s>", "chat_template": "{{ x }}"});
    for (name, text) in [
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", config.to_string()),
        ("own.tiktoken", "YQ== 0\nYg== 1\nYWI= 2\n".to_owned()),
    ] {
        fs_err::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn keys(request: &TokenizerRequest) -> Result<Vec<String>, TokenizerError> {
    let dir = files();
    let built = build(dir.path(), request)?;
    Ok(built.rows.iter().map(|(key, value)| format!("{key} = {value:?}")).collect())
}

fn one_key(key: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set(key, true);
    metadata
}

/// Changes of each part; a new part does not compile until it is listed here.
fn changes() -> Vec<(&'static str, TokenizerRequest)> {
    let TokenizerRequest {
        modes: _,
        size: _,
        pad_multiple: _,
        force: _,
        last: _,
        types: _,
        control: _,
        user_defined: _,
        template: _,
        pre: _,
        before: _,
        after: _,
        // Keys of conversions: see `sources::roles`.
        by_hand: _,
        rows: _,
        // These two concern single modes: see `modes`.
        architecture: _,
        mistral_format: _,
        // The name changes only what is reported: see `account`.
        name: _,
        limits,
        others: _,
    } = TokenizerRequest::default();
    let base = || TokenizerRequest::of(&[Mode::Bpe]);
    let eos = |token: u32| vec![("eos".to_owned(), SpecialToken::Id(token))];
    let others = OtherFiles { dir: "nowhere".into(), names: vec!["tokenizer.json".to_owned()] };
    let limits = gguf_core::limits::Limits { text_file_bytes: 1, ..limits };
    vec![
        ("modes", TokenizerRequest::of(&[Mode::None])),
        ("size", TokenizerRequest { size: Some(9), ..base() }),
        ("pad_multiple", TokenizerRequest { pad_multiple: Some(8), ..base() }),
        ("force", TokenizerRequest { force: eos(1), ..base() }),
        ("last", TokenizerRequest { last: eos(1), ..base() }),
        ("types", TokenizerRequest { types: Some(vec!["bos".to_owned()]), ..base() }),
        ("control", TokenizerRequest { control: vec!["a".to_owned()], ..base() }),
        ("user_defined", TokenizerRequest { user_defined: vec!["a".to_owned()], ..base() }),
        ("template", TokenizerRequest { template: Template::None, ..base() }),
        ("template", TokenizerRequest { template: Template::Given("{{ y }}".to_owned()), ..base() }),
        ("pre", TokenizerRequest { pre: Some("qwen2".to_owned()), ..base() }),
        ("before", TokenizerRequest { before: one_key("tokenizer.ggml.add_bos_token"), ..base() }),
        ("after", TokenizerRequest { after: one_key("tokenizer.ggml.add_bos_token"), ..base() }),
        ("limits", TokenizerRequest { limits, ..base() }),
        ("others", TokenizerRequest { others: Some(others), ..base() }),
    ]
}

#[test]
fn every_part_of_a_request_is_acted_on() {
    let plain = keys(&TokenizerRequest::of(&[Mode::Bpe])).unwrap();
    for (part, request) in changes() {
        // A refusal also counts as an effect.
        if let Ok(keys) = keys(&request) {
            assert_ne!(keys, plain, "`{part}` changes nothing");
        }
    }
}

#[test]
fn every_part_of_a_mode_is_acted_on() {
    let ranks = || ModeRequest {
        files: vec!["own.tiktoken".to_owned()],
        rank_code: Some(RankCode::Qwen),
        ..ModeRequest::new(Mode::Tiktoken)
    };
    let ModeRequest { mode: _, files: _, special: _, rank_code: _, after: _ } = ranks();
    let of = |mode| keys(&TokenizerRequest { modes: vec![mode], ..TokenizerRequest::default() });
    let plain = of(ranks()).unwrap();
    let unk = vec![("unk".to_owned(), SpecialToken::Text("a".to_owned()))];
    for (part, mode) in [
        ("special", ModeRequest { special: unk, ..ranks() }),
        ("rank_code", ModeRequest { rank_code: Some(RankCode::Glm4), ..ranks() }),
        ("after", ModeRequest { after: one_key("tokenizer.ggml.add_bos_token"), ..ranks() }),
    ] {
        assert_ne!(of(mode).unwrap(), plain, "`{part}` changes nothing");
    }
    // Without the file that the mode names, the other files determine the kind of the vocabulary.
    assert_ne!(of(ModeRequest { files: Vec::new(), ..ranks() }).unwrap(), plain, "`files` changes nothing");
    let error = of(ModeRequest { rank_code: None, ..ranks() }).unwrap_err().to_string();
    assert!(error.ends_with("the code of its special tokens is not declared"), "{error}");
}
