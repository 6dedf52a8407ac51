//! The kind of a tokenizer is detected from its file: every card reads every kind of `tokenizer.json`, whatever the
//! class name is.

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertOptions};
use gguf_format::Value;
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::fixture::{self, CardFixture};
use gguf_testkit::tiers::{Tier, two_tiers};

/// Tokens that cards look up by their text.
const NAMED: [&str; 12] = [
    "<unk>",
    "<s>",
    "</s>",
    "<pad>",
    "<|endoftext|>",
    "<|user|>",
    "<|observation|>",
    "[gMASK]",
    "<|eot|>",
    "<|endofassistant|>",
    "[CLS]",
    "[SEP]",
];

/// Content of `tokenizer.json` of a kind.
fn tokenizer(kind: &str) -> Json {
    let added: Vec<Json> = (0u64..)
        .zip(NAMED)
        .map(|(id, text)| json!({"id": id, "content": text, "special": true, "normalized": false}))
        .collect();
    let texts: Vec<&str> = NAMED.into_iter().chain(["a", "b", "ab"]).collect();
    let ids: Json = (0u64..).zip(&texts).map(|(id, text)| ((*text).to_owned(), Json::from(id))).collect();
    let scored: Vec<Json> = texts.iter().map(|text| json!([text, -1.0])).collect();
    let merges = json!([["a", "b"]]);
    let (model, decoder) = match kind {
        "byte fallback" => (
            json!({"type": "BPE", "vocab": ids, "merges": merges, "byte_fallback": true, "unk_token": "<unk>"}),
            json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}),
        ),
        "byte level" => {
            (json!({"type": "BPE", "vocab": ids, "merges": merges}), json!({"type": "ByteLevel"}))
        }
        "unigram" => (json!({"type": "Unigram", "vocab": scored, "unk_id": 0}), json!({"type": "Metaspace"})),
        _ => (
            json!({"type": "WordPiece", "vocab": ids, "unk_token": "<unk>"}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
    };
    let pre_tokenizer = match kind {
        "byte level" => {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
        }
        "unigram" => json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always"}),
        _ => Json::Null,
    };
    json!({"added_tokens": added, "normalizer": null, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model})
}

/// Kind of the vocabulary in the converted file.
fn model(case: &CardFixture, kind: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    fs_err::write(dir.path().join("tokenizer.json"), tokenizer(kind).to_string()).unwrap();
    let config = json!({"tokenizer_class": "TokenizersBackend", "bos_token": "<s>", "eos_token": "</s>"});
    fs_err::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let options = ConvertOptions {
        file_type: Some(OutType::F32),
        vocab_only: true,
        mistral_format: case.content()["options"]["mistral_format"] == true,
        ..ConvertOptions::default()
    };
    let plan = Conversion::plan(dir.path(), &options).map_err(|error| error.to_string())?;
    match plan.metadata().get("tokenizer.ggml.model") {
        Some(Value::String(model)) => Ok(String::from_utf8_lossy(model).into_owned()),
        other => Err(format!("{other:?}")),
    }
}

two_tiers!(every_card_reads_every_kind_of_tokenizer_json);
fn every_card_reads_every_kind_of_tokenizer_json(tier: Tier) {
    let mut cases: Vec<CardFixture> = fixture::some(tier, 25);
    cases.retain(|case| {
        let is_none =
            ["wavtokenizer-dec", "dflash", "eagle3", "gemma4-assistant"].contains(&case.arch.as_str());
        let has_files = case.content()["files"]
            .as_object()
            .is_some_and(|files| files.contains_key("tokenizer_config.json"));
        !case.is_mmproj() && !is_none && !has_files && case.content()["options"]["mistral_format"] != true
    });
    cases.dedup_by(|case, before| case.arch == before.arch);
    assert!(cases.len() > tier.of(8, 100), "{}", cases.len());
    let failures: Vec<String> = cases
        .par_iter()
        .flat_map_iter(|case| {
            let kinds = [
                ("byte fallback", "llama"),
                ("byte level", "gpt2"),
                ("unigram", "t5"),
                ("word piece", "bert"),
            ];
            kinds.into_iter().filter_map(move |(kind, want)| {
                let found = model(case, kind);
                let is_right = match &found {
                    Ok(found) => found == want || (found == "gemma4" && kind == "byte fallback"),
                    Err(_) => false,
                };
                (!is_right).then(|| format!("{}: {kind}: {found:?}", case.at))
            })
        })
        .collect();
    assert!(failures.is_empty(), "{}\n{}", failures.len(), failures.join("\n"));
}
