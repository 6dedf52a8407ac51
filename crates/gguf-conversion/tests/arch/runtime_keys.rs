//! Keys that the runtime reads under every architecture follow the configuration under every card.

use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_arch::{OutType, Registry};
use gguf_format::{Metadata, Value};
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{Synthetic, load, resolve_with};
use gguf_testkit::fixture as path_of;
use gguf_testkit::tiers::{Tier, two_tiers};

type Config = Map<String, Json>;

/// Architectures without rotations, and those whose code has its own base.
const UNROTATED: &[&str] = &[
    "arwkv7",
    "bert",
    "bloom",
    "chatglm1",
    "glm5-next",
    "gpt2",
    "jais",
    "jamba",
    "jina-bert-v2",
    "kimi-k3",
    "kimi-linear",
    "mamba",
    "mamba2",
    "mpt",
    "nemotron_h",
    "nemotron_h_moe",
    "refact",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "starcoder",
    "t5",
    "t5encoder",
    "wavtokenizer-dec",
];
const OWN_BASE: &[&str] = &["codeshell", "dbrx", "lfm2", "neo-bert", "openelm"];
/// Architectures that scale the scores by the same number as the angles: GGUF has no key for one of the two.
const SCALED_SCORES: &[&str] = &["deepseek2", "deepseek32", "glm-dsa", "hy_v4", "mistral4"];
/// Cases whose configuration is elsewhere, or has another form than the change.
const OTHER_FORM: &[&str] = &[
    "dflash/deepseek_v4_dspark.json",
    "dflash/gemma4_dspark.json",
    "granitehybrid/granitemoehybrid.json",
    "grok/grok2.json",
    "qwen2vl/omni.json",
    "qwen3vlmoe/qwen3_omni_moe.json",
];

/// Mistral's own format has a member `yarn`, which is read before a `rope_scaling` that the format does not have.
const OWN_YARN: &[&str] = &["deepseek2/mistral_format_moe.json", "mistral3/mistral_format.json"];

/// Sets a key wherever a configuration describes a text model, and removes other forms of the same setting.
fn set(config: &mut Config, key: &str, value: &Json) {
    for part in ["text_config", "llm_config", "language_config", "transformer_layer_config"] {
        if let Some(part) = config.get_mut(part).and_then(Json::as_object_mut) {
            set(part, key, value);
        }
    }
    config.remove("rope_parameters");
    config.insert(key.to_owned(), value.clone());
}

fn number(metadata: &Metadata, key: &str) -> Option<f64> {
    let value = metadata.get(key)?;
    value.as_f64().or_else(|| value.as_u64().map(|value| value as f64))
}

/// Error in the keys of a case with a changed configuration; a refusal is as good as the right keys.
fn complaint(
    case: &CardFixture,
    key: &str,
    value: &Json,
    wanted: &[(&str, f64)],
    n_right: &AtomicUsize,
) -> Option<String> {
    let case = case.changed(|content| set(content["config"].as_object_mut().unwrap(), key, value))?;
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let plan = case.plan(dir.path(), OutType::F32).ok()?;
    let metadata = plan.metadata();
    let is_right = |(name, wanted): &(&str, f64)| {
        let found = number(metadata, &format!("{}.{name}", case.arch));
        found.is_some_and(|found| (found - wanted).abs() < 1e-6 * wanted.abs())
    };
    let kind = value["rope_type"].as_str();
    let found = metadata.get(&format!("{}.rope.scaling.type", case.arch)).and_then(Value::as_str);
    if wanted.iter().all(is_right) && (kind.is_none() || kind == found) {
        n_right.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let keys: Vec<String> = wanted
        .iter()
        .map(|(name, _)| format!("{name} {:?}", number(metadata, &format!("{}.{name}", case.arch))))
        .collect();
    Some(format!("{} under {key} = {value}: type {found:?}, {}", case.at, keys.join(", ")))
}

two_tiers!(base_and_scaling_of_rotations_are_carried_by_every_card);
fn base_and_scaling_of_rotations_are_carried_by_every_card(tier: Tier) {
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    let yarn = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5,
    });
    let ratio = 1.5 / (0.1 * 4f64.ln() + 1.0);
    let cases = fixture::some(tier, 12);
    let n_right = AtomicUsize::new(0);
    let rotating = |case: &&CardFixture| {
        !case.is_mmproj()
            && !UNROTATED.contains(&case.arch.as_str())
            && !OTHER_FORM.contains(&case.at.as_str())
    };
    let wrong: Vec<String> = cases
        .par_iter()
        .filter(rotating)
        .flat_map_iter(|case| {
            let arch = case.arch.as_str();
            let base = (!OWN_BASE.contains(&arch)).then(|| {
                complaint(case, "rope_theta", &json!(54321.0), &[("rope.freq_base", 54321.0)], &n_right)
            });
            let scaling = [("rope.scaling.factor", 4.0)];
            let stretched = [
                ("rope.scaling.factor", 4.0),
                ("rope.scaling.original_context_length", 64.0),
                ("rope.scaling.attn_factor", ratio),
            ];
            let is_own = OWN_YARN.contains(&case.at.as_str());
            let yarn = (!is_own).then_some(&yarn);
            let last = if SCALED_SCORES.contains(&arch) { 2 } else { 3 };
            [
                base.flatten(),
                complaint(case, "rope_scaling", &linear, &scaling, &n_right),
                yarn.and_then(|yarn| complaint(case, "rope_scaling", yarn, &stretched[..last], &n_right)),
            ]
        })
        .flatten()
        .collect();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    let n_right = n_right.into_inner();
    assert!(n_right > tier.of(20, 400), "only {n_right} plans");
}

/// Keys of a case of `fixtures/cards` with a changed configuration.
fn keys(path: &str, change: impl FnOnce(&mut Json)) -> Metadata {
    let mut content = load(&path_of(path));
    change(&mut content["config"]);
    let source = Synthetic::new(&content["tensors"]);
    resolve_with(&Registry::embedded().unwrap(), &content["config"], &source, OutType::F32).unwrap().metadata
}

fn llama(rope: Json) -> Metadata {
    keys("cards/llama/plain.json", |config| config["rope_scaling"] = rope)
}

#[test]
fn yarn_s_attention_factor_is_the_quotient_of_the_model_s_and_the_runtime_s() {
    let factor = |metadata: Metadata| number(&metadata, "llama.rope.scaling.attn_factor");
    let usual = 0.1 * 4f64.ln() + 1.0;
    let yarn = |more: Json| {
        let mut rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        rope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        factor(llama(rope))
    };
    let near = |found: Option<f64>, wanted: f64| {
        assert!((found.unwrap() - wanted).abs() < 1e-6, "{found:?} {wanted}");
    };
    assert_eq!(yarn(json!({})), None);
    assert_eq!(yarn(json!({"attention_factor": null})), None);
    assert_eq!(yarn(json!({"attention_factor": usual})), None);
    near(yarn(json!({"attention_factor": 1.0})), 1.0 / usual);
    let log = |mu: f64| 0.1 * mu * 4f64.ln() + 1.0;
    near(yarn(json!({"mscale": 0.7, "mscale_all_dim": 1.0})), log(0.7) / log(1.0) / usual);
    // One of the two is zero.
    assert_eq!(yarn(json!({"mscale": 0.7, "mscale_all_dim": 0})), None);
    // A missing factor is computed from the lengths.
    let rope = json!({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 64});
    let metadata = llama(rope);
    let context = number(&metadata, "llama.context_length").unwrap();
    near(number(&metadata, "llama.rope.scaling.factor"), context / 64.0);
    // A missing original length means no limit, for transformers and for the runtime.
    let metadata = llama(json!({"rope_type": "yarn", "factor": 2.0}));
    near(number(&metadata, "llama.rope.scaling.factor"), 2.0);
    assert_eq!(number(&metadata, "llama.rope.scaling.original_context_length"), None);
}

#[test]
fn windows_that_break_the_rule_of_the_architecture_are_listed() {
    const KEY: &str = "gemma2.attention.sliding_window_pattern";
    let layers = |types: Json| {
        keys("cards/gemma2/gemma2.json", |config| {
            config["layer_types"] = types;
        })
    };
    let (local, global) = ("sliding_attention", "full_attention");
    assert!(!layers(json!([local, global, local, global])).contains(KEY));
    let listed = layers(json!([global, local, local, global]));
    let listed = listed.get(KEY).and_then(Value::as_array).unwrap();
    let flags: Vec<Option<bool>> = (0..listed.len()).map(|layer| listed.get(layer)?.as_bool()).collect();
    assert_eq!(flags, [Some(false), Some(true), Some(true), Some(false)]);
}

#[test]
fn what_a_class_does_without_a_word_in_its_configuration_is_written() {
    for (path, key) in [
        ("cards/dots1/dots1_small.json", "dots1.expert_gating_func"),
        ("cards/deepseek2/deepseek_v3.json", "deepseek2.expert_gating_func"),
        ("cards/exaone-moe/exaone_moe.json", "exaone-moe.expert_gating_func"),
        ("cards/minimax-m2/minimax_m2_small.json", "minimax-m2.expert_gating_func"),
    ] {
        let metadata = keys(path, |config| {
            config.as_object_mut().unwrap().remove("scoring_func");
        });
        assert_eq!(number(&metadata, key), Some(2.0), "{path}");
    }
    let rotates = |word: Json| {
        let metadata = keys("cards/granitehybrid/granitemoehybrid.json", |config| {
            config["position_embedding_type"] = word;
        });
        metadata.get("granitehybrid.rope.scaling.finetuned").and_then(Value::as_bool)
    };
    assert_eq!((rotates(json!("rope")), rotates(json!("nope"))), (Some(true), Some(false)));
}

#[test]
fn biases_that_the_runtime_has_no_place_for_are_named() {
    let warnings = |case: &CardFixture| {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        case.plan(dir.path(), OutType::F32).unwrap().warnings().to_vec()
    };
    let hybrid = fixture::case("granitehybrid/granitemoehybrid.json");
    assert_eq!(warnings(&hybrid), Vec::<String>::new());
    let biased = hybrid.changed(|content| {
        let rows = content["tensors"].as_array_mut().unwrap();
        let weights = rows.iter().filter(|row| row[0].as_str().unwrap().ends_with("mamba.in_proj.weight"));
        let bias = |row: &Json| {
            let name = row[0].as_str().unwrap().replace(".weight", ".bias");
            json!([name, "BF16", [row[2][0]]])
        };
        let biases: Vec<Json> = weights.map(bias).collect();
        rows.extend(biases);
    });
    assert_eq!(
        warnings(&biased.unwrap()),
        ["llama.cpp loads no file of `granitehybrid` with `blk.0.ssm_in.bias`, `blk.1.ssm_in.bias`, \
             `blk.3.ssm_in.bias`: its loader has no such tensor (`wrong number of tensors`)"]
    );
}
