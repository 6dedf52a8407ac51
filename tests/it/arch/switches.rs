//! Values of configurations that change the computation: carried to the file, or named as lost.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_foundry::arch::{OutType, has_effect};
use gguf_foundry::convert::{Conversion, ConvertError, ConvertOptions};
use gguf_foundry::core::TensorSource;
use gguf_foundry::engine::GraphPlan;
use gguf_foundry::gguf::Value;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{load, names_in};
use crate::engine::{cases, differences};
use crate::goldens::{Goldens, corpus_tests};
use crate::support::{report_cases, root};

/// Largest and mean difference of a token's likelihood from transformers'.
const MOST: (f64, f64) = (1e-3, 1e-4);

fn plan(dir: &Path, annotate: bool) -> Result<Conversion, ConvertError> {
    let file_type = Some(OutType::F32);
    let options = ConvertOptions { file_type, tokenizer: false, annotate, ..ConvertOptions::default() };
    Conversion::plan(dir, &options)
}

/// A case of `fixtures/cards` with members of its configuration replaced; null takes one out, points lead into objects.
struct Changed {
    dir: tempfile::TempDir,
}

impl Changed {
    fn of(case: &CardFixture, changes: &Json) -> Self {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let path = dir.path().join("config.json");
        let mut config = load(&path);
        for (key, value) in changes.as_object().unwrap() {
            set(config.as_object_mut().unwrap(), key, value.clone());
        }
        fs_err::write(&path, config.to_string()).unwrap();
        Self { dir }
    }

    /// Key, value and what is assumed, of all that is lost.
    fn lost(&self, annotate: bool) -> Vec<(String, Json)> {
        let conversion = plan(self.dir.path(), annotate).unwrap();
        conversion.mapping().lost.iter().map(|lost| (lost.key.clone(), lost.value.clone())).collect()
    }
}

fn set(config: &mut Map<String, Json>, key: &str, value: Json) {
    match key.split_once('.') {
        Some((object, rest)) => {
            let inner = config.entry(object).or_insert_with(|| json!({}));
            set(inner.as_object_mut().unwrap(), rest, value);
        }
        None => {
            config.insert(key.to_owned(), value);
        }
    }
}

fn case(at: &str) -> CardFixture {
    fixture::all().into_iter().find(|case| case.at == at).unwrap_or_else(|| panic!("no case {at}"))
}

#[test]
fn what_no_key_and_no_tensor_says_is_named() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 });
    let llama3 = json!({
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 10000.0
    });
    for (at, changes, expected) in [
        // Activations: by the graph, whatever the class's default.
        (
            "gpt2/gpt2.json",
            json!({ "activation_function": "relu" }),
            vec![("activation_function", json!("relu"))],
        ),
        ("gpt2/gpt2.json", json!({ "activation_function": "gelu_fast" }), vec![]),
        ("llama/plain.json", json!({ "hidden_act": "gelu" }), vec![("hidden_act", json!("gelu"))]),
        ("llama/plain.json", json!({ "hidden_act": "swish" }), vec![]),
        ("nemotron/nemotron.json", json!({ "hidden_act": "gelu" }), vec![("hidden_act", json!("gelu"))]),
        ("mamba/mamba.json", json!({ "hidden_act": "gelu" }), vec![("hidden_act", json!("gelu"))]),
        // Switches of one architecture.
        (
            "gpt2/gpt2.json",
            json!({ "scale_attn_by_inverse_layer_idx": true }),
            vec![("scale_attn_by_inverse_layer_idx", json!(true))],
        ),
        (
            "gpt2/gpt2.json",
            json!({ "scale_attn_weights": false }),
            vec![("scale_attn_weights", json!(false))],
        ),
        ("falcon/falcon_7b_style.json", json!({ "alibi": true }), vec![("alibi", json!(true))]),
        (
            "gemma2/gemma2.json",
            json!({ "attn_logit_softcapping": null }),
            vec![("attn_logit_softcapping", json!(null))],
        ),
        ("gemma2/gemma2.json", json!({ "attn_logit_softcapping": 20.0 }), vec![]),
        ("llama4/llama4_text.json", json!({ "use_qk_norm": false }), vec![("use_qk_norm", json!(false))]),
        // Experts.
        ("olmoe/olmoe.json", json!({ "norm_topk_prob": true }), vec![("norm_topk_prob", json!(true))]),
        (
            "qwen3moe/qwen3_moe.json",
            json!({ "norm_topk_prob": false }),
            vec![("norm_topk_prob", json!(false))],
        ),
        ("qwen3moe/qwen3_moe.json", json!({ "norm_topk_prob": true }), vec![]),
        // Rotations.
        ("llama/plain.json", json!({ "rope_scaling": llama3 }), vec![]),
        ("llama/plain.json", json!({ "rope_scaling": yarn }), vec![]),
        ("llama/plain.json", json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 } }), vec![]),
        (
            "qwen3/plain.json",
            json!({ "rope_scaling": null, "rope_parameters": llama3 }),
            vec![("rope_parameters.rope_type", json!("llama3"))],
        ),
        (
            "qwen3/plain.json",
            json!({ "rope_scaling": llama3 }),
            vec![("rope_scaling.rope_type", json!("llama3"))],
        ),
        ("qwen3/plain.json", json!({ "rope_scaling": yarn }), vec![]),
        // What is about training, what tensors say, what is not of the class.
        (
            "llama/plain.json",
            json!({
                "attention_dropout": 0.5, "initializer_range": 0.5, "use_cache": false, "attention_bias": true,
                "tie_word_embeddings": true, "pad_token_id": 3, "somebody's own": 7
            }),
            vec![],
        ),
    ] {
        let lost = Changed::of(&case(at), &changes).lost(false);
        let expected: Vec<(String, Json)> =
            expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(lost, expected, "{at} {changes}");
    }
}

#[test]
fn an_annotation_holds_what_the_engine_can_compute() {
    let changed = Changed::of(&case("gpt2/gpt2.json"), &json!({ "scale_attn_weights": false }));
    assert_eq!(changed.lost(true), []);
    let conversion = plan(changed.dir.path(), false).unwrap();
    assert_eq!(
        conversion.warnings(),
        [
            "config.json: `scale_attn_weights` = false is lost: no key or tensor of a `gpt2` file says it, and what runs it \
          computes as with true (`--annotate` keeps it for `gguf-verify`)"
        ]
    );
    let annotated = plan(changed.dir.path(), true).unwrap();
    assert_eq!(annotated.metadata().get("gguf_foundry.attention.scale"), Some(&Value::F32(1.0)));
}

/// Every case of the cards is a healthy checkpoint.
#[test]
fn healthy_checkpoints_lose_nothing() {
    let mut wrong = Vec::new();
    for case in fixture::all().iter().filter(|case| !case.is_mmproj()) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let Ok(conversion) = case.plan(dir.path(), OutType::F32) else { continue };
        wrong.extend(conversion.mapping().lost.iter().map(|lost| format!("{}: {lost}", case.at)));
    }
    assert_eq!(wrong, LOST_IN_CARDS, "\n{}", wrong.join("\n"));
}

/// What is lost in cases of the cards.
const LOST_IN_CARDS: &[&str] = &[];

/// Cases of the class `key` whose key is not written yet.
const NOT_YET: &[&str] = &[];

fn every_switch_is_carried_or_named(goldens: &Goldens) {
    let dir = goldens.find("switches").unwrap();
    let (mut n_cases, mut wrong, mut done) = (0, Vec::new(), Vec::new());
    for name in names_in(&dir).iter().filter(|name| dir.join(name).join("case.json").exists()) {
        n_cases += 1;
        let case = dir.join(name);
        let outcome = judge(&case);
        match (outcome, NOT_YET.contains(&name.as_str())) {
            (Ok(()), true) => done.push(name.clone()),
            (Err(why), false) => wrong.push(format!("{name}: {why}")),
            _ => {}
        }
    }
    report_cases("switches", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(done.is_empty(), "right now, take them out of the list: {done:?}");
}

corpus_tests!(every_switch_is_carried_or_named);

/// Judges a case of `switches` by the rules of its README.
fn judge(case: &Path) -> Result<(), String> {
    let about = load(&case.join("case.json"));
    let conversion = match plan(&case.join("hf"), true) {
        Ok(conversion) => conversion,
        Err(error) if about["class"] == "no_key" && is_named(&error.to_string(), &about) => return Ok(()),
        Err(error) => return Err(format!("refused: {error}")),
    };
    let named: Vec<&String> = conversion.warnings().iter().filter(|text| is_named(text, &about)).collect();
    match (about["class"].as_str().unwrap(), named.first()) {
        ("no_key", Some(_)) => return Ok(()),
        ("right_today", Some(text)) => return Err(format!("a warning: {text}")),
        _ => {}
    }
    let arch = conversion.metadata().get("general.architecture").unwrap().as_str().unwrap();
    let features = gguf_foundry::arch::GraphFeatures::of(arch).ok_or("no graph")?;
    let plan = GraphPlan::new(&features, conversion.metadata(), conversion.tensors());
    let plan = plan.map_err(|error| error.to_string())?;
    let (worst, mean, _) = differences(&conversion, plan, &cases(case));
    if worst <= MOST.0 && mean <= MOST.1 {
        Ok(())
    } else {
        Err(format!("differs by {worst:.1e} at most, by {mean:.1e} in the mean, and nothing is said"))
    }
}

/// True if a text names one of the switches of a case.
fn is_named(text: &str, about: &Json) -> bool {
    let switches = about["switch"].as_str().unwrap().split(", ");
    switches.map(|switch| switch.rsplit('.').next().unwrap()).any(|switch| text.contains(switch))
}

/// The attributes of the text part's class, and their defaults.
fn attributes(config: &Json) -> Map<String, Json> {
    let table = load(&root().join("src/arch/attributes.json"));
    let outer = config["model_type"].as_str().unwrap_or_default();
    let text = config["text_config"]["model_type"].as_str().or_else(|| table[outer]["text"].as_str());
    let model_type = if config["text_config"].is_object() { text.unwrap_or_default() } else { outer };
    table[model_type]["attributes"].as_object().cloned().unwrap_or_default()
}

/// Another legal value.
fn another(key: &str, value: &Json) -> Option<Json> {
    if key.ends_with("rope_type") {
        return None;
    }
    match value {
        Json::Bool(truth) => Some((!truth).into()),
        Json::Number(number) if number.is_u64() => {
            Some((number.as_u64()? * 2 + u64::from(number.as_u64()? == 0)).into())
        }
        Json::Number(number) if number.as_f64()? == 0.0 => Some(0.5.into()),
        Json::Number(number) => Some((number.as_f64()? * 2.0).into()),
        Json::String(name) if name.contains("gelu") => Some("relu".into()),
        Json::String(name) if ["silu", "relu", "relu2", "swish"].contains(&name.as_str()) => {
            Some("gelu".into())
        }
        Json::Array(items) if items.len() > 1 => {
            let mut turned = items.clone();
            turned.rotate_left(1);
            (turned != *items).then_some(Json::Array(turned))
        }
        _ => None,
    }
}

/// The rotations that are put in the place of a configuration's own.
fn rotations() -> [(&'static str, Json); 3] {
    [
        ("linear", json!({ "rope_type": "linear", "factor": 4.0 })),
        ("yarn", json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 })),
        (
            "llama3",
            json!({
                "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64
            }),
        ),
    ]
}

/// What became of a changed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Carried,
    Warned,
    Refused,
    Silent,
}

fn outcome(plain: &Conversion, changed: Result<Conversion, ConvertError>, key: &str) -> Outcome {
    let Ok(changed) = changed else { return Outcome::Refused };
    let last = key.rsplit('.').next().unwrap();
    let is_new = |text: &&String| !plain.warnings().contains(text) && text.contains(last);
    let keys = |conversion: &Conversion| {
        let all = conversion.metadata().iter().filter(|(key, _)| !key.starts_with("general."));
        all.map(|(key, value)| format!("{key} {value:?}")).collect::<Vec<_>>()
    };
    if changed.warnings().iter().find(is_new).is_some() {
        Outcome::Warned
    } else if keys(plain) != keys(&changed) || plain.mapping().outputs != changed.mapping().outputs {
        Outcome::Carried
    } else {
        Outcome::Silent
    }
}

/// Changes every attribute of the class of every checkpoint; what has no effect is not counted.
fn no_changed_attribute_is_silent(goldens: &Goldens) {
    let dir = goldens.find("arch").unwrap();
    let (mut n_cases, mut counts, mut silent) = (0, BTreeMap::new(), Vec::new());
    for name in names_in(&dir) {
        let hf = dir.join(&name).join("hf");
        let Ok(text) = fs_err::read_to_string(hf.join("config.json")) else { continue };
        let Ok(config) = serde_json::from_str::<Json>(&text) else { continue };
        let known = attributes(&config);
        let Some(plain) = plan(&hf, true).ok().filter(|_| !known.is_empty()) else { continue };
        n_cases += 1;
        let copy = tempfile::tempdir().unwrap();
        for entry in fs_err::read_dir(&hf).unwrap() {
            let entry = entry.unwrap();
            fs_err::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let mut run = |key: &str, changed: &Json| {
            fs_err::write(copy.path().join("config.json"), changed.to_string()).unwrap();
            let outcome = outcome(&plain, plan(copy.path(), true), key);
            *counts.entry(outcome).or_insert(0) += 1;
            if outcome == Outcome::Silent {
                silent.push(format!("{name} {key}"));
            }
        };
        let text = if config["text_config"].is_object() { "text_config." } else { "" };
        let has_rope = known.keys().any(|key| key.starts_with("rope_parameters"));
        for (key, default) in known.iter().filter(|(key, _)| has_effect(key)) {
            let place = format!("{text}{key}");
            let pointer = format!("/{}", place.replace('.', "/"));
            let given = config.pointer(&pointer);
            let is_plain = !default.is_object();
            if key.starts_with("rope_parameters.") && given.is_none() {
                continue;
            }
            let value = given.or_else(|| Some(default).filter(|_| is_plain));
            let Some(other) = value.and_then(|value| another(key, value)) else { continue };
            let mut changed = config.clone();
            set(changed.as_object_mut().unwrap(), &place, other);
            run(key, &changed);
        }
        for (rotation, members) in rotations().into_iter().filter(|_| has_rope) {
            let place = format!("{text}rope_parameters");
            let mut changed = config.clone();
            let mut own =
                config.pointer(&format!("/{}", place.replace('.', "/"))).cloned().unwrap_or(json!({}));
            if !own.is_object() || own.as_object().unwrap().values().any(Json::is_object) {
                continue;
            }
            own.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            if own["rope_theta"].is_null() {
                let theta = config.pointer(&format!("/{}", format!("{text}rope_theta").replace('.', "/")));
                own["rope_theta"] = theta.cloned().unwrap_or_else(|| 10000.0.into());
            }
            set(changed.as_object_mut().unwrap(), &place, own);
            run(&format!("rope_parameters.rope_type.{rotation}"), &changed);
        }
    }
    println!("{counts:?}");
    println!("{}", silent.join("\n"));
    report_cases("changed attributes", n_cases);
    let unexpected: Vec<&String> = silent.iter().filter(|found| !is_expected(found)).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

corpus_tests!(no_changed_attribute_is_silent);

/// Attributes that may change in silence, for a reason: of a case, or of all.
const MAY_BE_SILENT: &[(&str, &str)] = &[];

fn is_expected(found: &str) -> bool {
    let (case, key) = found.split_once(' ').unwrap();
    MAY_BE_SILENT.iter().any(|(of, name)| (*of == case || *of == "*") && *name == key)
}
