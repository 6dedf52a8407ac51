//! Tests of plans of layers with a window and compressed rows.

use super::{WIDTH, meta, model, plan};
use crate::EngineError;
use crate::exec::mask::Mask;
use crate::layers::graph::GraphPlan;
use crate::ops::Mixer;
use crate::ops::compressed::CompressedAttention;
use gguf_core::TensorMeta;
use gguf_format::Metadata;

const GRAPH: &str =
    "mixer = 'compressed'\nwindow = { kind = 'sliding', rope = 'unscaled' }\nunused = ['indexer.*']";

/// Returns the tiny model with one layer that has only a window, and one with overlapping rows of two tokens each.
fn compressed() -> (Metadata, Vec<TensorMeta>) {
    let (mut metadata, mut tensors) = model();
    for (key, value) in [
        ("attention.key_length", 4u32),
        ("attention.value_length", 4),
        ("attention.q_lora_rank", 3),
        ("attention.sliding_window", 16),
        ("attention.output_group_count", 2),
        ("attention.output_lora_rank", 3),
        ("attention.indexer.top_k", 8),
        ("rope.dimension_count", 2),
    ] {
        metadata.set(format!("x.{key}"), value);
    }
    metadata.set("x.attention.compress_ratios", vec![0u32, 2]);
    metadata.set("x.attention.compress_rope_freq_base", 500.0f32);
    tensors.retain(|meta| !meta.name.contains(".attn_") || meta.name.ends_with(".attn_norm.weight"));
    for layer in 0..2 {
        for (name, dims) in [
            ("attn_q_a", &[3, WIDTH][..]),
            ("attn_q_a_norm", &[3]),
            ("attn_q_b", &[WIDTH, 3]),
            ("attn_kv", &[4, WIDTH]),
            ("attn_kv_a_norm", &[4]),
            ("attn_output_a", &[6, 4]),
            ("attn_output_b", &[WIDTH, 6]),
        ] {
            tensors.push(meta(&format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    for (name, dims) in [("kv", &[8, WIDTH][..]), ("gate", &[8, WIDTH]), ("ape", &[2, 8]), ("norm", &[4])] {
        tensors.push(meta(&format!("blk.1.attn_compressor_{name}.weight"), dims));
    }
    tensors.push(meta("blk.1.indexer.proj.weight", &[2, WIDTH]));
    (metadata, tensors)
}

fn mixer(plan: &GraphPlan, layer: usize) -> &CompressedAttention {
    let Mixer::Compressed(mixer) = &plan.layers[layer].mixer else { panic!("another mixer") };
    mixer
}

#[test]
fn layers_with_a_ratio_have_compressed_rows_and_a_rotation_of_their_own() {
    let (metadata, tensors) = compressed();
    let plan = plan(GRAPH, &metadata, &tensors).unwrap();
    let (near, far) = (mixer(&plan, 0), mixer(&plan, 1));
    assert!(near.compressor.is_none() && near.mask == Mask::Window(16) && near.narrow.len() == 2);
    assert!(far.compressor.as_ref().is_some_and(|c| c.overlaps && c.ratio == 2));
    assert_eq!([near, far].map(|mixer| plan.ropes[mixer.rope].base), [10_000.0, 500.0]);
    // All of the eight rows of two tokens each are seen.
    assert_eq!(plan.chunk_limit, Some(16));
}

#[test]
fn what_compression_needs_is_asked_for() {
    let without = |key: &str| {
        let (metadata, tensors) = compressed();
        let mut left = Metadata::new();
        for (name, value) in metadata.iter().filter(|(name, _)| *name != key) {
            left.set(name, value.clone());
        }
        plan(GRAPH, &left, &tensors).unwrap_err().to_string()
    };
    for key in ["compress_ratios", "compress_rope_freq_base", "sliding_window", "output_group_count"] {
        let key = format!("x.attention.{key}");
        assert_eq!(without(&key), format!("key `{key}` is missing"));
    }
    let (metadata, mut tensors) = compressed();
    tensors.retain(|meta| !meta.name.contains("compressor_ape"));
    tensors.push(meta("blk.1.attn_compressor_ape.weight", &[2, 4]));
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err();
    assert!(matches!(&error, EngineError::TensorShape { tensor, .. } if tensor.contains("ape")), "{error}");
}
