//! Tests of latent attention against its formula in f64.

use crate::exec::mask::Mask;
use crate::ops::Mixer;
use crate::testkit::formulas::{assert_near, normed, times};
use crate::testkit::models::TinyModel;
use crate::{Engine, EngineOptions, TokenChunk};

const GRAPH: &str = "mixer = 'mla'\nattention.gate = 'sigmoid'\nunused = ['indexer.*']";

const N_EMBD: usize = 10;
const N_HEADS: usize = 3;

const N_OWN: usize = 6;
const N_SHARED: usize = 4;

const DK: usize = N_OWN + N_SHARED;
const DV: usize = 5;

const RANK: usize = 7;
const Q_RANK: usize = 8;

const EPS: f64 = 1e-5;
const N_TOKENS: usize = 23;

/// Form of a file: the matrices that it has.
#[derive(Clone, Copy, Debug)]
struct MlaForm {
    is_joint: bool,
    has_q_latent: bool,
    /// True if the shared key is normed, and heads have sinks and gates.
    norms_shared: bool,
}

const SPLIT: MlaForm = MlaForm { is_joint: false, has_q_latent: true, norms_shared: false };

fn model(form: MlaForm) -> TinyModel {
    let sizes = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", N_EMBD),
        ("attention.head_count", N_HEADS),
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", RANK),
        ("attention.q_lora_rank", Q_RANK),
        // The width of the compressed rows, not of the heads.
        ("attention.key_length", RANK + N_SHARED),
        ("attention.key_length_mla", DK),
        ("attention.value_length_mla", DV),
        ("rope.dimension_count", N_SHARED),
    ];
    let mut model = TinyModel::new("x", &sizes, EPS as f32);
    model.add(&[
        ("token_embd.weight", &[16, N_EMBD]),
        ("output_norm.weight", &[N_EMBD]),
        ("blk.0.attn_norm.weight", &[N_EMBD]),
        ("blk.0.attn_kv_a_mqa.weight", &[RANK + N_SHARED, N_EMBD]),
        ("blk.0.attn_kv_a_norm.weight", &[RANK]),
        ("blk.0.attn_output.weight", &[N_EMBD, N_HEADS * DV]),
    ]);
    if form.has_q_latent {
        model.add(&[
            ("blk.0.attn_q_a.weight", &[Q_RANK, N_EMBD]),
            ("blk.0.attn_q_a_norm.weight", &[Q_RANK]),
            ("blk.0.attn_q_b.weight", &[N_HEADS * DK, Q_RANK]),
        ]);
    } else {
        model.add(&[("blk.0.attn_q.weight", &[N_HEADS * DK, N_EMBD])]);
    }
    if form.norms_shared {
        model.add(&[
            ("blk.0.attn_k_norm.weight", &[N_SHARED]),
            ("blk.0.attn_sinks.weight", &[N_HEADS]),
            ("blk.0.attn_gate.weight", &[N_HEADS, N_EMBD]),
        ]);
    }
    if form.is_joint {
        model.add(&[("blk.0.attn_kv_b.weight", &[N_HEADS * (N_OWN + DV), RANK])]);
    } else {
        model.add(&[
            ("blk.0.attn_k_b.weight", &[N_HEADS, RANK, N_OWN]),
            ("blk.0.attn_v_b.weight", &[N_HEADS, DV, RANK]),
        ]);
    }
    model
}

fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for (i, pair) in x.chunks(2).enumerate() {
        let (s, c) = (position as f64 * 10000f64.powf(-2.0 * i as f64 / x.len() as f64)).sin_cos();
        out.extend([pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c]);
    }
    out
}

/// Returns the layer's output by the formula, token by token and head by head.
fn by_formula(model: &TinyModel, form: MlaForm, tokens: &[u32]) -> Vec<f64> {
    let (embedding, weight) =
        (model.get("token_embd.weight"), |name: &str| model.get(&format!("blk.0.{name}.weight")));
    let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut gates = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let x = normed(&embedding[token as usize * N_EMBD..][..N_EMBD], &weight("attn_norm"), EPS);
        let q = if form.has_q_latent {
            times(
                &weight("attn_q_b"),
                &normed(&times(&weight("attn_q_a"), &x), &weight("attn_q_a_norm"), EPS),
            )
        } else {
            times(&weight("attn_q"), &x)
        };
        gates.push(if form.norms_shared {
            times(&weight("attn_gate"), &x).iter().map(|gate| 1.0 / (1.0 + (-gate).exp())).collect()
        } else {
            vec![1.0; N_HEADS]
        });
        let kv = times(&weight("attn_kv_a_mqa"), &x);
        let latent = normed(&kv[..RANK], &weight("attn_kv_a_norm"), EPS);
        let shared = if form.norms_shared {
            normed(&kv[RANK..], &weight("attn_k_norm"), EPS)
        } else {
            kv[RANK..].to_vec()
        };
        let shared = rotated(&shared, position);
        for head in 0..N_HEADS {
            let q = &q[head * DK..][..DK];
            queries.push([&q[..N_OWN], &rotated(&q[N_OWN..], position)].concat());
            let (own, value) = if form.is_joint {
                let both = times(&weight("attn_kv_b"), &latent);
                let both = &both[head * (N_OWN + DV)..][..N_OWN + DV];
                (both[..N_OWN].to_vec(), both[N_OWN..].to_vec())
            } else {
                let k_b = &weight("attn_k_b")[head * RANK * N_OWN..][..RANK * N_OWN];
                let own = (0..N_OWN).map(|a| (0..RANK).map(|r| k_b[r * N_OWN + a] * latent[r]).sum());
                let v_b = &weight("attn_v_b")[head * DV * RANK..][..DV * RANK];
                (own.collect(), times(v_b, &latent))
            };
            keys.push([own, shared.clone()].concat());
            values.push(value);
        }
    }
    let mut out = Vec::new();
    for position in 0..tokens.len() {
        let mut context = Vec::new();
        for head in 0..N_HEADS {
            let dot = |key: usize| {
                let (q, k) = (&queries[position * N_HEADS + head], &keys[key * N_HEADS + head]);
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (DK as f64).sqrt()
            };
            let weights: Vec<f64> = (0..=position).map(|key| dot(key).exp()).collect();
            let sink = if form.norms_shared { weight("attn_sinks")[head].exp() } else { 0.0 };
            let sum = weights.iter().sum::<f64>() + sink;
            context.extend((0..DV).map(|at| {
                let value = weights.iter().enumerate().map(|(key, w)| w * values[key * N_HEADS + head][at]);
                value.sum::<f64>() / sum * gates[position][head]
            }));
        }
        out.extend(times(&weight("attn_output"), &context));
    }
    out
}

#[test]
fn all_forms_equal_the_formula_whatever_the_number_of_threads() {
    let tokens: Vec<u32> = (0..N_TOKENS as u32).map(|i| i * 7 % 16).collect();
    for (is_joint, has_q_latent, norms_shared) in
        [(true, true, false), (true, false, true), (false, true, true), (false, false, false)]
    {
        let form = MlaForm { is_joint, has_q_latent, norms_shared };
        let model = model(form);
        let found = model.slot(GRAPH, "mixer", &tokens);
        assert_near(&found, &by_formula(&model, form, &tokens), 2e-5);
    }
}

#[test]
fn only_the_wanted_rows_are_computed_at_the_end() {
    let model = model(SPLIT);
    let engine = Engine::new(model.plan(GRAPH).unwrap(), &model.tensors, EngineOptions::default()).unwrap();
    let tokens: Vec<u32> = (0..N_TOKENS as u32).map(|i| i * 5 % 16).collect();
    let of = |rows| {
        engine
            .hidden(&[TokenChunk { tokens: tokens.clone(), rows, ..TokenChunk::default() }])
            .unwrap()
            .states()
            .to_vec()
    };
    assert_eq!(of(0..N_TOKENS)[9 * N_EMBD..], of(9..N_TOKENS));
}

#[test]
fn wrong_widths_are_refused_by_key_or_tensor() {
    let error = |model: &TinyModel| model.plan(GRAPH).unwrap_err().to_string();
    let refusal = |key: &str, value: u32| {
        let mut model = model(SPLIT);
        model.metadata.set(format!("x.attention.{key}"), value);
        error(&model)
    };
    assert_eq!(
        refusal("kv_lora_rank", 99),
        "key `x.attention.kv_lora_rank`: expected at most the rows of attn_kv_a_mqa, by less than the width of a \
         key, found 99"
    );
    assert_eq!(
        refusal("key_length_mla", DK as u32 + 1),
        "tensor `blk.0.attn_q_b.weight`: expected shape [33, 8], found [30, 8]"
    );
    assert_eq!(
        refusal("value_length_mla", DV as u32 + 1),
        "tensor `blk.0.attn_v_b.weight`: expected shape [3, 6, 7], found [3, 5, 7]"
    );
    let mut model = model(SPLIT);
    model.tensors.retain(|meta| !meta.name.contains("attn_v_b"));
    assert_eq!(error(&model), "tensor `blk.0.attn_v_b.weight` is missing");
    model.add(&[("blk.0.attn_v_b.scale", &[1])]);
    assert_eq!(error(&model), "1 tensors are not used by the graph: `blk.0.attn_v_b.scale`");
}

#[test]
fn chunks_in_which_keys_would_be_chosen_are_not_run() {
    let mut model = model(SPLIT);
    model.add(&[("blk.0.indexer.attn_k.weight", &[8, N_EMBD])]);
    let error = model.plan(GRAPH).unwrap_err();
    assert_eq!(error.to_string(), "key `x.attention.indexer.top_k` is missing");
    model.metadata.set("x.attention.indexer.top_k", 8u32);
    let engine = Engine::new(model.plan(GRAPH).unwrap(), &model.tensors, EngineOptions::default()).unwrap();
    let chunk = |n: usize| TokenChunk { tokens: vec![1; n], rows: 0..n, ..TokenChunk::default() };
    assert_eq!(engine.hidden(&[chunk(8)]).unwrap().n_rows, 8);
    let error = engine.hidden(&[chunk(8), chunk(9)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "chunk of 9 tokens: beyond 8 the model looks at chosen keys only, which is not built yet"
    );
}

#[test]
fn layers_with_a_window_have_sizes_of_their_own() {
    let mut model = model(SPLIT);
    for (key, value) in [("sliding_window", 4), ("kv_lora_rank", 99), ("kv_lora_rank_swa", RANK)] {
        model.metadata.set(format!("x.attention.{key}"), value as u32);
    }
    model.metadata.set("x.attention.key_length_mla_swa", DK as u32);
    model.metadata.set("x.attention.value_length_mla_swa", DV as u32);
    let text = "mixer = 'mla'\nwindow = { kind = 'sliding', pattern = 0 }";
    let plan = model.plan(text).unwrap();
    let Mixer::Mla(mla) = &plan.layers[0].mixer else { panic!("not latent") };
    assert_eq!((mla.rank, mla.mask), (RANK, Mask::Window(4)));
}
