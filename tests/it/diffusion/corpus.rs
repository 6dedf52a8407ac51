//! Every case of the corpus: the files of ComfyUI-GGUF's converter, of its quantizer, and of the repair of tensors with
//! five dimensions.

use std::path::Path;

use gguf_foundry::core::TensorSource;
use gguf_foundry::gguf::GgufFile;
use serde_json::{Value as Json, json};

use super::table::EqualFiles;
use super::{convert, run};
use crate::support::goldens::{Goldens, corpus_tests};
use crate::support::{files, in_json, report_cases, sha256};

fn load(path: &Path) -> Json {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// Compares keys, tensors and the whole file.
fn compare(found: &Path, expected: &Json, at: &str) {
    let file = GgufFile::open(found).unwrap();
    let keys: Vec<Json> = file
        .metadata()
        .iter()
        .map(|(key, value)| {
            let (ty, value) = in_json(value);
            json!([key, ty, value])
        })
        .collect();
    assert_eq!(Json::from(keys), expected["kv"], "{at}");
    for (tensor, row) in file.tensors().iter().zip(expected["tensors"].as_array().unwrap()) {
        let dims: Vec<u64> = tensor.shape.dims().iter().rev().copied().collect();
        assert_eq!(json!([tensor.name, dims, tensor.ty.name()]), json!([row[0], row[1], row[2]]), "{at}");
    }
    let bytes = fs_err::read(found).unwrap();
    assert_eq!(sha256(&bytes), expected["file"]["sha256"].as_str().unwrap(), "{at}");
}

corpus_tests!(files_are_those_of_the_corpus);
fn files_are_those_of_the_corpus(corpus: &Goldens) {
    let (mut n_cases, mut equal) = (0, EqualFiles::default());
    let dir = tempfile::tempdir().unwrap();
    for case in files::entries(corpus.join("diffusion")).iter().filter(|path| path.is_dir()) {
        let name = case.file_name().unwrap().to_str().unwrap();
        let about = load(&case.join("case.json"));
        let input = case.join(about["file"].as_str().unwrap());
        let input = input.to_str().unwrap();
        if about["kind"] == "refuse" {
            let output = format!("{name}.gguf");
            let outcome = convert(dir.path(), input, &output, "auto");
            let is_refused = outcome.code() == 1 && !dir.path().join(output).exists();
            assert!(is_refused || about["may_do_better"] == true, "{name}: {}", outcome.text());
            assert!(!is_refused || outcome.err.contains("hint: "), "{name}: {}", outcome.err);
            n_cases += 1;
            continue;
        }
        convert(dir.path(), input, "auto.gguf", "auto").ok();
        for ty in about["types"].as_array().unwrap().iter().map(|ty| ty.as_str().unwrap()) {
            let expected = load(&case.join(format!("expect-{ty}.json")));
            convert(dir.path(), input, "one.gguf", ty).ok();
            compare(&dir.path().join("one.gguf"), &expected, &format!("{name} {ty}"));
            n_cases += 1;
            if ty != "auto" {
                run("gguf-quantize", dir.path(), &["auto.gguf", "two.gguf", "--type", ty]).ok();
                compare(&dir.path().join("two.gguf"), &expected, &format!("{name} {ty}, in two steps"));
                n_cases += 1;
            }
            equal.add(about["gguf_arch"].as_str().unwrap(), ty);
        }
    }
    equal.check();
    report_cases("image and video models", n_cases);
}
