//! Tests of plans of models with hyper-connections.

use super::{WIDTH, meta, model, plan};
use crate::EngineError;
use crate::layers::graph::GraphPlan;
use crate::ops::ModelExtra;
use crate::ops::hyper::{Connection, Streams, StreamsEnd, StreamsWrite};
use gguf_core::TensorMeta;
use gguf_format::Metadata;

const GRAPH: &str = "residual = 'hyper'";

const N: u64 = 3;

/// Returns the tiny model with three streams, with one weight per stream.
fn weighed(n_weights: u64, n_scales: u64) -> (Metadata, Vec<TensorMeta>) {
    let (mut metadata, mut tensors) = model();
    metadata.set("x.hyper_connection.count", N as u32);
    metadata.set("x.hyper_connection.epsilon", 1e-6f32);
    for layer in 0..2 {
        for branch in ["attn", "ffn"] {
            let name = format!("blk.{layer}.hc_{branch}");
            tensors.push(meta(&format!("{name}_fn.weight"), &[n_weights, N * WIDTH]));
            tensors.push(meta(&format!("{name}_base.weight"), &[n_weights]));
            tensors.push(meta(&format!("{name}_scale.weight"), &[n_scales]));
        }
    }
    (metadata, tensors)
}

fn streams(plan: &GraphPlan) -> &Streams {
    let [ModelExtra::Streams(streams)] = &plan.extras[..] else { panic!("not streams alone") };
    streams
}

fn write(plan: &GraphPlan) -> StreamsWrite {
    let Some(Connection::Weighed(c)) = plan.layers[0].connections.as_ref().map(|both| &both.ffn) else {
        panic!("no weight per stream")
    };
    c.write
}

#[test]
fn the_rows_tell_whether_streams_are_mixed() {
    let (mut metadata, mut tensors) = weighed(2 * N + N * N, 3);
    let key = "x.hyper_connection.sinkhorn_iterations";
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), format!("key `{key}` is missing"));
    metadata.set(key, 20u32);
    let mixed = plan(GRAPH, &metadata, &tensors).unwrap();
    assert_eq!(write(&mixed), StreamsWrite::Mix { iterations: 20 });
    assert_eq!((streams(&mixed).n, &streams(&mixed).end), (3, &StreamsEnd::Mean));
    assert_eq!(mixed.stream_width(), 24);
    // A connection that reads the streams replaces the mean.
    for (name, dims) in [("fn", &[N, N * WIDTH][..]), ("base", &[N]), ("scale", &[1])] {
        tensors.push(meta(&format!("output_hc_{name}.weight"), dims));
    }
    let read = plan(GRAPH, &metadata, &tensors).unwrap();
    assert!(matches!(streams(&read).end, StreamsEnd::Read(_)));

    let (mut metadata, tensors) = weighed(2 * N, 2);
    let key = "x.hyper_connection.magnitude";
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err();
    assert_eq!(error.to_string(), format!("key `{key}` is missing"));
    metadata.set(key, 2.0f32);
    let apart = plan(GRAPH, &metadata, &tensors).unwrap();
    assert_eq!(write(&apart), StreamsWrite::Add { magnitude: 2.0, eps: 1e-6 });
}

#[test]
fn streams_with_a_weight_per_value_are_normed_as_they_are_read() {
    let (mut metadata, mut tensors) = model();
    metadata.set("x.hyper_connection.count", N as u32);
    metadata.set("x.hyper_connection.low_rank", 5u32);
    for name in ["blk.0.hc_attn", "blk.0.hc_ffn", "blk.1.hc_attn", "blk.1.hc_ffn", "output_hc"] {
        tensors.push(meta(&format!("{name}_norm.weight"), &[N * WIDTH]));
        tensors.push(meta(&format!("{name}_down.weight"), &[5, N * WIDTH]));
        tensors.push(meta(&format!("{name}_up.weight"), &[N * WIDTH, 5]));
        if name != "output_hc" {
            tensors.push(meta(&format!("{name}_inject.weight"), &[N, N * WIDTH]));
        }
    }
    let graph = format!("{GRAPH}\nnorms.output = 'none'");
    // Such a model has no norms before the branches and no final norm.
    let error = plan(&graph, &metadata, &tensors).unwrap_err();
    assert!(matches!(&error, EngineError::LeftOver { tensors } if tensors.len() == 5), "{error}");
    tensors.retain(|meta| {
        let name = meta.name.as_str();
        !(name.ends_with(".attn_norm.weight") || name.ends_with("ffn_norm.weight") && !name.contains("hc_"))
            && name != "output_norm.weight"
    });
    let gated = plan(&graph, &metadata, &tensors).unwrap();
    assert!(gated.layers.iter().all(|layer| layer.pre_mixer.is_none() && layer.pre_ffn.is_none()));
}

#[test]
fn counts_shapes_and_features_that_do_not_fit_are_refused() {
    let (mut metadata, tensors) = weighed(2 * N + 1, 2);
    metadata.set("x.hyper_connection.sinkhorn_iterations", 2u32);
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, "tensor `blk.0.hc_attn_fn.weight`: expected shape [15, 24], found [7, 24]");
    let key = "x.hyper_connection.count";
    metadata.set(key, 1u32);
    let error = plan(GRAPH, &metadata, &tensors).unwrap_err().to_string();
    assert_eq!(error, format!("key `{key}`: expected from 2 to 256, found 1"));
    let error = plan(&format!("{GRAPH}\nmoe.router_input = 'raw'"), &metadata, &tensors).unwrap_err();
    assert!(matches!(error, EngineError::Unsupported { .. }), "{error}");
    let error = plan(&format!("{GRAPH}\nextras = ['loops']"), &metadata, &tensors).unwrap_err();
    assert!(matches!(error, EngineError::Unsupported { .. }), "{error}");
}

#[test]
fn keys_that_fill_no_pool_must_be_seen() {
    let (mut metadata, mut tensors) = model();
    metadata.set("x.attention.indexer.top_k", 32u32);
    metadata.set("x.attention.indexer.kpool", 4u32);
    tensors.push(meta("blk.1.indexer.proj.weight", &[2, WIDTH]));
    let graph = "unused = ['indexer.*']";
    let key = "x.attention.indexer.kpool_select_tail";
    let error = plan(graph, &metadata, &tensors).unwrap_err().to_string();
    assert!(error.starts_with(&format!("key `{key}`: expected true")), "{error}");
    metadata.set(key, true);
    assert_eq!(plan(graph, &metadata, &tensors).unwrap().chunk_limit, Some(32));
}
