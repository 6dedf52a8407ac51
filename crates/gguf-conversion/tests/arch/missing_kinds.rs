//! Kinds of tensors that are missing in every block: there is no gap between blocks, but no runtime computes the model.

use std::collections::BTreeSet;

use gguf_arch::{OutType, foreign_tensors, missing_tensors};
use gguf_core::{GgmlType, Shape, TensorMeta, TensorSource};
use serde_json::{Value as Json, json};

use super::fixture;
use gguf_testkit::tiers::{Tier, two_tiers};

/// A tensor's name without the number of its block.
fn kind(name: &str) -> String {
    name.split('.')
        .map(|part| if part.parse::<u64>().is_ok() { "N" } else { part })
        .collect::<Vec<_>>()
        .join(".")
}

two_tiers!(a_kind_that_is_left_out_is_missed);
/// Each kind of tensor of each case is left out: the conversion is refused, or the file has all that llama.cpp needs.
fn a_kind_that_is_left_out_is_missed(tier: Tier) {
    let (mut n_refused, mut n_left, mut wrong) = (0, 0, Vec::new());
    for case in fixture::some(tier, 12).iter().filter(|case| !case.is_mmproj()) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let Ok(healthy) = case.plan(dir.path(), OutType::F32) else { continue };
        if let Some(missing) = missing_tensors(healthy.metadata(), healthy.tensors()) {
            wrong.push(format!("{}: {missing}", case.at));
        }
        let kinds: BTreeSet<String> = healthy.tensors().iter().map(|tensor| kind(&tensor.name)).collect();
        for gone in &kinds {
            let tensors = healthy.tensors().iter().filter(|tensor| kind(&tensor.name) != *gone);
            let tensors: Vec<TensorMeta> = tensors.cloned().collect();
            match missing_tensors(healthy.metadata(), &tensors) {
                Some(missing) => {
                    n_refused += 1;
                    // Only the removed tensors are reported as missing.
                    wrong.extend(
                        missing
                            .names
                            .iter()
                            .filter(|name| kind(name) != *gone)
                            .map(|name| format!("{}: without `{gone}` it misses `{name}`", case.at)),
                    );
                }
                None => n_left += 1,
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_refused > tier.of(150, 4000), "{n_refused} refused, {n_left} not");
    println!("{n_refused} kinds are missed, {n_left} are not needed or not known");
}

#[test]
fn what_a_loader_takes_as_optional_is_missed_where_the_model_has_it() {
    for (at, gone) in [
        ("gemma4/gemma4_e2b.json", "model.language_model.layers.2.self_attn.v_proj.weight"),
        ("gemma4/gemma4_moe.json", "model.layers.0.self_attn.v_proj.weight"),
        ("granitehybrid/granitemoehybrid.json", "model.layers.0.mamba.conv1d.bias"),
        ("glm-dsa/glm_moe_dsa.json", "model.layers.2.self_attn.indexer.weights_proj.weight"),
        ("glm-dsa/glm_moe_dsa.json", "model.layers.1.self_attn.indexer.k_norm.bias"),
        ("bert/bert.json", "embeddings.token_type_embeddings.weight"),
        ("bert/bert_sequence_classification.json", "classifier.weight"),
        ("bert/bert_sequence_classification.json", "classifier.bias"),
        ("bailingmoe3/bailing_moe_v3_vl.json", "model.layers.1.attention.g_proj.weight"),
        ("dflash/dspark.json", "markov_head.markov_w2.weight"),
        ("dflash/dflash.json", "layers.1.self_attn.v_proj.weight"),
    ] {
        let case = fixture::case(at).edited(|content| {
            let tensors = content["tensors"].as_array_mut().unwrap();
            let n = tensors.len();
            tensors.retain(|row| row[0].as_str().is_none_or(|name| !name.ends_with(gone)));
            assert_eq!(tensors.len(), n - 1, "{at}: {gone}");
        });
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let error = case.plan(dir.path(), OutType::F32).unwrap_err().to_string();
        assert!(error.contains("lacks") && error.contains(gone), "{at}, {gone}: {error}");
    }
}

#[test]
fn layers_with_an_indexer_follow_from_the_rule_of_the_class() {
    for (rule, types) in [
        (json!({"index_topk_freq": 2, "index_skip_topk_offset": 1}), json!([true, false])),
        (json!({"index_topk_pattern": "FS"}), json!([true, false])),
        (json!({"max_position_embeddings": 1_048_576}), json!([true, true])),
        (json!({}), Json::Null),
    ] {
        let case = fixture::case("glm-dsa/older.json").edited(|content| {
            let config = content["config"].as_object_mut().unwrap();
            config.remove("indexer_types");
            config.extend(rule.as_object().unwrap().clone());
        });
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let plan = case.plan(dir.path(), OutType::F32).unwrap();
        let keys = super::keys(plan.metadata());
        let row = keys.iter().find(|row| row[0] == "glm-dsa.attention.indexer.types");
        assert_eq!(row.map_or(Json::Null, |row| row[2].clone()), types, "{rule}");
    }
}

/// Names that loaders of some architectures take: each is foreign to nearly all others.
const FOREIGN: [&str; 30] = [
    "blk.0.attn_q_norm.bias",
    "blk.0.attn_k_norm.bias",
    "blk.0.attn_norm.bias",
    "blk.0.attn_norm_2.weight",
    "blk.0.attn_sinks.weight",
    "blk.0.attn_sub_norm.weight",
    "blk.0.attn_q_a.weight",
    "blk.0.attn_kv_b.weight",
    "blk.0.attn_gate.weight",
    "blk.0.attn_rel_b.weight",
    "blk.0.cross_attn_q.weight",
    "blk.0.ffn_norm.bias",
    "blk.0.ffn_sub_norm.weight",
    "blk.0.ffn_act.scales",
    "blk.0.ffn_gate_inp_shexp.weight",
    "blk.0.ffn_down_chexps.weight",
    "blk.0.post_attention_norm.weight",
    "blk.0.post_ffw_norm.weight",
    "blk.0.layer_output_norm.bias",
    "blk.0.ssm_in.weight",
    "blk.0.ssm_dt.bias",
    "blk.0.shortconv.conv.weight",
    "blk.0.time_mix_key.weight",
    "blk.0.nextn.eh_proj.weight",
    "blk.0.attn_q.lora_a",
    "output.bias",
    "token_types.weight",
    "position_embd.weight",
    "cls.output.weight",
    "dense_3.weight",
];

/// Cases that llama.cpp does not know, or does not load for their biases.
const NOT_LOADED: [&str; 2] = ["chatglm1/", "modern-bert/classifier.json"];

two_tiers!(a_tensor_that_the_loader_does_not_take_is_found);
/// What a conversion writes is taken; a tensor of another architecture is named.
fn a_tensor_that_the_loader_does_not_take_is_found(tier: Tier) {
    let mut wrong = Vec::new();
    let is_loaded = |at: &str| !NOT_LOADED.iter().any(|start| at.starts_with(start));
    for case in fixture::some(tier, 12).iter().filter(|case| !case.is_mmproj() && is_loaded(&case.at)) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let Ok(healthy) = case.plan(dir.path(), OutType::F32) else { continue };
        let (metadata, tensors) = (healthy.metadata(), healthy.tensors());
        if let Some(foreign) = foreign_tensors(metadata, tensors) {
            wrong.push(format!("{}: {foreign}", case.at));
        }
        let (shape, ty) = (Shape::new(vec![4]).unwrap(), GgmlType::F32);
        let with = |name: &str| {
            let one = TensorMeta { name: name.to_owned(), shape: shape.clone(), ty };
            foreign_tensors(metadata, &[tensors, &[one]].concat())
        };
        let found = FOREIGN.iter().filter(|name| with(name).is_some_and(|found| found.names == [**name]));
        let n_found = found.count();
        let beyond = ["blk.900.attn_norm.weight", "blk.0.of_somebody.weight"];
        if n_found < 17 || beyond.iter().any(|name| with(name).is_none()) {
            wrong.push(format!("{}: {n_found} of {} foreign names are found", case.at, FOREIGN.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_message_names_the_weights_of_the_checkpoint() {
    for (at, gone, named) in [
        ("qwen3/plain.json", "self_attn.q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
        ("qwen3/plain.json", "mlp.gate_proj.weight", "model.layers.0.mlp.gate_proj.weight"),
        ("llama/plain.json", "input_layernorm.weight", "model.layers.0.input_layernorm.weight"),
        ("llama/plain.json", "model.norm.weight", "model.norm.weight"),
        ("gpt2/gpt2.json", "attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias"),
        ("lfm2/lfm2.json", "self_attn.k_layernorm.weight", "self_attn.k_layernorm.weight"),
        ("mamba2/mamba2.json", "mixer.norm.weight", "backbone.layers.0.mixer.norm.weight"),
    ] {
        let case = fixture::case(at);
        let error = without(&case, &[gone]);
        assert!(error.contains("the checkpoint ") && error.contains(named), "{at}: {error}");
    }
}

/// The error of a checkpoint without the tensors with these endings.
fn without(case: &fixture::CardFixture, gone: &[&str]) -> String {
    let changed = case.changed(|content| {
        let is_gone = |row: &Json| gone.iter().any(|end| row[0].as_str().unwrap().ends_with(end));
        content["tensors"].as_array_mut().unwrap().retain(|row| !is_gone(row));
    });
    let dir = tempfile::tempdir().unwrap();
    changed.unwrap().write(dir.path());
    case.plan(dir.path(), OutType::F32).unwrap_err().to_string()
}

#[test]
fn a_tensor_without_those_that_go_with_it_is_named_with_them() {
    for (at, gone, has, lacks) in [
        (
            "qwen2/plain.json",
            &["k_proj.bias", "v_proj.bias"][..],
            "q_proj.bias",
            &["k_proj.bias", "v_proj.bias"][..],
        ),
        ("llama/biases.json", &["q_proj.bias"], "k_proj.bias", &["q_proj.bias"]),
        ("gpt-oss/plain.json", &["v_proj.bias"], "k_proj.bias", &["v_proj.bias"]),
        ("phi2/phi.json", &["k_proj.bias"], "q_proj.bias", &["k_proj.bias"]),
        ("stablelm/stablelm.json", &["q_proj.bias"], "k_proj.bias", &["q_proj.bias"]),
        ("olmo2/olmo2.json", &["q_norm.weight"], "k_norm.weight", &["q_norm.weight"]),
        (
            "starcoder2/plain.json",
            &["post_attention_layernorm.bias"],
            "input_layernorm.bias",
            &["post_attention_layernorm.bias"],
        ),
    ] {
        let error = without(&fixture::case(at), gone);
        let (one, other) = error.split_once(" without ").unwrap_or_else(|| panic!("{at}: {error}"));
        assert!(
            one.starts_with("the checkpoint has `") && one.ends_with(&format!("{has}`")),
            "{at}: {error}"
        );
        assert!(lacks.iter().all(|name| other.contains(&format!("{name}`"))), "{at}: {error}");
    }
    // Norms that the configuration switches on.
    for (at, key, named) in [
        ("command-r/cohere.json", "use_qk_norm", "self_attn.q_norm.weight"),
        ("stablelm/stablelm.json", "qk_layernorm", "blk.0.attn_q_norm.weight"),
    ] {
        let case = fixture::case(at).edited(|content| content["config"][key] = true.into());
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let error = case.plan(dir.path(), OutType::F32).unwrap_err().to_string();
        assert!(error.starts_with("the checkpoint lacks `") && error.contains(named), "{at}: {error}");
    }
    // A router that corrects its choice.
    for (at, gone) in [
        ("deepseek2/deepseek_v3.json", "mlp.gate.e_score_correction_bias"),
        ("deepseek2/kimi_k2.json", "mlp.gate.e_score_correction_bias"),
        ("deepseek32/deepseek_v32.json", "mlp.gate.e_score_correction_bias"),
        ("bailingmoe2/bailing_moe_v2.json", "mlp.gate.expert_bias"),
        ("glm4moe/glm4_moe.json", "mlp.gate.e_score_correction_bias"),
        ("hy_v3/hy_v3.json", "mlp.expert_bias"),
        ("hy_v4/hy_v4.json", "e_score_correction_bias"),
        ("mimo2/mimo_v2_flash.json", "mlp.gate.e_score_correction_bias"),
        ("step35/step3p5.json", "moe.router_bias"),
    ] {
        let error = without(&fixture::case(at), &[gone]);
        assert!(
            error.starts_with("the checkpoint lacks `") && error.contains(&format!("{gone}`")),
            "{at}: {error}"
        );
    }
}

/// A layer that the configuration does not count, and that is no draft head, is never left out in silence.
#[test]
fn a_layer_beyond_the_last_is_named() {
    for at in
        ["deepseek2/deepseek_v2.json", "glm5-next/glm5_next.json", "qwen3moe/plain.json", "llama/plain.json"]
    {
        let case = fixture::case(at).edited(|content| {
            let config = &mut content["config"];
            let part = if config["num_hidden_layers"].is_u64() { config } else { &mut config["text_config"] };
            let last = part["num_hidden_layers"].as_u64().unwrap() - 1;
            part["num_hidden_layers"] = last.into();
            for list in part.as_object_mut().unwrap().values_mut().filter_map(|value| value.as_array_mut()) {
                if list.len() as u64 == last + 1 {
                    list.pop();
                }
            }
        });
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let error = case.plan(dir.path(), OutType::F32).unwrap_err().to_string();
        assert!(error.contains(": block ") && error.contains(" of a model with "), "{at}: {error}");
    }
}

/// ZeRO stage 3 leaves tensors without elements, named as in the checkpoint.
#[test]
fn weights_that_other_ranks_have_are_named() {
    let case = fixture::case("llama/plain.json").edited(|content| {
        for row in content["tensors"].as_array_mut().unwrap() {
            if row[0].as_str().unwrap().contains("mlp.up_proj") {
                row[2] = serde_json::json!([0]);
            }
        }
    });
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let error = case.plan(dir.path(), OutType::F32).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ZeRO stage 3") && text.contains("`model.layers.0.mlp.up_proj.weight`"), "{text}");
    assert!(gguf_core::Hint::hints(&error)[0].contains("zero_to_fp32.py"), "{error:?}");
}

/// axolotl-ai-cloud/axolotl#1947.
#[test]
fn flattened_weights_are_named() {
    let case = fixture::case("llama/plain.json").edited(|content| {
        for row in content["tensors"].as_array_mut().unwrap() {
            if row[0] == "model.embed_tokens.weight" {
                let n: u64 =
                    row[2].as_array().unwrap().iter().filter_map(serde_json::Value::as_u64).product();
                row[2] = serde_json::json!([n]);
            }
        }
    });
    let dir = tempfile::tempdir().unwrap();
    case.write(dir.path());
    let error = case.plan(dir.path(), OutType::F32).unwrap_err();
    assert!(
        error.to_string().contains("flattened to one dimension (`model.embed_tokens.weight`)"),
        "{error}"
    );
    assert!(gguf_core::Hint::hints(&error)[0].contains("FULL_STATE_DICT"), "{error:?}");
}
