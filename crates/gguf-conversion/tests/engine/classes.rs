//! Classes of transformers that llama.cpp's converter does not know, under graphs that it has: the logits are those of
//! transformers. `lab/peers/new_classes.py` writes the cases, and compares with llama.cpp's library, too.

use gguf_arch::{CardKind, OutType, Registry, text_parts, without_graph};
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::{Hint, TensorSource};
use rayon::prelude::*;
use serde_json::{Value as Json, json};

use super::last_logits::last_logits;
use gguf_testkit::checkpoints::write_case;
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture, names};

fn case(name: &str) -> Json {
    files::json(fixture("classes").join(format!("{name}.json")))
}

fn planned(case: &Json) -> Result<Conversion, ConvertError> {
    let dir = tempfile::tempdir().unwrap();
    write_case(case, dir.path());
    let options =
        ConvertOptions { file_type: Some(OutType::F32), tokenizer: false, ..ConvertOptions::default() };
    Conversion::plan(dir.path(), &options)
}

fn complaint(name: &str) -> Option<String> {
    let case = case(name);
    let conversion = match planned(&case) {
        Ok(conversion) => conversion,
        Err(error) => return Some(format!("{name}: {error}")),
    };
    // Transformers saves Qianfan under other names than the release has.
    let is_expected = |warning: &&String| {
        ["only the text model is written", "`language_model.model."].iter().any(|part| warning.contains(part))
    };
    if let Some(first) = conversion.warnings().iter().find(|warning| !is_expected(warning)) {
        return Some(format!("{name}: warns: {first}"));
    }
    let numbers = |key: &str| case[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap());
    let tokens = numbers("tokens").map(|token| token as u32).collect();
    let found = last_logits(conversion.metadata(), &conversion, &[tokens]).remove(0);
    let pairs = found.iter().zip(numbers("last_logits"));
    let worst = pairs.map(|(found, wanted)| (f64::from(*found) - wanted).abs()).fold(0.0, f64::max);
    let is_whole = found.len() == numbers("last_logits").len();
    (!is_whole || worst.is_nan() || worst > 1e-3).then(|| format!("{name}: {worst:.2e} from transformers"))
}

two_tiers!(classes_compute_what_transformers_does);
/// Every day each fourth.
fn classes_compute_what_transformers_does(tier: Tier) {
    let all = names(fixture("classes"));
    assert!(all.len() > 30, "{all:?}");
    let wrong: Vec<String> = tier
        .some(4, all)
        .par_iter()
        .filter_map(|name| complaint(name.strip_suffix(".json").unwrap()))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Settings that no graph computes, each with words of the refusal.
#[test]
fn what_the_graph_does_not_compute_is_refused() {
    let all_of = |kind: &str| json!([kind, kind, kind, kind]);
    for (name, changes, words) in [
        ("VaultGemmaForCausalLM", json!({"attn_logit_softcapping": 50.0}), "`attn_logit_softcapping`"),
        (
            "VaultGemmaForCausalLM",
            json!({"layer_types": all_of("sliding_attention"), "sliding_window": 6}),
            "`layer_types`",
        ),
        ("MiniMaxForCausalLM", json!({"mlp_alpha_factor": 2.0}), "`*_alpha_factor` must be equal"),
        ("MiniMaxForCausalLM", json!({"layer_types": null}), "every eighth layer"),
        ("HyperCLOVAXForCausalLM", json!({"mlp_bias": true}), "`mlp_bias`"),
        ("GPTJForCausalLM", json!({"rotary_dim": null}), "`rotary_dim`"),
        ("CohereCompassForCausalLM", json!({"layer_types": all_of("full_attention")}), "`layer_types`"),
        ("Molmo2ForConditionalGeneration", json!({"qk_norm_type": "olmo"}), "`qk_norm_type`"),
        ("BailingHybridForCausalLM", json!({"layer_group_size": 3}), "`layer_group_size`"),
    ] {
        let mut case = case(name);
        let config = &mut case["config"];
        let part = if config["text_config"].is_object() { &mut config["text_config"] } else { config };
        part.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let error = planned(&case).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(words), "{name} {changes}: {error}");
    }
}

#[test]
fn text_parts_are_models_of_their_own_type() {
    let registry = Registry::embedded().unwrap();
    let classes = registry.classes();
    for (class, _) in text_parts() {
        assert!(classes.iter().all(|row| row.class != class), "{class} has a card");
        assert!(without_graph().all(|row| row.0 != class), "{class}");
        let card = gguf_arch::facts(&registry, class);
        assert!(!card.is_empty(), "{class}: no card for its text part");
    }
    for (class, lacks) in without_graph() {
        assert!(classes.iter().all(|row| row.class != class), "{class} has a card, and lacks {lacks}");
    }
    // A text part of another type than the usual one, and one of a type that no card converts.
    let of_type = |model_type: &str| {
        let mut case = case("LlavaNextForConditionalGeneration");
        case["config"]["text_config"]["model_type"] = model_type.into();
        planned(&case).map(|conversion| conversion.mapping().card.gguf.clone())
    };
    assert_eq!(of_type("qwen2").unwrap(), "qwen2");
    let refusal = of_type("nobodys").unwrap_err();
    assert!(refusal.to_string().contains("`LlavaNextForConditionalGeneration`"), "{refusal}");
    let mut unknown = case("LlavaNextForConditionalGeneration");
    unknown["config"]["architectures"] = json!(["OPTForCausalLM"]);
    unknown["config"]["model_type"] = json!("opt");
    let refusal = planned(&unknown).map(|_| ()).unwrap_err();
    let hints = refusal.hints().join("\n");
    assert!(hints.contains("llama.cpp has no graph of it: it lacks ReLU"), "{refusal}\n{hints}");
}

/// Towers under the names that transformers 5 gives them.
#[test]
fn towers_of_classes_whose_projector_the_runtime_has_are_converted() {
    let preprocessor = json!({
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "patch_size": 14,
        "size": {"longest_edge": 1540, "shortest_edge": 28, "height": 28, "width": 28},
    });
    for (name, projector, n_tensors) in [
        ("InternVLForConditionalGeneration", "internvl", 25),
        ("QianfanOCRForConditionalGeneration", "internvl", 28),
        ("LightOnOcrForConditionalGeneration", "lightonocr", 15),
        ("Kimi_K25ForConditionalGeneration", "kimik25", 23),
        ("Glm46VForConditionalGeneration", "glm4v", 21),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write_case(&case(name), dir.path());
        fs_err::write(dir.path().join("preprocessor_config.json"), preprocessor.to_string()).unwrap();
        let options = ConvertOptions { kind: CardKind::Mmproj, ..ConvertOptions::default() };
        let tower = Conversion::plan(dir.path(), &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = tower.metadata().get("clip.projector_type").and_then(|value| value.as_str());
        let found = found.or_else(|| tower.metadata().get("clip.vision.projector_type")?.as_str());
        assert_eq!((found, tower.tensors().len()), (Some(projector), n_tensors), "{name}");
    }
}
