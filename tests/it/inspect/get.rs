//! Command `gguf-inspect get`: plain values that `set` accepts.

use gguf_foundry::gguf::{Array, Value};

use super::{Bench, metadata, model};
use crate::support::programs::finish;
use crate::testkit::memory::write_source;

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
    // What is printed of each key is written into a file, and all of them are set at once.
    let mut set = bench.program("gguf-inspect");
    set.args(["set", "all.gguf", "-o", "back.gguf", "--no-sync"]);
    for (number, (key, value)) in all.iter().enumerate() {
        let output = bench.program("gguf-inspect").args(["get", "all.gguf", key]).output().unwrap();
        fs_err::write(bench.path(&number.to_string()), &output.stdout).unwrap();
        set.arg(format!("b.{key}={}:@{number}", type_name(value)));
    }
    finish(&mut set).ok();
    for (key, value) in all.iter() {
        assert_eq!(bench.value("back.gguf", &format!("b.{key}")).as_ref(), Some(value), "{key}");
    }
}

/// Name of a value's type in assignments.
fn type_name(value: &Value) -> String {
    match value.as_array() {
        Some(array) => format!("arr[{}]", array.element_type().name()),
        None => value.value_type().name().to_owned(),
    }
}
