//! Configuration values that change the computation: they are written to the file, or reported as lost.

use std::path::Path;

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::TensorSource;
use gguf_engine::GraphPlan;
use gguf_format::Value;
use serde_json::{Map, Value as Json, json};

use crate::fixture::{self, CardFixture, case, load};
use crate::{cases, differences};
use gguf_testkit::goldens::{Goldens, corpus_tests};
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{names, report_cases};

/// Maximum largest and mean difference of a token's likelihood from transformers'.
const MOST: (f64, f64) = (1e-3, 1e-4);

fn plan(dir: &Path, annotate: bool) -> Result<Conversion, ConvertError> {
    let file_type = Some(OutType::F32);
    let options = ConvertOptions { file_type, tokenizer: false, annotate, ..ConvertOptions::default() };
    Conversion::plan(dir, &options)
}

/// Case of `fixtures/cards` with changed members of its configuration; null removes a member, pointers lead into
/// objects.
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

    /// Key and assumed value of everything that is lost.
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

#[test]
fn what_no_key_and_no_tensor_says_is_named() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 });
    let llama3 = json!({
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 10000.0
    });
    for (at, changes, expected) in [
        // Activations: the graph decides, whatever the class's default is.
        (
            "gpt2/gpt2.json",
            json!({ "activation_function": "relu" }),
            vec![("activation_function", json!("relu"))],
        ),
        ("gpt2/gpt2.json", json!({ "activation_function": "gelu_fast" }), vec![]),
        ("llama/plain.json", json!({ "hidden_act": "gelu" }), vec![("hidden_act", json!("gelu"))]),
        ("llama/plain.json", json!({ "hidden_act": "swish" }), vec![]),
        ("bert/bert.json", json!({ "is_decoder": true }), vec![("is_decoder", json!(true))]),
        ("bert/roberta.json", json!({ "is_decoder": false }), vec![]),
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
        ("qwen3moe/plain.json", json!({ "norm_topk_prob": false }), vec![("norm_topk_prob", json!(false))]),
        ("qwen3moe/plain.json", json!({ "norm_topk_prob": true }), vec![]),
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
        // Whole heads are rotated by a description without a part, but the file has half of them.
        (
            "glm4moe/solar_open_small.json",
            json!({ "rope_parameters": null, "rope_scaling": { "rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0 } }),
            vec![("rope_scaling.partial_rotary_factor", json!(1.0))],
        ),
        (
            "minimax-m2/minimax_m2_small.json",
            json!({ "rope_parameters": { "rope_theta": 5000000.0, "partial_rotary_factor": 1.0 } }),
            vec![("rope_parameters.partial_rotary_factor", json!(1.0))],
        ),
        // Two bases: each class reads its own name.
        (
            "gptneox/gpt_neox.json",
            json!({ "rope_theta": 10000, "rotary_emb_base": 20000 }),
            vec![("rotary_emb_base", json!(20000))],
        ),
        ("gptneox/gpt_neox.json", json!({ "rope_theta": 10000, "rotary_emb_base": 10000.0 }), vec![]),
        // The class of T5 takes the activation by itself, if it is given.
        ("t5/t5.json", json!({ "dense_act_fn": "gelu" }), vec![("dense_act_fn", json!("gelu"))]),
        ("t5/mt5.json", json!({ "dense_act_fn": "relu" }), vec![("dense_act_fn", json!("relu"))]),
        ("t5/mt5.json", json!({ "dense_act_fn": null }), vec![]),
        // Settings of training, settings that tensors show, and unknown settings.
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

/// Biases that are stored although the configuration has none, and rotations without a key.
#[test]
fn what_is_switched_off_and_stored_is_named() {
    let lost = |at: &str, changes: Json| Changed::of(&case(at), &changes).lost(false);
    let of = |key: &str| vec![(key.to_owned(), json!(false))];
    assert_eq!(lost("starcoder2/plain.json", json!({ "use_bias": false })), of("use_bias"));
    assert_eq!(lost("starcoder2/plain.json", json!({ "use_bias": true })), []);
    assert_eq!(lost("mamba/mamba.json", json!({ "use_conv_bias": false })), of("use_conv_bias"));
    assert_eq!(lost("llama/plain.json", json!({ "attention_bias": false, "mlp_bias": false })), []);
    let changes = json!({ "text_config.attention_k_eq_v": true });
    let named = vec![("attention_k_eq_v".to_owned(), json!(true))];
    assert_eq!(lost("gemma4/gemma4_unified.json", changes), named);
    assert_eq!(lost("gemma4/gemma4_moe.json", json!({ "attention_k_eq_v": true })), []);
    // Half of a head's pairs are rotated, at frequencies of the whole head.
    let proportional = json!({ "rope_type": "proportional", "partial_rotary_factor": 0.5 });
    let named = vec![("rope_parameters.rope_type".to_owned(), json!("proportional"))];
    for at in ["llama/plain.json", "qwen3/plain.json"] {
        let changes = json!({ "rope_scaling": null, "rope_parameters": proportional });
        assert_eq!(lost(at, changes), named, "{at}");
    }
}

/// Windows that no layer has are not named; those of single layers are.
#[test]
fn windows_without_a_layer_are_not_named() {
    let lost = |changes: Json| {
        let lost = Changed::of(&case("qwen2/plain.json"), &changes).lost(false);
        lost.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    let on = json!({ "layer_types": null, "use_sliding_window": true, "sliding_window": 32, "max_window_layers": 1 });
    assert_eq!(lost(on.clone()), ["max_window_layers", "use_sliding_window"]);
    for (key, value) in [
        ("sliding_window", json!(null)),
        ("max_window_layers", json!(99)),
        ("layer_types", json!(["full_attention", "full_attention"])),
        ("use_sliding_window", json!(false)),
    ] {
        let mut changes = on.clone();
        changes[key] = value;
        assert_eq!(lost(changes), Vec::<String>::new(), "{key}");
    }
}

/// The graph of GLM has one number for the two magnitudes of YaRN under latent attention.
#[test]
fn two_magnitudes_of_yarn_are_told_apart() {
    let lost = |at: &str, one: Option<f64>, all: f64| {
        let rope = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": one,
            "mscale_all_dim": all,
        });
        let changes = json!({ "rope_scaling": rope, "rope_parameters": null });
        Changed::of(&case(at), &changes).lost(false)
    };
    for (one, all) in [(Some(0.7), 0.7), (Some(1.0), 0.5), (None, 0.5), (Some(1.0), 0.0)] {
        assert_eq!(lost("deepseek2/deepseek_v3.json", one, all), []);
        let named = [("rope_scaling.mscale_all_dim".to_owned(), json!(all))];
        assert_eq!(lost("glm-dsa/glm_moe_dsa.json", one, all), named, "{one:?} {all}");
    }
    let gemma = Changed::of(&case("gemma3/gemma3_text.json"), &json!({ "attn_logit_softcapping": 50.0 }));
    assert_eq!(gemma.lost(false), [("attn_logit_softcapping".to_owned(), json!(50.0))]);
}

/// Values for which the file has a key that the runtime does not read.
#[test]
fn a_key_that_the_runtime_does_not_read_carries_nothing() {
    let yarn = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16, "beta_slow": 1,
    });
    let lost = |at: &str, changes: Json| Changed::of(&case(at), &changes).lost(false);
    let beta = [("rope_scaling.beta_fast".to_owned(), json!(16))];
    assert_eq!(lost("llama/plain.json", json!({ "rope_scaling": yarn })), beta);
    let window = [("sliding_window".to_owned(), json!(8))];
    assert_eq!(lost("phi3/phi3.json", json!({ "sliding_window": 8 })), window);
    // Without a window it has no effect.
    assert_eq!(lost("phi3/phi3.json", json!({ "sliding_window": null })), []);
    assert_eq!(lost("exaone4/exaone4.json", json!({ "sliding_window": 8 }))[..1], window);
    assert_eq!(lost("exaone4/exaone4.json", json!({ "sliding_window": null })), []);
}

/// Omitted keys for which the class has another value than the file.
#[test]
fn what_is_left_out_is_named() {
    for (at, key, of_class) in [
        // As long as the context, but layers with a window are rotated and the others are not.
        ("afmoe/afmoe.json", "sliding_window", json!(1024)),
        // Every layer has full attention, and the runtime has windows.
        (
            "laguna/laguna.json",
            "layer_types",
            json!(["full_attention", "full_attention", "full_attention", "full_attention"]),
        ),
    ] {
        let changed = Changed::of(&case(at), &json!({}));
        let path = changed.dir.path().join("config.json");
        let mut config = load(&path);
        assert!(config.as_object_mut().unwrap().remove(key).is_some(), "{at}");
        fs_err::write(&path, config.to_string()).unwrap();
        assert_eq!(changed.lost(false), [(key.to_owned(), of_class)], "{at}");
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
            "config.json: `scale_attn_weights` = false is lost: a `gpt2` file has no key or tensor for it, and runtimes \
          compute with true (`--annotate` keeps it for `gguf-verify`)"
        ]
    );
    let annotated = plan(changed.dir.path(), true).unwrap();
    assert_eq!(annotated.metadata().get("gguf_foundry.attention.scale"), Some(&Value::F32(1.0)));
    for at in ["gemma2/gemma2.json", "gemma3/gemma3_text.json", "gemma-embedding/gemma3_text_model.json"] {
        let scale = |changes: Json| {
            let changed = Changed::of(&case(at), &changes);
            assert_eq!(changed.lost(true), [], "{at}");
            plan(changed.dir.path(), true).unwrap().metadata().get("gguf_foundry.attention.scale").cloned()
        };
        assert_eq!(scale(json!({})), None, "{at}");
        assert_eq!(scale(json!({ "query_pre_attn_scalar": 64 })), Some(Value::F32(0.125)), "{at}");
    }
}

/// transformers rotates half of each head of Bamba, unless `rope_parameters` has another part.
#[test]
fn bamba_rotates_half_of_a_head() {
    let rotated = |changes: Json| {
        let changed = Changed::of(&case("granitehybrid/bamba.json"), &changes);
        let planned = plan(changed.dir.path(), false).unwrap();
        planned.metadata().get("granitehybrid.rope.dimension_count").and_then(Value::as_u64)
    };
    let head = 16;
    assert_eq!(rotated(json!({ "attn_rotary_emb": 4 })), Some(4));
    assert_eq!(rotated(json!({ "attn_rotary_emb": null })), Some(head / 2));
    assert_eq!(rotated(json!({ "attn_rotary_emb": null, "partial_rotary_factor": 0.5 })), Some(head / 2));
    let whole = json!({ "attn_rotary_emb": null, "rope_parameters": { "partial_rotary_factor": 1.0 } });
    assert_eq!(rotated(whole), Some(head));
}

two_tiers!(healthy_checkpoints_lose_nothing);
/// Every case of the cards is a valid checkpoint.
fn healthy_checkpoints_lose_nothing(tier: Tier) {
    let mut wrong = Vec::new();
    let cases = fixture::some(tier, 15);
    for case in cases.iter().filter(|case| !case.is_mmproj()) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let Ok(conversion) = case.plan(dir.path(), OutType::F32) else { continue };
        wrong.extend(conversion.mapping().lost.iter().map(|lost| format!("{}: {lost}", case.at)));
    }
    let mut expected = LOST_IN_CARDS.to_vec();
    if !tier.is_deep() {
        expected.retain(|row| cases.iter().any(|case| row.starts_with(&format!("{}: ", case.at))));
    }
    assert_eq!(wrong, expected, "\n{}", wrong.join("\n"));
}

/// Values that are lost in cases of the cards: their configurations are not from released models and ask for what the
/// runtime does not compute.
const LOST_IN_CARDS: &[&str] = &[
    // The class has squared ReLU, and the graph of `bitnet` has a gate with SiLU.
    "bitnet/names_of_transformers.json: `hidden_act` = \"relu2\" is lost: a `bitnet` file has no key or tensor for it, and runtimes compute with \"silu\"",
    // The class normalizes, but the runtime does not without the key.
    "cohere2moe/shared_mtp.json: `norm_topk_prob` is absent: transformers takes true, and the file says something else; with `\"norm_topk_prob\": true` in config.json it says so, too",
    // The graph has windows with 64 layers alone.
    "exaone4/exaone4_5.json: `sliding_window` = 32 is lost: a `exaone4` file has no key or tensor for it, and runtimes compute without it",
    "exaone4/pattern_as_text.json: `sliding_window` = 32 is lost: a `exaone4` file has no key or tensor for it, and runtimes compute without it",
    "exaone4/text_mtp.json: `sliding_window` = 32 is lost: a `exaone4` file has no key or tensor for it, and runtimes compute without it",
    "exaone4/windows.json: `sliding_window` = 32 is lost: a `exaone4` file has no key or tensor for it, and runtimes compute without it",
    // It declares a norm but not its place, for which the class has the other default.
    "falcon-h1/normed.json: `mamba_norm_before_gate` = true is lost: a `falcon-h1` file has no key or tensor for it, and runtimes compute with false",
    // Heads of 16, but the class's divisor is for heads of 256.
    "gemma-embedding/pooled.json: `query_pre_attn_scalar` = 256 is lost: a `gemma-embedding` file has no key or tensor for it, and runtimes compute with 16",
    "gemma3/cut_vocabulary.json: `query_pre_attn_scalar` = 256 is lost: a `gemma3` file has no key or tensor for it, and runtimes compute with 16",
    "gemma3/no_window_rope_parameters.json: `query_pre_attn_scalar` = 256 is lost: a `gemma3` file has no key or tensor for it, and runtimes compute with 16",
    // They have biases and norms that their configurations switch off.
    "glm4moe/further_block_alone.json: `attention_bias` = false is lost: a `glm4moe` file has no key or tensor for it, and runtimes compute with true",
    "glm4moe/further_block_alone.json: `use_qk_norm` = false is lost: a `glm4moe` file has no key or tensor for it, and runtimes compute with true",
    "glm4moe/further_block_defaults.json: `attention_bias` = false is lost: a `glm4moe` file has no key or tensor for it, and runtimes compute with true",
    "glm4moe/further_block_defaults.json: `use_qk_norm` = false is lost: a `glm4moe` file has no key or tensor for it, and runtimes compute with true",
    "glm4moe/no_further_block.json: `attention_bias` = false is lost: a `glm4moe` file has no key or tensor for it, and runtimes compute with true",
    "glm4moe/no_further_block.json: `use_qk_norm` = false is lost: a `glm4moe` file has no key or tensor for it, and runtimes compute with true",
    // They omit values that the class has and released configurations declare.
    "glm5-next/mtp_tied.json: `swiglu_limit` is absent: transformers takes 10.0, and the file says something else; with `\"swiglu_limit\": 10.0` in config.json it says so, too",
    "glm5-next/no_mtp.json: `swiglu_limit` is absent: transformers takes 10.0, and the file says something else; with `\"swiglu_limit\": 10.0` in config.json it says so, too",
    // As `glm4moe`.
    "hunyuan-dense/defaults_unpadded.json: `attention_bias` = false is lost: a `hunyuan-dense` file has no key or tensor for it, and runtimes compute with true",
    // As `glm5-next`.
    "hy_v3/further_block.json: `router_scaling_factor` is absent: transformers takes 2.826, and the file says something else; with `\"router_scaling_factor\": 2.826` in config.json it says so, too",
    "hy_v3/no_further_block.json: `router_scaling_factor` is absent: transformers takes 2.826, and the file says something else; with `\"router_scaling_factor\": 2.826` in config.json it says so, too",
    // The runtime reads no window for `llama`.
    "llama/mistral_window.json: `sliding_window` = 32 is lost: a `llama` file has no key or tensor for it, and runtimes compute with 4096 (`--annotate` keeps it for `gguf-verify`)",
    // The runtime has MiniCPM 3's multipliers in its code.
    "minicpm3/longrope.json: `dim_model_base` = 32 is lost: a `minicpm3` file has no key or tensor for it, and runtimes compute with 256",
    // Releases of transformers have different bases if none is given.
    "olmo2/olmo3.json: `rope_theta` is absent: transformers takes 500000.0, and the file says something else; with `\"rope_theta\": 500000.0` in config.json it says so, too",
    // The graph has no windows.
    "phi3/phi3_swa.json: `sliding_window` = 32 is lost: a `phi3` file has no key or tensor for it, and runtimes compute without it",
    // As `glm4moe`.
    "phimoe/longrope.json: `attention_bias` = false is lost: a `phimoe` file has no key or tensor for it, and runtimes compute with true",
    // As `olmo2`.
    "qwen3vl/defaults.json: `rope_theta` is absent: transformers takes 500000.0, and the file says something else; with `\"rope_theta\": 500000.0` in config.json it says so, too",
    "qwen3vl/rerank.json: `rope_theta` is absent: transformers takes 500000.0, and the file says something else; with `\"rope_theta\": 500000.0` in config.json it says so, too",
    "qwen3vl/rerank_tied.json: `rope_theta` is absent: transformers takes 500000.0, and the file says something else; with `\"rope_theta\": 500000.0` in config.json it says so, too",
    "qwen3vlmoe/packed.json: `rope_theta` is absent: transformers takes 500000.0, and the file says something else; with `\"rope_theta\": 500000.0` in config.json it says so, too",
    // It has the norm of a second stream, which is what the runtime checks.
    "stablelm/qk_norm.json: `use_parallel_residual` = true is lost: a `stablelm` file has no key or tensor for it, and runtimes compute with false",
];

fn every_switch_is_carried_or_named(goldens: &Goldens) {
    let dir = goldens.find("switches").unwrap();
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for name in names(&dir).iter().filter(|name| dir.join(name).join("case.json").exists()) {
        n_cases += 1;
        if let Err(why) = judge(&dir.join(name)) {
            wrong.push(format!("{name}: {why}"));
        }
    }
    report_cases("switches", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

corpus_tests!(every_switch_is_carried_or_named);

/// Checks a case of `switches` by the rules of its README.
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
    let features = gguf_arch::GraphFeatures::of(arch).ok_or("no graph")?;
    let plan = GraphPlan::new(&features, conversion.metadata(), conversion.tensors());
    let plan = plan.map_err(|error| error.to_string())?;
    let (worst, mean, _) = differences(&conversion, plan, &cases(case));
    if worst <= MOST.0 && mean <= MOST.1 {
        Ok(())
    } else {
        Err(format!("differs by {worst:.1e} at most, by {mean:.1e} in the mean, and nothing is said"))
    }
}

/// Returns true if a text names one of the switches of a case.
fn is_named(text: &str, about: &Json) -> bool {
    let switches = about["switch"].as_str().unwrap().split(", ");
    switches.map(|switch| switch.rsplit('.').next().unwrap()).any(|switch| text.contains(switch))
}
