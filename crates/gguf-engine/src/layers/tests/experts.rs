//! Tests of plans of experts: adjugate experts, and weights before and after.

use super::{INNER, WIDTH, meta, model, plan};
use crate::ops::ffn::Ffn;
use crate::ops::moe::Moe;
use gguf_arch::graph::{RouterSelect, Weigh};
use gguf_core::TensorMeta;
use gguf_format::Metadata;

/// Width of the adjugate experts.
const SMALL: u64 = 4;

/// Returns a model whose feed-forward has four experts in two groups, each of which shares an adjugate expert.
fn routed() -> (Metadata, Vec<TensorMeta>) {
    let (mut metadata, mut tensors) = model();
    for (key, value) in [("expert_count", 4u32), ("expert_used_count", 2)] {
        metadata.set(format!("x.{key}"), value);
    }
    tensors.retain(|tensor| !tensor.name.contains("ffn_") || tensor.name.contains("ffn_norm"));
    for layer in 0..2 {
        for (name, dims) in [
            ("ffn_gate_inp", &[4, WIDTH][..]),
            ("ffn_gate_exps", &[4, INNER, WIDTH]),
            ("ffn_up_exps", &[4, INNER, WIDTH]),
            ("ffn_down_exps", &[4, WIDTH, INNER]),
            ("ffn_gate_chexps", &[2, SMALL, WIDTH]),
            ("ffn_up_chexps", &[2, SMALL, WIDTH]),
            ("ffn_down_chexps", &[2, WIDTH, SMALL]),
        ] {
            tensors.push(meta(&format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    (metadata, tensors)
}

fn moe(ffn: &Ffn) -> &Moe {
    let Ffn::Moe(moe) = ffn else { panic!("no experts") };
    moe
}

#[test]
fn experts_that_others_share_need_the_size_of_groups_and_a_scale() {
    let (mut metadata, tensors) = routed();
    let refused = |metadata: &Metadata| plan("", metadata, &tensors).unwrap_err().to_string();
    assert_eq!(refused(&metadata), "key `x.experts_per_group` is missing");
    metadata.set("x.experts_per_group", 3u32);
    let expected = "key `x.experts_per_group`: expected a divisor of expert_count, found 3";
    assert_eq!(refused(&metadata), expected);
    metadata.set("x.experts_per_group", 4u32);
    assert_eq!(refused(&metadata), "key `x.expert_group_scale` is missing");
    metadata.set("x.expert_group_scale", 0.05f32);
    let expected = "tensor `blk.0.ffn_down_chexps.weight`: expected shape [1, 8, 4], found [2, 8, 4]";
    assert_eq!(refused(&metadata), expected);
    metadata.set("x.experts_per_group", 2u32);
    let plan = plan("", &metadata, &tensors).unwrap();
    let adjugates = moe(&plan.layers[1].ffn).adjugates.as_ref().unwrap();
    assert_eq!((adjugates.experts.len(), adjugates.per_group, adjugates.scale), (2, 2, 0.05));
    // Weights cannot be summed if they multiply the inputs of experts.
    let error = plan_error("moe.weigh = 'before'", &metadata, &tensors);
    assert!(error.starts_with("6 tensors are not used by the graph"), "{error}");
}

fn plan_error(graph: &str, metadata: &Metadata, tensors: &[TensorMeta]) -> String {
    plan(graph, metadata, tensors).unwrap_err().to_string()
}

#[test]
fn a_card_says_where_weights_go_and_what_selects() {
    let (metadata, mut tensors) = routed();
    tensors.retain(|tensor| !tensor.name.contains("chexps"));
    let plan = plan("moe = { weigh = 'before', select = 'logits' }", &metadata, &tensors).unwrap();
    let moe = moe(&plan.layers[0].ffn);
    assert_eq!((moe.weigh, moe.select), (Weigh::Before, RouterSelect::Logits));
}
