use std::sync::Mutex;

use crate::arch::graph::GraphFeatures;
use crate::core::progress::Silent;
use crate::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use crate::engine::plan::{Mask, Mixer};
use crate::engine::{Engine, EngineError, EngineOptions, GraphPlan, Observer, TokenChunk};
use crate::gguf::Metadata;

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

/// Which matrices a file has.
#[derive(Clone, Copy, Debug)]
struct Form {
    is_joint: bool,
    has_q_latent: bool,
    /// The shared key is normed, and heads have sinks and gates.
    norms_shared: bool,
}

const SPLIT: Form = Form { is_joint: false, has_q_latent: true, norms_shared: false };

/// A model of one layer whose weights are noise.
struct Model {
    metas: Vec<TensorMeta>,
    values: Vec<Vec<f32>>,
}

impl TensorSource for Model {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let skip = first as usize * self.metas[tensor].shape.n_cols() as usize;
        let bytes = self.values[tensor][skip..].iter().flat_map(|x| x.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(())
    }
}

impl Model {
    fn new(form: Form) -> Self {
        let mut model = Self { metas: Vec::new(), values: Vec::new() };
        model.add("token_embd", &[16, N_EMBD]);
        model.add("output_norm", &[N_EMBD]);
        model.add("blk.0.attn_norm", &[N_EMBD]);
        model.add("blk.0.attn_kv_a_mqa", &[RANK + N_SHARED, N_EMBD]);
        model.add("blk.0.attn_kv_a_norm", &[RANK]);
        model.add("blk.0.attn_output", &[N_EMBD, N_HEADS * DV]);
        if form.has_q_latent {
            model.add("blk.0.attn_q_a", &[Q_RANK, N_EMBD]);
            model.add("blk.0.attn_q_a_norm", &[Q_RANK]);
            model.add("blk.0.attn_q_b", &[N_HEADS * DK, Q_RANK]);
        } else {
            model.add("blk.0.attn_q", &[N_HEADS * DK, N_EMBD]);
        }
        if form.norms_shared {
            model.add("blk.0.attn_k_norm", &[N_SHARED]);
            model.add("blk.0.attn_sinks", &[N_HEADS]);
            model.add("blk.0.attn_gate", &[N_HEADS, N_EMBD]);
        }
        if form.is_joint {
            model.add("blk.0.attn_kv_b", &[N_HEADS * (N_OWN + DV), RANK]);
        } else {
            model.add("blk.0.attn_k_b", &[N_HEADS, RANK, N_OWN]);
            model.add("blk.0.attn_v_b", &[N_HEADS, DV, RANK]);
        }
        model
    }

    fn add(&mut self, name: &str, dims: &[usize]) {
        let n: usize = dims.iter().product();
        let mut state = 77 + self.metas.len() as u32;
        let noise = (0..n).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        });
        self.values.push(noise.collect());
        let shape = Shape::new(dims.iter().map(|&n| n as u64).collect::<Vec<_>>()).unwrap();
        self.metas.push(TensorMeta { name: format!("{name}.weight"), shape, ty: GgmlType::F32 });
    }

    fn get(&self, name: &str) -> Vec<f64> {
        let name = format!("{name}.weight");
        let at = self.metas.iter().position(|meta| meta.name == name).unwrap();
        self.values[at].iter().map(|&x| f64::from(x)).collect()
    }
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "x");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", N_EMBD),
        ("attention.head_count", N_HEADS),
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", RANK),
        ("attention.q_lora_rank", Q_RANK),
        // Of the compressed rows, not of the heads.
        ("attention.key_length", RANK + N_SHARED),
        ("attention.key_length_mla", DK),
        ("attention.value_length_mla", DV),
        ("rope.dimension_count", N_SHARED),
    ] {
        metadata.set(format!("x.{key}"), value as u32);
    }
    metadata.set("x.attention.layer_norm_rms_epsilon", EPS as f32);
    metadata
}

fn plan(model: &Model, metadata: &Metadata) -> Result<GraphPlan, EngineError> {
    let features = GraphFeatures::from_toml(
        &"mixer = 'mla'\nattn_gate = 'sigmoid'\nunused = ['indexer.*']".parse().unwrap(),
    )
    .unwrap();
    GraphPlan::new(&features, metadata, model.tensors())
}

/// `W x`.
fn times(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn normed(x: &[f64], w: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(w).map(|(x, w)| x / (mean + EPS).sqrt() * w).collect()
}

/// Rotates neighbouring values.
fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for (i, pair) in x.chunks(2).enumerate() {
        let (s, c) = (position as f64 * 10000f64.powf(-2.0 * i as f64 / x.len() as f64)).sin_cos();
        out.extend([pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c]);
    }
    out
}

/// The layer's output by the formula, token by token and head by head.
fn by_formula(model: &Model, form: Form, tokens: &[u32]) -> Vec<f64> {
    let (embedding, weight) = (model.get("token_embd"), |name: &str| model.get(&format!("blk.0.{name}")));
    let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut gates = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let x = normed(&embedding[token as usize * N_EMBD..][..N_EMBD], &weight("attn_norm"));
        let q = if form.has_q_latent {
            times(&weight("attn_q_b"), &normed(&times(&weight("attn_q_a"), &x), &weight("attn_q_a_norm")))
        } else {
            times(&weight("attn_q"), &x)
        };
        gates.push(if form.norms_shared {
            times(&weight("attn_gate"), &x).iter().map(|gate| 1.0 / (1.0 + (-gate).exp())).collect()
        } else {
            vec![1.0; N_HEADS]
        });
        let kv = times(&weight("attn_kv_a_mqa"), &x);
        let latent = normed(&kv[..RANK], &weight("attn_kv_a_norm"));
        let shared =
            if form.norms_shared { normed(&kv[RANK..], &weight("attn_k_norm")) } else { kv[RANK..].to_vec() };
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

/// Keeps one slot.
struct Kept(Mutex<Vec<f32>>);

impl Observer for Kept {
    fn slot(&self, _: usize, name: &str, x: &[f32], _: usize) {
        if name == "mixer" {
            *self.0.lock().unwrap() = x.to_vec();
        }
    }
}

#[test]
fn all_forms_equal_the_formula_whatever_the_number_of_threads() {
    let tokens: Vec<u32> = (0..N_TOKENS as u32).map(|i| i * 7 % 16).collect();
    for (is_joint, has_q_latent, norms_shared) in
        [(true, true, false), (true, false, true), (false, true, true), (false, false, false)]
    {
        let form = Form { is_joint, has_q_latent, norms_shared };
        let model = Model::new(form);
        let run = |n_threads| {
            let options = EngineOptions { n_threads, ..EngineOptions::default() };
            let engine = Engine::new(plan(&model, &metadata()).unwrap(), &model, options).unwrap();
            let chunk = TokenChunk { tokens: tokens.clone(), rows: 0..N_TOKENS, ..TokenChunk::default() };
            let kept = Kept(Mutex::default());
            engine.forward(&[chunk], &Silent, Some(&kept)).unwrap();
            kept.0.into_inner().unwrap()
        };
        let found = run(1);
        assert_eq!(found, run(3), "{form:?}");
        for (x, y) in found.iter().zip(by_formula(&model, form, &tokens)) {
            assert!((f64::from(*x) - y).abs() < 2e-5, "{form:?}: {x} and {y}");
        }
    }
}

#[test]
fn only_the_wanted_rows_are_computed_at_the_end() {
    let model = Model::new(SPLIT);
    let engine = Engine::new(plan(&model, &metadata()).unwrap(), &model, EngineOptions::default()).unwrap();
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
    let model = Model::new(SPLIT);
    let refusal = |key: &str, value: u32| {
        let mut metadata = metadata();
        metadata.set(format!("x.attention.{key}"), value);
        plan(&model, &metadata).unwrap_err().to_string()
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
    let mut model = Model::new(SPLIT);
    model.metas.retain(|meta| !meta.name.contains("attn_v_b"));
    let error = plan(&model, &metadata()).unwrap_err();
    assert_eq!(error.to_string(), "tensor `blk.0.attn_v_b.weight` is missing");
    model.add("blk.0.attn_v_b.scale", &[1]);
    model.metas.last_mut().unwrap().name = "blk.0.attn_v_b.scale".to_owned();
    let error = plan(&model, &metadata()).unwrap_err();
    assert_eq!(error.to_string(), "1 tensors are not used by the graph: `blk.0.attn_v_b.scale`");
}

#[test]
fn chunks_in_which_keys_would_be_chosen_are_not_run() {
    let mut model = Model::new(SPLIT);
    model.add("blk.0.indexer.attn_k", &[8, N_EMBD]);
    let mut metadata = metadata();
    let error = plan(&model, &metadata).unwrap_err();
    assert_eq!(error.to_string(), "key `x.attention.indexer.top_k` is missing");
    metadata.set("x.attention.indexer.top_k", 8u32);
    let engine = Engine::new(plan(&model, &metadata).unwrap(), &model, EngineOptions::default()).unwrap();
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
    let model = Model::new(SPLIT);
    let mut metadata = metadata();
    for (key, value) in [("sliding_window", 4), ("kv_lora_rank", 99), ("kv_lora_rank_swa", RANK)] {
        metadata.set(format!("x.attention.{key}"), value as u32);
    }
    metadata.set("x.attention.key_length_mla_swa", DK as u32);
    metadata.set("x.attention.value_length_mla_swa", DV as u32);
    let text = "mixer = 'mla'\nwindow = 'sliding'\nwindow_pattern = 0";
    let features = GraphFeatures::from_toml(&text.parse().unwrap()).unwrap();
    let plan = GraphPlan::new(&features, &metadata, model.tensors()).unwrap();
    let Mixer::Mla(mla) = &plan.layers[0].mixer else { panic!("not latent") };
    assert_eq!((mla.rank, mla.mask), (RANK, Mask::Window(4)));
}
