//! Tests of plans, of a tiny model whose tensors have shapes and no data.

use crate::exec::activation::{Activation, GatedActivation, PlainActivation};
use crate::exec::mask::Mask;
use crate::exec::weights::NormFormula;
use crate::exec::workers::Workers;
use crate::layers::graph::GraphPlan;
use crate::layers::run_memory::RunMemory;
use crate::ops::Mixer;
use crate::ops::attention::KvSource;
use crate::ops::ffn::Ffn;
use crate::resolve::features::ModelKind;
use crate::{EngineError, Result};
use gguf_arch::graph::GraphFeatures;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, Shape, TensorMeta};
use gguf_format::{Metadata, Value};

mod altup;

mod attention;

mod compressed;

mod cycles;

mod experts;

mod hyper;

mod recurrent;

mod stream_mix;

const WIDTH: u64 = 8;
const INNER: u64 = 12;

fn meta(name: &str, dims: &[u64]) -> TensorMeta {
    TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty: GgmlType::F32 }
}

/// Returns the floats per token that layers of `plan` keep for later layers.
fn carried(plan: &GraphPlan, tensors: &[TensorMeta]) -> usize {
    let workers = Workers::new(1).unwrap();
    RunMemory::count(plan, tensors, &workers, SimdLevel::detect()).unwrap().carried
}

/// Returns a model of two layers with a gate in the feed-forward.
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

fn plan(graph: &str, metadata: &Metadata, tensors: &[TensorMeta]) -> Result<GraphPlan> {
    GraphPlan::new(&GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap(), metadata, tensors)
}

fn rotating(plan: &GraphPlan) -> Vec<bool> {
    let rotates = |mixer: &Mixer| matches!(mixer, Mixer::Attention(a) if a.rope.is_some());
    plan.layers.iter().map(|layer| rotates(&layer.mixer)).collect()
}

/// The keys of a file, under another architecture.
fn of_arch(metadata: &Metadata, arch: &str) -> Metadata {
    let mut own = Metadata::new();
    for (key, value) in metadata.iter() {
        let key = key.strip_prefix("x.").map_or_else(|| key.to_owned(), |key| format!("{arch}.{key}"));
        own.set(key, value.clone());
    }
    own.set("general.architecture", arch);
    own
}

#[test]
fn a_file_is_computed_by_the_keys_that_llama_cpp_goes_by() {
    let window = "attention.sliding_window";
    let windowed = "window.kind = 'sliding'";
    let (metadata, tensors) = model();
    for (arch, graph, key, value, is_told) in [
        ("llama", windowed, window, Value::U32(3), true),
        ("llama", "", "attention.clamp_kqv", Value::F32(2.0), true),
        ("llama", "", "attention.scale", Value::F32(2.0), true),
        ("llama", "", "logit_scale", Value::F32(2.0), true),
        // Of a feature that the card does not have.
        ("llama", "", "final_logit_softcapping", Value::F32(30.0), true),
        // Without effect in any case: no window, no scaling.
        ("llama", windowed, window, Value::U32(0), false),
        ("llama", "", "rope.scaling.yarn_beta_fast", Value::F32(64.0), false),
        ("llama", "", "rope.freq_base", Value::F32(5e5), false),
        ("olmo2", windowed, window, Value::U32(3), false),
        ("of somebody's own", windowed, window, Value::U32(3), false),
        // The loader reads the window and sets its own.
        ("phi3", windowed, window, Value::U32(3), true),
        ("exaone4", windowed, window, Value::U32(3), true),
    ] {
        let without = of_arch(&metadata, arch);
        let mut with = without.clone();
        with.set(format!("{arch}.{key}"), value);
        let features = GraphFeatures::from_toml(&graph.parse().unwrap()).unwrap();
        let warnings = plan(graph, &with, &tensors).unwrap().warnings;
        assert_eq!(warnings.len(), usize::from(is_told), "{arch}.{key}: {warnings:?}");
        assert!(warnings.iter().all(|text| text.starts_with(&format!("`{arch}.{key}`: llama.cpp"))));
        let described = GraphPlan::as_described(&features, &with, &tensors).unwrap();
        let without = GraphPlan { warnings, ..plan(graph, &without, &tensors).unwrap() };
        let found = plan(graph, &with, &tensors).unwrap();
        assert_eq!(found, if is_told { without } else { described }, "{arch}.{key}");
    }
}

#[test]
fn a_window_of_the_loader_is_told() {
    let (metadata, tensors) = model();
    let mut metadata = of_arch(&metadata, "exaone4");
    let windowed = "window.kind = 'sliding'";
    assert_eq!(plan(windowed, &metadata, &tensors).unwrap().warnings, [""; 0]);
    // Two layers of 64 are left of the large model.
    metadata.set("exaone4.block_count", 64u32);
    let tensors: Vec<TensorMeta> = (0..32)
        .flat_map(|pair| {
            tensors.iter().filter(move |tensor| pair == 0 || tensor.name.starts_with("blk.")).map(
                move |tensor| {
                    let layer = |at: u32| format!("blk.{}.", 2 * pair + at);
                    let name = tensor.name.replace("blk.1.", &layer(1)).replace("blk.0.", &layer(0));
                    TensorMeta { name, ..tensor.clone() }
                },
            )
        })
        .collect();
    let warnings = plan(windowed, &metadata, &tensors).unwrap().warnings;
    assert!(
        warnings.len() == 1 && warnings[0].contains("`exaone4.attention.sliding_window`: missing"),
        "{warnings:?}"
    );
}

#[test]
fn keys_that_nobody_reads_are_named_unless_the_card_writes_them() {
    let (metadata, tensors) = model();
    let of = |arch: &str, key: &str| {
        let mut own = of_arch(&metadata, arch);
        own.set(format!("{arch}.{key}"), "y");
        plan("", &own, &tensors).unwrap().warnings
    };
    let none: [String; 0] = [];
    for (arch, key) in
        [("xverse", "tensor_data_layout"), ("x", "expert_group_used_count"), ("x", "vision.block_count")]
    {
        assert_eq!(of(arch, key), none, "{arch}.{key}");
    }
    for (arch, key) in [("x", "tensor_data_layout"), ("xverse", "strange")] {
        let text =
            format!("`{arch}.{key}`: this program does not evaluate them, the figures are computed without");
        assert_eq!(of(arch, key), [text]);
    }
}

#[test]
fn a_gate_goes_with_gated_activations_only() {
    let (metadata, mut tensors) = model();
    let gated = plan("ffn = 'reglu'", &metadata, &tensors).unwrap();
    let Ffn::Dense(dense) = &gated.layers[0].ffn else { panic!("not dense") };
    assert!(matches!(&dense.act, Activation::Gated { act: GatedActivation::Reglu, .. }));
    // No part of the graph uses the gate then.
    let error = plan("ffn = 'relu2'", &metadata, &tensors).unwrap_err();
    assert!(matches!(&error, EngineError::LeftOver { tensors } if tensors.len() == 2), "{error}");
    tensors.retain(|meta| !meta.name.contains("ffn_gate"));
    let plain = plan("ffn = 'relu2'", &metadata, &tensors).unwrap();
    let Ffn::Dense(dense) = &plain.layers[0].ffn else { panic!("not dense") };
    assert_eq!(dense.act, Activation::Plain(PlainActivation::Relu2));
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
    // With one bucket for each of 128 distances, none is left for larger ones; 128 is the maximum without a key.
    metadata.set(key, 256u32);
    let expected = "key `x.attention.relative_max_distance`: expected more than half of the buckets of a side, found 128";
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
    let graph =
        "residual = 'post_ln'\nnorms = { post_attn = 'attn_output_norm', post_ffn = 'layer_output_norm' }";
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

/// Returns the error of a plan with these keys set and tensors added.
fn refusal(graph: &str, numbers: &[(&str, u32)], added: &[(&str, &[u64])]) -> String {
    let (mut metadata, mut tensors) = model();
    for (key, value) in numbers {
        metadata.set(format!("x.{key}"), *value);
    }
    tensors.extend(added.iter().map(|(name, dims)| meta(name, dims)));
    plan(graph, &metadata, &tensors).unwrap_err().to_string()
}

#[test]
fn values_that_a_key_scales_are_scaled() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.value_scale", 0.5f32);
    let plan = plan("", &metadata, &tensors).unwrap();
    assert!(matches!(&plan.layers[0].mixer, Mixer::Attention(a) if a.out_scale == Some(0.5)));
}

#[test]
fn what_extras_need_is_named() {
    let shape = "tensor `blk.0.attn_gate.weight`: expected shape [8, 8], found [3, 8]";
    for (graph, numbers, added, expected) in [
        ("attention.gate = 'sigmoid'", &[][..], &[("blk.0.attn_gate.weight", &[3, WIDTH][..])][..], shape),
        ("ffn = 'xielu'", &[], &[], "key `xielu.beta` is missing"),
        ("ffn = 'situ'", &[], &[], "key `x.activation.situ_beta` is missing"),
        ("attention.scale = 'output_scale'", &[], &[], "key `x.attention.output_scale` is missing"),
        ("extras = ['loops']", &[], &[], "key `x.num_loops` is missing"),
        (
            "extras = ['loops']",
            &[("num_loops", u32::MAX)],
            &[],
            "key `x.num_loops`: expected fewer than 65537 layers in all, found 4294967295",
        ),
        (
            "extras = ['ple']",
            &[("embedding_length_per_layer_input", 4)],
            &[],
            "tensor `per_layer_token_embd.weight` is missing",
        ),
        (
            "attention.kv_share = true",
            &[("attention.shared_kv_layers", 2)],
            &[],
            "key `x.attention.shared_kv_layers`: expected fewer layers than the model has, found 2",
        ),
    ] {
        assert_eq!(refusal(graph, numbers, added), expected, "{graph}");
    }
}

#[test]
fn a_gate_is_for_values_or_for_heads() {
    let (metadata, mut tensors) = model();
    tensors.push(meta("blk.0.attn_gate.weight", &[2, WIDTH]));
    tensors.push(meta("blk.1.attn_gate.weight", &[WIDTH, WIDTH]));
    let plan = plan("attention.gate = 'softplus'", &metadata, &tensors).unwrap();
    let rows: Vec<_> = plan
        .layers
        .iter()
        .map(|layer| match &layer.mixer {
            Mixer::Attention(a) => a.gate.as_ref().map(|gate| gate.matrix.n_rows),
            _ => None,
        })
        .collect();
    assert_eq!(rows, [Some(2), Some(WIDTH as usize)]);
}

#[test]
fn a_stack_is_run_again_with_a_norm_between_unless_a_key_says_none() {
    let (mut metadata, tensors) = model();
    metadata.set("x.num_loops", 3u32);
    let exits = |metadata: &Metadata| {
        let plan = plan("extras = ['loops']", metadata, &tensors).unwrap();
        plan.layers.iter().map(|layer| layer.extras.exit_norm.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(exits(&metadata), [false, true, false, true, false, false]);
    metadata.set("x.skip_loop_final_norm", true);
    assert_eq!(exits(&metadata), [false; 6]);
}

#[test]
fn the_last_layers_use_keys_of_an_earlier_one() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.shared_kv_layers", 1u32);
    let plan = plan("attention.kv_share = true", &metadata, &tensors).unwrap();
    let sources: Vec<_> = plan
        .layers
        .iter()
        .filter_map(|layer| match &layer.mixer {
            Mixer::Attention(a) => Some(a.kv),
            _ => None,
        })
        .collect();
    assert_eq!(sources, [KvSource::Kept, KvSource::From(0)]);
    // Keys and values of one head.
    assert_eq!(carried(&plan, &tensors), 2 * WIDTH as usize / 2);
}

#[test]
fn leading_dense_layers_rotate_where_the_card_says_so() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.sliding_window", 4u32);
    metadata.set("x.leading_dense_block_count", 1u32);
    // With a period of 1, no layer has a window.
    let windows = "window = { kind = 'sliding', pattern = 1 }";
    for (rule, expected) in [("windowed", [false, false]), ("windowed_or_dense_lead", [true, false])] {
        let plan = plan(&format!("{windows}\nrope.on = '{rule}'"), &metadata, &tensors).unwrap();
        assert_eq!(rotating(&plan), expected, "{rule}");
    }
}

#[test]
fn the_first_of_a_period_rotates_where_there_are_no_windows() {
    let (mut metadata, tensors) = model();
    let graph =
        "rope.on = { skip_first_of = 4 }\nwindow = { kind = 'sliding', pattern = { dense_first = 4 } }";
    assert_eq!(rotating(&plan(graph, &metadata, &tensors).unwrap()), [true, true]);
    metadata.set("x.attention.sliding_window", 4u32);
    assert_eq!(rotating(&plan(graph, &metadata, &tensors).unwrap()), [false, true]);
}

#[test]
fn windowed_layers_of_olmo_3_are_not_scaled() {
    let (mut metadata, tensors) = model();
    metadata.set("x.attention.sliding_window", 4u32);
    metadata.set("x.attention.sliding_window_pattern", vec![true, false]);
    metadata.set("x.rope.scaling.type", "yarn");
    metadata.set("x.rope.scaling.factor", 4f32);
    let features = GraphFeatures::of("olmo2").unwrap();
    // Its norms are after the branches, and span all heads.
    let rename = |meta: &TensorMeta| TensorMeta {
        name: meta.name.replace("attn_norm", "post_attention_norm").replace("ffn_norm", "post_ffw_norm"),
        ..meta.clone()
    };
    let tensors: Vec<TensorMeta> = tensors.iter().map(rename).collect();
    let plan = GraphPlan::new(&features, &metadata, &tensors).unwrap();
    let seen = plan.layers.iter().map(|layer| match &layer.mixer {
        Mixer::Attention(a) => (a.mask.is_global(), a.rope.map(|rope| plan.ropes[rope].magnitude > 1.0)),
        _ => panic!("no attention"),
    });
    assert!(seen.eq([(false, Some(false)), (true, Some(true))]));
}

#[test]
fn norms_are_rms_norms_where_the_file_has_their_epsilon() {
    let (mut metadata, tensors) = model();
    let formula = |metadata: &Metadata| {
        plan("norm = 'rms_by_key'", metadata, &tensors).unwrap().final_norm.unwrap().formula
    };
    assert_eq!(formula(&metadata), NormFormula::Rms);
    metadata.set("x.attention.layer_norm_epsilon", 1e-5f32);
    assert_eq!(formula(&metadata), NormFormula::Rms);
    metadata.set("x.attention.layer_norm_rms_epsilon", 0f32);
    assert_eq!(formula(&metadata), NormFormula::Layer);
}

#[test]
fn the_norm_behind_the_feed_forward_has_one_of_two_names() {
    let (metadata, tensors) = model();
    for name in ["layer_output_norm", "post_ffw_norm"] {
        let mut tensors = tensors.clone();
        tensors.extend((0..2).map(|layer| meta(&format!("blk.{layer}.{name}.weight"), &[WIDTH])));
        let plan = plan("norms.post_ffn = 'layer_output_norm'", &metadata, &tensors).unwrap();
        assert!(plan.layers.iter().all(|layer| layer.post_ffn.is_some()), "{name}");
    }
}

#[test]
fn divisors_of_angles_may_be_those_of_a_whole_head() {
    let (mut metadata, mut tensors) = model();
    metadata.set("x.rope.dimension_count", 2u32);
    tensors.push(meta("rope_freqs.weight", &[2]));
    let rope = plan("", &metadata, &tensors).unwrap().ropes.remove(0);
    assert_eq!((rope.n_dims, rope.factors.map(|factors| factors.len)), (2, Some(2)));
    metadata.set("x.rope.dimension_count", 4u32);
    tensors.pop();
    tensors.push(meta("rope_freqs.weight", &[1]));
    let error = plan("", &metadata, &tensors).unwrap_err().to_string();
    assert!(error.starts_with("tensor `rope_freqs.weight`: expected shape [2]"), "{error}");
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
    let error = plan("window.kind = 'sliding'", &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), "key `x.attention.causal`: expected true with this window, found false");
}
