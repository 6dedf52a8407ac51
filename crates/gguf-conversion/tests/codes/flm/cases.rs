//! Corpus: every tensor of every file has the value that FastLLM, or the exporter, gives it.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_checkpoint::fastllm::FlmFile;
use gguf_checkpoint::safetensors;
use gguf_core::limits::Limits;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, WeightSource};
use gguf_dequant::flm::{self, FlmMeaning};
use serde_json::Value as Json;

use gguf_testkit::flm::good;
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::memory::{decoded, f32_bytes, f32_values, weight_bytes};
use gguf_testkit::noise::Noise;
use gguf_testkit::{files, report_cases, sha256};

/// All elements of a weight as F32.
pub fn floats(source: &dyn WeightSource, weight: usize) -> Vec<f32> {
    decoded(source.weights()[weight].ty, &weight_bytes(source, weight))
}

fn stored(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let file = fs_err::read(path).unwrap();
    let header = safetensors::parse_header(&file, &Limits::default()).unwrap();
    let row = |tensor: safetensors::TensorRange| {
        let bytes = &file[tensor.offset as usize..][..tensor.n_bytes as usize];
        (tensor.meta.name, f32_values(bytes))
    };
    header.tensors.into_iter().map(row).collect()
}

/// Weights of a file as floats.
pub fn weights(file: FlmFile, meaning: FlmMeaning) -> Box<dyn WeightSource + Send> {
    flm::open(file, meaning, SimdLevel::detect()).unwrap().into_opened().source
}

fn is_close(found: &[f32], expected: &[f32], tolerance: &Json) -> bool {
    let (abs, rel) = (tolerance["abs"].as_f64().unwrap(), tolerance["rel"].as_f64().unwrap());
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| {
            let (found, expected) = (f64::from(*found), f64::from(*expected));
            (found - expected).abs() <= abs + rel * expected.abs()
        })
}

conformance_tests!(every_tensor_of_the_corpus_has_its_value);
fn every_tensor_of_the_corpus_has_its_value(corpus: &Goldens) {
    let (mut n_cases, mut n_hash, mut n_close, mut wrong) = (0, 0, 0, Vec::new());
    for dir in good(corpus) {
        n_cases += 1;
        let case = dir.file_name().unwrap().to_string_lossy().into_owned();
        let expected = files::json(dir.join("expected.json"));
        let stored = stored(&dir.join("expected.safetensors"));
        let file = FlmFile::open(&dir.join("model.flm"), &Limits::default()).unwrap();
        // Buffers are hidden by the layer above, so they are read from the file itself.
        let plain = FlmFile::open(&dir.join("model.flm"), &Limits::default()).unwrap();
        let weights = weights(file, FlmMeaning::Reader);
        let place = |source: &dyn WeightSource, name: &str| {
            source.weights().iter().position(|meta| meta.name == name)
        };
        for (name, tensor) in expected["tensors"].as_object().unwrap() {
            let (found, n_elems) = match (place(&*weights, name), place(&plain, name)) {
                (Some(at), _) => (floats(&*weights, at), weights.weights()[at].shape.n_elems()),
                (None, Some(at)) if name.ends_with("inv_freq") => {
                    (floats(&plain, at), plain.weights()[at].shape.n_elems())
                }
                _ => {
                    wrong.push(format!("{case}: {name} is missing"));
                    continue;
                }
            };
            let dims = tensor["shape"].as_array().unwrap();
            let expected_elems: u64 = dims.iter().map(|dim| dim.as_u64().unwrap()).product();
            if n_elems != expected_elems {
                wrong.push(format!("{case}: {name} has {n_elems} elements"));
            }
            if tensor["sha256_f32le"] == sha256(&f32_bytes(&found)).as_str() {
                n_hash += 1;
            } else if stored.get(name).is_some_and(|want| is_close(&found, want, &expected["tolerance"])) {
                n_close += 1;
            } else {
                wrong.push(format!("{case}: {name}"));
            }
        }
    }
    println!("{n_hash} tensors equal bit for bit, {n_close} within the tolerance");
    report_cases("flm: tensors", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

conformance_tests!(the_writers_meaning_is_that_of_the_exporter_or_of_its_time);
fn the_writers_meaning_is_that_of_the_exporter_or_of_its_time(corpus: &Goldens) {
    let (mut n_cases, mut n_tensors) = (0, 0);
    for dir in good(corpus) {
        let names = ["expected_writer_era.safetensors", "expected_writer_intent.safetensors"];
        let Some(path) = names.iter().map(|name| dir.join(name)).find(|path| path.exists()) else {
            continue;
        };
        n_cases += 1;
        let tolerance = &files::json(dir.join("expected.json"))["tolerance"];
        let file = FlmFile::open(&dir.join("model.flm"), &Limits::default()).unwrap();
        let weights = weights(file, FlmMeaning::Writer);
        for (name, expected) in stored(&path) {
            let at = weights.weights().iter().position(|meta| meta.name == name).unwrap();
            assert!(is_close(&floats(&*weights, at), &expected, tolerance), "{}: {name}", dir.display());
            n_tensors += 1;
        }
    }
    println!("{n_tensors} tensors");
    report_cases("flm: the writer's meaning", n_cases);
}

conformance_tests!(files_of_both_kinds_are_told_apart);
fn files_of_both_kinds_are_told_apart(corpus: &Goldens) {
    let mut n_cases = 0;
    for dir in good(corpus) {
        let file = FlmFile::open(&dir.join("model.flm"), &Limits::default()).unwrap();
        let survey = flm::open(file, FlmMeaning::Reader, SimdLevel::detect()).unwrap().survey;
        let is_era = dir.join("expected_writer_era.safetensors").exists();
        let is_intent = dir.join("expected_writer_intent.safetensors").exists();
        assert_eq!(survey.raw_int4(), is_era, "{}: {survey:?}", dir.display());
        assert_eq!(survey.symmetric_int8, is_intent, "{}: {survey:?}", dir.display());
        let n_nan =
            files::json(dir.join("case.json"))["nan_rows"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(survey.zeroed.len(), n_nan, "{}: {survey:?}", dir.display());
        n_cases += 1;
    }
    report_cases("flm: origin of files", n_cases);
}

conformance_tests!(pieces_of_a_tensor_are_those_of_the_whole);
fn pieces_of_a_tensor_are_those_of_the_whole(corpus: &Goldens) {
    let mut noise = Noise::new(1);
    let mut n_cases = 0;
    for case in ["cpp-int4", "cpp-int4g-pad40", "llama-int4g40", "llama-int8", "edge-axis-zero"] {
        let Some(path) = corpus.find(format!("formats/flm/{case}/model.flm")) else { continue };
        let weights = weights(FlmFile::open(&path, &Limits::default()).unwrap(), FlmMeaning::Reader);
        for (at, meta) in weights.weights().iter().enumerate().filter(|(_, meta)| meta.ty == ElementType::F32)
        {
            let (whole, n) = (floats(&*weights, at), meta.shape.n_elems());
            for _ in 0..20 {
                let first = noise.bits() % (n + 1);
                let len = noise.bits() % (n - first + 1);
                let mut piece = vec![0; len as usize * 4];
                weights.read_elems(at, first, &mut piece).unwrap();
                let expected: Vec<u8> = whole[first as usize..][..len as usize]
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                assert_eq!(piece, expected, "{case}: {} from {first}, {len}", meta.name);
            }
        }
        n_cases += 1;
    }
    report_cases("flm: pieces", n_cases);
}
