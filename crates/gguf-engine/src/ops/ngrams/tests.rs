//! Tests of n-gram embeddings against their formula in f64.

use super::*;
use crate::testkit::formulas::{assert_near, normed, times};
use crate::testkit::models::TinyModel;

const GRAPH: &str = "residual = 'hyper'\nnorms.output = 'none'";

const N_EMBD: usize = 6;
const N_STREAMS: usize = 2;

const ALL: usize = N_STREAMS * N_EMBD;
const WIDTH: usize = 3;

const N_TAPS: usize = 3;
/// Factors of a token and of the two before it; the last products do not fit in 64 bits.
const MULTIPLIERS: [u64; 3] = [982_451_653, 7_919, 1 << 62];
/// Rows of two parts of pairs and of two parts of triples.
const SIZES: [u64; 4] = [5, 7, 6, 9];
const OFFSETS: [u64; 4] = [0, 5, 12, 18];

const END: u32 = 2;
const EPS: f64 = 1e-5;

fn model() -> TinyModel {
    let sizes = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", N_EMBD),
        ("embedding_length_per_layer_input", WIDTH),
        ("attention.head_count", 0),
        ("hyper_connection.count", N_STREAMS),
        ("hyper_connection.low_rank", 4),
        ("ple.ngram_size", 3),
        ("ple.heads_per_ngram", 2),
        ("ple.conv_kernel", N_TAPS),
        ("ple.eos_token_id", END as usize),
    ];
    let mut model = TinyModel::new("x", &sizes, EPS as f32);
    model.metadata.set("x.ple.layers", vec![0u32]);
    model.metadata.set("x.ple.layer_multipliers", MULTIPLIERS.to_vec());
    model.metadata.set("x.ple.head_offsets", OFFSETS.to_vec());
    model.metadata.set("x.ple.head_vocab_sizes", SIZES.to_vec());
    model.add(&[
        ("token_embd.weight", &[16, N_EMBD]),
        ("per_layer_token_embd.weight", &[28, WIDTH]),
        ("blk.0.ple_key.weight", &[ALL, 4 * WIDTH]),
        ("blk.0.ple_value.weight", &[N_EMBD, 4 * WIDTH]),
        ("blk.0.ple_norm_key.weight", &[ALL]),
        ("blk.0.ple_norm_query.weight", &[ALL]),
        ("blk.0.ple_norm_conv.weight", &[ALL]),
        ("blk.0.ple_conv1d.weight", &[ALL, N_TAPS]),
    ]);
    for branch in ["attn", "ffn"] {
        model.add(&[
            (&format!("blk.0.hc_{branch}_norm.weight"), &[ALL]),
            (&format!("blk.0.hc_{branch}_down.weight"), &[4, ALL]),
            (&format!("blk.0.hc_{branch}_up.weight"), &[ALL, 4]),
            (&format!("blk.0.hc_{branch}_inject.weight"), &[N_STREAMS, ALL]),
        ]);
    }
    model
}

/// Returns the rows of the table for the last token by another rule: all tokens before an end are replaced by the end.
fn rows(tokens: &[u32]) -> Vec<u64> {
    let mut seen = vec![u64::from(tokens[tokens.len() - 1])];
    for back in 1..3 {
        let cut = tokens.len() <= back || tokens[tokens.len() - 1 - back..tokens.len() - 1].contains(&END);
        seen.push(u64::from(if cut { END } else { tokens[tokens.len() - 1 - back] }));
    }
    let hash = |n: usize| {
        (0..n).fold(0u128, |mixed, at| {
            mixed ^ ((u128::from(seen[at]) * u128::from(MULTIPLIERS[at])) % (1 << 64))
        })
    };
    (0..4).map(|part| OFFSETS[part] + (hash(2 + part / 2) % u128::from(SIZES[part])) as u64).collect()
}

fn by_formula(model: &TinyModel, tokens: &[u32]) -> Vec<f64> {
    let weight = |name: &str| model.get(&format!("blk.0.ple_{name}.weight"));
    let (embedding, table) = (model.get("token_embd.weight"), model.get("per_layer_token_embd.weight"));
    let streams = |x: &[f64], norm: &str| -> Vec<f64> {
        x.chunks(N_EMBD).zip(weight(norm).chunks(N_EMBD)).flat_map(|(x, w)| normed(x, w, EPS)).collect()
    };
    let (mut added, mut before, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..tokens.len() {
        let h = embedding[tokens[at] as usize * N_EMBD..][..N_EMBD].repeat(N_STREAMS);
        let found: Vec<f64> = rows(&tokens[..=at])
            .iter()
            .flat_map(|&row| table[row as usize * WIDTH..][..WIDTH].to_vec())
            .collect();
        let key = streams(&times(&weight("key"), &found), "norm_key");
        let (query, value) = (streams(&h, "norm_query"), times(&weight("value"), &found));
        let mut u = Vec::new();
        for (key, query) in key.chunks(N_EMBD).zip(query.chunks(N_EMBD)) {
            let a = key.iter().zip(query).map(|(k, q)| k * q).sum::<f64>() / (N_EMBD as f64).sqrt();
            let gate = 1.0 / (1.0 + (-a.signum() * a.abs().max(1e-6).sqrt()).exp());
            u.extend(value.iter().map(|value| gate * value));
        }
        added.push(streams(&u, "norm_conv"));
        before.push((h, u));
    }
    for at in 0..tokens.len() {
        for channel in 0..ALL {
            // The distance between taps is the length of n-grams.
            let tap = |tap: usize| {
                let back = (N_TAPS - 1 - tap) * 3;
                if back > at {
                    0.0
                } else {
                    weight("conv1d")[channel * N_TAPS + tap] * added[at - back][channel]
                }
            };
            let sum: f64 = (0..N_TAPS).map(tap).sum();
            let (h, u) = &before[at];
            out.push(h[channel] + u[channel] + sum / (1.0 + (-sum).exp()));
        }
    }
    out
}

#[test]
fn streams_take_the_n_grams_of_their_tokens() {
    let (model, tokens) = (model(), [3, 5, 2, 5, 7, 7, 1, 0, 2, 2, 9, 5]);
    assert_near(&model.slot(GRAPH, "output", &tokens), &by_formula(&model, &tokens), 1e-5);
}

#[test]
fn a_gate_keeps_its_sign() {
    assert_eq!(gate(0.0), 0.5);
    assert!((gate(4.0) - 0.880_797).abs() < 1e-6 && (gate(-4.0) - 0.119_203).abs() < 1e-6);
    assert!((gate(-1e-9) - 0.499_75).abs() < 1e-6);
}

#[test]
fn what_n_grams_need_is_asked_for() {
    let error = |model: &TinyModel| model.plan(GRAPH).unwrap_err().to_string();
    let mut other = model();
    other.metadata.set("x.ple.layers", vec![0u32, 1]);
    assert_eq!(error(&other), "key `x.ple.layers`: expected one layer, found 2 layers");
    let mut other = model();
    other.metadata.set("x.ple.layer_multipliers", vec![3u64; 2]);
    let expected = "key `x.ple.layer_multipliers`: expected as many as `ple.ngram_size`, found 2";
    assert_eq!(error(&other), expected);
    let mut other = model();
    other.metadata.set("x.ple.head_vocab_sizes", vec![5u64, 7, 6, 11]);
    let expected = "key `x.ple.head_vocab_sizes`: expected rows of the table, found 11 from 18 on, of 28";
    assert_eq!(error(&other), expected);
    let mut other = model();
    other.tensors.retain(|meta| !meta.name.contains("ple_norm_conv"));
    assert_eq!(error(&other), "tensor `blk.0.ple_norm_conv.weight` is missing");
}
