//! Tokens around a text, tokens that a card names by their text, and added tokens of `tokenizer.json`.

use gguf_format::{Metadata, Value};
use gguf_testkit::{files, fixture};
use gguf_tokenizer::{Built, Mode, TokenizerRequest, build};
use serde_json::{Value as Json, json};

/// Builds a vocabulary of pieces with that post-processor and configuration.
fn pieces(post: Json, config: &Json, request: &TokenizerRequest) -> Built {
    let dir = tempfile::tempdir().unwrap();
    let mut file = files::json(fixture("vocab/gemma4/tokenizer.json"));
    file["post_processor"] = post;
    let mut own = files::json(fixture("vocab/gemma4/tokenizer_config.json"));
    for (key, value) in config.as_object().unwrap() {
        own[key] = value.clone();
    }
    fs_err::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    fs_err::write(dir.path().join("tokenizer_config.json"), own.to_string()).unwrap();
    build(dir.path(), request).unwrap()
}

fn template(single: &[&str]) -> Json {
    let piece = |name: &&str| match *name {
        "A" => json!({"Sequence": {"id": "A", "type_id": 0}}),
        token => json!({"SpecialToken": {"id": token, "type_id": 0}}),
    };
    let tokens = json!({"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]},
                        "<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}});
    json!({"type": "TemplateProcessing", "single": single.iter().map(piece).collect::<Vec<_>>(), "pair": [],
           "special_tokens": tokens})
}

fn flag(built: &Built, role: &str) -> Option<bool> {
    built.rows.get(&format!("tokenizer.ggml.add_{role}_token")).and_then(Value::as_bool)
}

fn said(built: &Built) -> Vec<String> {
    built.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn tokenizer_json_alone_says_which_tokens_are_around_a_text() {
    let request = TokenizerRequest::of(&[Mode::LlamaHf]);
    for class in ["GemmaTokenizer", "LlamaTokenizerFast", "TokenizersBackend"] {
        let config = json!({"tokenizer_class": class});
        for (post, bos) in [
            (template(&["A"]), Some(false)),
            (Json::Null, Some(false)),
            (template(&["<bos>", "A"]), Some(true)),
        ] {
            let built = pieces(post.clone(), &config, &request);
            assert_eq!((flag(&built, "bos"), said(&built)), (bos, Vec::new()), "{class}: {post}");
        }
    }
    // A key that is set by hand, and one of the card, stay.
    let by_hand =
        TokenizerRequest { by_hand: vec!["tokenizer.ggml.add_bos_token".to_owned()], ..request.clone() };
    assert_eq!(flag(&pieces(Json::Null, &json!({}), &by_hand), "bos"), None);
    let mut of_card = request;
    of_card.after.set("tokenizer.ggml.add_bos_token", true);
    assert_eq!(flag(&pieces(Json::Null, &json!({}), &of_card), "bos"), Some(true));
}

#[test]
fn a_flag_that_transformers_ignores_is_told_with_what_it_follows() {
    let request = TokenizerRequest::of(&[Mode::LlamaHf]);
    for (post, config, flags, want) in [
        (
            template(&["<bos>", "A"]),
            json!({"add_bos_token": false}),
            (Some(true), None),
            "`add_bos_token` is false, but tokenizer.json adds the token, and transformers 5 follows tokenizer.json: \
             `tokenizer.ggml.add_bos_token` is true, as llama.cpp's converter writes it; \
             `--set tokenizer.ggml.add_bos_token=bool:false` follows tokenizer_config.json",
        ),
        (
            template(&["<bos>", "A"]),
            json!({"add_eos_token": true}),
            (Some(true), Some(true)),
            "`add_eos_token` is true, but tokenizer.json adds no such token, and transformers 5 follows tokenizer.json: \
             `tokenizer.ggml.add_eos_token` is true, as llama.cpp's converter writes it; \
             `--set tokenizer.ggml.add_eos_token=bool:false` follows tokenizer.json",
        ),
        (
            Json::Null,
            json!({"add_bos_token": true}),
            (Some(true), None),
            "`add_bos_token` is true, but tokenizer.json adds no such token, and transformers 5 follows tokenizer.json: \
             `tokenizer.ggml.add_bos_token` is true, as llama.cpp's converter writes it; \
             `--set tokenizer.ggml.add_bos_token=bool:false` follows tokenizer.json",
        ),
    ] {
        let built = pieces(post, &config, &request);
        assert_eq!((flag(&built, "bos"), flag(&built, "eos")), flags, "{config}");
        assert_eq!(said(&built), [format!("tokenizer_config.json: {want}")], "{config}");
    }
    let agreeing = json!({"add_bos_token": true, "add_eos_token": false});
    assert_eq!(said(&pieces(template(&["<bos>", "A"]), &agreeing, &request)), [""; 0]);
}

#[test]
fn a_token_that_a_card_names_gets_its_id_or_no_key() {
    let of = |text: &str| {
        let mut request = TokenizerRequest::of(&[Mode::LlamaHf]);
        request.after.set("tokenizer.ggml.eot_token_id", text);
        pieces(template(&["<bos>", "A"]), &json!({}), &request)
            .rows
            .get("tokenizer.ggml.eot_token_id")
            .cloned()
    };
    assert_eq!(of("<turn|>"), Some(Value::U32(13)));
    assert_eq!(of("<end_of_turn>"), None);
}

/// Keys and warnings of a byte-level vocabulary with those added tokens.
fn byte_level(added: &[&str], rows: Option<u64>) -> (Metadata, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let token = |(id, text): (usize, &&str)| {
        json!({"id": id + 2, "content": text, "special": false, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    };
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added.iter().enumerate().map(token).collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    });
    fs_err::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs_err::write(dir.path().join("config.json"), json!({"eos_token_id": 1}).to_string()).unwrap();
    let request = TokenizerRequest { size: rows, rows, ..TokenizerRequest::of(&[Mode::Bpe]) };
    let built = build(dir.path(), &request).unwrap();
    let said = said(&built);
    (built.rows, said)
}

fn tokens(rows: &Metadata) -> Vec<String> {
    let tokens = gguf_testkit::in_json(rows.get("tokenizer.ggml.tokens").unwrap()).1;
    serde_json::from_value(tokens).unwrap()
}

#[test]
fn letters_that_are_no_bytes_of_a_text_are_the_text() {
    // The last two are texts in letters of bytes.
    let (rows, _) = byte_level(&["<usuário>", "Müller", "ä", "ö", "Ġx", "Ã©"], None);
    assert_eq!(tokens(&rows)[2..], ["<usuário>", "Müller", "ä", "ö", " x", "é"]);
}

#[test]
fn added_tokens_beyond_the_rows_are_left_out_by_name() {
    let (rows, said) = byte_level(&["<x>", "<y>", "<z>"], Some(3));
    assert_eq!(tokens(&rows), ["a", "b", "<x>"]);
    let want = "tokenizer.json: `<y>`, `<z>` of `added_tokens`: transformers appends them to the vocabulary of 3 tokens, which \
                has no further row: left out";
    assert_eq!(said, [want]);
}
