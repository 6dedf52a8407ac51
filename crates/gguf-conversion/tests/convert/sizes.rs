//! Sizes in `config.json` compared with the weights and the vocabulary of the bundled model.

use std::path::Path;

use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::Hint;
use gguf_format::Value;
use serde_json::{Map, Value as Json, json};

use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::{files, fixture};

/// Plan of the bundled model with a changed configuration.
fn plan(change: impl FnOnce(&mut Map<String, Json>)) -> Result<Conversion, ConvertError> {
    let dir = tempfile::tempdir().unwrap();
    files::copy(fixture("tiny-llama"), dir.path());
    edit(&dir.path().join("config.json"), change);
    Conversion::plan(dir.path(), &ConvertOptions::default())
}

fn edit(path: &Path, change: impl FnOnce(&mut Map<String, Json>)) {
    files::edit_json(path, |members| change(members.as_object_mut().unwrap()));
}

fn refusal(key: &str, value: Json) -> String {
    let error = plan(|config| drop(config.insert(key.to_owned(), value))).unwrap_err();
    error.hints().iter().fold(error.to_string(), |all, hint| all + "\nhint: " + hint)
}

fn number(conversion: &Conversion, key: &str) -> Option<u64> {
    conversion.metadata().get(key).and_then(Value::as_u64)
}

fn n_tokens(conversion: &Conversion) -> usize {
    conversion.metadata().get("tokenizer.ggml.tokens").and_then(Value::as_array).unwrap().len()
}

#[test]
fn a_contradiction_names_tensors_shapes_and_keys() {
    assert_eq!(
        refusal("intermediate_size", json!(1536)),
        "the shapes of 12 tensors and config.json contradict each other: `blk.0.ffn_down.weight` \
         (`model.layers.0.mlp.down_proj.weight`) is [256, 768], expected [256, 1536] by `intermediate_size` = 1536; \
         `blk.0.ffn_gate.weight` (`model.layers.0.mlp.gate_proj.weight`) is [768, 256], expected [1536, 256] by \
         `intermediate_size` = 1536; `blk.0.ffn_up.weight` (`model.layers.0.mlp.up_proj.weight`) is [768, 256], expected \
         [1536, 256] by `intermediate_size` = 1536; and 9 more\n\
         hint: set `intermediate_size` in config.json to the size that the weights have, or take the config.json that was saved with these weights"
    );
    let heads = refusal("num_key_value_heads", Json::Null);
    assert!(
        heads.contains(
            "`blk.0.attn_k.weight` (`model.layers.0.self_attn.k_proj.weight`) is [128, 256], expected [256, 256] by \
             `head_dim` = 64, `num_key_value_heads` = null (counts as 4)"
        ),
        "{heads}"
    );
}

/// Rows that a training added to the embedding alone: no `vocab_size` fits both.
#[test]
fn a_head_with_other_rows_than_the_embedding_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    files::copy(fixture("tiny-llama"), dir.path());
    edit(&dir.path().join("config.json"), |config| {
        drop(config.insert("tie_word_embeddings".to_owned(), false.into()));
    });
    let path = dir.path().join("model.safetensors");
    let mut weights = Safetensors::read(&path);
    weights.add("lm_head.weight", "BF16", [3, 256], &[0; 3 * 256 * 2]);
    weights.write(&path);
    let error = Conversion::plan(dir.path(), &ConvertOptions::default()).unwrap_err();
    assert!(error.hints()[0].contains(" rows and the head 3"), "{error}: {:?}", error.hints());
}

/// One layer pruned by itself: the file has one size for all (NVIDIA/TensorRT-LLM#1600).
#[test]
fn a_layer_of_another_size_than_the_others_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    files::copy(fixture("tiny-llama"), dir.path());
    let path = dir.path().join("model.safetensors");
    let mut bytes = fs_err::read(&path).unwrap();
    // The header names shapes; the same elements make a matrix of another form.
    let (from, to) = (b"layers.2.mlp.up_proj.weight\":", b"[768,256]");
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    let shape = at + bytes[at..].windows(to.len()).position(|part| part == to).unwrap();
    bytes[shape..shape + to.len()].copy_from_slice(b"[512,384]");
    fs_err::write(&path, bytes).unwrap();
    let error = Conversion::plan(dir.path(), &ConvertOptions::default()).unwrap_err();
    assert!(error.to_string().contains("`blk.2.ffn_up.weight`"), "{error}");
    assert!(error.hints()[0].starts_with("the other layers have the declared size"), "{:?}", error.hints());
}

#[test]
fn a_null_or_absent_size_is_the_default_of_the_class() {
    let conversion =
        plan(|config| drop(config.insert("max_position_embeddings".to_owned(), Json::Null))).unwrap();
    assert_eq!(number(&conversion, "llama.context_length"), Some(2048));
}

#[test]
fn there_are_as_many_tokens_as_rows() {
    let none: [String; 0] = [];
    let absent = plan(|config| drop(config.remove("vocab_size"))).unwrap();
    assert_eq!((n_tokens(&absent), number(&absent, "llama.vocab_size")), (1024, Some(1024)));
    assert_eq!(absent.warnings(), none);
    let larger = plan(|config| drop(config.insert("vocab_size".to_owned(), json!(1032)))).unwrap();
    assert_eq!((n_tokens(&larger), number(&larger, "llama.vocab_size")), (1024, Some(1024)));
    assert_eq!(
        larger.warnings(),
        [
            "config.json: `vocab_size` is 1032, `model.embed_tokens.weight` has 1024 rows: the vocabulary has 1024 tokens"
        ]
    );
}

#[test]
fn a_token_beyond_the_rows_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    files::copy(fixture("tiny-llama"), dir.path());
    edit(&dir.path().join("tokenizer.json"), |tokenizer| {
        tokenizer["model"]["vocab"]["extra"] = json!(1024);
    });
    let error = Conversion::plan(dir.path(), &ConvertOptions::default()).unwrap_err().to_string();
    assert!(error.contains("id 1024 of token `extra` is beyond the vocabulary of 1024 tokens"), "{error}");
}

#[test]
fn a_key_set_by_hand_is_named_as_it_is() {
    let mut options = ConvertOptions::default();
    options.set.push(("llama.feed_forward_length".to_owned(), Value::U32(99)));
    let error = Conversion::plan(&fixture("tiny-llama"), &options).unwrap_err();
    let hint = "leave out `llama.feed_forward_length`, set by hand, or give the size that the weights have";
    assert_eq!(error.hints(), [hint]);
    let error = error.to_string();
    assert!(
        error.contains("is [256, 768], expected [256, 99] by `llama.feed_forward_length` = 99"),
        "{error}"
    );
}
