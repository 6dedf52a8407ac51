//! Command `gguf-inspect get`: plain values that `set` accepts.

use gguf_foundry::gguf::{Array, Value};
use serde_json::json;

use super::{Bench, metadata, model};
use crate::support::programs::finish;
use crate::testkit::memory::write_source;

#[test]
fn values_are_plain() {
    let bench = Bench::new();
    let get = |key: &str| bench.run(&["get", "model.gguf", key]).says_only(0, "").out;
    assert_eq!(get("llama.block_count"), "2\n");
    assert_eq!(get("llama.rope.freq_base"), "0.1\n");
    // A pipe gets the bytes; terminals get them escaped.
    assert_eq!(get("general.name"), "A \u{1b}[31mred\u{1b}[0m name\n");
    let tokens = get("tokenizer.ggml.tokens");
    assert!(
        tokens.starts_with("[\n  \"t0\",\n  \"t1\",\n") && tokens.ends_with("  \"t39\"\n]\n"),
        "{tokens}"
    );

    assert_eq!(
        bench.json(&["get", "model.gguf", "llama.block_count"], 0),
        json!({"key": "llama.block_count", "type": "u32", "value": 2})
    );
    let tokens = bench.json(&["get", "model.gguf", "tokenizer.ggml.tokens"], 0);
    assert_eq!((&tokens["length"], &tokens["value"][39]), (&json!(40), &json!("t39")));

    let (code, out, err) = bench.run(&["get", "model.gguf", "no.such"]).parts();
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("error: model.gguf: no key `no.such`\n\nhint: "), "{err}");
}

#[test]
fn what_is_got_can_be_set() {
    let bench = Bench::new();
    let mut all = metadata();
    all.set("a.text", "two\nlines\n");
    all.set("a.raw", Value::String(vec![b'a', 0xff]));
    all.set("a.words", Value::Array(Array::String(vec![b"x\n\"y".to_vec(), vec![0xff, 0x01], Vec::new()])));
    all.set("a.floats", vec![0.1f32, f32::INFINITY, -0.0]);
    all.set("a.doubles", vec![0.1f64, f64::NEG_INFINITY]);
    all.set("a.small", Value::Array(Array::I8(vec![-128, 127])));
    all.set("a.flags", vec![true, false]);
    all.set("a.none", Value::Array(Array::U16(Vec::new())));
    all.set("a.big", u64::MAX);
    all.set("a.yes", true);
    write_source(&bench.path("all.gguf"), &all, &model());
    for (key, value) in all.iter() {
        let output = bench.program("gguf-inspect").args(["get", "all.gguf", key]).output().unwrap();
        fs_err::write(bench.path("value"), &output.stdout).unwrap();
        let ty = bench.json(&["get", "all.gguf", key], 0)["type"].as_str().unwrap().to_owned();
        let assignment = format!("b.{key}={ty}:@value");
        let args = ["set", "all.gguf", &assignment, "-o", "back.gguf", "--no-sync"];
        finish(bench.program("gguf-inspect").args(args)).ok();
        assert_eq!(bench.value("back.gguf", &format!("b.{key}")).as_ref(), Some(value), "{key}");
    }
}
