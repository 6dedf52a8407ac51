//! Whole conversions: every byte of the file against the reference's.

mod bad_input;
mod options;
mod program;

use std::path::Path;

use gguf_foundry::arch::OutType;
use gguf_foundry::convert::{Conversion, ConvertOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::gguf::{SplitSpec, WriteOptions, write_gguf};
use serde_json::Value as Json;

use crate::goldens::{Goldens, conformance_tests};
use crate::support::{
    ARCH_CASES, BLOCK_CASES, QUANTIZED_ARCH_CASES, common_keys, fixture, report_cases, sha256,
};

fn json(path: &Path) -> Json {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

fn options(file_type: &str) -> ConvertOptions {
    let file_type = (file_type != "auto").then(|| OutType::from_name(file_type).unwrap());
    ConvertOptions { file_type, tokenizer: false, ..ConvertOptions::default() }
}

/// Checksums of the files that a conversion gives, in the order of the parts, without the keys that we add.
fn convert(dir: &Path, options: &ConvertOptions, split: Option<SplitSpec>) -> Vec<String> {
    let out = tempfile::tempdir().unwrap();
    let conversion =
        Conversion::plan(dir, options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let write = WriteOptions { split, sync: false, ..WriteOptions::default() };
    let target = out.path().join("model.gguf");
    let report =
        write_gguf(&target, &common_keys(conversion.metadata()), &conversion, &write, &Silent).unwrap();
    report.paths.iter().map(|path| sha256(&fs_err::read(path).unwrap())).collect()
}

conformance_tests!(every_file_has_the_bytes_of_the_reference);
fn every_file_has_the_bytes_of_the_reference(corpus: &Goldens) {
    let mut n_cases = 0;
    for case in [ARCH_CASES, QUANTIZED_ARCH_CASES, BLOCK_CASES].concat() {
        let Some(dir) = corpus.find(format!("arch/{case}")) else { continue };
        let about = json(&dir.join("case.json"));
        let split = about["converter_options"]["split_max_tensors"].as_u64().map(|n| SplitSpec {
            max_tensors: Some(n),
            without_id: true,
            ..SplitSpec::default()
        });
        for outtype in ["f32", "f16", "bf16", "q8_0", "auto"] {
            let path = dir.join(format!("expect-{outtype}.json"));
            if !path.exists() {
                continue;
            }
            let expect = json(&path);
            let parts = match expect["parts"].as_array() {
                Some(parts) => parts.clone(),
                None => vec![expect],
            };
            let want: Vec<&str> = parts.iter().map(|part| part["file"]["sha256"].as_str().unwrap()).collect();
            assert_eq!(convert(&dir.join("hf"), &options(outtype), split), want, "{case} {outtype}");
            n_cases += 1;
        }
    }
    report_cases("whole files", n_cases);
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_memory() {
    let files = |threads: usize, memory_bytes: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let out = tempfile::tempdir().unwrap();
            let conversion = Conversion::plan(
                &fixture("tiny-llama"),
                &ConvertOptions { file_type: Some(OutType::Q8_0), ..ConvertOptions::default() },
            )
            .unwrap();
            let write = WriteOptions { sync: false, memory_bytes, ..WriteOptions::default() };
            let target = out.path().join("model.gguf");
            write_gguf(&target, conversion.metadata(), &conversion, &write, &Silent).unwrap();
            sha256(&fs_err::read(&target).unwrap())
        })
    };
    let one = files(1, 1 << 30);
    assert_eq!(files(2, 1 << 20), one);
    assert_eq!(files(7, 1), one);
}

#[test]
fn the_bundled_model_converts_with_its_vocabulary() {
    let conversion = Conversion::plan(&fixture("tiny-llama"), &ConvertOptions::default()).unwrap();
    let metadata = conversion.metadata();
    let text = |key: &str| metadata.get(key).and_then(|value| value.as_str());
    assert_eq!(text("general.architecture"), Some("llama"));
    assert_eq!(text("general.name"), Some("Tiny Llama"));
    assert_eq!(text("tokenizer.ggml.model"), Some("gpt2"));
    assert_eq!(text("tokenizer.ggml.pre"), Some("gpt-2"));
    assert_eq!(conversion.default_file_name("BF16"), "Tiny-Llama-3.4M-BF16.gguf");
    assert_eq!(conversion.file_type(), OutType::Bf16);
    assert!(conversion.warnings().is_empty(), "{:?}", conversion.warnings());
}
