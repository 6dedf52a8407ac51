//! Models that were saved as the model inside (`AutoModel`), and values that no file can have, under every card.

use gguf_arch::{ArchError, OutType};
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::TensorSource;
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture, load};
use gguf_testkit::tiers::{Tier, two_tiers};

const HEADS: [&str; 3] = ["ForCausalLM", "ForConditionalGeneration", "LMHeadModel"];

fn plan(case: &CardFixture, change: impl FnOnce(&mut Map<String, Json>)) -> Result<Conversion, ConvertError> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let path = dir.path().join("config.json");
    let mut config = load(&path);
    change(config.as_object_mut().unwrap());
    fs_err::write(&path, config.to_string()).unwrap();
    let options =
        ConvertOptions { file_type: Some(OutType::F32), tokenizer: false, ..ConvertOptions::default() };
    Conversion::plan(dir.path(), &options)
}

fn names(conversion: &Conversion) -> Vec<String> {
    conversion.tensors().iter().map(|tensor| tensor.name.clone()).collect()
}

two_tiers!(every_class_is_known_by_its_model_inside);
fn every_class_is_known_by_its_model_inside(tier: Tier) {
    let wrong: Vec<String> = fixture::some(tier, 40).par_iter().filter_map(complaint).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn complaint(case: &CardFixture) -> Option<String> {
    // The model inside has another class there, or is stored without its draft heads.
    let is_other = ["deepseek2-ocr/language_config.json", "exaone4/text_mtp.json"]
        .iter()
        .any(|own| case.at.ends_with(own));
    if case.is_mmproj() || case.is_mistral() || is_other {
        return None;
    }
    let class = case.content()["config"]["architectures"][0].as_str()?.to_owned();
    let inner = HEADS.iter().find_map(|head| class.strip_suffix(head))?;
    let whole = plan(case, |_| {}).ok()?;
    let inner = plan(case, |config| {
        config.insert("architectures".to_owned(), json!([format!("{inner}Model")]));
    });
    match inner {
        Ok(inner) if names(&inner) == names(&whole) => None,
        Ok(_) => Some(format!("{}: other tensors", case.at)),
        Err(error) => Some(format!("{}: {error}", case.at)),
    }
}

#[test]
fn an_embedding_model_that_looks_back_only_is_a_gemma() {
    let arch = |looks_both_ways: bool| {
        let planned = plan(&fixture::case("gemma-embedding/gemma3_text_model.json"), |config| {
            config.insert("use_bidirectional_attention".to_owned(), looks_both_ways.into());
        });
        planned.unwrap().mapping().card.gguf.clone()
    };
    assert_eq!([true, false].map(arch), ["gemma-embedding", "gemma3"]);
}

#[test]
fn values_that_no_file_can_have_are_refused_by_their_key() {
    let error = |at: &str, key: &str, value: Json| {
        let planned = plan(&fixture::case(at), |config| {
            config.insert(key.to_owned(), value);
        });
        planned.unwrap_err()
    };
    for (at, key, value, words) in [
        ("llama/plain.json", "max_position_embeddings", json!([64]), "`max_position_embeddings` is [64]"),
        ("qwen3moe/plain.json", "num_experts_per_tok", json!(100), "`num_experts_per_tok` = 100"),
        ("llama/plain.json", "rope_theta", json!(-1.0), "`rope_theta` is -1.0"),
        ("llama/plain.json", "vocab_size", json!("32"), "`vocab_size` is \"32\""),
    ] {
        let error = error(at, key, value);
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = error("gemma3/gemma3_text.json", "layer_types", json!(["full_attention"]));
    assert!(matches!(error, ConvertError::Arch(ArchError::LayerList { n_entries: 1, .. })), "{error}");
}
