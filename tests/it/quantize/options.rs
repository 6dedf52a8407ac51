//! Options without effect, pruned layers, keys to set: each is applied or reported.

use std::path::Path;

use gguf_foundry::gguf::{Array, GgufFile, Value};

use super::run;
use crate::quantize::program::model;
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
fn what_has_no_effect_is_said_and_the_bytes_are_those_without() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    model(&dir.join("in.gguf"), 1, 512, 16);
    for (file_type, options, said) in [
        ("bf16", vec!["--tensor-type", "ffn_down=q8_0"], "--tensor-type ffn_down=q8_0"),
        ("copy", vec!["--tensor-type", "ffn_down=q8_0"], "--tensor-type ffn_down=q8_0"),
        ("q4_k_m", vec!["--tensor-type", "no_such=q8_0"], "no tensor has such a name"),
        ("q4_k_m", vec!["--leave-output-tensor"], "--leave-output-tensor"),
        ("f16", vec!["--pure"], "--pure"),
        ("q4_k_m", vec!["--include-weights", "attn"], "there is no --imatrix"),
    ] {
        let args = [&["in.gguf", "with.gguf", "--type", file_type], &options[..]].concat();
        let err = run(dir, &args).ok().err;
        assert!(err.contains("without effect") && err.contains(said), "{options:?}: {err}");
        run(dir, &["in.gguf", "without.gguf", "--type", file_type]);
        let read = |name: &str| fs_err::read(dir.join(name)).unwrap();
        assert!(read("with.gguf") == read("without.gguf"), "{options:?}");
    }
    let err = run(dir, &["in.gguf", "out.gguf", "q4_k_m", "--tensor-type", "ffn_down=q8_0"]).err;
    assert!(!err.contains("without effect"), "{err}");
}

#[test]
fn an_unknown_architecture_is_named() {
    let dir = tempfile::tempdir().unwrap();
    model(&dir.path().join("in.gguf"), 1, 512, 16);
    run(dir.path(), &["in.gguf", "out.gguf", "q4_k_m"])
        .says(0, "architecture `nobody` is not a known language model");
    tiny(dir.path());
    run(dir.path(), &["tiny.gguf", "out.gguf", "q8_0"]).says_only(0, "");
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
    for (layers, said) in
        [("4", "layer 4 cannot be pruned: the model has layers 0 to 3"), ("0,1,2,3", "all 4 layers")]
    {
        run(dir, &["--prune-layers", layers, "arrays.gguf", "none.gguf", "q8_0"]).says(1, said);
    }
    assert_eq!(names(dir), ["arrays.gguf", "out.gguf", "tiny.gguf"]);
}

#[test]
fn keys_that_are_set_keep_their_type_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tiny(dir);
    for (text, key, expected) in [
        ("llama.rope.freq_base=int:1000000", "llama.rope.freq_base", Value::F32(1e6)),
        (
            "llama.attention.layer_norm_rms_epsilon=int:1",
            "llama.attention.layer_norm_rms_epsilon",
            Value::F32(1.0),
        ),
        ("llama.context_length=int:4096", "llama.context_length", Value::U32(4096)),
        ("x.unknown=int:7", "x.unknown", Value::U32(7)),
        ("x.unknown=int:-3", "x.unknown", Value::I32(-3)),
        ("x.unknown=int:5000000000", "x.unknown", Value::U64(5_000_000_000)),
        ("general.name=str:Other", "general.name", Value::from("Other")),
    ] {
        run(dir, &["--override-kv", text, "tiny.gguf", "out.gguf", "q8_0"]).ok();
        assert_eq!(value(&dir.join("out.gguf"), key), Some(expected), "{text}");
    }
    fs_err::remove_file(dir.join("out.gguf")).unwrap();
    for (text, key) in [
        ("tokenizer.ggml.eos_token_id=int:99999", "tokenizer.ggml.eos_token_id"),
        ("llama.context_length=int:-5", "llama.context_length"),
        ("llama.block_count=str:four", "llama.block_count"),
        ("llama.context_length=float:1.5", "llama.context_length"),
        ("general.name=int:3", "general.name"),
        ("tokenizer.ggml.tokens=str:a", "tokenizer.ggml.tokens"),
        ("llama.attention.head_count=int:3", "head"),
    ] {
        run(dir, &["--override-kv", text, "tiny.gguf", "out.gguf", "q8_0"]).says(1, key);
    }
    assert_eq!(names(dir), ["tiny.gguf"]);
}
