//! Baichuan's large model, which has ALiBi, compared with a plain forward pass in f64. The corpus has only the small
//! model.

use std::collections::BTreeMap;

use gguf_arch::{GraphFeatures, OutType};
use gguf_conversion::{Conversion, ConvertOptions};
use gguf_core::TensorSource;
use gguf_core::progress::Silent;
use gguf_engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use serde_json::json;

use gguf_testkit::checkpoints::Safetensors;
use gguf_testkit::noise::Noise;
use gguf_testkit::tiers::deep_test;

/// Width, heads (not a power of two), inner width, vocabulary. The large model is recognized by its depth.
const D: usize = 40;
const HEADS: usize = 5;
const INNER: usize = 24;
const VOCAB: usize = 48;
const LAYERS: usize = 40;

type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn weights() -> Weights {
    let mut all = Weights::new();
    let mut add = |name: String, dims: &[usize], base: f32, scale: f32| {
        let noise = Noise::new(all.len() as u64 + 1).floats(dims.iter().product());
        let values = noise.into_iter().map(|x| base + scale * x).collect();
        all.insert(name, (dims.to_vec(), values));
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, D], 0.0, 1.0);
    add("model.norm.weight".into(), &[D], 1.0, 0.2);
    add("lm_head.weight".into(), &[VOCAB, D], 0.0, 0.5);
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        add(name("input_layernorm"), &[D], 1.0, 0.2);
        add(name("post_attention_layernorm"), &[D], 1.0, 0.2);
        add(name("self_attn.W_pack"), &[3 * D, D], 0.0, 0.3);
        add(name("self_attn.o_proj"), &[D, D], 0.0, 0.1);
        add(name("mlp.gate_proj"), &[INNER, D], 0.0, 0.2);
        add(name("mlp.up_proj"), &[INNER, D], 0.0, 0.2);
        add(name("mlp.down_proj"), &[D, INNER], 0.0, 0.1);
    }
    all
}

fn checkpoint(weights: &Weights, dir: &std::path::Path) {
    let mut file = Safetensors::default();
    for (name, (dims, values)) in weights {
        file.add_f32(name, dims, values);
    }
    let config = json!({"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "hidden_size": D,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": INNER, "vocab_size": VOCAB,
        "model_max_length": 256, "rms_norm_eps": 1e-6});
    file.write_checkpoint(dir, &config);
}

/// `x · wᵀ`, row by row.
fn times(weights: &Weights, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (dims, values) = &weights[name];
    let row = |x: &Vec<f64>| {
        let product = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        values.chunks(dims[1]).map(product).collect()
    };
    x.iter().map(row).collect()
}

fn normed(weights: &Weights, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row = |x: &Vec<f64>| {
        let factor = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
        x.iter().zip(&weights[name].1).map(|(x, w)| x / factor * f64::from(*w)).collect()
    };
    x.iter().map(row).collect()
}

fn add(x: &mut [Vec<f64>], y: &[Vec<f64>]) {
    x.iter_mut().zip(y).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
}

/// Logits of all rows. As in Baichuan's own code, the bias is the slope times the key's position. Under softmax this
/// equals the slope times the distance.
fn forward(weights: &Weights, tokens: &[u32]) -> Vec<Vec<f64>> {
    // The slopes of 4 heads, then every other slope of 8.
    let slopes: [f64; HEADS] = [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5];
    let embedding = &weights["model.embed_tokens.weight"].1;
    let row = |&token: &u32| embedding[token as usize * D..][..D].iter().map(|x| f64::from(*x)).collect();
    let mut x: Vec<Vec<f64>> = tokens.iter().map(row).collect();
    let size = D / HEADS;
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        let qkv = times(weights, &name("self_attn.W_pack"), &normed(weights, &name("input_layernorm"), &x));
        let mut context = vec![vec![0.0; D]; tokens.len()];
        for head in 0..HEADS {
            let part = |token: usize, which: usize| &qkv[token][which * D + head * size..][..size];
            for (query, context) in context.iter_mut().enumerate() {
                let score = |key: usize| {
                    let dot: f64 = part(query, 0).iter().zip(part(key, 1)).map(|(q, k)| q * k).sum();
                    (dot / (size as f64).sqrt() + slopes[head] * key as f64).exp()
                };
                let scores: Vec<f64> = (0..=query).map(score).collect();
                let total: f64 = scores.iter().sum();
                for (key, score) in scores.iter().enumerate() {
                    for (out, v) in context[head * size..][..size].iter_mut().zip(part(key, 2)) {
                        *out += score / total * v;
                    }
                }
            }
        }
        add(&mut x, &times(weights, &name("self_attn.o_proj"), &context));
        let input = normed(weights, &name("post_attention_layernorm"), &x);
        let mut gate = times(weights, &name("mlp.gate_proj"), &input);
        let up = times(weights, &name("mlp.up_proj"), &input);
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = *gate / (1.0 + (-*gate).exp()) * up;
        }
        add(&mut x, &times(weights, &name("mlp.down_proj"), &gate));
    }
    times(weights, "lm_head.weight", &normed(weights, "model.norm.weight", &x))
}

deep_test!(the_large_baichuan_has_alibi);
fn the_large_baichuan_has_alibi() {
    let temp = tempfile::tempdir().unwrap();
    let weights = weights();
    checkpoint(&weights, temp.path());
    let options =
        ConvertOptions { file_type: Some(OutType::F32), tokenizer: false, ..ConvertOptions::default() };
    let conversion = Conversion::plan(temp.path(), &options).unwrap();
    let features = GraphFeatures::of("baichuan").unwrap();
    let plan = GraphPlan::new(&features, conversion.metadata(), conversion.tensors()).unwrap();
    let engine = Engine::new(plan, &conversion, EngineOptions::default()).unwrap();
    let mut noise = Noise::new(7);
    let tokens: Vec<u32> = (0..61).map(|_| noise.below(VOCAB as u64) as u32).collect();
    let hidden =
        engine.hidden(&[TokenChunk { tokens: tokens.clone(), rows: 0..tokens.len(), n_source: 0 }]).unwrap();
    let logits = engine.logits(&hidden, &Silent).unwrap();
    let expected = forward(&weights, &tokens);
    for (row, (found, expected)) in logits.chunks(VOCAB).zip(&expected).enumerate() {
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 2e-3, "row {row}: {found} {expected}");
        }
    }
}
