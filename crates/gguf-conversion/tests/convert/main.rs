//! Whole conversions: every byte of the file is compared with the reference's.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod dense_modules;
mod diffusers;
mod exceptions;
#[path = "../arch/fixture.rs"]
mod fixture;
mod images;
mod lora;
mod metadata;
mod named_tokens;
mod sizes;
mod sources;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_arch::{DraftHeads, OutType};
use gguf_conversion::{Conversion, ConvertError, ConvertOptions};
use gguf_core::progress::Silent;
use gguf_format::{SplitSpec, WriteOptions, write_gguf};
use rayon::prelude::*;
use serde_json::Value as Json;

use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{common_keys, files, fixture, report_cases, sha256};

/// Types that the reference converts to.
const OUTTYPES: [&str; 7] = ["f32", "f16", "bf16", "q8_0", "tq1_0", "tq2_0", "auto"];

fn options(file_type: &str) -> ConvertOptions {
    let file_type = (file_type != "auto").then(|| OutType::from_name(file_type).unwrap());
    ConvertOptions { file_type, tokenizer: false, ..ConvertOptions::default() }
}

/// Checksums of the files that a conversion gives, in the order of the parts. Keys that only this project writes are
/// left out, and known differences are replaced by the reference's values.
fn convert(
    dir: &Path,
    options: &ConvertOptions,
    split: Option<SplitSpec>,
    parts: &[Json],
) -> Result<Vec<String>, ConvertError> {
    let case = dir.file_name().unwrap().to_str().unwrap();
    let out = tempfile::tempdir().unwrap();
    let conversion = Conversion::plan(&dir.join("hf"), options)?;
    let write = WriteOptions { split, sync: false, ..WriteOptions::default() };
    let target = out.path().join("model.gguf");
    let keys = exceptions::keys(case, common_keys(conversion.metadata()), &parts[0]);
    let report = write_gguf(&target, &keys, &conversion, &write, &Silent).unwrap();
    // Additional files are also compared.
    let parts = parts.iter().chain(std::iter::repeat(&Json::Null));
    let files = report.paths.iter().zip(parts);
    Ok(files
        .map(|(path, part)| sha256(&exceptions::bytes(case, fs_err::read(path).unwrap(), part)))
        .collect())
}

/// Errors of a case: its types and checksums.
fn complaint(dir: &Path, n_cases: &AtomicUsize) -> Option<String> {
    let case = dir.file_name().unwrap().to_string_lossy().into_owned();
    let about = files::json(dir.join("case.json"));
    let switches = about["converter_options"].as_object().unwrap();
    for name in switches.keys() {
        assert!(["no_mtp", "mistral_format", "split_max_tensors"].contains(&name.as_str()), "{case}: {name}");
    }
    let asked = |name: &str| switches.get(name).and_then(Json::as_bool) == Some(true);
    let split = switches.get("split_max_tensors").and_then(Json::as_u64).map(|n| SplitSpec {
        max_tensors: Some(n),
        without_id: true,
        ..SplitSpec::default()
    });
    for outtype in OUTTYPES {
        let path = dir.join(format!("expect-{outtype}.json"));
        if !path.exists() {
            continue;
        }
        let expect = files::json(path);
        let parts = match expect["parts"].as_array() {
            Some(parts) => parts.clone(),
            None => vec![expect],
        };
        let want: Vec<&str> = parts.iter().map(|part| part["file"]["sha256"].as_str().unwrap()).collect();
        let heads = if asked("no_mtp") { DraftHeads::Dropped } else { DraftHeads::default() };
        let options = ConvertOptions { heads, mistral_format: asked("mistral_format"), ..options(outtype) };
        match convert(dir, &options, split, &parts) {
            Ok(found) if found == want => n_cases.fetch_add(1, Ordering::Relaxed),
            Ok(_) => return Some(format!("{case} {outtype}: other bytes")),
            Err(error) => return Some(format!("{case} {outtype}: {error}")),
        };
    }
    None
}

conformance_tests!(every_file_has_the_bytes_of_the_reference);
fn every_file_has_the_bytes_of_the_reference(corpus: &Goldens) {
    let n_cases = AtomicUsize::new(0);
    let mut dirs = files::entries(corpus.join("arch"));
    dirs.retain(|dir| dir.join("case.json").is_file());
    dirs.retain(|dir| !exceptions::LEFT_OUT.iter().any(|row| dir.ends_with(row.0)));
    let wrong: Vec<String> = dirs.par_iter().filter_map(|dir| complaint(dir, &n_cases)).collect();
    assert!(wrong.is_empty(), "{} of {} models:\n{}", wrong.len(), dirs.len(), wrong.join("\n"));
    report_cases("whole files", n_cases.into_inner());
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
