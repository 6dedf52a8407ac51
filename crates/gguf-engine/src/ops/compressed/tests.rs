//! Tests of the compressor and the attention against their formulas in f64.

use super::*;
use crate::exec::rope::{Rope, RopeScaling};
use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::testkit::formulas::{assert_near, normed, times};
use crate::testkit::models::TinyModel;
use crate::testkit::noise::Noise;
use crate::{Engine, EngineOptions, TokenChunk};
use gguf_core::simd::SimdLevel;

const GRAPH: &str = "mixer = 'compressed'\nwindow = { kind = 'sliding', rope = 'unscaled' }";

const N_EMBD: usize = 10;
const N_HEADS: usize = 4;

const DIM: usize = 6;
const N_ROTATED: usize = 4;

const RANK: usize = 5;
const WINDOW: usize = 5;

const N_GROUPS: usize = 2;
const N_NARROW: usize = 3;

const BASE: f64 = 500.0;
const EPS: f64 = 1e-5;

const N_TOKENS: usize = 23;

/// Form of the compressor: tokens per row, and overlap with those of the row before.
#[derive(Clone, Copy, Debug)]
struct CompressorForm {
    ratio: usize,
    overlaps: bool,
}

impl CompressorForm {
    fn width(self) -> usize {
        if self.overlaps { 2 * DIM } else { DIM }
    }
}

fn model(form: CompressorForm) -> TinyModel {
    let sizes = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", N_EMBD),
        ("attention.head_count", N_HEADS),
        ("attention.key_length", DIM),
        ("attention.value_length", DIM),
        ("attention.q_lora_rank", RANK),
        ("attention.sliding_window", WINDOW),
        ("attention.output_group_count", N_GROUPS),
        ("attention.output_lora_rank", N_NARROW),
        ("attention.compress_ratios", form.ratio),
        ("attention.compress_rope_freq_base", BASE as usize),
        ("rope.dimension_count", N_ROTATED),
    ];
    let mut model = TinyModel::new("x", &sizes, EPS as f32);
    model.add(&[
        ("token_embd.weight", &[16, N_EMBD]),
        ("output_norm.weight", &[N_EMBD]),
        ("blk.0.attn_norm.weight", &[N_EMBD]),
        ("blk.0.attn_q_a.weight", &[RANK, N_EMBD]),
        ("blk.0.attn_q_a_norm.weight", &[RANK]),
        ("blk.0.attn_q_b.weight", &[N_HEADS * DIM, RANK]),
        ("blk.0.attn_kv.weight", &[DIM, N_EMBD]),
        ("blk.0.attn_kv_a_norm.weight", &[DIM]),
        ("blk.0.attn_sinks.weight", &[N_HEADS]),
        ("blk.0.attn_output_a.weight", &[N_GROUPS * N_NARROW, N_HEADS / N_GROUPS * DIM]),
        ("blk.0.attn_output_b.weight", &[N_EMBD, N_GROUPS * N_NARROW]),
    ]);
    if form.ratio > 0 {
        model.add(&[
            ("blk.0.attn_compressor_kv.weight", &[form.width(), N_EMBD]),
            ("blk.0.attn_compressor_gate.weight", &[form.width(), N_EMBD]),
            ("blk.0.attn_compressor_ape.weight", &[form.ratio, form.width()]),
            ("blk.0.attn_compressor_norm.weight", &[DIM]),
        ]);
    }
    model
}

/// Rotates neighbouring values of the end of a head.
fn rotated(head: &[f64], base: f64, position: f64) -> Vec<f64> {
    let (still, end) = head.split_at(DIM - N_ROTATED);
    let mut out = still.to_vec();
    for (i, pair) in end.chunks(2).enumerate() {
        let (s, c) = (position * base.powf(-2.0 * i as f64 / N_ROTATED as f64)).sin_cos();
        out.extend([pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c]);
    }
    out
}

/// Returns the compressed rows of all tokens. With overlap, a row also has the first halves of the tokens of the row
/// before.
fn rows_by_formula(model: &TinyModel, form: CompressorForm, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let weight = |name: &str| model.get(&format!("blk.0.attn_compressor_{name}.weight"));
    let (kv, score, place, norm) = (weight("kv"), weight("gate"), weight("ape"), weight("norm"));
    let products = |w: &[f64]| inputs.iter().map(|x| times(w, x)).collect::<Vec<_>>();
    let (kv, score) = (products(&kv), products(&score));
    let row = |row: usize| {
        let first = row * form.ratio;
        let start = if form.overlaps && row > 0 { first - form.ratio } else { first };
        let values = (0..DIM).map(|value| {
            let at = |t: usize| if form.overlaps && t >= first { DIM + value } else { value };
            let weight = |t: usize| (score[t][at(t)] + place[t % form.ratio * form.width() + at(t)]).exp();
            let tokens = start..first + form.ratio;
            let sum: f64 = tokens.clone().map(weight).sum();
            tokens.map(|t| weight(t) / sum * kv[t][at(t)]).sum::<f64>()
        });
        rotated(&normed(&values.collect::<Vec<_>>(), &norm, EPS), BASE, first as f64)
    };
    (0..inputs.len() / form.ratio).map(row).collect()
}

/// Returns the layer's output by the formula, token by token and head by head.
fn by_formula(model: &TinyModel, form: CompressorForm, tokens: &[u32]) -> Vec<f64> {
    let weight = |name: &str| model.get(&format!("blk.0.{name}.weight"));
    let (embedding, sinks) = (model.get("token_embd.weight"), weight("attn_sinks"));
    let base = if form.ratio > 0 { BASE } else { 10_000.0 };
    let input =
        |&token: &u32| normed(&embedding[token as usize * N_EMBD..][..N_EMBD], &weight("attn_norm"), EPS);
    let inputs: Vec<Vec<f64>> = tokens.iter().map(input).collect();
    let rows = if form.ratio > 0 { rows_by_formula(model, form, &inputs) } else { Vec::new() };
    let key = |(at, x): (usize, &Vec<f64>)| {
        rotated(&normed(&times(&weight("attn_kv"), x), &weight("attn_kv_a_norm"), EPS), base, at as f64)
    };
    let keys: Vec<Vec<f64>> = inputs.iter().enumerate().map(key).collect();
    let mut out = Vec::new();
    for (at, x) in inputs.iter().enumerate() {
        let short = normed(&times(&weight("attn_q_a"), x), &weight("attn_q_a_norm"), EPS);
        let mut seen = keys[(at + 1).saturating_sub(WINDOW)..=at].to_vec();
        seen.extend(
            rows.iter().enumerate().filter(|(b, _)| (b + 1) * form.ratio <= at + 1).map(|r| r.1.clone()),
        );
        let mut context = Vec::new();
        for (query, sink) in times(&weight("attn_q_b"), &short).chunks(DIM).zip(&sinks) {
            let query = rotated(&normed(query, &[1.0; DIM], EPS), base, at as f64);
            let score = |key: &Vec<f64>| {
                (query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (DIM as f64).sqrt()).exp()
            };
            let sum = seen.iter().map(score).sum::<f64>() + sink.exp();
            let mixed = (0..DIM).map(|v| seen.iter().map(|key| score(key) / sum * key[v]).sum::<f64>());
            context.extend(rotated(&mixed.collect::<Vec<_>>(), base, -(at as f64)));
        }
        let groups = context.chunks(context.len() / N_GROUPS);
        let parts = weight("attn_output_a");
        let narrow = groups.zip(parts.chunks(parts.len() / N_GROUPS)).flat_map(|(x, w)| times(w, x));
        out.extend(times(&weight("attn_output_b"), &narrow.collect::<Vec<_>>()));
    }
    out
}

fn tokens() -> Vec<u32> {
    (0..N_TOKENS as u32).map(|i| i * 7 % 16).collect()
}

#[test]
fn all_forms_equal_the_formula_whatever_the_number_of_threads() {
    for (ratio, overlaps) in [(0, false), (3, true), (4, false), (64, false)] {
        let form = CompressorForm { ratio, overlaps };
        let model = model(form);
        let found = model.slot(GRAPH, "mixer", &tokens());
        assert_near(&found, &by_formula(&model, form, &tokens()), 2e-5);
    }
}

#[test]
fn only_the_wanted_rows_are_computed_at_the_end() {
    let model = model(CompressorForm { ratio: 3, overlaps: true });
    let engine = Engine::new(model.plan(GRAPH).unwrap(), &model.tensors, EngineOptions::default()).unwrap();
    let chunk = |tokens: Vec<u32>, rows| TokenChunk { tokens, rows, ..TokenChunk::default() };
    let alone = engine.hidden(&[chunk(tokens(), 0..N_TOKENS)]).unwrap();
    // Rows of one chunk do not depend on another chunk's tokens.
    let both = engine.hidden(&[chunk(vec![3; 8], 7..8), chunk(tokens(), 9..N_TOKENS)]).unwrap();
    assert_eq!(both.states()[N_EMBD..], alone.states()[9 * N_EMBD..]);
}

fn values(n: usize, seed: u64) -> Vec<f32> {
    Noise::new(seed).floats(n)
}

fn compressor(ratio: usize, n_rows: usize, overlaps: bool) -> Compressor {
    let matrix = Matrix { tensor: 0, first_row: 0, n_rows, n_cols: 1, bias: None, scale: None, expert: None };
    Compressor {
        ratio,
        overlaps,
        kv: matrix.clone(),
        score: matrix,
        places: Vector { tensor: 0, first: 0, len: ratio * n_rows },
        norm: Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: 0.0 },
    }
}

#[test]
fn a_row_mixes_its_tokens_value_by_value() {
    let (ratio, dim) = (3, 2);
    let (kv, score, place) = (values(9 * dim, 1), values(9 * dim, 2), values(ratio * dim, 3));
    let mut row = vec![0.0; dim];
    let inputs = CompressorInputs { kv: &kv, score: &score, by_position: &place };
    compress_row(&compressor(ratio, dim, false), dim, inputs, 3..6, 3, &mut row);
    for c in 0..dim {
        let weight = |j: usize| f64::from(score[(3 + j) * dim + c] + place[j * dim + c]).exp();
        let sum: f64 = (0..ratio).map(weight).sum();
        let mixed: f64 = (0..ratio).map(|j| weight(j) * f64::from(kv[(3 + j) * dim + c])).sum();
        assert!((f64::from(row[c]) - mixed / sum).abs() < 1e-6, "{c}");
    }
}

#[test]
fn overlapping_rows_take_first_halves_of_the_tokens_before() {
    let (ratio, dim) = (2, 2);
    let width = 2 * dim;
    let (kv, score, place) = (values(6 * width, 4), values(6 * width, 5), values(ratio * width, 6));
    let c = compressor(ratio, width, true);
    for (tokens, first) in [(0..2, 0), (2..6, 4)] {
        let mut row = vec![0.0; dim];
        let inputs = CompressorInputs { kv: &kv, score: &score, by_position: &place };
        compress_row(&c, dim, inputs, tokens.clone(), first, &mut row);
        for (v, found) in row.iter().enumerate() {
            let at = |t: usize| if t < first { v } else { dim + v };
            let weight =
                |t: usize| f64::from(score[t * width + at(t)] + place[t % ratio * width + at(t)]).exp();
            let sum: f64 = tokens.clone().map(weight).sum();
            let mixed: f64 = tokens.clone().map(|t| weight(t) * f64::from(kv[t * width + at(t)])).sum();
            assert!((f64::from(*found) - mixed / sum).abs() < 1e-6, "{first} {v}");
        }
    }
}

#[test]
fn what_is_reflected_before_and_behind_is_rotated_back() {
    let head = values(8, 7);
    for pairs in [PairLayout::Interleaved, PairLayout::Half] {
        let scaling = RopeScaling::Linear(1.0);
        let (factors, long_factors) = (None, None);
        let rope = Rope { n_dims: 8, pairs, base: 100.0, scaling, factors, long_factors, magnitude: 1.0 };
        let table = rope.table(6, None);
        let mut rotated = head.clone();
        table.rotate(SimdLevel::detect(), &mut rotated, 8, 5);
        reflect(pairs, &mut rotated);
        table.rotate(SimdLevel::detect(), &mut rotated, 8, 5);
        reflect(pairs, &mut rotated);
        assert!(rotated.iter().zip(&head).all(|(a, b)| (a - b).abs() < 1e-6), "{pairs:?}");
    }
}

#[test]
fn products_of_rows_take_all_values() {
    let (a, b) = (values(19, 8), values(19, 9));
    let expected: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    assert!((f64::from(dot(&a, &b)) - expected).abs() < 1e-5);
}
