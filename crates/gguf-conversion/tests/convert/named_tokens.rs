//! Vocabularies of checkpoints whose tokenizer is code: cards and modes compared with the reference converter.

use gguf_conversion::{Conversion, ConvertOptions};
use gguf_core::Hint;
use gguf_tokenizer::{ModelProto, Piece, TrainerSpec};
use prost::Message;
use serde_json::{Value as Json, json};

use gguf_testkit::{files, fixture, in_json};

fn keys(dir: &std::path::Path) -> Vec<Json> {
    let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
    let conversion =
        Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let metadata = conversion.metadata();
    metadata
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer."))
        .map(|(key, value)| {
            let (kind, value) = in_json(value);
            json!([key, kind, value])
        })
        .collect()
}

#[test]
fn vocabularies_equal_the_reference() {
    for case in ["baichuan", "chatglm3", "qwen"] {
        let dir = fixture("vocab").join(case);
        let expect = files::json(dir.join("expect.json")).as_array().unwrap().clone();
        let found = keys(&dir);
        let names = |rows: &[Json]| rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>();
        assert_eq!(names(&found), names(&expect), "{case}");
        for (found, expect) in found.iter().zip(&expect) {
            assert!(found == expect, "{case} {}: {found} {expect}", expect[0]);
        }
    }
}

fn value<'j>(keys: &'j [Json], key: &str) -> &'j Json {
    &keys.iter().find(|row| row[0] == key).unwrap_or_else(|| panic!("{key} is missing"))[2]
}

/// Copy of the bundled model's small files with a larger vocabulary.
fn larger() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(fixture("tiny-llama").join(name), dir.path().join(name)).unwrap();
    }
    let mut config = files::json(dir.path().join("config.json"));
    config["vocab_size"] = json!(1026);
    fs_err::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

/// transformers reads `added_tokens.json` where the tokenizer's configuration lists no added tokens.
#[test]
fn added_tokens_are_in_a_file_of_their_own() {
    let dir = larger();
    let added = json!({"<second>": 1025, "<first>": 1024, "</s>": 1}).to_string();
    fs_err::write(dir.path().join("added_tokens.json"), added).unwrap();
    let tokens = |dir: &std::path::Path| {
        value(&keys(dir), "tokenizer.ggml.tokens").as_array().unwrap()[1024..].to_vec()
    };
    assert_eq!(tokens(dir.path()), ["<first>", "<second>"]);
    let path = dir.path().join("tokenizer_config.json");
    let mut config = files::json(&path);
    config["added_tokens_decoder"] = json!({"1": {"content": "</s>", "special": true}});
    fs_err::write(path, config.to_string()).unwrap();
    assert_eq!(tokens(dir.path()), ["[PAD1024]", "[PAD1025]"]);
}

#[test]
fn vocabularies_in_two_files_have_a_way_out() {
    let dir = larger();
    fs_err::rename(dir.path().join("tokenizer.json"), dir.path().join("vocab.json")).unwrap();
    fs_err::write(dir.path().join("merges.txt"), "a b").unwrap();
    let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
    let error = Conversion::plan(dir.path(), &options).unwrap_err();
    assert!(error.hints().iter().any(|hint| hint.contains("`AutoTokenizer.")), "{:?}", error.hints());
}

/// ChatGLM 2 has the model file and the first five special tokens of ChatGLM 3.
#[test]
fn the_roles_of_a_conversation_came_with_the_third_generation() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("vocab/chatglm3");
    fs_err::copy(source.join("tokenizer.model"), dir.path().join("tokenizer.model")).unwrap();
    let config = fs_err::read_to_string(source.join("config.json")).unwrap();
    let config = config.replace("chatglm3-6b", "chatglm2-6b");
    fs_err::write(dir.path().join("config.json"), config).unwrap();
    let keys = keys(dir.path());
    let tokens = value(&keys, "tokenizer.ggml.tokens").as_array().unwrap();
    assert_eq!(tokens[400..407], ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "[PAD405]", "[PAD406]"]);
}

/// GLM-4 with its own files: a file of ranks that is named like a SentencePiece model, special tokens in the
/// configuration.
#[test]
fn glm4_comes_as_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("vocab/qwen");
    fs_err::copy(source.join("qwen.tiktoken"), dir.path().join("tokenizer.model")).unwrap();
    let config = json!({"architectures": ["ChatGLMModel"], "model_type": "chatglm", "num_layers": 1, "hidden_size": 64,
        "num_attention_heads": 4, "padded_vocab_size": 400});
    let added = json!({"390": {"content": "<|endoftext|>"}, "391": {"content": "[gMASK]"}, "392": {"content": "<|user|>"}});
    let write = |name: &str, json: &Json| fs_err::write(dir.path().join(name), json.to_string()).unwrap();
    write("config.json", &config);
    write("tokenizer_config.json", &json!({"added_tokens_decoder": added}));
    let keys = keys(dir.path());
    let qwen = files::json(source.join("expect.json")).as_array().unwrap().clone();
    let tokens = value(&keys, "tokenizer.ggml.tokens").as_array().unwrap();
    let n_ranks = fs_err::read_to_string(source.join("qwen.tiktoken")).unwrap().lines().count();
    assert_eq!(tokens[..n_ranks], value(&qwen, "tokenizer.ggml.tokens").as_array().unwrap()[..n_ranks]);
    assert_eq!(tokens[389..394], ["[PAD389]", "<|endoftext|>", "[gMASK]", "<|user|>", "[PAD393]"]);
    assert_eq!(value(&keys, "tokenizer.ggml.merges"), value(&qwen, "tokenizer.ggml.merges"));
    assert_eq!(value(&keys, "tokenizer.ggml.pre"), "chatglm-bpe");
    assert_eq!(value(&keys, "tokenizer.ggml.eos_token_id"), 390);
    assert_eq!(value(&keys, "tokenizer.ggml.eot_token_id"), 392);
}

/// ChatGLM-6B: the model's pieces follow the slots of image tokens.
#[test]
fn the_first_generation_counts_from_behind_its_images() {
    let dir = tempfile::tempdir().unwrap();
    let piece = |text: &str, score: f32, kind: i32| Piece {
        piece: Some(text.as_bytes().to_vec()),
        score: Some(score),
        kind: Some(kind),
    };
    let model = ModelProto {
        pieces: vec![
            piece("<unk>", 0.0, 2),
            piece("\u{2581}a", -1.5, 1),
            piece("[gMASK]", -2.0, 4),
            piece("<sop>", 0.0, 4),
        ],
        trainer_spec: Some(TrainerSpec { model_type: Some(1), ..TrainerSpec::default() }),
        normalizer_spec: None,
    };
    fs_err::write(dir.path().join("ice_text.model"), model.encode_to_vec()).unwrap();
    let config = json!({"architectures": ["ChatGLMModel"], "model_type": "chatglm", "num_layers": 1, "hidden_size": 64,
        "num_attention_heads": 4, "max_sequence_length": 64, "position_encoding_2d": true, "vocab_size": 8,
        "bos_token_id": 5, "gmask_token_id": 4});
    fs_err::write(dir.path().join("config.json"), config.to_string()).unwrap();
    fs_err::write(dir.path().join("tokenizer_config.json"), r#"{"num_image_tokens": 2}"#).unwrap();
    let keys = keys(dir.path());
    assert_eq!(value(&keys, "tokenizer.ggml.model"), "t5");
    let tokens = value(&keys, "tokenizer.ggml.tokens");
    let expected = ["<image_0>", "<image_1>", "<unk>", "\u{2581}a", "[gMASK]", "<sop>", "[PAD6]", "[PAD7]"];
    assert_eq!(*tokens, json!(expected));
    assert_eq!(*value(&keys, "tokenizer.ggml.token_type"), json!([5, 5, 2, 1, 3, 3, 5, 5]));
    assert_eq!(value(&keys, "tokenizer.ggml.bos_token_id"), 5);
    assert_eq!(value(&keys, "tokenizer.ggml.add_space_prefix"), true);
}

#[test]
fn broken_rank_files_are_refused_by_line() {
    let refusal = |ranks: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs_err::copy(fixture("vocab/qwen/config.json"), dir.path().join("config.json")).unwrap();
        fs_err::write(dir.path().join("qwen.tiktoken"), ranks).unwrap();
        let options = ConvertOptions { vocab_only: true, ..ConvertOptions::default() };
        let error = Conversion::plan(dir.path(), &options).unwrap_err().to_string();
        error.replace(&format!("{}/", dir.path().display()), "")
    };
    for (ranks, want) in [
        ("YQ== 0\nYg= 1\n", "qwen.tiktoken: line 2: the token is not base64"),
        ("YQ== 0\nYg== 99999999\n", "qwen.tiktoken: line 2: the rank is beyond any vocabulary"),
        (
            "YQ== 0\nYg== 700\n",
            "qwen.tiktoken: `rank`: id 700 of token `b` is beyond the vocabulary of 600 tokens",
        ),
        ("YQ== 0\nYWJj 1\n", "qwen.tiktoken: rank 1: no merge makes `abc`"),
        ("", "qwen.tiktoken: line 1: no tokens"),
    ] {
        assert_eq!(refusal(ranks), want, "{ranks:?}");
    }
    let long = "QUFB".repeat(200) + " 0\n";
    assert_eq!(refusal(&long), "qwen.tiktoken: line 1: a token has 1 to 512 bytes");
}
