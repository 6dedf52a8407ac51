//! Types and lengths of keys: values that llama.cpp refuses to load fail, with and without a baseline, and values that
//! converters write pass.

use std::path::{Path, PathBuf};

use gguf_foundry::core::GgmlType;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::verify::{Finding, Severity, StructureOptions, VerifyOptions, check_structure};
use serde_json::{Value as Json, json};

use super::metadata::value;
use super::{judged_with, llama, options};
use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::{files, fixture, report_cases};
use crate::testkit::memory::MemoryTensors;
use crate::testkit::tiny::Tiny;

/// Keys of the bundled model, with values that llama.cpp does not accept, and the expected message.
fn faults() -> Vec<(&'static str, Value, &'static str)> {
    let five = vec![2i32; 5];
    vec![
        (
            "llama.attention.head_count_kv",
            five.clone().into(),
            "has 5 entries, not 4: `llama.block_count` is 4",
        ),
        ("llama.attention.head_count_kv", vec![2i32; 3].into(), "has 3 entries, not 4"),
        (
            "llama.attention.head_count_kv",
            vec![2u64; 4].into(),
            "must be of type u32 or arr[u32], not arr[u64]",
        ),
        ("llama.attention.head_count", vec![4i32; 3].into(), "has 3 entries, not 4"),
        ("llama.feed_forward_length", five.into(), "has 5 entries, not 4"),
        ("llama.attention.sliding_window_pattern", vec![true; 3].into(), "has 3 entries, not 4"),
        ("llama.rope.dimension_sections", vec![8i32; 3].into(), "has 3 entries, not 4"),
        ("llama.context_length", vec![2048u32; 4].into(), "must be of type u32, not arr[u32]"),
        ("llama.block_count", 4u64.into(), "must be of type u32, not u64"),
        ("llama.block_count", 4i32.into(), "must be of type u32, not i32"),
        ("llama.attention.layer_norm_rms_epsilon", Value::F64(1e-5), "must be of type f32, not f64"),
        ("llama.rope.freq_base", 10000u32.into(), "must be of type f32, not u32"),
        ("general.file_type", 1u64.into(), "must be of type u32, not u64"),
        ("tokenizer.ggml.bos_token_id", 0i32.into(), "must be of type u32, not i32"),
        ("tokenizer.ggml.add_bos_token", Value::U8(1), "must be of type bool, not u8"),
        ("tokenizer.ggml.token_type", vec![1u32; 512].into(), "must be of type arr[i32], not arr[u32]"),
    ]
}

#[test]
fn what_llama_cpp_does_not_load_fails() {
    let base = Tiny::new().quantized(GgmlType::Q4_0);
    for (key, value, said) in faults() {
        let mut damaged = base.clone();
        damaged.metadata.set(key, value);
        let options = StructureOptions { level: SimdLevel::detect() };
        let found = check_structure(&damaged.tensors, &damaged.metadata, &options, &Silent).unwrap();
        let is_error = |f: &&Finding| f.check.name() == "keys" && f.severity == Severity::Error;
        let errors: Vec<&Finding> = found.iter().filter(is_error).collect();
        assert_eq!(errors.len(), 1, "{key}: {found:?}");
        assert!(errors[0].message.starts_with(&format!("key `{key}` {said}")), "{errors:?}");
    }
}

/// A number from which llama.cpp computes shapes has no default; and what it requires is required of weights alone, too.
#[test]
fn what_the_loader_needs_is_missed_in_every_kind_of_run() {
    let base = Tiny::new();
    let errors = |tiny: &Tiny, weights_only: bool| {
        let options = VerifyOptions { weights_only, ..options(Some(1)) };
        let report = judged_with(tiny, Some(tiny), &llama(), &options);
        let errors = report.findings.into_iter().filter(|f| f.severity == Severity::Error);
        errors.map(|f| f.message).collect::<Vec<_>>()
    };
    for weights_only in [false, true] {
        assert_eq!(errors(&base, weights_only), [""; 0]);
        let mut damaged = base.clone();
        damaged.metadata.remove("llama.feed_forward_length");
        let found = errors(&damaged, weights_only);
        assert!(
            found[0].contains("key `llama.feed_forward_length` is missing: llama.cpp computes"),
            "{found:?}"
        );
        let mut damaged = base.clone();
        damaged.tensors.remove("blk.0.ffn_norm.weight");
        let found = errors(&damaged, weights_only);
        assert!(found.iter().any(|text| text.contains("without `blk.0.ffn_norm.weight`")), "{found:?}");
        let mut damaged = base.clone();
        damaged.metadata.set("general.name", "Samantha Phi3");
        let found = errors(&damaged, weights_only);
        assert!(found[0].starts_with("`general.name` contains `phi3`"), "{found:?}");
    }
}

/// Messages about the keys of a file without tensors.
fn messages(metadata: &Metadata) -> Vec<String> {
    let options = StructureOptions { level: SimdLevel::detect() };
    let findings = check_structure(&MemoryTensors::default(), metadata, &options, &Silent).unwrap();
    let is_about = |check: &str| ["keys", "required-keys"].contains(&check);
    let about = findings.into_iter().filter(|f| is_about(f.check.name()) || f.severity == Severity::Error);
    about.map(|f| format!("{}: {}", f.check, f.message)).collect()
}

/// Keys from a reference program's record; long arrays have only their length there.
fn keys(record: &Json) -> Metadata {
    let mut metadata = Metadata::new();
    for row in record.as_array().unwrap() {
        let (key, kind) = (row[0].as_str().unwrap(), row[1].as_str().unwrap());
        let value = match (row[2]["length"].as_u64(), kind) {
            (None, _) => value(kind, &row[2]),
            (Some(n), "arr[string]") => {
                Value::Array(Array::String((0..n).map(|at| format!("t{at}").into_bytes()).collect()))
            }
            (Some(n), kind) => value(
                kind,
                &json!(vec![if kind == "arr[bool]" { json!(true) } else { json!(1) }; n as usize]),
            ),
        };
        metadata.set(key, value);
    }
    metadata
}

/// Collects the records of converted files below a folder.
fn records(dir: &Path, found: &mut Vec<PathBuf>) {
    for path in files::entries(dir) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            records(&path, found);
        } else if name.starts_with("expect-") && path.extension().is_some_and(|ending| ending == "json") {
            found.push(path);
        }
    }
}

conformance_tests!(keys_that_converters_write_pass);
fn keys_that_converters_write_pass(corpus: &Goldens) {
    let mut n_cases = 0;
    for folder in ["arch", "mmproj", "lora"] {
        let mut found = Vec::new();
        records(&corpus.join(folder), &mut found);
        for path in found {
            let json = files::json(&path);
            // The first part of a split file has the keys.
            let record = json.get("kv").or_else(|| json["parts"].get(0).and_then(|part| part.get("kv")));
            let Some(record) = record else { continue };
            let mut messages = messages(&keys(record));
            // The records have only keys; the tensors of towers are checked elsewhere.
            messages.retain(|message| !message.starts_with("towers: "));
            assert!(messages.is_empty(), "{}: {messages:?}", path.display());
            n_cases += 1;
        }
    }
    assert!(n_cases > 10, "{n_cases}");
    report_cases("verify: keys of converted files", n_cases);
}

#[test]
fn keys_of_every_card_pass() {
    let (mut n_cases, mut wrong) = (0, Vec::new());
    for folder in fs_err::read_dir(fixture("cards")).unwrap() {
        for file in fs_err::read_dir(folder.unwrap().path()).unwrap() {
            let json = files::json(file.as_ref().unwrap().path());
            for (_, expect) in json["expect"].as_object().into_iter().flatten() {
                if expect["kv"].is_null() {
                    continue;
                }
                let metadata = keys(&expect["kv"]);
                let found = messages(&metadata);
                // Artificial models without experts, with contradicting numbers of them, or with heads that rotate in
                // part, which llama.cpp does not load or run.
                let is_made_up = |message: &str| {
                    [".expert_used_count` is ", ".expert_count` is 0", "runs no file of `exaone` "]
                        .iter()
                        .any(|what| message.contains(what))
                };
                // These records omit keys that are the same for all cards, and the tensors.
                let is_left_out = |message: &str| {
                    ["required-keys: ", "towers: "].iter().any(|head| message.starts_with(head))
                };
                let others = found.iter().filter(|message| !is_left_out(message) && !is_made_up(message));
                let at = file.as_ref().unwrap().path();
                wrong.extend(others.map(|message| format!("{}: {message}", at.display())));
                n_cases += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_cases > 100, "{n_cases}");
}
