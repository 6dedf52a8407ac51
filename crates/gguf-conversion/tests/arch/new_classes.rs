//! Classes that the program has never seen, with configuration keys of their own: a card each is all they need.

use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::Hint;
use gguf_format::{Metadata, Value};
use serde_json::{Value as Json, json};

use super::fixture;

/// File name and text of cards that extend an embedded card, and one another.
const CARDS: [(&str, &str); 3] = [
    (
        "grouped-llama",
        r#"
        schema      = 1
        gguf        = "grouped-llama"
        extends     = "llama"
        classes     = ["GroupedLlamaForCausalLM"]
        examples    = ["a/grouped"]
        config_keys = ["branch_gain", "query_groups"]
        metadata    = [
          ["include", "parent"],
          ["attention.head_count_kv", "query_groups"],
          ["residual_scale", "branch_gain"],
        ]
        "#,
    ),
    (
        "scaled-llama",
        r#"
        schema      = 1
        gguf        = "scaled-llama"
        extends     = "llama"
        classes     = ["ScaledLlamaForCausalLM"]
        examples    = ["a/scaled"]
        config_keys = ["gain_config"]
        metadata    = [["include", "parent"], ["embedding_scale", "gain ** 0.5"]]

        [let]
        gain = "gain_config.embedding? ?? 1.0"
        "#,
    ),
    (
        "capped-llama",
        r#"
        schema      = 1
        gguf        = "capped-llama"
        extends     = "grouped-llama"
        classes     = ["CappedLlamaForCausalLM"]
        examples    = ["a/capped"]
        config_keys = ["logit_ceiling"]
        metadata    = [["include", "parent"], ["final_logit_softcapping", "logit_ceiling", "query_groups > 1"]]
        "#,
    ),
];

/// Plans the conversion of a checkpoint of a new class by the cards of a folder, and returns the keys.
fn planned(cards: &[(&str, &str)], class: &str, keys: &Json) -> Result<Metadata, ConvertError> {
    let (checkpoint, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, text) in cards {
        fs_err::write(folder.path().join(name).with_extension("toml"), text).unwrap();
    }
    let case = fixture::case("llama/plain.json");
    let case = case.edited(|content| {
        let config = content["config"].as_object_mut().unwrap();
        config.remove("num_key_value_heads");
        config.insert("architectures".to_owned(), json!([class]));
        config.extend(keys.as_object().unwrap().clone());
    });
    case.write(checkpoint.path());
    let card = Some(folder.path().to_owned());
    let options = ConvertOptions { card, tokenizer: false, ..ConvertOptions::default() };
    Ok(Conversion::plan(checkpoint.path(), &options)?.mapping().metadata.clone())
}

#[test]
fn a_card_alone_converts_a_class_with_new_keys() {
    for (class, keys, expected) in [
        (
            "GroupedLlamaForCausalLM",
            json!({"query_groups": 2, "branch_gain": 0.25}),
            vec![
                ("grouped-llama.attention.head_count_kv", Value::U32(2)),
                ("grouped-llama.residual_scale", Value::F32(0.25)),
            ],
        ),
        (
            "ScaledLlamaForCausalLM",
            json!({"num_key_value_heads": 2, "gain_config": {"embedding": 9.0}}),
            vec![("scaled-llama.embedding_scale", Value::F32(3.0))],
        ),
        (
            "CappedLlamaForCausalLM",
            json!({"query_groups": 2, "branch_gain": 0.5, "logit_ceiling": 30.0}),
            vec![
                ("capped-llama.attention.head_count_kv", Value::U32(2)),
                ("capped-llama.residual_scale", Value::F32(0.5)),
                ("capped-llama.final_logit_softcapping", Value::F32(30.0)),
            ],
        ),
    ] {
        let metadata = planned(&CARDS, class, &keys).unwrap_or_else(|error| panic!("{class}: {error}"));
        for (key, value) in expected {
            assert_eq!(metadata.get(key), Some(&value), "{class}: `{key}`");
        }
    }
}

#[test]
fn a_misspelt_key_of_a_new_class_is_refused() {
    let misspelt = CARDS[0].1.replace("\"query_groups\"],", "\"query_grops\"],");
    let error = planned(&[(CARDS[0].0, &misspelt)], "GroupedLlamaForCausalLM", &json!({})).unwrap_err();
    let place = "metadata `attention.head_count_kv`";
    assert_eq!(error.to_string(), format!("card `grouped-llama`: {place}: unknown name `query_grops`"));
    assert_eq!(error.hints(), ["did you mean `query_groups`?"]);
}
