//! Quantized checkpoints of other tools, against the values their own tools give.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_foundry::convert::{ConvertOptions, ModelSource};
use gguf_foundry::core::{Hint, Packing, WeightSource};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::support::{conformance, report_cases};

fn json(path: &Path) -> Json {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

fn open(case: &Path) -> Result<ModelSource, gguf_foundry::convert::ConvertError> {
    ModelSource::open(&case.join("hf"), &ConvertOptions::default())
}

/// All elements of a weight as F32 bytes, read in uneven pieces.
fn floats(source: &dyn WeightSource, weight: usize) -> Vec<u8> {
    let meta = &source.weights()[weight];
    let n = meta.shape.n_elems() as usize;
    let elem_bytes = meta.ty.bytes().unwrap();
    let mut bytes = vec![0; n * elem_bytes];
    let mut at = 0;
    for step in (1..).map(|i| 1 + i * 37 % 501) {
        if at == n {
            break;
        }
        let end = n.min(at + step);
        source.read_elems(weight, at as u64, &mut bytes[at * elem_bytes..end * elem_bytes]).unwrap();
        at = end;
    }
    let values: Vec<f32> = match meta.ty.name() {
        "F32" => return bytes,
        "F16" => bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f32()).collect(),
        "BF16" => bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        other => panic!("{}: {other}", meta.name),
    };
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The values of a stored tensor of `expected.safetensors`.
fn stored(case: &Path, name: &str) -> Option<Vec<f32>> {
    let bytes = fs_err::read(case.join("expected.safetensors")).ok()?;
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).ok()?;
    Some(view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
}

fn check_values(case: &Path, source: &dyn WeightSource, expected: &Json) -> usize {
    let tensors = expected["tensors"].as_object().unwrap_or_else(|| expected.as_object().unwrap());
    let by_name: BTreeMap<&str, usize> =
        source.weights().iter().enumerate().map(|(index, meta)| (meta.name.as_str(), index)).collect();
    assert_eq!(by_name.len(), tensors.len(), "{}: {:?}", case.display(), by_name.keys());
    for (name, row) in tensors {
        let place = format!("{}: {name}", case.display());
        let &index = by_name.get(name.as_str()).unwrap_or_else(|| panic!("{place} is not there"));
        let meta = &source.weights()[index];
        let dims: Vec<u64> = row["shape"].as_array().unwrap().iter().filter_map(Json::as_u64).collect();
        assert_eq!(meta.shape.dims(), dims, "{place}");
        let bytes = floats(source, index);
        if sha(&bytes) != row["sha256_f32"].as_str().unwrap() {
            let tolerance = row["max_abs_err"].as_f64().unwrap_or(0.0);
            let ours = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
            let theirs = stored(case, name).unwrap_or_else(|| panic!("{place}: another checksum"));
            let error = ours.zip(&theirs).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
            assert!(tolerance > 0.0 && error <= tolerance, "{place}: off by {error}, {tolerance} allowed");
        }
        let quantized = row["quantized"].as_bool().unwrap_or(false);
        let native = row.get("native").filter(|native| quantized && !native.is_null());
        let packings = source.packings(index).unwrap();
        let blocks = |packing: &&Packing| packing.ty.is_quantized() && packing.is_exact();
        let found = packings.iter().find(blocks);
        assert_eq!(
            found.map(|packing| packing.ty.name().to_lowercase()),
            native.map(|native| native["type"].as_str().unwrap().to_lowercase()),
            "{place}: native type"
        );
        if let (Some(packing), Some(native)) = (found, native) {
            let n = meta.shape.n_elems() as usize / packing.ty.block_elems() * packing.ty.block_bytes();
            let mut out = vec![0; n];
            source.read_packed(index, packing.ty, 0, &mut out).unwrap();
            let factor = native["scale_f32"].as_f64().map(|scale| scale as f32);
            assert_eq!(packing.scale, factor, "{place}: companion scale");
            assert_eq!(sha(&out), native["sha256"].as_str().unwrap(), "{place}: native blocks");
        }
    }
    tensors.len()
}

#[test]
fn values_and_native_blocks_equal_the_corpus() {
    let Some(corpus) = conformance() else { return };
    let (mut n_cases, mut n_tensors, mut n_errors) = (0, 0, 0);
    let mut cases: Vec<_> =
        fs_err::read_dir(corpus.join("prequant")).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    for case in cases.iter().filter(|case| case.join("case.json").is_file()) {
        let about = json(&case.join("case.json"));
        let name = case.file_name().unwrap().to_string_lossy();
        let opened = open(case);
        if about["outcome"] == "error" {
            // What cannot be told from headers is found when rows are read.
            let error = match opened {
                Err(error) => {
                    assert!(error.hints().len() < 4);
                    error.to_string()
                }
                Ok(source) => {
                    let source = source.weights.unwrap();
                    let read = |index: usize| {
                        let meta = &source.weights()[index];
                        let mut out = vec![0; meta.shape.n_elems() as usize * meta.ty.bytes().unwrap()];
                        source.read_elems(index, 0, &mut out).map_err(|error| error.to_string())?;
                        let finite = |b: &[u8; 4]| f32::from_le_bytes(*b).is_finite();
                        let ok = meta.ty.name() != "F32" || out.as_chunks().0.iter().all(finite);
                        if ok { Ok(()) } else { Err(format!("tensor `{}`: not finite", meta.name)) }
                    };
                    let errors = (0..source.weights().len()).filter_map(|index| read(index).err());
                    errors.into_iter().next().unwrap_or_else(|| panic!("{name}: {} passed", about["error"]))
                }
            };
            println!("{name}: {error}");
            n_errors += 1;
        } else {
            let source = opened.unwrap_or_else(|error| panic!("{name}: {error}")).weights.unwrap();
            n_tensors += check_values(case, &*source, &json(&case.join("expected.json")));
            n_cases += 1;
        }
    }
    println!("{n_tensors} tensors, {n_errors} errors");
    report_cases("quantized checkpoints", n_cases + n_errors);
}
