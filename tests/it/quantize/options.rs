//! Options without effect, pruned layers, keys to set: each is applied or reported.

use std::path::Path;

use gguf_foundry::gguf::{Array, GgufFile, Metadata, Value};

use super::run;
use crate::support::programs::run_unsynced;
use crate::support::{fixture, names};
use crate::testkit::memory::{MemoryTensors, write_source};

/// Writes the bundled model as F16, and a copy with keys set.
fn tiny(dir: &Path) {
    let model = fixture("tiny-llama");
    let args = ["hf2gguf", model.to_str().unwrap(), "-o", "tiny.gguf", "--type", "f16"];
    run_unsynced("gguf-convert", dir, &args).ok();
}

fn set(dir: &Path, output: &str, assignments: &[&str]) {
    let args = [&["set", "tiny.gguf", "-o", output, "--force"], assignments].concat();
    run_unsynced("gguf-inspect", dir, &args).ok();
}

fn value(path: &Path, key: &str) -> Option<Value> {
    GgufFile::open(path).unwrap().metadata().get(key).cloned()
}

#[test]
fn arrays_and_counts_follow_pruned_layers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tiny(dir);
    set(
        dir,
        "arrays.gguf",
        &[
            "llama.attention.head_count_kv=arr[u32]:[2,3,4,5]",
            "llama.leading_dense_block_count=2",
            "llama.rope.dimension_sections=arr[i32]:[1,2,3,4]",
        ],
    );
    run(dir, &["--prune-layers", "1", "arrays.gguf", "out.gguf", "q8_0"]).ok();
    let out = dir.join("out.gguf");
    assert_eq!(value(&out, "llama.attention.head_count_kv"), Some(Value::Array(Array::U32(vec![2, 4, 5]))));
    assert_eq!(value(&out, "llama.leading_dense_block_count"), Some(Value::U32(1)));
    assert_eq!(value(&out, "llama.block_count"), Some(Value::U32(3)));
    assert_eq!(
        value(&out, "llama.rope.dimension_sections"),
        Some(Value::Array(Array::I32(vec![1, 2, 3, 4])))
    );
    for (layers, said) in [
        ("4", "layer 4 cannot be pruned: the model has layers 0 to 3"),
        ("0,1,2,3", "no layer would be left"),
    ] {
        run(dir, &["--prune-layers", layers, "arrays.gguf", "none.gguf", "q8_0"]).says(1, said);
    }
    assert_eq!(names(dir), ["arrays.gguf", "out.gguf", "tiny.gguf"]);
}

/// Files that are no model or that llama.cpp does not open, and an output that is no folder.
#[test]
fn what_is_taken_for_something_else_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let source = MemoryTensors::default().with_f32("blk.0.ffn_up.weight", &[2, 32], &[1.0; 64]);
    let mut metadata = Metadata::new();
    metadata.set("general.type", "imatrix");
    write_source(&dir.join("m.gguf"), &metadata, &source);
    tiny(dir);
    let model = GgufFile::open(&dir.join("tiny.gguf")).unwrap();
    let mut metadata = model.metadata().clone();
    metadata.set("mine.pairs", Value::Array(Array::Array(vec![Array::U8(vec![1]), Array::U8(vec![2])])));
    write_source(&dir.join("in.gguf"), &metadata, &model);
    run(dir, &["in.gguf", "q.gguf", "--type", "q8_0", "--dry-run"])
        .says(0, "key `mine.pairs` must be of type arr of numbers, bools or strings, not arr[arr]");
    run(dir, &["in.gguf", "q.gguf", "--like", "m.gguf"]).says(1, "this is an importance matrix, not a model");
    run_unsynced("gguf-inspect", dir, &["memory", "m.gguf"])
        .says(1, "this is an importance matrix, not a model");
    run(dir, &["ladder", "in.gguf", "-o", "in.gguf", "--types", "q8_0"])
        .says(2, "a folder for the files expected");
}

/// What a key given by an option may not have is refused, and what nothing reads is told: when a model is converted,
/// quantized and edited.
#[test]
fn keys_that_are_set_are_checked_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tiny(dir);
    let model = fixture("tiny-llama");
    let model = model.to_str().unwrap();
    for (key, ty, value, code, words) in [
        ("llama.rope.freq_base", "float", "0", 1, "is 0, not a finite number of more than 0"),
        ("qwen3.block_count", "int", "4", 0, "its key is `llama.block_count`"),
    ] {
        let own = [key, "=", if ty == "int" { "u32" } else { "f32" }, ":", value].concat();
        let convert = ["hf2gguf", model, "-o", "c.gguf", "--type", "f16", "--dry-run", "--set", &own];
        run_unsynced("gguf-convert", dir, &convert).says(code, words);
        run_unsynced("gguf-inspect", dir, &["set", "tiny.gguf", "-o", "e.gguf", "--dry-run", &own])
            .says(code, words);
        let given = [key, "=", ty, ":", value].concat();
        let quantize = ["--dry-run", "--override-kv", &given, "tiny.gguf", "q.gguf", "q8_0"];
        run(dir, &quantize).says(code, words);
    }
    let twice = ["--override-kv", "general.name=str:a", "--override-kv", "general.name=str:b"];
    run(dir, &[&twice[..], &["--dry-run", "tiny.gguf", "q.gguf", "q8_0"]].concat()).says(0, "is given twice");
    run_unsynced("gguf-convert", dir, &["hf2gguf", model, "-o", "v.gguf", "--vocab-only"]).ok();
    for (args, words) in [
        (
            &["--type", "q4_0", "--calibrate", "tiny.gguf"][..],
            "a vocabulary without weights is quantized without",
        ),
        (&["--type", "q4_0", "--leave-output-tensor"], "(the model has no `output.weight`)"),
    ] {
        let done = run(dir, &[&["v.gguf", "q.gguf"], args].concat());
        assert!(done.err.contains(words), "{}", done.err);
    }
}

/// A model of which the only layer with a window is pruned would not load.
#[test]
fn layers_that_the_rest_does_not_load_without_are_not_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tiny(dir);
    let model = GgufFile::open(&dir.join("tiny.gguf")).unwrap();
    let mut metadata = Metadata::new();
    for (key, value) in model.metadata().iter() {
        metadata.set(key.replace("llama.", "cohere2."), value.clone());
    }
    metadata.set("general.architecture", "cohere2");
    metadata.set("cohere2.attention.layer_norm_epsilon", 1e-5f32);
    metadata.set("cohere2.attention.sliding_window", 8u32);
    let windows = Array::Bool(vec![false, false, true, false]);
    metadata.set("cohere2.attention.sliding_window_pattern", Value::Array(windows));
    metadata.set("cohere2.logit_scale", 1f32);
    write_source(&dir.join("whole.gguf"), &metadata, &model);
    let drop = ["drop", "whole.gguf", "ffn_norm|^output.weight", "-o", "in.gguf"];
    run_unsynced("gguf-inspect", dir, &drop).ok();
    run(dir, &["in.gguf", "out.gguf", "q8_0", "--prune-layers", "1"]).ok();
    let said = "layers cannot be pruned: what is left would not load: llama.cpp runs no file of `cohere2`";
    run(dir, &["in.gguf", "none.gguf", "q8_0", "--prune-layers", "2"]).says(1, said);
    run(dir, &["ladder", "in.gguf", "-o", "none", "--types", "q8_0", "--prune-layers", "2"]).says(1, said);
}

/// What is advised for columns that no block fits works.
#[test]
fn advice_about_columns_can_be_followed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let weight = |source: MemoryTensors, name: &str| source.with_f32(name, &[2, 64], &[1.0; 128]);
    let names = ["output.weight", "token_embd.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight"];
    let source = names.into_iter().fold(MemoryTensors::default(), weight);
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    write_source(&dir.join("in.gguf"), &metadata, &source);
    for (asked, advised) in [
        (&["--output-tensor-type", "q2_k"][..], &["--output-tensor-type", "q4_0"][..]),
        (&["--token-embedding-type", "q6_k"], &["--token-embedding-type", "q8_0"]),
        (&["--tensor-type", "ffn_up=q1_0"], &["--tensor-type", "ffn_up=q4_0"]),
    ] {
        let quantize =
            |rest: &[&str]| run(dir, &[&["in.gguf", "q.gguf", "q5_0", "--dry-run"][..], rest].concat());
        quantize(asked).says(1, &format!("`{}`", advised.join(" ")));
        quantize(advised).ok();
    }
    run(dir, &["in.gguf", "q.gguf", "q1_0", "--dry-run"]).says(1, "`--tensor-type token_embd.weight=q4_0`");
}
