use std::collections::BTreeMap;

use super::*;
use crate::exec::weights::{Matrix, Vector};
use crate::layers::forward::EngineOptions;
use crate::testkit::models::TinyModel;
use crate::testkit::noise::Noise;
use gguf_core::TensorSource;
use gguf_core::progress::Silent;

/// Gradients by tensor.
#[derive(Default)]
struct Recorder(BTreeMap<usize, Vec<f32>>);

impl Recorder {
    fn add(&mut self, tensor: usize, first: usize, values: &[f32]) {
        let sums = self.0.entry(tensor).or_default();
        sums.resize(sums.len().max(first + values.len()), 0.0);
        sums[first..].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
}

impl Gradients for Recorder {
    fn rows(&mut self, matrix: &Matrix, first: usize, gradient: &[f32]) {
        self.add(matrix.tensor, (matrix.first_row + first) * matrix.n_cols, gradient);
    }

    fn vector(&mut self, vector: &Vector, gradient: &[f32]) {
        self.add(vector.tensor, vector.first, gradient);
    }
}

fn engine(model: &TinyModel, n_threads: usize) -> Engine<'_> {
    let plan = GraphPlan::new(&model.features, &model.metadata, model.tensors.tensors()).unwrap();
    Engine::new(plan, &model.tensors, EngineOptions { n_threads, ..EngineOptions::default() }).unwrap()
}

/// Two chunks of different lengths, not all of whose rows are wanted.
fn chunks() -> Vec<TokenChunk> {
    let chunk = |n: u32, rows| TokenChunk {
        tokens: (0..n).map(|at| (at * at * 7 + n) % 64).collect(),
        rows,
        ..TokenChunk::default()
    };
    vec![chunk(13, 2..12), chunk(5, 0..5)]
}

/// The same model with a little noise on all weights.
fn moved(model: &TinyModel) -> TinyModel {
    let mut other = model.clone();
    for meta in model.tensors.tensors() {
        let mut noise = Noise::new(meta.name.len() as u64);
        other
            .tensors
            .edit_f32s(&meta.name, |values| values.iter_mut().for_each(|x| *x += 0.1 * noise.signed()));
    }
    other
}

fn gemma2() -> TinyModel {
    let keys = [
        ("block_count", 2),
        ("context_length", 512),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 8),
        ("attention.value_length", 8),
        ("attention.sliding_window", 4),
    ];
    let mut model = TinyModel::new("gemma2", &keys, 1e-5);
    for (key, value) in [("attn_logit_softcapping", 2.0f32), ("final_logit_softcapping", 3.0)] {
        model.metadata.set(format!("gemma2.{key}"), value);
    }
    model.add(&[("token_embd.weight", &[64, 32]), ("output_norm.weight", &[32])]);
    for layer in 0..2 {
        let mut add =
            |name: &str, dims: &[usize]| model.add(&[(&format!("blk.{layer}.{name}.weight"), dims)]);
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            add(norm, &[32]);
        }
        add("attn_q", &[32, 32]);
        add("attn_k", &[16, 32]);
        add("attn_v", &[16, 32]);
        add("attn_output", &[32, 32]);
        add("ffn_gate", &[48, 32]);
        add("ffn_up", &[48, 32]);
        add("ffn_down", &[32, 48]);
    }
    model
}

/// The model under another architecture, with biases of queries, keys and values.
fn with_biases(mut model: TinyModel, arch: &str) -> TinyModel {
    let keys: Vec<_> = model.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    for (key, value) in keys {
        model.metadata.set(key.replace("llama.", &format!("{arch}.")), value);
    }
    model.metadata.set("general.architecture", arch);
    model.features = gguf_arch::GraphFeatures::of(arch).unwrap();
    for layer in 0..2 {
        for (name, n) in [("attn_q.bias", 64), ("attn_k.bias", 32), ("attn_v.bias", 32)] {
            model.add(&[(&format!("blk.{layer}.{name}"), &[n])]);
        }
    }
    model
}

/// Experts, and shared ones behind a gate.
fn qwen2moe() -> TinyModel {
    // Both experts are always chosen: a step may change weights, not choices.
    let mut model = with_biases(TinyModel::experts(2), "qwen2moe");
    for layer in 0..2 {
        let mut add =
            |name: &str, dims: &[usize]| model.add(&[(&format!("blk.{layer}.{name}.weight"), dims)]);
        add("ffn_gate_inp_shexp", &[64]);
        add("ffn_gate_shexp", &[48, 64]);
        add("ffn_up_shexp", &[48, 64]);
        add("ffn_down_shexp", &[64, 48]);
    }
    model
}

/// The divergence changes along the gradient of every tensor as the gradient says.
#[test]
fn the_gradient_of_each_tensor_is_the_change_along_it() {
    let chunks = chunks();
    for (name, goal) in [
        ("qwen2", with_biases(TinyModel::dense(), "qwen2")),
        ("parallel", TinyModel::parallel()),
        ("gemma2", gemma2()),
        ("experts", TinyModel::experts(4)),
        ("qwen2moe", qwen2moe()),
    ] {
        let model = moved(&goal);
        let reference = engine(&goal, 1);
        let hidden = reference.hidden(&chunks).unwrap();
        let targets = vec![0; hidden.n_rows()];
        let divergence = |model: &TinyModel| {
            let engine = engine(model, 1);
            let own = engine.hidden(&chunks).unwrap();
            let each = reference.divergences(&hidden, &engine, &own, &targets, &Silent).unwrap();
            each.iter().map(|each| each.kld).sum::<f64>() / each.len() as f64
        };
        let run = |n_threads| {
            let mut found = Recorder::default();
            let goal = Reference { engine: &reference, hidden: &hidden };
            let loss = engine(&model, n_threads).gradients(&chunks, goal, &mut found, &Silent).unwrap();
            (loss, found.0)
        };
        let (loss, gradients) = run(1);
        assert_eq!(run(3), (loss, gradients.clone()), "threads do not matter");
        assert!((loss - divergence(&model)).abs() < 1e-6, "{name}: {loss}");
        assert_eq!(gradients.len(), model.tensors.tensors().len(), "{name}: every tensor has a gradient");
        for (tensor, gradient) in gradients {
            let of = &model.tensors.tensors()[tensor].name;
            // Those of the first layer came through the second.
            if of.starts_with("blk.1.") {
                continue;
            }
            let norm = |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let (length, step) = (norm(&gradient), 2e-4 * norm(&model.tensors.f32s(of)));
            let at = |step: f64| {
                let mut model = model.clone();
                model.tensors.edit_f32s(of, |values| {
                    let by = (step / length) as f32;
                    values.iter_mut().zip(&gradient).for_each(|(x, d)| *x += by * d);
                });
                divergence(&model)
            };
            let change = (at(step) - at(-step)) / (2.0 * step);
            // A divergence of runs in f32 is exact to some 1e-7.
            let tolerance = 5e-3 * length + 2e-7 / step;
            assert!((change - length).abs() < tolerance, "{name}, `{of}`: {change}, expected {length}");
        }
    }
}

#[test]
fn what_has_no_gradient_is_named() {
    for (model, expected) in [
        (TinyModel::recurrent(), "a layer mixes without attention"),
        (TinyModel::cycled(), "it has several streams or inputs"),
    ] {
        let error = engine(&model, 1).plan.check_gradient().unwrap_err();
        assert_eq!(error.to_string(), format!("the model has no gradient: {expected}"));
    }
}
