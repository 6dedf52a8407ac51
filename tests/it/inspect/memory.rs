//! `gguf-inspect memory`: the memory of a context, as llama.cpp reports it.

use rayon::prelude::*;
use serde_json::Value;

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

#[test]
fn a_context_is_described_in_numbers_and_words() {
    let bench = Bench::new().with_tiny();
    let report = bench.json(&["memory", "tiny.gguf", "--ctx", "100,8192", "--kv", "f16"], 0);
    let contexts = report["contexts"].as_array().unwrap();
    assert_eq!(contexts.len(), 2);
    let kept = &report["kept"][0];
    let number = |value: &Value| value.as_u64().unwrap();
    let per_token = number(&kept["layers"])
        * number(&kept["heads"])
        * (number(&kept["key"]) + number(&kept["value"]))
        * 2;
    for (at, rows) in contexts.iter().zip([256, 8192]) {
        assert_eq!(number(&at["kv_bytes"]), per_token * rows);
        let parts = ["kv_bytes", "state_bytes", "compute_bytes"].map(|key| number(&at[key]));
        assert_eq!(number(&at["total_bytes"]), number(&report["weight_bytes"]) + parts.iter().sum::<u64>());
    }
    let out = bench.run(&["memory", "tiny.gguf", "--ctx", "8192"]).exits_with(0).out;
    assert!(out.contains("values of") && out.contains("8 192") && out.contains("keys and values"), "{out}");
    // What does not fit is refused, with the type that fits.
    let odd = bench.run(&["memory", "tiny.gguf", "--kv", "q8_0"]);
    if number(&kept["key"]) % 32 != 0 {
        let err = odd.exits_with(1).err;
        assert!(err.contains("in blocks of 32") && err.contains("--kv f16"), "{err}");
    } else {
        odd.exits_with(0);
    }
    for bad in [&["--ctx", "0"][..], &["--ctx", "many"], &["--kv", "q6_k"], &["--ctx", "8192,"]] {
        bench.run(&[&["memory", "tiny.gguf"], bad].concat()).exits_with(2);
    }
    let err = bench.run(&["memory", "tiny.gguf", "--ctx", "18446744073709551615"]).exits_with(1).err;
    assert!(err.contains("larger than any memory"), "{err}");
}

#[test]
fn a_file_without_a_graph_is_refused_with_its_architecture() {
    let bench = Bench::new().with_tiny();
    let changed = bench.path("other.gguf");
    fs_err::copy(bench.path("tiny.gguf"), &changed).unwrap();
    bench.run(&["set", "other.gguf", "general.architecture=nobody-knows", "--force"]).exits_with(0);
    let err = bench.run(&["memory", "other.gguf"]).exits_with(1).err;
    assert!(err.contains("nobody-knows"), "{err}");
}
