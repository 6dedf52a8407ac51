//! Plans of a tiny model whose tensors have shapes and no data.

mod attention;
mod recurrent;

use crate::arch::graph::GraphFeatures;
use crate::core::{GgmlType, Shape, TensorMeta};
use crate::engine::EngineError;
use crate::engine::plan::{
    Activation, Ffn, GatedActivation, GraphPlan, Mask, Mixer, ModelKind, PlainActivation,
};
use crate::gguf::Metadata;

const WIDTH: u64 = 8;
const INNER: u64 = 12;

fn meta(name: &str, dims: &[u64]) -> TensorMeta {
    TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty: GgmlType::F32 }
}

/// A model of two layers with a gate in the feed-forward.
fn model() -> (Metadata, Vec<TensorMeta>) {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "x");
    for (key, value) in [
        ("block_count", 2u32),
        ("context_length", 64),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", INNER as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        metadata.set(format!("x.{key}"), value);
    }
    metadata.set("x.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut tensors = vec![meta("token_embd.weight", &[16, WIDTH]), meta("output_norm.weight", &[WIDTH])];
    for layer in 0..2 {
        for (name, dims) in [
            ("attn_norm", &[WIDTH][..]),
            ("ffn_norm", &[WIDTH]),
            ("attn_q", &[WIDTH, WIDTH]),
            ("attn_k", &[WIDTH / 2, WIDTH]),
            ("attn_v", &[WIDTH / 2, WIDTH]),
            ("attn_output", &[WIDTH, WIDTH]),
            ("ffn_gate", &[INNER, WIDTH]),
            ("ffn_up", &[INNER, WIDTH]),
            ("ffn_down", &[WIDTH, INNER]),
        ] {
            tensors.push(meta(&format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    (metadata, tensors)
}

fn plan(graph: &str, metadata: &Metadata, tensors: &[TensorMeta]) -> Result<GraphPlan, EngineError> {
    GraphPlan::new(&GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap(), metadata, tensors)
}

fn rotating(plan: &GraphPlan) -> Vec<bool> {
    let rotates = |mixer: &Mixer| matches!(mixer, Mixer::Attention(a) if a.rope.is_some());
    plan.layers.iter().map(|layer| rotates(&layer.mixer)).collect()
}

#[test]
fn a_gate_goes_with_gated_activations_only() {
    let (metadata, mut tensors) = model();
    let gated = plan("ffn = 'reglu'", &metadata, &tensors).unwrap();
    let Ffn::Dense(dense) = &gated.layers[0].ffn else { panic!("not dense") };
    assert!(matches!(&dense.act, Activation::Gated { act: GatedActivation::Reglu, .. }));
    // The gate belongs to no part of the graph then.
    let error = plan("ffn = 'relu2'", &metadata, &tensors).unwrap_err();
    assert!(matches!(&error, EngineError::LeftOver { tensors } if tensors.len() == 2), "{error}");
    tensors.retain(|meta| !meta.name.contains("ffn_gate"));
    let plain = plan("ffn = 'relu2'", &metadata, &tensors).unwrap();
    let Ffn::Dense(dense) = &plain.layers[0].ffn else { panic!("not dense") };
    assert_eq!(dense.act, Activation::Plain(PlainActivation::Relu2));
}

#[test]
fn activations_that_nobody_computes_are_refused() {
    let (metadata, tensors) = model();
    for name in ["situ", "xielu"] {
        let error = plan(&format!("ffn = '{name}'"), &metadata, &tensors).unwrap_err();
        assert_eq!(error.to_string(), format!("card `x`: `ffn = {name}` is not built yet"));
    }
}

#[test]
fn a_gate_that_need_not_be_there_decides_what_the_feed_forward_is() {
    let (metadata, mut tensors) = model();
    let act = |tensors: &[TensorMeta]| {
        let plan = plan("ffn = 'relu'\nffn_gated_if_present = true", &metadata, tensors).unwrap();
        let Ffn::Dense(dense) = &plan.layers[1].ffn else { panic!("not dense") };
        dense.act.clone()
    };
    assert!(matches!(act(&tensors), Activation::Gated { act: GatedActivation::GegluTanh, .. }));
    tensors.retain(|meta| !meta.name.contains("ffn_gate"));
    assert_eq!(act(&tensors), Activation::Plain(PlainActivation::Relu));
}

#[test]
fn positions_by_buckets_need_their_number_and_a_table_of_that_size() {
    let (mut metadata, mut tensors) = model();
    let relative = |metadata: &Metadata, tensors: &[TensorMeta]| {
        plan("positions = 'relative'", metadata, tensors).map_err(|error| error.to_string())
    };
    let key = "x.attention.relative_buckets_count";
    assert_eq!(relative(&metadata, &tensors).unwrap_err(), format!("key `{key}` is missing"));
    metadata.set(key, 7u32);
    let expected = format!("key `{key}`: expected an even number of 4 or more, found 7");
    assert_eq!(relative(&metadata, &tensors).unwrap_err(), expected);
    metadata.set(key, 8u32);
    let table = "blk.0.attn_rel_b.weight";
    assert_eq!(relative(&metadata, &tensors).unwrap_err(), format!("tensor `{table}` is missing"));
    tensors.push(meta(table, &[6, 2]));
    let expected = format!("tensor `{table}`: expected shape [16], found [6, 2]");
    assert_eq!(relative(&metadata, &tensors).unwrap_err(), expected);
    tensors.pop();
    tensors.push(meta(table, &[8, 2]));
    let plan = relative(&metadata, &tensors).unwrap();
    let tables = plan.layers.iter().map(|layer| match &layer.mixer {
        Mixer::Attention(a) => a.relative.as_ref().map(|relative| relative.table.tensor),
        _ => None,
    });
    assert!(tables.eq([Some(tensors.len() - 1); 2]), "the first layer's table is that of all");
}

#[test]
fn norms_behind_the_sums_are_needed_by_their_names() {
    let (metadata, mut tensors) = model();
    let graph = "residual = 'post_ln'\npost_attn = 'attn_output_norm'\npost_ffn = 'layer_output_norm'";
    tensors
        .retain(|meta| !meta.name.ends_with("attn_norm.weight") && !meta.name.ends_with("ffn_norm.weight"));
    let error = plan(graph, &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "tensor `blk.0.attn_output_norm.weight` is missing");
    for layer in 0..2 {
        for name in ["attn_output_norm", "layer_output_norm"] {
            tensors.push(meta(&format!("blk.{layer}.{name}.weight"), &[WIDTH]));
        }
    }
    let plan = plan(graph, &metadata, &tensors).unwrap();
    assert!(plan.layers.iter().all(|layer| layer.pre_mixer.is_none() && layer.post_mixer.is_some()));
}

#[test]
fn values_that_a_key_scales_are_refused() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.value_scale", 1.0f32);
    assert!(plan("", &metadata, &tensors).is_ok());
    metadata.set("x.attention.value_scale", 0.5f32);
    let error = plan("", &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "card `x`: `attention.value_scale = 0.5` is not built yet");
}

#[test]
fn leading_dense_layers_rotate_where_the_card_says_so() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.sliding_window", 4u32);
    metadata.set("x.leading_dense_block_count", 1u32);
    // With a period of 1 no layer has a window.
    let windows = "window = 'sliding'\nwindow_pattern = 1";
    for (rule, expected) in [("windowed", [false, false]), ("windowed_or_dense_lead", [true, false])] {
        let plan = plan(&format!("{windows}\nrope_on = '{rule}'"), &metadata, &tensors).unwrap();
        assert_eq!(rotating(&plan), expected, "{rule}");
    }
}

#[test]
fn a_file_whose_tokens_see_later_ones_is_not_run_as_if_they_did_not() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.causal", true);
    plan("", &metadata, &tensors).unwrap();
    metadata.set("x.attention.causal", false);
    let seeing = plan("", &metadata, &tensors).unwrap();
    let masks = seeing.layers.iter().map(|layer| match &layer.mixer {
        Mixer::Attention(a) => a.mask,
        _ => panic!("no attention"),
    });
    assert!(masks.eq([Mask::Full; 2]));
    assert_eq!(seeing.kind, ModelKind::Encoder);
    metadata.set("x.attention.sliding_window", 4u32);
    let error = plan("window = 'sliding'", &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "key `x.attention.causal`: expected true with this window, found false");
}
