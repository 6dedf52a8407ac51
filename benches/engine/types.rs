//! Benchmarks of weight types, body and head, with the widths of SmolLM2-135M (576, 9 heads on 3, feed-forward 1536) in
//! few layers.

use std::time::Instant;

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::gguf::Metadata;

use crate::ceiling::{Job, ceiling};
use crate::model::{chunk, push};
use crate::testkit::memory::MemoryTensors;

const WIDTH: usize = 576;
const FFN: usize = 1536;
const KV: usize = 192;
const VOCABULARY: usize = 12288;
const CONTEXT: usize = 512;

fn model(ty: GgmlType, n_layers: usize) -> (MemoryTensors, Metadata) {
    let mut model = MemoryTensors::default().mapped();
    let mut add = |name: &str, rows: usize, cols: usize| {
        let name = format!("{name}.weight");
        if rows == 1 {
            push(&mut model, &name, &[cols], GgmlType::F32);
        } else {
            push(&mut model, &name, &[rows, cols], ty);
        }
    };
    add("token_embd", VOCABULARY, WIDTH);
    add("output_norm", 1, WIDTH);
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
            add(&format!("blk.{layer}.{name}"), rows, cols);
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

/// Rows and columns of the matrices of a layer that all tokens are multiplied with.
const LAYER: [(usize, usize); 4] = [(WIDTH + 2 * KV, WIDTH), (WIDTH, WIDTH), (2 * FFN, WIDTH), (WIDTH, FFN)];

fn jobs(shapes: &[(usize, usize)], n_tokens: usize) -> Vec<Job> {
    shapes.iter().map(|&(rows, cols)| Job { rows, cols, n_tokens }).collect()
}

fn flops(jobs: &[Job]) -> f64 {
    jobs.iter().map(Job::flops).sum()
}

/// Measures one type of weights after another and prints the results.
pub(crate) fn run(is_bench: bool, n_threads: usize) {
    let (n_layers, n_chunks) = if is_bench { (6, 16) } else { (1, 1) };
    let n_tokens = n_chunks * CONTEXT;
    let rows = CONTEXT / 2..CONTEXT - 1;
    let n_scored = n_chunks * rows.len();
    let body_jobs = jobs(&LAYER, n_tokens);
    let head_jobs = jobs(&[(VOCABULARY, WIDTH)], n_scored);
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_1, GgmlType::Q4_0] {
        let (model, metadata) = model(ty, n_layers);
        let features = GraphFeatures::of("llama").unwrap();
        let chunks: Vec<TokenChunk> =
            (0..n_chunks).map(|at| chunk(CONTEXT, VOCABULARY, at, rows.clone())).collect();
        let targets = vec![0; n_scored];
        let mut rounds = Vec::new();
        for _ in 0..if is_bench { 5 } else { 1 } {
            // Alternating, so that both run under the same conditions.
            let plain_body = ceiling(&body_jobs, n_threads);
            let plain_head = ceiling(&head_jobs, n_threads);
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
            flops(&body_jobs) / round.plain_body / 1e9,
            flops(&head_jobs) / round.plain_head / 1e9,
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
