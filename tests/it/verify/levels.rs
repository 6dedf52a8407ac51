//! Threads and levels of vector instructions: figures do not depend on the number of threads, and little on the level.

use std::path::Path;

use gguf_foundry::core::GgmlType;
use gguf_foundry::core::simd::SimdLevel;
use serde_json::Value;

use super::gguf_verify;
use crate::support::fixture;
use crate::support::programs::Outcome;
use crate::support::tiers::{Tier, deep_test, two_tiers};
use crate::testkit::tiny::Tiny;

/// Directory with the first layers of the bundled model in F32 and Q4_0, and a text.
fn directory(n_layers: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(n_layers);
    base.write(dir.path(), "base.gguf");
    base.quantized(GgmlType::Q4_0).write(dir.path(), "q4.gguf");
    fs_err::copy(fixture("tiny-llama/corpus.txt"), dir.path().join("p.txt")).unwrap();
    dir
}

const CUT: [&str; 6] = ["--prompts", "p.txt", "--ctx", "64", "--chunks", "6"];

fn verified(dir: &Path, args: &[&str]) -> Outcome {
    gguf_verify(&[args, &CUT, &["--no-sync"]].concat(), dir)
}

fn part(dir: &Path, args: &[&str], share: &str, name: &str) {
    verified(dir, &[args, &["--part", share, "-o", name]].concat()).ok();
}

fn combined(dir: &Path, names: &[&str]) -> Outcome {
    gguf_verify(&[&["combine"], names, &["--json"]].concat(), dir)
}

/// Perplexity, divergence and per-token figures of a run.
fn figures(dir: &Path, more: &[&str]) -> (Value, String) {
    let args = ["q4.gguf", "--baseline", "base.gguf", "--json"];
    let mut report = verified(dir, &[&args[..], &["--per-token", "t.csv"], more].concat()).model();
    report.as_object_mut().unwrap().remove("tokens_per_second");
    (report, fs_err::read_to_string(dir.join("t.csv")).unwrap())
}

two_tiers!(figures_do_not_depend_on_threads_and_little_on_the_level);

/// Every day of one layer, with one other number of threads, at the first level.
fn figures_do_not_depend_on_threads_and_little_on_the_level(tier: Tier) {
    let dir = directory(tier.of(1, 4));
    let dir = dir.path();
    let one = figures(dir, &["--threads", "1"]);
    for threads in tier.some(3, ["3", "2", "5"]) {
        assert!(figures(dir, &["--threads", threads]) == one, "{threads} threads");
    }
    // Sums are in F32, in an order that depends on the level.
    let number = |report: &Value, at: &str| report.pointer(at).and_then(Value::as_f64).unwrap();
    for level in SimdLevel::available().take(tier.of(1, usize::MAX)) {
        let (other, _) = figures(dir, &["--simd", level.name()]);
        assert_eq!(other["verdict"], one.0["verdict"]);
        let off = number(&other, "/perplexity/value") / number(&one.0, "/perplexity/value") - 1.0;
        let kld = number(&one.0, "/kld/mean");
        let kld_off = number(&other, "/kld/mean") - kld;
        println!("{level}: perplexity off by {off:.1e}, divergence {kld:.2e} by {kld_off:.1e}");
        assert!(off.abs() < 2e-6 && kld_off.abs() < 1e-7 + 1e-4 * kld, "{level}: {off} {kld_off}");
    }
}

deep_test!(parts_of_machines_of_different_levels_come_together);

/// Machines with different vector instructions may share the text.
fn parts_of_machines_of_different_levels_come_together() {
    let dir = directory(4);
    let dir = dir.path();
    let args = ["q4.gguf", "--baseline", "base.gguf"];
    let levels: Vec<SimdLevel> = SimdLevel::available().collect();
    let (first, last) = (levels[0].name(), levels[levels.len() - 1].name());
    let run = |number: usize, level: &str, threads: &str| {
        let name = format!("{level}-{threads}-{number}.part");
        let machine = ["--simd", level, "--threads", threads];
        part(dir, &[&args[..], &machine].concat(), &format!("{number}/3"), &name);
        name
    };
    let report =
        |names: &[String]| combined(dir, &names.iter().map(String::as_str).collect::<Vec<_>>()).model();
    let alike: Vec<String> = (1..=3).map(|number| run(number, last, "1")).collect();
    let threads = [&alike[..2], &[run(3, last, "3")]].concat();
    assert_eq!(report(&alike), report(&threads), "threads change something");
    let mixed = report(&[&alike[..2], &[run(3, first, "2")]].concat());
    let whole = report(&alike);
    let number = |report: &Value, at: &str| report.pointer(at).and_then(Value::as_f64).unwrap();
    assert_eq!(mixed["verdict"], whole["verdict"]);
    let off = number(&mixed, "/perplexity/value") / number(&whole, "/perplexity/value") - 1.0;
    assert!(off.abs() < 2e-6, "{off}");
}
