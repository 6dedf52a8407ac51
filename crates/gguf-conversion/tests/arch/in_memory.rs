//! Checkpoints under the names that transformers has in memory, as trainers write them that save the model's own state: the
//! file is the one of the released names.

use std::path::Path;

use gguf_arch::OutType;
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::TensorSource;
use gguf_testkit::checkpoints::write_case;
use gguf_testkit::{files, fixture};
use serde_json::{Value as Json, json};

use crate::digits;
use crate::experts::{Stored, Weights, fused, read, taken, write_as};
use crate::fixture::case;

/// Case, parts of released names with those in memory, and tensors that are parts of another one on one side: the whole, then
/// its parts in order.
type Row = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [(Side, &'static str, &'static [&'static str])],
);

#[derive(Clone, Copy)]
enum Side {
    /// The parts are one tensor in memory.
    Joined,
    /// The whole is several tensors in memory.
    Split,
}

const FORGET: [(&str, &str); 4] = [
    (".self_attn.f_a_proj.", ".self_attn.forget_gate.f_a_proj."),
    (".self_attn.f_b_proj.", ".self_attn.forget_gate.f_b_proj."),
    (".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"),
    (".self_attn.A_log", ".self_attn.forget_gate.A_log"),
];
const CONV: (Side, &str, &[&str]) = (
    Side::Joined,
    ".self_attn.conv1d.weight",
    &[".self_attn.q_conv1d.weight", ".self_attn.k_conv1d.weight", ".self_attn.v_conv1d.weight"],
);

const ROWS: &[Row] = &[
    ("gptneox/gpt_neox.json", &[("embed_out.", "lm_head.")], &[]),
    ("laguna/laguna.json", &[(".mlp.shared_expert.", ".mlp.shared_experts.")], &[]),
    (
        "ernie4_5-moe/ernie4_5_moe.json",
        &[(".mlp.moe_statics.e_score_correction_bias", ".mlp.gate.moe_statics.e_score_correction_bias")],
        &[],
    ),
    (
        "hy_v3/hy_v3.json",
        &[
            (".mlp.shared_mlp.", ".mlp.shared_experts."),
            (".mlp.router.gate.", ".mlp.gate."),
            (".mlp.expert_bias", ".mlp.e_score_correction_bias"),
        ],
        &[],
    ),
    (
        "hy_v4/hy_v4.json",
        &[
            (".hc_attn_layer.hc_pre.hc_", ".attn_hc."),
            (".hc_mlp_layer.hc_pre.hc_", ".ffn_hc."),
            (".hc_head.hc_head_", ".hc_head.hc_"),
            (".learnable_sink_param", ".sinks"),
            (".linear_gate", ".gate_proj"),
        ],
        &[],
    ),
    // As transformers 5.24 saves it: its way back renames more than its way there.
    (
        "hy_v4/hy_v4.json",
        &[
            (".hc_attn_layer.hc_pre.hc_", ".hc_pre.hc_attn_layer.hc_"),
            (".hc_mlp_layer.hc_pre.hc_", ".hc_pre.hc_mlp_layer.hc_"),
            (".hc_head.", ".hc_pre.hc_head."),
            (".gate_proj.", ".linear_gate."),
        ],
        &[],
    ),
    (
        "glm5-next/glm5_next.json",
        &[FORGET[0], FORGET[1], FORGET[2], FORGET[3], (".hc_attn_", ".attn_hc."), (".hc_ffn_", ".ffn_hc.")],
        &[CONV],
    ),
    (
        "kimi-linear/kimi_linear.json",
        &[FORGET[0], FORGET[1], FORGET[2], FORGET[3], (".block_sparse_moe.", ".mlp.")],
        &[CONV],
    ),
    (
        "minimax-m3/minimax_m3.json",
        &[
            (".block_sparse_moe.e_score", ".mlp.gate.e_score"),
            (".block_sparse_moe.", ".mlp."),
            (".self_attn.index_", ".self_attn.indexer."),
            ("language_model.model.", "model.language_model."),
            ("language_model.lm_head.", "lm_head."),
        ],
        &[
            (Side::Joined, ".mlp.gate_up_proj.weight", &[".mlp.gate_proj.weight", ".mlp.up_proj.weight"]),
            (
                Side::Joined,
                ".shared_experts.gate_up_proj.weight",
                &[".shared_experts.gate_proj.weight", ".shared_experts.up_proj.weight"],
            ),
        ],
    ),
    // Experts whose values change by a factor.
    ("classes/MiniMaxForCausalLM", &[(".block_sparse_moe.", ".mlp.")], &[]),
    (
        "classes/BailingHybridForCausalLM",
        &[
            ("model.word_embeddings.", "model.embed_tokens."),
            (".attention.dense.", ".attention.o_proj."),
            (".attention.f_proj.", ".attention.forget_gate.f_proj."),
            (".attention.dt_bias", ".attention.forget_gate.dt_bias"),
            (".attention.A_log", ".attention.forget_gate.A_log"),
            (".attention.", ".self_attn."),
            (".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),
        ],
        &[(
            Side::Joined,
            ".attention.conv1d.weight",
            &[".attention.q_conv1d.weight", ".attention.k_conv1d.weight", ".attention.v_conv1d.weight"],
        )],
    ),
    (
        "step35/step3p7.json",
        &[
            (".share_expert.", ".mlp.shared_experts."),
            (".moe.gate.", ".mlp.gate."),
            (".moe.router_bias", ".mlp.gate.e_score_correction_bias"),
        ],
        &[],
    ),
    (
        "hrm_text/hrm_text.json",
        &[(".attn.o_proj.", ".self_attn.o_proj.")],
        &[
            (
                Side::Split,
                ".attn.gqkv_proj.weight",
                &[
                    ".self_attn.gate_proj.weight",
                    ".self_attn.q_proj.weight",
                    ".self_attn.k_proj.weight",
                    ".self_attn.v_proj.weight",
                ],
            ),
            (Side::Split, ".mlp.gate_up_proj.weight", &[".mlp.gate_proj.weight", ".mlp.up_proj.weight"]),
        ],
    ),
];

/// Joins the parts of all layers.
fn join(weights: &mut Weights, whole: &str, parts: &[&str]) {
    let heads: Vec<String> =
        weights.keys().filter_map(|name| name.strip_suffix(parts[0]).map(str::to_owned)).collect();
    for head in heads {
        let mut parts = parts.iter().map(|part| weights.remove(&format!("{head}{part}")).unwrap());
        let mut all = parts.next().unwrap();
        for part in parts {
            all.dims[0] += part.dims[0];
            all.bytes.extend(part.bytes);
        }
        weights.insert(format!("{head}{whole}"), all);
    }
}

/// Cuts the whole of all layers into equal parts.
fn split(weights: &mut Weights, whole: &str, parts: &[&str]) {
    let heads: Vec<String> =
        weights.keys().filter_map(|name| name.strip_suffix(whole).map(str::to_owned)).collect();
    for head in heads {
        let all = weights.remove(&format!("{head}{whole}")).unwrap();
        let mut dims = all.dims.clone();
        dims[0] /= parts.len() as u64;
        for (part, bytes) in parts.iter().zip(all.bytes.chunks(all.bytes.len() / parts.len())) {
            let part = format!("{head}{part}");
            weights.insert(part, Stored { ty: all.ty.clone(), dims: dims.clone(), bytes: bytes.to_vec() });
        }
    }
}

/// Writes a case of `fixtures/cards`, or of `fixtures/classes`.
fn write(at: &str, dir: &Path) {
    if at.starts_with("classes/") {
        write_case(&files::json(fixture(at).with_extension("json")), dir);
    } else {
        case(at).write(dir);
    }
}

/// Names, shapes and checksums of the file's tensors, sorted.
fn converted(dir: &Path) -> Result<Vec<Json>, ConvertError> {
    let options =
        ConvertOptions { file_type: Some(OutType::F32), tokenizer: false, ..ConvertOptions::default() };
    let conversion = Conversion::plan(dir, &options)?;
    let tensors = conversion.tensors().iter().enumerate();
    let mut rows: Vec<Json> =
        tensors.map(|(at, meta)| json!([meta.name, meta.shape.dims(), digits(&conversion, at)])).collect();
    rows.sort_by_key(Json::to_string);
    Ok(rows)
}

#[test]
fn names_in_memory_give_the_file_of_the_released_ones() {
    for (at, renamed, parts) in ROWS {
        let dir = tempfile::tempdir().unwrap();
        write(at, dir.path());
        let mut weights = read(dir.path());
        let expected = converted(dir.path()).unwrap();
        for (module, layer) in taken(&mut weights) {
            fused(&mut weights, &module, layer);
        }
        for (side, whole, parts) in *parts {
            match side {
                Side::Joined => join(&mut weights, whole, parts),
                Side::Split => split(&mut weights, whole, parts),
            }
        }
        for (released, memory) in *renamed {
            assert!(weights.keys().any(|name| name.contains(released)), "{at}: {released}");
            weights =
                weights.into_iter().map(|(name, own)| (name.replacen(released, memory, 1), own)).collect();
        }
        write_as(dir.path(), &weights, "pt");
        let found = converted(dir.path()).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(found, expected, "{at}");
    }
}

/// The same names behind the model's prefix, and some that its way back does not restore.
#[test]
fn deepseek_v4_as_transformers_saves_it_gives_the_file_of_the_released_names() {
    let dir = tempfile::tempdir().unwrap();
    write("deepseek4/fp8.json", dir.path());
    let expected = converted(dir.path()).unwrap();
    let saved = |name: String| {
        let name = name.replacen("embed.", "embed_tokens.", 1).replacen("hc_head_", "hc_head.hc_", 1);
        let name = name.replacen(".attn.kv_norm.", ".attn.norm.", 1);
        if name.starts_with("head.") { name } else { format!("model.{name}") }
    };
    let weights: Weights = read(dir.path()).into_iter().map(|(name, own)| (saved(name), own)).collect();
    assert!(
        weights.contains_key("model.hc_head.hc_fn")
            && weights.contains_key("model.layers.0.attn.norm.weight")
    );
    write_as(dir.path(), &weights, "pt");
    assert_eq!(converted(dir.path()).unwrap(), expected);
}
