//! Options without effect, pruned layers, keys to set: each is applied or reported.

use std::path::Path;

use gguf_foundry::gguf::{Array, GgufFile, Value};

use super::run;
use crate::support::programs::run_unsynced;
use crate::support::{fixture, names};

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
