//! Numbers of tokens that the experts of a model get.

use std::path::Path;

use serde_json::Value;

use super::gguf_verify;
use crate::support::{fixture, programs};

/// Directory with a file of eleven experts of which each token uses two, its quantized version, and prompts.
pub(super) fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let hf = fixture("native/nvfp4_qwen3moe/hf");
    let convert = |out: &str, ty: &str| {
        let args = [
            "hf2gguf",
            hf.to_str().unwrap(),
            "-o",
            out,
            "--type",
            ty,
            "--no-tokenizer",
            "--quiet",
            "--no-sync",
        ];
        programs::run("gguf-convert", dir.path(), &args).ok();
    };
    convert("f32.gguf", "f32");
    let args = ["f32.gguf", "q4_0.gguf", "--type", "q4_0", "--allow-requantize", "--quiet", "--no-sync"];
    programs::run("gguf-quantize", dir.path(), &args).ok();
    let line = |seed: u32, n: u32| {
        serde_json::json!({ "tokens": (1..=n).map(|at| (at * 7 + seed * at * at) % 31).collect::<Vec<_>>() })
            .to_string()
    };
    let lines: Vec<String> = (0..6).map(|seed| line(seed, 48)).collect();
    fs_err::write(dir.path().join("p.jsonl"), lines.join("\n")).unwrap();
    fs_err::write(dir.path().join("four.jsonl"), line(0, 4)).unwrap();
    dir
}

fn run(dir: &Path, args: &[&str]) -> Value {
    let ended = gguf_verify(&[args, &["--json", "--score", "all"]].concat(), dir);
    assert!([0, 3, 4].contains(&ended.code()), "{}", ended.err);
    ended.json()
}

/// Returns the report of the only model.
fn only(mut report: Value) -> Value {
    report["models"][0].take()
}

fn sum(tokens: &Value) -> u64 {
    tokens.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum()
}

#[test]
fn every_token_counts_once_for_each_expert_that_it_uses() {
    let dir = directory();
    let report = only(run(dir.path(), &["f32.gguf", "--prompts", "p.jsonl"]));
    let layers = report["experts"].as_array().unwrap();
    assert!(!layers.is_empty());
    for (at, layer) in layers.iter().enumerate() {
        assert_eq!(layer["layer"].as_u64(), Some(at as u64));
        assert_eq!((layer["experts"].as_u64(), layer["used"].as_u64()), (Some(11), Some(2)));
        assert_eq!((layer["routed"].as_u64(), sum(&layer["tokens"])), (Some(288), 576));
        let (busiest, least) = (layer["busiest"].as_f64().unwrap(), layer["least"].as_f64().unwrap());
        assert!(least <= 1.0 / 11.0 && 1.0 / 11.0 <= busiest, "{layer}");
        assert!((0.0..=1.0).contains(&layer["evenness"].as_f64().unwrap()));
        assert!(layer["agreement"].is_null());
    }
    // For any number of threads, and any division of the run.
    for more in [&["--threads", "1"][..], &["--threads", "3"], &["--threads", "1", "--memory", "12M"]] {
        let other = only(run(dir.path(), &[&["f32.gguf", "--prompts", "p.jsonl"][..], more].concat()));
        assert_eq!(other["experts"], report["experts"], "{more:?}");
    }
    // Four tokens cannot reach eleven experts with two each.
    let few = only(run(dir.path(), &["f32.gguf", "--prompts", "four.jsonl"]));
    assert!(few["experts"][0]["unseen"].as_array().unwrap().len() >= 3, "{few}");
    let out = gguf_verify(&["f32.gguf", "--prompts", "four.jsonl", "--score", "all"], dir.path()).out;
    assert!(out.contains(" got no token and are not in the figures: layer 0: "), "{out}");
}

#[test]
fn choices_are_compared_with_the_baselines() {
    let dir = directory();
    let with = |models: &[&str]| {
        run(dir.path(), &[models, &["--baseline", "f32.gguf", "--prompts", "p.jsonl"]].concat())
    };
    let same = only(with(&["f32.gguf"]));
    assert_eq!(same["experts"][0]["agreement"].as_f64(), Some(1.0), "{same}");
    let quantized = only(with(&["q4_0.gguf"]));
    let share = quantized["experts"][0]["agreement"].as_f64().unwrap();
    assert!((0.5..1.0).contains(&share), "{share}");
    // With several models and one run of the baseline, each has the same figures as alone.
    let both = with(&["f32.gguf", "q4_0.gguf"]);
    assert_eq!(both["models"][0]["experts"], same["experts"]);
    assert_eq!(both["models"][1]["experts"], quantized["experts"]);
    let out = gguf_verify(
        &[
            "q4_0.gguf",
            "--baseline",
            "f32.gguf",
            "--prompts",
            "p.jsonl",
            "--report",
            "r.md",
            "--score",
            "all",
        ],
        dir.path(),
    )
    .out;
    assert!(out.contains("of the choices are the baseline's, "), "{out}");
    let card = fs_err::read_to_string(dir.path().join("r.md")).unwrap();
    assert!(card.contains(": experts: ") && card.contains("of the choices are the baseline's."), "{card}");
}
