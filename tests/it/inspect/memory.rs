//! `gguf-inspect memory`: the memory of a context, as llama.cpp reports it.

use rayon::prelude::*;
use serde_json::Value as Json;

use super::Bench;
use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::programs;
use crate::support::tiers::Tier;
use gguf_testkit::bundled;

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

/// A folder of files, and a checkpoint with types that are not made.
#[test]
fn the_largest_that_fits_is_named() {
    let bench = Bench::new();
    bundled::write_layers(1, &bench.path("hf"));
    let fit = |path: &str, more: &[&str]| {
        let args = [&["memory", path, "--ctx", "512", "--fit"], more].concat();
        bench.json(&args, 0)["models"][0].clone()
    };
    let whole = fit("hf", &["1G"]);
    let choices = whole["choices"].as_array().unwrap().clone();
    let bytes = |choice: &Json, key: &str| choice[key].as_u64().unwrap();
    assert!(choices.is_sorted_by(|a, b| bytes(a, "weight_bytes") >= bytes(b, "weight_bytes")));
    assert!(choices.len() > 15 && choices.iter().all(|choice| choice["exists"] == false), "{whole}");
    assert_eq!(whole["best"], choices[0]["name"]);

    // The sizes are those of the files.
    fs_err::create_dir(bench.path("made")).unwrap();
    for ty in ["q8_0", "q4_k_m"] {
        let out = format!("made/{ty}.gguf");
        let args = ["hf2gguf", "hf", "--type", ty, "-o", &out, "--no-sync", "--quiet"];
        programs::run("gguf-convert", &bench.path(""), &args).ok();
    }
    let made = fit("made", &["1G"]);
    let size = |report: &Json, name: &str| {
        let mut rows = report["choices"].as_array().unwrap().iter();
        bytes(
            rows.find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {report}")),
            "total_bytes",
        )
    };
    assert_eq!(size(&made, "q4_k_m.gguf"), size(&whole, "Q4_K_M"));
    assert_eq!(made["best"], "q8_0.gguf");

    // One byte less than the larger one takes: the smaller one, or the larger one with smaller keys and values.
    let less = (size(&made, "q8_0.gguf") - 1).to_string();
    let found = fit("made", &[less.as_str()]);
    assert_eq!(found["best"], "q4_k_m.gguf");
    assert_eq!(found["with_smaller_kv"][0]["name"], "q8_0.gguf");
    assert_eq!(fit("made", &["1K"])["best"], Json::Null);
}
