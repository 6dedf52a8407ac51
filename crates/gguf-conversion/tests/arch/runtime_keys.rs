//! Keys that the runtime reads under every architecture follow the configuration under every card.

use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_arch::{OutType, Registry};
use gguf_conversion::Conversion;
use gguf_core::TensorSource;
use gguf_format::{Metadata, Value};
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::fixture::{self, CardFixture};
use super::{Synthetic, load, resolve_with};
use gguf_testkit::fixture as path_of;
use gguf_testkit::memory::tensor_bytes;
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
const OWN_BASE: &[&str] = &["codeshell", "dbrx", "granite_swa", "lfm2", "neo-bert", "openelm"];
/// Architectures that scale the scores, too, so that the factor of the angles is another one.
const SCALED_SCORES: &[&str] = &["deepseek2", "deepseek32", "glm-dsa", "mistral4"];
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

/// Layers without any window: llama.cpp stops at the size of windows if no layer has one.
#[test]
fn layers_without_any_window_are_written_as_llama_cpp_computes_them() {
    let full = |case: &str| {
        let case = fixture::case(case).edited(|content| {
            let config = content["config"].as_object_mut().unwrap();
            let n = config["num_hidden_layers"].as_u64().unwrap();
            config
                .insert("layer_types".to_owned(), vec!["full_attention"; usize::try_from(n).unwrap()].into());
            config.remove("sliding_window_pattern");
        });
        plan_of(&case).unwrap()
    };
    let [size, pattern] = ["attention.sliding_window", "attention.sliding_window_pattern"];
    for (case, arch) in [("gemma3/gemma3_text.json", "gemma3"), ("mellum/mellum.json", "mellum")] {
        let plan = full(case);
        let has = |key: &str| plan.metadata().contains(&format!("{arch}.{key}"));
        assert!(!has(size) && !has(pattern), "{case}");
        assert_eq!(plan.warnings(), [""; 0], "{case}");
    }
    // What has a window anyway has one as long as the context.
    let plan = full("gemma2/gemma2.json");
    let of = |key: &str| number(plan.metadata(), &format!("gemma2.{key}"));
    assert_eq!(of(size), of("context_length"));
    let layers = plan.metadata().get(&format!("gemma2.{pattern}")).and_then(Value::as_array).unwrap();
    assert!((0..layers.len()).all(|layer| layers.get(layer) == Some(Value::Bool(true))));
    assert_eq!(plan.warnings(), [""; 0]);
    // Its layers with windows are those that rotate.
    assert_eq!(
        full("cohere2/cohere2.json").warnings(),
        [
            "llama.cpp runs no file of `cohere2` with these keys: `attention.sliding_window_pattern` must give a layer a window"
        ]
    );
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
    // Where the runtime rotates whatever the key says, factors leave heads where they are.
    let stays = |word: &str| {
        let case = fixture::case("granitemoe/hybrid_attention_only.json")
            .edited(|content| content["config"]["position_embedding_type"] = json!(word));
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let plan = case.plan(dir.path(), OutType::F32).unwrap();
        assert_eq!(plan.warnings(), [""; 0], "{word}");
        let at = plan.tensors().iter().position(|tensor| tensor.name == "rope_freqs.weight")?;
        Some(tensor_bytes(&plan, at).as_chunks::<4>().0.iter().all(|bytes| f32::from_le_bytes(*bytes) > 1e29))
    };
    assert_eq!((stays("rope"), stays("nope")), (None, Some(true)));
}

/// Groups of experts that are all chosen are none: the runtime refuses as many as there are.
#[test]
fn experts_of_all_groups_are_one_group() {
    for (groups, chosen, written) in [(2, 2, [1.0, 1.0]), (2, 1, [2.0, 1.0]), (1, 1, [1.0, 1.0])] {
        let metadata = keys("cards/deepseek2/deepseek_v3.json", |config| {
            config["n_group"] = json!(groups);
            config["topk_group"] = json!(chosen);
        });
        let of = |key: &str| number(&metadata, &format!("deepseek2.expert_group_{key}"));
        assert_eq!([of("count"), of("used_count")], written.map(Some), "{groups} {chosen}");
    }
}

/// Factors of angles and scores in llama.cpp's graph of DeepSeek, by the keys of a file; as its source has it.
fn latent_magnitudes(arch: &str, metadata: &Metadata, factor: f64) -> (f64, f64) {
    let key = |name: &str| number(metadata, &format!("{arch}.rope.scaling.{name}"));
    let is_yarn = metadata.get(&format!("{arch}.rope.scaling.type")).and_then(Value::as_str) == Some("yarn");
    let mu = if arch == "glm-dsa" { 0.0 } else { key("yarn_log_multiplier").unwrap_or(0.0) / 0.1 };
    let log = |mu: f64| 0.1 * mu * factor.ln() + 1.0;
    let own = if arch == "deepseek2" && mu != 1.0 { mu } else { 1.0 };
    let quotient = if mu == 0.0 { log(1.0) } else { log(own) / log(mu) };
    let of_context = if is_yarn { quotient / log(1.0) } else { 1.0 } * key("attn_factor").unwrap_or(1.0);
    let of_graph = of_context * log(1.0);
    (if is_yarn { of_graph } else { of_context }, of_graph * log(mu))
}

#[test]
fn both_magnitudes_of_latent_attention_are_carried() {
    let factor = 4.0;
    let log = |mu: f64| 0.1 * mu * f64::ln(factor) + 1.0;
    for (path, arch) in [
        ("cards/deepseek2/deepseek_v3.json", "deepseek2"),
        ("cards/deepseek2/glm4_moe_lite.json", "deepseek2"),
        ("cards/deepseek32/deepseek_v32.json", "deepseek32"),
        ("cards/glm-dsa/glm_moe_dsa.json", "glm-dsa"),
    ] {
        for (kind, more, angles, scores) in [
            ("yarn", json!({}), log(1.0), 1.0),
            ("yarn", json!({"mscale": 0.7}), log(1.0), 1.0),
            ("yarn", json!({"mscale_all_dim": 0.5}), log(1.0), log(0.5)),
            ("yarn", json!({"mscale": 1.0, "mscale_all_dim": 1.0}), 1.0, log(1.0)),
            ("yarn", json!({"mscale": 0.7, "mscale_all_dim": 1.2}), log(0.7) / log(1.2), log(1.2)),
            ("yarn", json!({"attention_factor": 1.0}), 1.0, 1.0),
            ("linear", json!({}), 1.0, 1.0),
            ("linear", json!({"mscale_all_dim": 0.5}), 1.0, log(0.5)),
        ] {
            let mut rope =
                json!({"rope_type": kind, "factor": factor, "original_max_position_embeddings": 64});
            rope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let metadata = keys(path, |config| set(config.as_object_mut().unwrap(), "rope_scaling", &rope));
            let found = latent_magnitudes(arch, &metadata, factor);
            assert!((found.0 - angles).abs() < 1e-6, "{path} {rope}: {found:?}, not {angles}");
            // This graph reads no key for the scores alone.
            if arch != "glm-dsa" {
                assert!((found.1 - scores).abs() < 1e-6, "{path} {rope}: {found:?}, not {scores}");
            }
        }
    }
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

fn plan_of(case: &CardFixture) -> Result<Conversion, String> {
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    case.plan(dir.path(), OutType::F32).map_err(|error| error.to_string())
}

fn has(plan: &Conversion, name: &str) -> bool {
    plan.tensors().iter().any(|tensor| tensor.name == name)
}

#[test]
fn a_file_that_the_loader_refuses_by_the_number_of_layers_is_named() {
    let norms = plan_of(&fixture::case("command-r/qk_norm.json")).unwrap();
    assert_eq!(
        norms.warnings(),
        [
            "llama.cpp loads no file of `command-r` with 2 layers with `blk.0.attn_q_norm.weight`: its loader decides by the \
          number of layers which tensors there are"
        ]
    );
    // The key lets the runtime ask for queries without a latent.
    let rank = |case: &str| {
        let plan = plan_of(&fixture::case(case)).unwrap();
        let is_refused = plan.warnings().iter().any(|warning| warning.contains("loads no file"));
        assert!(has(&plan, "blk.0.attn_q.weight") && !is_refused, "{case}: {:?}", plan.warnings());
        number(plan.metadata(), "deepseek2.attention.q_lora_rank")
    };
    assert_eq!(rank("deepseek2/v2_defaults.json"), Some(0.0));
    assert_eq!(rank("deepseek2/deepseek_v2_lite_27.json"), None);
}

#[test]
fn biases_that_the_runtime_asks_for_are_zero() {
    let unbiased = |at: &str, key: &str, gone: &[&str]| {
        fixture::case(at).edited(|content| {
            content["config"][key] = json!(false);
            let rows = content["tensors"].as_array_mut().unwrap();
            rows.retain(|row| !gone.iter().any(|name| row[0].as_str().unwrap().ends_with(name)));
        })
    };
    let linear = [
        "attn.q_proj.bias",
        "attn.k_proj.bias",
        "attn.v_proj.bias",
        "attn.o_proj.bias",
        "c_fc.bias",
        "c_proj.bias",
    ];
    let (conv, state) = (["conv1d.bias"], &["ssm_conv1d.bias"][..]);
    for (case, names) in [
        (fixture::case("gptneox/no_attention_bias.json"), &["attn_qkv.bias", "attn_output.bias"][..]),
        (
            unbiased("starcoder2/plain.json", "use_bias", &linear),
            &["attn_output.bias", "ffn_up.bias", "ffn_down.bias"],
        ),
        (unbiased("gpt-oss/plain.json", "attention_bias", &linear), &["attn_output.bias"]),
        (unbiased("jais2/jais2.json", "attention_bias", &linear), &["attn_output.bias"]),
        (
            unbiased("jais2/jais2.json", "mlp_bias", &["up_proj.bias", "down_proj.bias"]),
            &["ffn_up.bias", "ffn_down.bias"],
        ),
        (unbiased("falcon-h1/falcon_h1.json", "mamba_conv_bias", &conv), state),
        (unbiased("granitehybrid/granitemoehybrid.json", "mamba_conv_bias", &conv), state),
        (unbiased("granitehybrid/bamba.json", "mamba_conv_bias", &conv), state),
        (unbiased("jamba/jamba.json", "mamba_conv_bias", &conv), state),
        (unbiased("mamba/mamba.json", "use_conv_bias", &conv), state),
        (unbiased("mamba/falcon_mamba.json", "use_conv_bias", &conv), state),
        (unbiased("mamba2/mamba2.json", "use_conv_bias", &conv), state),
        (unbiased("nemotron_h/dense.json", "use_conv_bias", &conv), state),
        (unbiased("nemotron_h_moe/nemotron_h_moe.json", "use_conv_bias", &conv), state),
        (unbiased("lfm2moe/lfm2_moe_gqa.json", "use_expert_bias", &["expert_bias"]), &["exp_probs_b.bias"]),
    ] {
        let plan = plan_of(&case).unwrap();
        assert_eq!(plan.warnings(), Vec::<String>::new(), "{}", case.at);
        for name in names {
            let places = plan.tensors().iter().enumerate().filter(|place| place.1.name.ends_with(name));
            let places: Vec<usize> = places.map(|(index, _)| index).collect();
            assert!(!places.is_empty(), "{}: {name}", case.at);
            for index in places {
                assert!(tensor_bytes(&plan, index).iter().all(|&byte| byte == 0), "{}: {name}", case.at);
            }
        }
    }
    // A configuration that promises them is not believed.
    let lost = unbiased("starcoder2/plain.json", "attention_bias", &linear);
    assert!(plan_of(&lost).unwrap_err().contains("o_proj.bias"));
    let lost = fixture::case("granitehybrid/bamba.json").dropping("conv1d.bias");
    assert!(plan_of(&lost).unwrap_err().contains("conv1d.bias"));
}

#[test]
fn what_the_runtime_cannot_do_is_refused_by_its_key() {
    for (at, key, value) in [
        ("qwen3moe/plain.json", "mlp_only_layers", json!([0])),
        ("qwen2moe/qwen2_moe.json", "decoder_sparse_step", json!(2)),
        ("lfm2/lfm2.json", "conv_bias", json!(true)),
    ] {
        let error = plan_of(&fixture::case(at).edited(|content| content["config"][key] = value)).unwrap_err();
        assert!(error.contains(&format!("`{key}`")) && error.contains("the runtime"), "{at}: {error}");
    }
}

#[test]
fn biases_that_the_class_does_not_have_are_named() {
    let biased = |at: &str| {
        let case = fixture::case(at);
        let rows = case.content()["tensors"].as_array().unwrap().clone();
        let weights = rows.iter().filter_map(|row| {
            let name = row[0].as_str()?.strip_suffix(".weight")?;
            let is_biased = ["q_proj", "k_proj", "v_proj"].iter().any(|part| name.ends_with(part));
            is_biased.then(|| (format!("{name}.bias"), row[2][0].as_u64().unwrap()))
        });
        let case = weights.fold(case, |case, (name, n_rows)| case.with(&name, &[n_rows]));
        plan_of(&case).unwrap().warnings().join("\n")
    };
    let warning = biased("llama/mistral_window.json");
    let named = ".bias` and 5 more: transformers' class of `mistral` has none";
    assert!(warning.contains(named), "{warning}");
    assert!(!biased("llama/plain.json").contains("has none"));
}

#[test]
fn a_head_size_of_its_own_is_written() {
    let keys = |head_dim: u64| {
        let case = fixture::case("granite/plain.json").edited(|content| {
            let before = content["config"]["head_dim"].as_u64().unwrap();
            content["config"]["head_dim"] = json!(head_dim);
            for row in content["tensors"].as_array_mut().unwrap() {
                let axis = match row[0].as_str().unwrap() {
                    name if name.contains("o_proj") => 1,
                    name if name.contains("self_attn") => 0,
                    _ => continue,
                };
                row[2][axis] = json!(row[2][axis].as_u64().unwrap() / before * head_dim);
            }
        });
        let plan = plan_of(&case).unwrap();
        assert_eq!(number(plan.metadata(), "granite.rope.dimension_count"), Some(head_dim as f64));
        number(plan.metadata(), "granite.attention.key_length")
    };
    let usual = fixture::case("granite/plain.json").content()["config"]["head_dim"].as_u64().unwrap();
    assert_eq!((keys(usual), keys(2 * usual)), (None, Some(2.0 * usual as f64)));
}
