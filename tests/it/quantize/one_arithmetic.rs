//! The arithmetic of calibrations: statistics, texts and kept work are not used in another, and integers are refused
//! where they have no effect.

use std::path::Path;

use super::calibrate::prepare_two_layers;
use super::run;
use crate::support::files;
use crate::support::programs::{self, Outcome};
use crate::support::tiers::{Tier, deep_test};

/// Writes two layers of the bundled model in F32 and as `q8.gguf`, and two texts.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    prepare_two_layers(Tier::Everyday, dir.path());
    run(dir.path(), &["--type", "q8_0", "in.gguf", "q8.gguf"]).ok();
    dir
}

fn stats(dir: &Path, args: &[&str]) -> Outcome {
    let text = ["--calibrate", "text.txt", "--calibrate-tokens", "2048"];
    programs::run("gguf-quantize", dir, &[&["stats", "--no-sync"], &text[..], args].concat())
}

fn combine(dir: &Path, args: &[&str]) -> Outcome {
    programs::run("gguf-verify", dir, &[&["combine", "--no-sync"], args].concat())
}

/// A batch for each of two parts.
const TWO_TEXTS: [&str; 3] = ["--calibrate", "rest.txt", "--no-self-text"];
const F32: [&str; 2] = ["--arithmetic", "f32"];
const INTEGER: [&str; 2] = ["--arithmetic", "integer"];

deep_test!(statistics_have_one_arithmetic);

fn statistics_have_one_arithmetic() {
    let dir = directory();
    let dir = dir.path();
    let of_texts = |args: &[&str], own: &[&str]| stats(dir, &[&TWO_TEXTS[..], args, own].concat());
    let part =
        |share: &str, name: &str, own: &[&str]| of_texts(&["q8.gguf", "--part", share, "-o", name], own);
    part("1/2", "f1", &F32).ok();
    part("2/2", "f2", &[]).ok();
    part("1/2", "i1", &INTEGER).ok();
    part("2/2", "i2", &["--arithmetic", "auto"]).ok();
    combine(dir, &["f1", "i2", "-o", "mixed"])
        .says(1, "i2: products with weights in integer, in f1 in f32: figures of different arithmetic")
        .says(1, "hint: run all parts with the same `--arithmetic`");
    assert!(!dir.join("mixed").exists());
    combine(dir, &["f1", "f2", "-o", "exact"]).ok();
    combine(dir, &["i1", "i2", "-o", "fast"]).ok();
    assert!(files::contents(dir.join("exact")) != files::contents(dir.join("fast")));
    // What a single run collects.
    of_texts(&["q8.gguf", "-o", "whole"], &INTEGER).ok();
    assert!(files::contents(dir.join("whole")) == files::contents(dir.join("fast")));
    // A folder that does not say its arithmetic, as of earlier versions, is of F32.
    let says = |name: &str| fs_err::read_to_string(dir.join(name).join("statistics.json")).unwrap();
    assert!(!says("exact").contains("arithmetic") && says("fast").contains(r#""arithmetic": "integer""#));
    // Statistics that are there are neither replaced nor taken for those of this run.
    let before = files::contents(dir.join("i1"));
    part("1/2", "i1", &F32)
        .says(1, "i1: statistics of a model whose weights were multiplied in integer")
        .says(1, "this run has `--arithmetic f32`")
        .says(1, "hint: pass `--arithmetic integer`");
    part("1/2", "i1", &INTEGER).says(0, "this part was there already");
    assert!(files::contents(dir.join("i1")) == before);
    of_texts(&["q8.gguf", "-o", "whole"], &[]).says(1, "whole: statistics of a model");
    // Nor are they solved with.
    let solve = |name: &str, own: &[&str]| {
        let args = ["--type", "q4_0", "--allow-requantize", "--solver", "gptq", "--stats", name];
        run(dir, &[&args[..], own, &["q8.gguf", "out.gguf"]].concat())
    };
    solve("fast", &[]).says(1, "fast: statistics of a model whose weights were multiplied in integer");
    solve("exact", &INTEGER).says(1, "exact: statistics of a model whose weights were multiplied in f32");
    solve("fast", &[&INTEGER[..], &["--dry-run"]].concat()).ok();
    solve("fast", &INTEGER).ok();
    // Statistics of floats are the same in every arithmetic.
    of_texts(&["in.gguf", "-o", "floats"], &["--arithmetic", "auto"]).ok();
    of_texts(&["in.gguf", "-o", "floats"], &[]).says(0, "these statistics were there already");
}

deep_test!(a_text_of_the_model_has_one_arithmetic);

fn a_text_of_the_model_has_one_arithmetic() {
    let dir = directory();
    let dir = dir.path();
    let written = |name: &str, own: &[&str]| {
        stats(dir, &[&["q8.gguf", "--self-text", "self.text", "-o", name], own].concat())
    };
    written("a", &INTEGER).ok();
    written("b", &[])
        .says(1, "--self-text self.text: text of a model whose weights were multiplied in integer")
        .says(1, "this run has `--arithmetic f32`")
        .says(1, "hint: pass `--arithmetic integer`");
    written("c", &INTEGER).ok();
    assert!(files::contents(dir.join("a")) == files::contents(dir.join("c")));
}

#[test]
fn integers_are_refused_where_they_have_no_effect() {
    let dir = directory();
    let dir = dir.path();
    let refused = "no tensor of in.gguf has a block type with integers; leave it out";
    stats(dir, &[&["in.gguf", "-o", "s"], &INTEGER[..]].concat()).says(2, refused);
    assert!(!dir.join("s").exists());
    stats(dir, &[&["q8.gguf", "-o", "s", "--dry-run"], &INTEGER[..]].concat()).ok();
    // The file that is measured has blocks, even if the model has none.
    let calibrate = ["--calibrate", "text.txt", "--no-self-text", "--calibrate-tokens", "2048", "--dry-run"];
    let quantize = |more: &[&str]| {
        run(dir, &[&["--type", "q4_0"], &calibrate[..], &INTEGER, more, &["in.gguf", "out.gguf"]].concat())
    };
    quantize(&[]).ok();
    let floats = ["--token-embedding-type", "f16", "--output-tensor-type", "f16", "--tensor-type", "blk=f16"];
    quantize(&floats).says(2, refused);
    // Without a calibration nothing is run.
    let plain = |own: &[&str]| run(dir, &[&["--type", "q4_0", "in.gguf", "x.gguf"], own].concat());
    plain(&INTEGER).says(2, "`--arithmetic` needs `--calibrate` or `--stats`");
    plain(&["--arithmetic", "auto"]).says(2, "`--arithmetic` needs `--calibrate` or `--stats`");
    assert!(!dir.join("x.gguf").exists());
    plain(&F32).ok();
}
