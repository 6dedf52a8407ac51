//! The engine beside its ceiling: plain `gemm` on the same shapes and threads. Prints GFLOP/s of both and their
//! ratio, for one type of weights after another, and where the engine's time goes.
//!
//! The model has the widths of SmolLM2-135M (576, 9 heads on 3, feed-forward 1536) in few layers, and random weights:
//! speed does not depend on what they are.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints for its reader"
)]

use std::time::Instant;

use gemm_common::gemm::{
    DEFAULT_LHS_PACKING_THRESHOLD_SINGLE_THREAD, set_lhs_packing_threshold_single_thread,
};
use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::gguf::Metadata;
use gguf_foundry::quant::quantize_rows;

const WIDTH: usize = 576;
const FFN: usize = 1536;
const KV: usize = 192;
const VOCABULARY: usize = 12288;
const CONTEXT: usize = 512;

struct Model {
    metas: Vec<TensorMeta>,
    bytes: Vec<Vec<u8>>,
}

impl TensorSource for Model {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = first_row as usize * self.metas[tensor].row_bytes().unwrap() as usize;
        out.copy_from_slice(&self.bytes[tensor][start..start + out.len()]);
        Ok(())
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let row = self.metas[tensor].row_bytes().unwrap() as usize;
        Some(&self.bytes[tensor][first_row as usize * row..(first_row + n_rows) as usize * row])
    }
}

fn values(n: usize, seed: &mut u64) -> Vec<f32> {
    (0..n)
        .map(|_| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((*seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.05
        })
        .collect()
}

impl Model {
    fn new(ty: GgmlType, n_layers: usize) -> (Self, Metadata) {
        let mut model = Self { metas: Vec::new(), bytes: Vec::new() };
        let mut seed = 1;
        let mut push = |name: String, rows: usize, cols: usize| {
            let (dims, ty) = if rows == 1 { (vec![cols], GgmlType::F32) } else { (vec![rows, cols], ty) };
            let shape = Shape::new(dims.iter().map(|&n| n as u64).collect()).unwrap();
            let meta = TensorMeta { name: format!("{name}.weight"), shape, ty };
            let mut bytes = vec![0; meta.n_bytes().unwrap() as usize];
            let level = SimdLevel::detect();
            quantize_rows(ty, level, cols, &values(rows * cols, &mut seed), None, &mut bytes).unwrap();
            model.metas.push(meta);
            model.bytes.push(bytes);
        };
        push("token_embd".to_owned(), VOCABULARY, WIDTH);
        push("output_norm".to_owned(), 1, WIDTH);
        for layer in 0..n_layers {
            for (name, rows, cols) in [
                ("attn_norm", 1, WIDTH),
                ("attn_q", WIDTH, WIDTH),
                ("attn_k", KV, WIDTH),
                ("attn_v", KV, WIDTH),
                ("attn_output", WIDTH, WIDTH),
                ("ffn_norm", 1, WIDTH),
                ("ffn_gate", FFN, WIDTH),
                ("ffn_up", FFN, WIDTH),
                ("ffn_down", WIDTH, FFN),
            ] {
                push(format!("blk.{layer}.{name}"), rows, cols);
            }
        }
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        for (key, value) in [
            ("block_count", n_layers as u32),
            ("embedding_length", WIDTH as u32),
            ("feed_forward_length", FFN as u32),
            ("attention.head_count", 9),
            ("attention.head_count_kv", 3),
        ] {
            metadata.set(format!("llama.{key}"), value);
        }
        metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        (model, metadata)
    }
}

/// Rows and columns of the matrices that all tokens of a layer are multiplied with.
const LAYER: [(usize, usize); 4] = [(WIDTH + 2 * KV, WIDTH), (WIDTH, WIDTH), (2 * FFN, WIDTH), (WIDTH, FFN)];

fn flops(shapes: &[(usize, usize)], n_tokens: usize) -> usize {
    shapes.iter().map(|(rows, cols)| 2 * rows * cols * n_tokens).sum()
}

/// Seconds of products of `n_tokens` with the matrices, tokens shared among threads: the better of two.
fn ceiling(shapes: &[(usize, usize)], n_tokens: usize, n_threads: usize) -> f64 {
    let mut seed = 7;
    let share = n_tokens.div_ceil(n_threads);
    let data: Vec<_> = shapes
        .iter()
        .map(|&(rows, cols)| (rows, cols, values(rows * cols, &mut seed), values(share * cols, &mut seed)))
        .collect();
    let widest = shapes.iter().map(|(rows, _)| *rows).max().unwrap();
    let mut outs: Vec<Vec<f32>> = (0..n_threads).map(|_| vec![0.0; share * widest]).collect();
    let mut best = f64::INFINITY;
    for _ in 0..2 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for out in &mut outs {
                let data = &data;
                scope.spawn(move || {
                    for (rows, cols, weights, x) in data {
                        #[allow(unsafe_code, reason = "the plain call of the crate is what is measured")]
                        // SAFETY: `out`, `x` and `weights` have at least the sizes and strides given.
                        unsafe {
                            // The product by columns, as the kernels write it: `outᵀ = weights xᵀ`.
                            gemm_f32::gemm::f32::get_gemm_fn()(
                                *rows,
                                share,
                                *cols,
                                out.as_mut_ptr(),
                                *rows as isize,
                                1,
                                false,
                                weights.as_ptr(),
                                1,
                                *cols as isize,
                                x.as_ptr(),
                                *cols as isize,
                                1,
                                0.0,
                                1.0,
                                false,
                                false,
                                false,
                                gemm_common::Parallelism::None,
                            );
                        }
                        std::hint::black_box(&out);
                    }
                });
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let (n_layers, n_chunks) = if is_bench { (6, 16) } else { (1, 1) };
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let n_tokens = n_chunks * CONTEXT;
    let rows = CONTEXT / 2..CONTEXT - 1;
    let n_scored = n_chunks * rows.len();
    let body_flops = flops(&LAYER, n_tokens);
    let head_flops = flops(&[(VOCABULARY, WIDTH)], n_scored);
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_1, GgmlType::Q4_0] {
        let (model, metadata) = Model::new(ty, n_layers);
        let features = GraphFeatures::of("llama").unwrap();
        let tokens =
            |chunk: usize| (0..CONTEXT).map(|i| ((i * 7 + chunk * 31) % VOCABULARY) as u32).collect();
        let chunks: Vec<TokenChunk> = (0..n_chunks)
            .map(|chunk| TokenChunk { tokens: tokens(chunk), rows: rows.clone(), n_source: 0 })
            .collect();
        let targets = vec![0; n_scored];
        let mut rounds = Vec::new();
        for _ in 0..if is_bench { 5 } else { 1 } {
            // Alternating, so that both see the same machine. The engine changes this setting of the crate.
            set_lhs_packing_threshold_single_thread(DEFAULT_LHS_PACKING_THRESHOLD_SINGLE_THREAD);
            let plain_body = ceiling(&LAYER, n_tokens, n_threads);
            let plain_head = ceiling(&[(VOCABULARY, WIDTH)], n_scored, n_threads);
            let plan = GraphPlan::new(&features, &metadata, model.tensors()).unwrap();
            let engine = Engine::new(plan, &model, EngineOptions::default()).unwrap();
            let start = Instant::now();
            let hidden = engine.hidden(&chunks).unwrap();
            let body = start.elapsed().as_secs_f64();
            std::hint::black_box(engine.scores(&hidden, &targets, &Silent, None).unwrap());
            let all = start.elapsed().as_secs_f64();
            let share = |seconds: f64| 100.0 * seconds / (all * n_threads as f64);
            let timings = engine.timings().map(|(phase, time)| (phase.name(), share(time.as_secs_f64())));
            let plain = n_layers as f64 * plain_body + plain_head;
            rounds.push(Round {
                plain_body,
                plain_head,
                body,
                all,
                ratio: plain / all,
                timings: timings.into(),
            });
        }
        rounds.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        let Some(round) = rounds.get(rounds.len() / 2) else { continue };
        println!(
            "\n{:<5} {:.0} tokens/s, {:.0} % of plain gemm; body {:.0} %, head {:.0} % (plain: {:.0} and {:.0} GFLOP/s)",
            ty.name(),
            n_tokens as f64 / round.all,
            100.0 * round.ratio,
            100.0 * n_layers as f64 * round.plain_body / round.body,
            100.0 * round.plain_head / (round.all - round.body),
            body_flops as f64 / round.plain_body / 1e9,
            head_flops as f64 / round.plain_head / 1e9,
        );
        for (name, share) in &round.timings {
            println!("      {name:<24} {share:5.1} %");
        }
        println!(
            "      {:<24} {:5.1} %",
            "waiting",
            100.0 - round.timings.iter().map(|(_, s)| s).sum::<f64>()
        );
    }
}

/// Seconds of one round, and shares of thread time.
struct Round {
    plain_body: f64,
    plain_head: f64,
    body: f64,
    all: f64,
    ratio: f64,
    timings: Vec<(&'static str, f64)>,
}
