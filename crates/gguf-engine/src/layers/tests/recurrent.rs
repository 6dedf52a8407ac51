//! Tests of plans of layers with a recurrent state.

use super::{WIDTH, meta, model, plan};
use crate::ops::Mixer;
use crate::ops::ffn::Ffn;
use gguf_core::TensorMeta;
use gguf_format::Metadata;

/// Returns the tiny model with Mamba 2 instead of attention in its first layer.
fn hybrid() -> (Metadata, Vec<TensorMeta>) {
    let (mut metadata, mut tensors) = model();
    for (key, value) in [
        ("ssm.inner_size", 16u32),
        ("ssm.state_size", 4),
        ("ssm.conv_kernel", 3),
        ("ssm.time_step_rank", 4),
        ("ssm.group_count", 2),
    ] {
        metadata.set(format!("x.{key}"), value);
    }
    metadata.set("x.attention.head_count_kv", vec![0u32, 1]);
    tensors.retain(|meta| !meta.name.starts_with("blk.0.attn_") || meta.name == "blk.0.attn_norm.weight");
    for (name, dims) in [
        ("ssm_in.weight", &[16 + 32 + 4, WIDTH][..]),
        ("ssm_conv1d.weight", &[32, 3]),
        ("ssm_conv1d.bias", &[32]),
        ("ssm_dt.bias", &[4]),
        ("ssm_a", &[4, 1]),
        ("ssm_d", &[4, 1]),
        ("ssm_norm.weight", &[2, 8]),
        ("ssm_out.weight", &[WIDTH, 16]),
    ] {
        tensors.push(meta(&format!("blk.0.{name}"), dims));
    }
    (metadata, tensors)
}

const GRAPH: &str = "mixer = { by = 'kv_heads', full = 'attention', rest = 'mamba2' }";

#[test]
fn layers_without_key_value_heads_have_the_other_mixer() {
    let (metadata, tensors) = hybrid();
    let whole = plan(GRAPH, &metadata, &tensors).unwrap();
    let Mixer::Mamba2(mixer) = &whole.layers[0].mixer else { panic!("not Mamba 2") };
    assert_eq!((mixer.n_heads, mixer.head_dim, mixer.n_groups), (4, 4, 2));
    assert_eq!((mixer.xbc.first_row, mixer.step.first_row), (16, 48));
    assert!(matches!(whole.layers[1].mixer, Mixer::Attention(_)));
}

#[test]
fn names_and_words_that_mixers_do_not_have_are_refused() {
    let (metadata, tensors) = hybrid();
    for (mixer, expected) in [
        ("'mamba3'", "card `x`: `mixer = mamba3` is not built yet"),
        (
            "{ every = 1, full = 'attention', rest = { gdn = { gaet = 'silu' } } }",
            "[graph]: mixer `gdn`: unknown field `gaet`",
        ),
        ("{ attention = { gate = 'silu' } }", "[graph]: mixer `attention`: unknown field `gate`"),
    ] {
        let error = plan(&format!("mixer = {mixer}"), &metadata, &tensors).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_list_of_recurrent_layers_wins_over_the_period() {
    let (mut metadata, tensors) = hybrid();
    let graph = "mixer = { every = 1, full = 'attention', rest = 'mamba2' }";
    metadata.set("x.attention.recurrent_layers", vec![true, false]);
    assert!(matches!(plan(graph, &metadata, &tensors).unwrap().layers[0].mixer, Mixer::Mamba2(_)));
    metadata.set("x.attention.recurrent_layers", vec![true]);
    let error = plan(graph, &metadata, &tensors).unwrap_err().to_string();
    assert!(
        error.starts_with("key `x.attention.recurrent_layers`: expected a flag for every layer"),
        "{error}"
    );
}

#[test]
fn what_is_missing_or_does_not_fit_is_named() {
    let (metadata, tensors) = hybrid();
    for (key, expected) in [
        ("ssm.state_size", "key `x.ssm.state_size` is missing"),
        ("attention.head_count_kv", "key `x.attention.head_count_kv` is missing"),
    ] {
        let mut metadata = metadata.clone();
        metadata.remove(&format!("x.{key}"));
        assert_eq!(plan(GRAPH, &metadata, &tensors).unwrap_err().to_string(), expected);
    }
    let mut odd = metadata.clone();
    odd.set("x.ssm.time_step_rank", 3u32);
    let error = plan(GRAPH, &odd, &tensors).unwrap_err().to_string();
    assert!(error.starts_with("key `x.ssm.time_step_rank`: expected a divisor"), "{error}");
    let without = |name: &str| -> Vec<TensorMeta> {
        tensors.iter().filter(|meta| meta.name != name).cloned().collect()
    };
    let error = plan(GRAPH, &metadata, &without("blk.0.ssm_a")).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.ssm_a` is missing");
    let mut wrong = without("blk.0.ssm_in.weight");
    wrong.push(meta("blk.0.ssm_in.weight", &[51, WIDTH]));
    let error = plan(GRAPH, &metadata, &wrong).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.ssm_in.weight`: expected shape [52, 8], found [51, 8]");
}

#[test]
fn a_layer_of_one_branch_has_its_norm_once() {
    let (metadata, tensors) = hybrid();
    let mut tensors: Vec<TensorMeta> = tensors
        .into_iter()
        .filter(|meta| !meta.name.starts_with("blk.0.ffn_") && meta.name != "blk.1.ffn_norm.weight")
        .collect();
    tensors.retain(|meta| !meta.name.starts_with("blk.1.attn_") || meta.name == "blk.1.attn_norm.weight");
    let mut metadata = metadata;
    metadata.set("x.feed_forward_length", vec![0u32, 12]);
    let plan = plan(&format!("{GRAPH}\nresidual = 'single'"), &metadata, &tensors).unwrap();
    let [first, second] = &plan.layers[..] else { panic!("two layers") };
    assert!(matches!((&first.mixer, &first.ffn), (Mixer::Mamba2(_), Ffn::None)));
    assert!(matches!((&second.mixer, &second.ffn), (Mixer::None, Ffn::Dense(_))));
    assert!(first.pre_mixer.is_some() && first.pre_ffn.is_none());
    assert!(second.pre_mixer.is_none() && second.pre_ffn.is_some());
}
