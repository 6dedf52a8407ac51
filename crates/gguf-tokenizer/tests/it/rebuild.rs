//! Keys are converted to tokenizer files and back to the same keys; the files encode like the originals.

use std::path::Path;

use gguf_format::{Metadata, Value};
use gguf_tokenizer::{HfTokenizerFiles, TokenizerError, to_hf};
use serde_json::{Value as Json, json};

use super::{CASES, build_case, case};
use gguf_testkit::goldens::{Goldens, tiered_conformance_tests};
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases};

fn write_files(dir: &Path, files: &HfTokenizerFiles, config: &Json) {
    fs_err::write(dir.join("tokenizer.json"), files.tokenizer_json.as_ref().unwrap()).unwrap();
    fs_err::write(dir.join("tokenizer_config.json"), &files.tokenizer_config_json).unwrap();
    if let Some((name, bytes)) = &files.sentencepiece_model {
        fs_err::write(dir.join(name), bytes).unwrap();
    }
    if let Some(text) = &files.added_tokens_json {
        fs_err::write(dir.join("added_tokens.json"), text).unwrap();
    }
    let mut config = config.clone();
    for (key, id) in &files.config_ids {
        config[*key] = (*id).into();
    }
    fs_err::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// Returns true for keys that a rebuilt tokenizer states, although the original used the runtime's default of this
/// value.
fn is_default(key: &str, value: &Value) -> bool {
    matches!(
        (key, value),
        ("tokenizer.ggml.add_bos_token" | "tokenizer.ggml.add_eos_token", Value::Bool(true))
    )
}

tiered_conformance_tests!(keys_survive_the_way_back);
fn keys_survive_the_way_back(corpus: &Goldens, tier: Tier) {
    let mut n_cases = 0;
    for (name, modes, _) in tier.some(2, CASES) {
        let Some(case) = case(corpus, name) else { continue };
        let original = case.join("hf");
        let rows = build_case(&original, modes).rows;
        let files = to_hf(&rows).unwrap().unwrap();
        assert_eq!(files.lost, Vec::<String>::new(), "{name}");
        let dir = tempfile::tempdir().unwrap();
        let n_tokens = rows.get("tokenizer.ggml.tokens").and_then(Value::as_array).unwrap().len();
        write_files(dir.path(), &files, &json!({"vocab_size": n_tokens}));
        let again = build_case(dir.path(), modes);
        assert_eq!(again.warnings, [], "{name}");
        for (key, value) in rows.iter() {
            assert!(again.rows.get(key) == Some(value), "{name}: {key} changed");
        }
        for (key, value) in again.rows.iter().filter(|(key, _)| !rows.contains(key)) {
            assert!(is_default(key, value), "{name}: {key} came out of nowhere");
        }
        n_cases += 1;
    }
    report_cases("vocabularies there and back", n_cases);
}

/// Returns true for texts whose ids intentionally differ: the original tables come from files that do not recognize
/// special tokens, but the GGUF file and the rebuilt one do.
fn names_special_token(text: &str) -> bool {
    ["<s>", "</s>", "<unk>", "<|im_", "<0x", "[INST]"].iter().any(|token| text.contains(token))
}

tiered_conformance_tests!(rebuilt_files_encode_as_the_originals);
fn rebuilt_files_encode_as_the_originals(corpus: &Goldens, tier: Tier) {
    let mut n_texts = 0;
    for (name, modes, _) in tier.some(2, CASES) {
        let Some(case) = case(corpus, name) else { continue };
        let files = to_hf(&build_case(&case.join("hf"), modes).rows).unwrap().unwrap();
        let tokenizer = tokenizers::Tokenizer::from_bytes(files.tokenizer_json.unwrap()).unwrap();
        let expected = files::json(case.join("tokenization.json")).as_object().unwrap().clone();
        let ids_of = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        let wrong: Vec<&String> = expected
            .iter()
            .filter(|(text, ids)| json!(ids_of(text)) != **ids && !names_special_token(text))
            .map(|(text, _)| text)
            .collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}: {:?} against {}", ids_of(wrong[0]), expected[wrong[0]]);
        n_texts += expected.len();
    }
    report_cases("texts with rebuilt tokenizers", n_texts);
}

#[test]
fn files_without_an_inverse_are_refused() {
    let rows = |rows: &[(&str, Value)]| {
        let mut metadata = Metadata::new();
        for (key, value) in rows {
            metadata.set(*key, value.clone());
        }
        metadata
    };
    let tokens = || Value::from(vec!["a", "b"]);
    assert_eq!(to_hf(&rows(&[])).unwrap(), None);
    assert_eq!(to_hf(&rows(&[("tokenizer.ggml.model", "none".into())])).unwrap(), None);
    let error = |list: &[(&str, Value)]| -> TokenizerError { to_hf(&rows(list)).unwrap_err() };
    let model = |name: &str| ("tokenizer.ggml.model", Value::from(name));
    for (list, message) in [
        (vec![model("gpt2")], "`tokenizer.ggml.tokens` is missing or is not an array of strings"),
        (
            vec![model("plamo2"), ("tokenizer.ggml.tokens", tokens())],
            "`tokenizer.ggml.model` is `plamo2`, tokenizer files are made for `gpt2`, `llama`, `t5`, `bert`, `gemma4` and `rwkv`",
        ),
        (
            vec![model("gpt2"), ("tokenizer.ggml.pre", "mine".into()), ("tokenizer.ggml.tokens", tokens())],
            "`tokenizer.ggml.pre` is `mine`, whose steps are not known",
        ),
        (
            vec![model("llama"), ("tokenizer.ggml.tokens", vec!["a", "a"].into())],
            "`tokenizer.ggml.tokens`: `a` is token 0 and token 1",
        ),
        (
            vec![
                model("llama"),
                ("tokenizer.ggml.tokens", tokens()),
                ("tokenizer.ggml.scores", vec![1f32].into()),
            ],
            "`tokenizer.ggml.scores` has 1 elements, the vocabulary has 2 tokens",
        ),
        (
            vec![
                model("llama"),
                ("tokenizer.ggml.tokens", tokens()),
                ("tokenizer.ggml.token_type", true.into()),
            ],
            "`tokenizer.ggml.token_type` is missing or is not an array of i32",
        ),
    ] {
        assert_eq!(error(&list).to_string(), message);
    }
}
