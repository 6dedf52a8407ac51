//! `gguf-inspect memory`: the memory of a context, as llama.cpp reports it.

use rayon::prelude::*;

use super::Bench;
use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::programs;
use crate::support::tiers::Tier;

/// Tokens of the recorded sizes.
const TOKENS: u64 = 32768;

/// Returns the bytes of keys, values and states for a context.
fn kept_bytes(bench: &Bench, file: &str, tokens: u64) -> u64 {
    let report = bench.json(&["memory", file, "--ctx", &tokens.to_string()], 0);
    let at = &report["contexts"][0];
    at["kv_bytes"].as_u64().unwrap() + at["state_bytes"].as_u64().unwrap()
}

tiered_conformance_tests!(caches_have_the_sizes_that_llama_cpp_reports);

fn caches_have_the_sizes_that_llama_cpp_reports(goldens: &Goldens, tier: Tier) {
    let rows: Vec<(&str, Vec<f64>)> = include_str!("llama_caches.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, sizes) = line.split_once('\t').unwrap_or((line, ""));
            (name, sizes.split_whitespace().map(|size| size.parse().unwrap()).collect())
        })
        .collect();
    let here =
        rows.iter().filter_map(|(name, sizes)| Some((name, sizes, goldens.find(format!("arch/{name}/hf"))?)));
    let outcomes: Vec<Option<String>> = tier
        .some(4, here)
        .par_iter()
        .map(|(name, sizes, checkpoint)| {
            let bench = Bench::new();
            let checkpoint = checkpoint.to_str().unwrap();
            let args =
                ["hf2gguf", checkpoint, "-o", "m.gguf", "--type", "f16", "--no-tokenizer", "--no-sync"];
            programs::run("gguf-convert", &bench.path(""), &args).ok();
            let found = kept_bytes(&bench, "m.gguf", TOKENS) as f64 / f64::from(1 << 20);
            let expected: f64 = sizes.iter().sum();
            // Each size has two decimals.
            let is_equal = (found - expected).abs() <= 0.00501 * sizes.len().max(1) as f64;
            (!is_equal).then(|| format!("{name}: {found:.3} MiB, llama.cpp {sizes:?}"))
        })
        .collect();
    println!("{} caches compared", outcomes.len());
    let differing: Vec<&String> = outcomes.iter().flatten().collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(outcomes.len() >= if goldens.is_whole() { rows.len() } else { 1 });
}
