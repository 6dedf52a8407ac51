//! Variants of `tokenizer.json` and of the vocabularies of GGUF files: each step that our readers know, once.

use gguf_foundry::gguf::{Array, Metadata, Value};
use serde_json::{Value as Json, json};

use super::entries::join;
use super::models::{gguf, letters};

/// Tokenizer file with other members, read as byte-level BPE with this configuration.
fn variant(base: &Json, members: &[(&str, Json)], config: &Json) -> Vec<u8> {
    let mut file = base.clone();
    for (name, value) in members {
        file[*name] = value.clone();
    }
    join(&[
        ("mode", "bpe".to_owned()),
        ("tokenizer.json", file.to_string()),
        ("tokenizer_config.json", config.to_string()),
        (
            "config.json",
            r#"{"vocab_size": 270, "eos_token_id": [261, 2], "text_config": {"pad_token_id": 3}}"#.to_owned(),
        ),
    ])
}

fn decoders() -> Vec<Json> {
    let replace =
        |pattern: Json, content: &str| json!({ "type": "Replace", "pattern": pattern, "content": content });
    let space =
        |scheme: &str| json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme });
    let strip = json!({ "type": "Strip", "content": "\u{2581}", "start": 1, "stop": 2 });
    let parts = [json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" }), strip];
    vec![
        json!({ "type": "Sequence", "decoders": parts }),
        replace(json!({ "String": "x" }), "y"),
        replace(json!({ "Regex": "[a-c]+" }), "$0"),
        space("never"),
        space("first"),
        json!({ "type": "Metaspace", "replacement": "_", "add_prefix_space": false }),
        json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        json!({ "type": "WordPiece", "prefix": "##", "cleanup": false }),
        json!({ "type": "BPEDecoder", "suffix": "</w>" }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "CTC" }),
        replace(json!({ "String": "x" }), &"y".repeat(65)),
        json!({ "type": "Sequence", "decoders": vec![json!({ "type": "Fuse" }); 64] }),
    ]
}

fn post_processors() -> Vec<Json> {
    let piece = |name: &str| match name {
        "A" | "B" => json!({ "Sequence": { "id": name, "type_id": 0 } }),
        name => json!({ "SpecialToken": { "id": name, "type_id": 0 } }),
    };
    let template = |single: &[&str], pair: &[&str]| {
        let of = |names: &[&str]| names.iter().map(|name| piece(name)).collect::<Vec<_>>();
        json!({ "type": "TemplateProcessing", "single": of(single), "pair": of(pair), "special_tokens": {} })
    };
    vec![
        template(&["<|end|>", "A", "<|user|>"], &["<|end|>", "A", "<|user|>", "B", "<|user|>"]),
        template(&["<|user|>", "A"], &["<|user|>", "A", "<|end|>", "B"]),
        template(&["A", "<|end|>"], &["A", "<|end|>", "<|end|>", "B", "<|end|>"]),
        template(&["A"], &["A", "B"]),
        json!({ "type": "RobertaProcessing", "sep": ["<|end|>", 261], "cls": ["<|user|>", 262] }),
        json!({ "type": "Sequence", "processors": [{ "type": "ByteLevel" }, template(&["<|end|>", "A"], &[])] }),
    ]
}

fn normalizers() -> Vec<Json> {
    vec![
        json!({ "type": "Lowercase" }),
        json!({ "type": "BertNormalizer", "lowercase": true, "strip_accents": null, "clean_text": true,
            "handle_chinese_chars": true }),
        json!({ "type": "Sequence", "normalizers": [{ "type": "StripAccents" }, { "type": "NFC" }] }),
    ]
}

fn pre_tokenizers() -> Vec<Json> {
    let split = |behavior: &str, invert: bool, pattern: Json| json!({ "type": "Split", "behavior": behavior, "invert": invert, "pattern": pattern });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": true, "use_regex": true });
    let steps = [
        split("Isolated", false, json!({ "String": "." })),
        split("Removed", true, json!({ "Regex": " ?[^(\\s|.,!?)]+" })),
        split("MergedWithPrevious", true, json!({ "Regex": "\\d" })),
        json!({ "type": "Digits", "individual_digits": true }),
        json!({ "type": "Punctuation", "behavior": "Contiguous" }),
        bytes.clone(),
    ];
    vec![
        bytes,
        json!({ "type": "Sequence", "pretokenizers": steps }),
        json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false }),
        json!({ "type": "BertPreTokenizer" }),
        json!({ "type": "WhitespaceSplit" }),
        Json::Null,
    ]
}

/// Directories for the target `tokenizer_files`; `base` is a tokenizer of [`letters`].
pub fn directories(base: &Json) -> Vec<Vec<u8>> {
    let plain = json!({ "eos_token": "<|end|>", "add_bos_token": false });
    let full = json!({ "bos_token": "<|user|>", "eos_token": { "content": "<|end|>" }, "sep_token": "<|end|>",
        "cls_token": null, "add_eos_token": true, "chat_template": "{{ x }}" });
    // Tokens that are not in the vocabulary go through the decoder.
    let added: Vec<Json> = [
        "<|end|>",
        "<|user|>",
        "\u{2581}a x .b",
        "<0x41>",
        "<0xE4>",
        "do n't </w>",
        "\u{120}q",
    ]
    .iter()
    .zip(261u32..)
    .map(|(text, id)| json!({ "id": id, "content": text, "special": id == 261, "normalized": id == 267 }))
    .collect();
    let added = Json::Array(added);
    let mut all = Vec::new();
    for decoder in decoders() {
        all.push(variant(base, &[("decoder", decoder), ("added_tokens", added.clone())], &plain));
    }
    for post in post_processors() {
        for config in
            [&plain, &full, &json!({ "cls_token": "<|user|>", "sep_token": "<|end|>" }), &Json::Null]
        {
            all.push(variant(base, &[("post_processor", post.clone())], config));
        }
    }
    for normalizer in normalizers() {
        all.push(variant(base, &[("normalizer", normalizer)], &full));
    }
    for pre in pre_tokenizers() {
        all.push(variant(base, &[("pre_tokenizer", pre)], &plain));
    }
    all.push(variant(base, &[("decoder", Json::Null)], &json!({ "bos_token": 3 })));
    all.push(variant(
        base,
        &[],
        &json!({ "chat_template": [{ "name": "default", "template": "a" },
        { "name": "tool use", "template": "b" }, { "name": 3 }, { "template": "c" }] }),
    ));
    all
}

/// Keys of byte-level BPE with each known pre-tokenizer, for the target `encoder`.
pub fn keys() -> Vec<Vec<u8>> {
    let table =
        fs_err::read_to_string(crate::support::root().join("crates/gguf-tokenizer/src/pretokenizers.toml"))
            .unwrap();
    let table: toml::Table = table.parse().unwrap();
    let names = table["pre"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned());
    let text = "Hello WORLD, it's 12345 don't\n\n \t x\u{1f642}\u{301} \u{6f22}\u{5b57}\u{304b} \u{ac00}na\u{ef}ve ...\u{e01}";
    let mut all = Vec::new();
    for (at, name) in names.chain(["unheard-of".to_owned()]).enumerate() {
        let mut keys = Metadata::new();
        letters(&mut keys);
        keys.set("tokenizer.ggml.pre", name.as_str());
        if at % 3 == 0 {
            keys.set("tokenizer.ggml.add_bos_token", true);
            keys.set("tokenizer.ggml.bos_token_id", 261u32);
            keys.set("tokenizer.ggml.ignore_merges", true);
        }
        all.push(join(&[("keys", gguf(&keys, &[])), ("text", text.as_bytes().to_vec())]));
    }
    // A model without bytes, and one of RWKV.
    for model in ["rwkv", "no_vocab", "plamo2"] {
        let mut keys = Metadata::new();
        letters(&mut keys);
        keys.set("tokenizer.ggml.model", model);
        let tokens: Vec<Vec<u8>> =
            ["<s>", "'a'", "'ab'", "b'\\xff'"].map(|token| token.as_bytes().to_vec()).to_vec();
        keys.set("tokenizer.ggml.token_type", vec![3, 1, 1, 1i32]);
        keys.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        all.push(join(&[("keys", gguf(&keys, &[])), ("text", text.as_bytes().to_vec())]));
    }
    all
}
