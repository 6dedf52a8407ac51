//! A `tokenizer.model` alone: its kind, its settings and the types of its pieces.

use std::path::Path;

use gguf_core::Hint;
use gguf_format::{Metadata, Value};
use gguf_tokenizer::sentencepiece::NormalizerSpec;
use gguf_tokenizer::{Built, Mode, ModelProto, Piece, TokenizerError, TokenizerRequest, TrainerSpec, build};
use prost::Message as _;
use serde_json::{Value as Json, json};

const UNIGRAM: i32 = 1;
const BPE: i32 = 2;

/// Byte tokens, and a few pieces in front of them.
fn model(kind: i32) -> ModelProto {
    let front = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("\u{2581}\u{2581}", 4), ("a", 1), ("\u{2581}a", 1)];
    let bytes = (0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), 6));
    let pieces = front.into_iter().map(|(text, kind)| (text.to_owned(), kind)).chain(bytes);
    let piece = |(text, kind): (String, i32)| Piece {
        piece: Some(text.into_bytes()),
        score: Some(-1.0),
        kind: Some(kind),
    };
    ModelProto {
        pieces: pieces.map(piece).collect(),
        trainer_spec: Some(TrainerSpec { model_type: Some(kind), ..TrainerSpec::default() }),
        normalizer_spec: Some(NormalizerSpec {
            remove_extra_whitespaces: Some(false),
            ..NormalizerSpec::default()
        }),
    }
}

fn built_in(dir: &Path, model: &ModelProto, request: &TokenizerRequest) -> Result<Built, TokenizerError> {
    fs_err::write(dir.join("tokenizer.model"), model.encode_to_vec()).unwrap();
    build(dir, request)
}

fn spm(model: &ModelProto) -> Result<Built, TokenizerError> {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"bos_token_id": 1, "eos_token_id": 2});
    fs_err::write(dir.path().join("config.json"), config.to_string()).unwrap();
    built_in(dir.path(), model, &TokenizerRequest::of(&[Mode::Spm]))
}

fn value(rows: &Metadata, key: &str) -> Option<Json> {
    rows.get(&format!("tokenizer.ggml.{key}")).map(|value| gguf_testkit::in_json(value).1)
}

fn warnings(built: &Built) -> Vec<String> {
    built.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn the_model_says_its_kind() {
    let bpe = spm(&model(BPE)).unwrap();
    assert_eq!(value(&bpe.rows, "model"), Some(json!("llama")));
    assert_eq!((value(&bpe.rows, "add_space_prefix"), warnings(&bpe)), (None, Vec::new()));
    let mut unigram = model(UNIGRAM);
    let built = spm(&unigram).unwrap();
    assert_eq!(warnings(&built), Vec::<String>::new());
    for (key, want) in [
        ("model", json!("t5")),
        ("add_space_prefix", json!(true)),
        ("remove_extra_whitespaces", json!(false)),
        ("add_eos_token", json!(false)),
        // The runtime's default is the end token.
        ("unknown_token_id", json!(0)),
    ] {
        assert_eq!(value(&built.rows, key), Some(want), "{key}");
    }
    unigram.trainer_spec.as_mut().unwrap().byte_fallback = Some(true);
    let said = warnings(&spm(&unigram).unwrap());
    assert!(said[0].starts_with("tokenizer.model: `trainer_spec.byte_fallback`: llama.cpp"), "{said:?}");
    for kind in [3, 4] {
        let error = spm(&model(kind)).unwrap_err();
        let want =
            format!("tokenizer.model: `trainer_spec.model_type` is {kind}, expected 1 (unigram) or 2 (BPE)");
        assert!(error.to_string().ends_with(&want), "{error}");
        assert!(error.hints()[0].starts_with("llama.cpp has no"), "{:?}", error.hints());
    }
}

/// Member of a model, and a change of it.
type Change = (&'static str, fn(&mut ModelProto));

#[test]
fn settings_are_keys_or_warnings() {
    let mut own = model(BPE);
    own.normalizer_spec.as_mut().unwrap().add_dummy_prefix = Some(false);
    assert_eq!(value(&spm(&own).unwrap().rows, "add_space_prefix"), Some(json!(false)));
    // A card has the last word.
    let mut request = TokenizerRequest::of(&[Mode::Spm]);
    request.before.set("tokenizer.ggml.add_space_prefix", true);
    let dir = tempfile::tempdir().unwrap();
    let rows = built_in(dir.path(), &own, &request).unwrap().rows;
    assert_eq!(value(&rows, "add_space_prefix"), Some(json!(true)));
    let changes: [Change; 4] = [
        ("normalizer_spec.precompiled_charsmap", |model| {
            let normalizer = model.normalizer_spec.as_mut().unwrap();
            normalizer.precompiled_charsmap = Some(vec![4, 0, 0, 0, 0, 0, 0, 0, 0]);
            normalizer.name = Some("nmt_nfkc".to_owned());
        }),
        ("normalizer_spec.remove_extra_whitespaces", |model| {
            model.normalizer_spec.as_mut().unwrap().remove_extra_whitespaces = Some(true);
        }),
        ("normalizer_spec.escape_whitespaces", |model| {
            model.normalizer_spec.as_mut().unwrap().escape_whitespaces = Some(false);
        }),
        ("trainer_spec.treat_whitespace_as_suffix", |model| {
            model.trainer_spec.as_mut().unwrap().treat_whitespace_as_suffix = Some(true);
        }),
    ];
    for (member, change) in changes {
        let mut own = model(BPE);
        change(&mut own);
        let said = warnings(&spm(&own).unwrap());
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with(&format!("tokenizer.model: `{member}`: llama.cpp")), "{said:?}");
    }
}

#[test]
fn user_defined_pieces_are_normal_ones_which_is_told_unless_they_are_blank() {
    for kind in [BPE, UNIGRAM] {
        let mut own = model(kind);
        let built = spm(&own).unwrap();
        assert_eq!(value(&built.rows, "token_type").unwrap()[3], 1);
        assert!(!warnings(&built).iter().any(|said| said.contains("user-defined")));
        own.pieces[3].piece = Some(b"<tool>".to_vec());
        let said = warnings(&spm(&own).unwrap()).join("\n");
        assert!(said.contains("takes its 1 user-defined pieces (`<tool>`) for normal ones"), "{said}");
    }
}

#[test]
fn a_model_without_a_begin_token_gets_none() {
    let mut own = model(BPE);
    own.pieces.remove(1);
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("config.json"), json!({"eos_token_id": 1, "bos_token_id": -1}).to_string())
        .unwrap();
    fs_err::write(dir.path().join("tokenizer_config.json"), json!({"add_bos_token": true}).to_string())
        .unwrap();
    let built = built_in(dir.path(), &own, &TokenizerRequest::of(&[Mode::Spm])).unwrap();
    assert_eq!(value(&built.rows, "add_bos_token"), Some(json!(false)));
    let said = warnings(&built).join("\n");
    assert!(said.contains("(llama.cpp would take 1 `</s>`): written as false"), "{said}");
    assert_eq!(built.rows.get("tokenizer.ggml.bos_token_id").and_then(Value::as_u64), None);
}

#[test]
fn a_vocabulary_without_byte_tokens_is_told() {
    let mut own = model(BPE);
    own.pieces.truncate(6);
    let said = warnings(&spm(&own).unwrap());
    assert!(said[0].contains("lacks 255 of the 256 byte tokens"), "{said:?}");
}

#[test]
fn tokens_that_only_the_configuration_names_follow_the_pieces() {
    let named = json!({"eos_token": "<|im_end|>", "pad_token": {"content": "[PAD]"}, "additional_special_tokens": ["<|im_start|>"]});
    let all = json!(["<|im_end|>", "[PAD]", "<|im_start|>"]);
    for file in ["tokenizer_config.json", "special_tokens_map.json"] {
        for (n_rows, n_kept) in [(4, 3), (2, 2)] {
            let dir = tempfile::tempdir().unwrap();
            fs_err::write(dir.path().join("config.json"), json!({"eos_token_id": 2}).to_string()).unwrap();
            fs_err::write(dir.path().join(file), named.to_string()).unwrap();
            let own = model(BPE);
            let n = own.pieces.len();
            let size = Some((n + n_rows) as u64);
            let request = TokenizerRequest { size, ..TokenizerRequest::of(&[Mode::Spm]) };
            let built = built_in(dir.path(), &own, &request).unwrap();
            let (tokens, types) =
                (value(&built.rows, "tokens").unwrap(), value(&built.rows, "token_type").unwrap());
            for at in 0..n_kept {
                assert_eq!((&tokens[n + at], &types[n + at]), (&all[at], &json!(3)), "{file}");
            }
            assert_eq!(value(&built.rows, "eos_token_id"), Some(json!(n)), "{file}");
            assert_eq!(value(&built.rows, "padding_token_id"), Some(json!(n + 1)), "{file}");
            let said = warnings(&built).join("\n");
            let lost = format!("{file}: `<|im_start|>` of `additional_special_tokens` is");
            assert_eq!(said.contains(&lost), n_kept == 2, "{said}");
            assert!(said.contains("not 2 `</s>` in config.json"), "{said}");
        }
    }
}

#[test]
fn a_further_end_beside_the_default_one_is_told() {
    let dir = tempfile::tempdir().unwrap();
    for (ends, is_told) in [(json!([2, 7]), true), (json!([2]), false)] {
        fs_err::write(dir.path().join("config.json"), json!({"eos_token_id": ends}).to_string()).unwrap();
        let built = built_in(dir.path(), &model(BPE), &TokenizerRequest::of(&[Mode::Spm])).unwrap();
        let said = warnings(&built).join("\n");
        assert_eq!(said.contains("config.json: `eos_token_id` also has "), is_told, "{ends}: {said}");
    }
}
