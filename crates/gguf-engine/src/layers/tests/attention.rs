//! Tests of plans of attention: temperatures, norms of queries and keys, windows, and positions of norms.

use super::{WIDTH, meta, model, plan};
use crate::exec::mask::Mask;
use crate::ops::Mixer;
use crate::ops::attention::{HeadSpan, Temperature};

fn attention(mixer: &Mixer) -> &crate::Attention {
    let Mixer::Attention(attention) = mixer else { panic!("not attention") };
    attention
}

#[test]
fn what_is_not_rotated_has_a_temperature_whose_numbers_the_file_may_change() {
    let (mut metadata, tensors) = model();
    let graph = "window = { kind = 'chunked', size = 32, pattern = 2 }\nrope.on = 'windowed'\n\
                 attention.temperature = { growth = 0.1, length = 8192 }";
    let temperatures = |plan: &crate::GraphPlan| -> Vec<Option<Temperature>> {
        plan.layers.iter().map(|layer| attention(&layer.mixer).temperature).collect()
    };
    let found = temperatures(&plan(graph, &metadata, &tensors).unwrap());
    assert_eq!(found, [None, Some(Temperature { growth: 0.1, length: 8192, first: 1 })]);
    metadata.set("gguf_foundry.attention.temperature_length", 16u32);
    let found = temperatures(&plan(graph, &metadata, &tensors).unwrap());
    assert_eq!(found[1].map(|temperature| temperature.length), Some(16));
    metadata.set("gguf_foundry.attention.temperature_scale", 0.0f32);
    assert_eq!(temperatures(&plan(graph, &metadata, &tensors).unwrap()), [None, None]);
    // A window of size 0 means no window: every layer is rotated.
    metadata.set("x.attention.sliding_window", 0u32);
    let plan = plan(graph, &metadata, &tensors).unwrap();
    assert!(plan.layers.iter().all(|layer| attention(&layer.mixer).mask == Mask::Causal));
    assert!(plan.layers.iter().all(|layer| attention(&layer.mixer).rope.is_some()));
}

#[test]
fn a_model_of_so_many_experts_norms_no_queries() {
    let (mut metadata, tensors) = model();
    let graph = "attention = { qk_norm = 'free_after_rope', qk_norm_not_at_experts = [128] }";
    for (n_experts, expected) in [(16u32, true), (128, false)] {
        metadata.set("x.expert_count", n_experts);
        let plan = plan(graph, &metadata, &tensors).unwrap();
        assert_eq!(attention(&plan.layers[0].mixer).q_norm.is_some(), expected, "{n_experts}");
    }
}

#[test]
fn norms_stand_behind_the_branches_if_the_key_says_so() {
    let (mut metadata, mut tensors) = model();
    for name in ["attn_q_norm", "attn_k_norm"] {
        let n_heads = if name == "attn_q_norm" { 2 } else { 1 };
        tensors.push(meta(&format!("blk.0.{name}.weight"), &[n_heads, WIDTH / 2]));
    }
    let graph = "residual = 'post_if_swin_norm'\nnorms = { post_attn = 'attn_norm', post_ffn = 'ffn_norm' }\n\
                 attention.qk_norm_eps = 0.5";
    for (flag, is_post) in [(None, false), (Some(false), false), (Some(true), true)] {
        if let Some(flag) = flag {
            metadata.set("x.swin_norm", flag);
        }
        let plan = plan(graph, &metadata, &tensors).unwrap();
        let layer = &plan.layers[0];
        assert_eq!((layer.pre_mixer.is_some(), layer.pre_ffn.is_some()), (!is_post, !is_post), "{flag:?}");
        assert_eq!((layer.post_mixer.is_some(), layer.post_ffn.is_some()), (is_post, is_post), "{flag:?}");
        let norm = attention(&layer.mixer).q_norm.clone().unwrap();
        assert_eq!((norm.span, norm.norm.eps), (HeadSpan::HeadRows, 0.5));
    }
    metadata.set("x.swin_norm", 1u32);
    let error = plan(graph, &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "key `x.swin_norm`: expected a bool, found U32(1)");
}

#[test]
fn tokens_that_are_never_said_lie_in_the_vocabulary() {
    let (metadata, tensors) = model();
    for (words, expected) in [("", 0..0), ("head.unsaid = [4, 9]", 4..9), ("head.unsaid = [4, 99]", 4..16)] {
        assert_eq!(plan(words, &metadata, &tensors).unwrap().never_generated, expected);
    }
}

#[test]
fn scaled_queries_need_a_factor_per_head() {
    let (metadata, mut tensors) = model();
    let graph = "attention.qk_norm = 'scaled_after_rope'";
    let error = plan(graph, &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "tensor `blk.0.attn_q_norm.weight` is missing");
    tensors.push(meta("blk.0.attn_q_norm.weight", &[2, 1]));
    tensors.push(meta("blk.1.attn_q_norm.weight", &[2, 2]));
    let error = plan(graph, &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "tensor `blk.1.attn_q_norm.weight`: expected shape [2], found [2, 2]");
    tensors.pop();
    tensors.push(meta("blk.1.attn_q_norm.weight", &[2, 1]));
    let plan = plan(graph, &metadata, &tensors).unwrap();
    let attention = attention(&plan.layers[0].mixer);
    assert_eq!(attention.q_norm.as_ref().map(|norm| norm.span), Some(HeadSpan::HeadFactor));
    assert_eq!(attention.k_norm.as_ref().map(|norm| norm.span), Some(HeadSpan::Head));
    assert!(attention.norm_after_rope);
}
