//! Benchmarks of the models: the engine compared with plain products of the same shapes.

use std::time::Instant;

use gguf_foundry::arch::GraphFeatures;
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan};
use gguf_foundry::gguf::Metadata;

use crate::cases::{Case, Tensor, TensorUse};
use crate::ceiling::{Job, ceiling};
use crate::model::{chunk, push};
use crate::testkit::memory::MemoryTensors;

const VOCABULARY: usize = 512;

impl Case {
    fn model(&self) -> (MemoryTensors, Metadata) {
        let mut model = MemoryTensors::default().mapped();
        push(&mut model, "token_embd.weight", &[VOCABULARY, self.n_embd], GgmlType::F16, None);
        for Tensor { name, dims, value, .. } in &self.ends {
            push(&mut model, name, dims, GgmlType::F32, *value);
        }
        for layer in 0..self.n_layers {
            for Tensor { name, dims, value, is_used } in &self.tensors {
                let ty = if *is_used == TensorUse::Vector { GgmlType::F32 } else { GgmlType::F16 };
                push(&mut model, &format!("blk.{layer}.{name}"), dims, ty, *value);
            }
        }
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", self.arch);
        let n_layers = self.n_layers as u32;
        for (key, value) in [("block_count", n_layers), ("embedding_length", self.n_embd as u32)] {
            metadata.set(format!("{}.{key}", self.arch), value);
        }
        for (key, value) in &self.keys {
            metadata.set(format!("{}.{key}", self.arch), *value as u32);
        }
        for key in ["layer_norm_rms_epsilon", "layer_norm_epsilon"] {
            metadata.set(format!("{}.attention.{key}", self.arch), 1e-5f32);
        }
        (model, metadata)
    }

    /// Returns the products with the matrices of all layers, and those of attention.
    fn jobs(&self, n_tokens: usize) -> (Vec<Job>, Vec<Job>) {
        let mut weights = Vec::new();
        for Tensor { dims, is_used, .. } in &self.tensors {
            let n_matrices: usize = dims[..dims.len().saturating_sub(2)].iter().product();
            let [.., rows, cols] = dims[..] else { continue };
            match *is_used {
                TensorUse::Vector => {}
                TensorUse::Matrix => weights.push(Job { rows: n_matrices * rows, cols, n_tokens, count: 1 }),
                TensorUse::Experts(n_used) => {
                    let n_tokens = (n_tokens * n_used).div_ceil(n_matrices);
                    weights.push(Job { rows, cols, n_tokens, count: n_matrices });
                }
            }
        }
        let attention = self.heads.iter().flat_map(|heads| {
            // A query sees half of the keys on average, or its window.
            let n_keys = heads.window.unwrap_or(usize::MAX).min(n_tokens.div_ceil(2));
            let count = heads.n;
            let scores = Job { rows: n_keys, cols: heads.dk, n_tokens, count };
            [scores, Job { rows: heads.dv, cols: n_keys, n_tokens, count }]
        });
        (weights, attention.collect())
    }
}

/// Seconds of one round, and shares of thread time.
struct Round {
    plain: f64,
    plain_attention: f64,
    all: f64,
    timings: Vec<(&'static str, f64)>,
}

/// Runs a case and prints the result.
pub(crate) fn run(case: &Case, n_tokens: usize, n_rounds: usize, n_threads: usize) {
    let (model, metadata) = case.model();
    let features = GraphFeatures::of(case.arch).unwrap();
    let chunks = [chunk(n_tokens, VOCABULARY, 0, 0..n_tokens)];
    let (weights, attention) = case.jobs(n_tokens);
    let flops: f64 = case.n_layers as f64 * weights.iter().map(Job::flops).sum::<f64>();
    let mut rounds = Vec::new();
    for _ in 0..n_rounds {
        // Alternating, so that both run under the same conditions.
        let layers = case.n_layers as f64;
        let plain = layers * ceiling(&weights, n_threads);
        let plain_attention =
            if attention.is_empty() { 0.0 } else { layers * ceiling(&attention, n_threads) };
        // The better of two runs, like the ceiling.
        let runs = [(); 2].map(|()| {
            let plan = GraphPlan::new(&features, &metadata, model.tensors()).unwrap();
            let engine = Engine::new(plan, &model, EngineOptions::default()).unwrap();
            let start = Instant::now();
            std::hint::black_box(engine.hidden(&chunks).unwrap());
            let all = start.elapsed().as_secs_f64();
            let share = |seconds: f64| 100.0 * seconds / (all * n_threads as f64);
            let timings = engine.timings().map(|(phase, time)| (phase.name(), share(time.as_secs_f64())));
            (all, timings)
        });
        let (all, timings) = if runs[1].0 < runs[0].0 { &runs[1] } else { &runs[0] };
        rounds.push(Round { plain, plain_attention, all: *all, timings: timings.to_vec() });
    }
    rounds.sort_by(|a, b| (a.plain / a.all).total_cmp(&(b.plain / b.all)));
    let Some(round) = rounds.get(rounds.len() / 2) else { return };
    println!(
        "\n{:<10} {} ({}), {n_tokens} tokens: {:.0} of {:.0} GFLOP/s, {:.0} %{}",
        case.name,
        case.model,
        case.what,
        flops / round.all / 1e9,
        flops / round.plain / 1e9,
        100.0 * round.plain / round.all,
        if attention.is_empty() {
            String::new()
        } else {
            let plain = round.plain + round.plain_attention;
            format!("; with the products of attention {:.0} %", 100.0 * plain / round.all)
        },
    );
    let mut timings = round.timings.clone();
    timings.push(("waiting", 100.0 - timings.iter().map(|(_, share)| share).sum::<f64>()));
    timings.retain(|(_, share)| *share >= 0.5);
    timings.sort_by(|a, b| b.1.total_cmp(&a.1));
    let parts: Vec<String> = timings.iter().map(|(name, share)| format!("{name} {share:.1}")).collect();
    println!("           {}", parts.join(", "));
}
