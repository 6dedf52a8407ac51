//! Every valid case of the corpus: values, folded biases, blocks.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_arch::OutType;
use gguf_blocks as quant;
use gguf_checkpoint::safetensors::parse_header;
use gguf_conversion::{Conversion, ConvertOptions};
use gguf_core::GgmlType;
use gguf_core::limits::Limits;
use gguf_core::simd::SimdLevel;
use gguf_format::Value;
use serde_json::{Map, Value as Json};

use super::{floats, index, open, weights};
use crate::last_logits::last_logits;
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::memory::{decoded, f32_bytes};
use gguf_testkit::{files, report_cases, sha256};

/// Cases that may be refused, and are, with a part of the message.
const REFUSED: &[(&str, &str)] = &[
    ("flatquant", "FlatQuant checkpoints need run-time activation transforms"),
    ("old-smooth-norm-mixed-fallback", "feeds quantized and float layers"),
    ("quarot-online", "online rotations"),
    ("svd-mxfp4", "low rank"),
];

fn json(path: &Path) -> Option<Json> {
    let text = fs_err::read(path).ok()?;
    Some(serde_json::from_slice(&text).unwrap())
}

fn stored(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let Ok(file) = fs_err::read(path) else { return BTreeMap::new() };
    let header = parse_header(&file, &Limits::default()).unwrap();
    let tensors = header.tensors.into_iter().map(|tensor| {
        let bytes = &file[tensor.offset as usize..][..tensor.n_bytes as usize];
        (tensor.meta.name.clone(), decoded(tensor.meta.ty, bytes))
    });
    tensors.collect()
}

/// Largest difference, in units of the tolerance.
fn distance(found: &[f32], expected: &[f32], tolerance: &Json) -> f64 {
    assert_eq!(found.len(), expected.len());
    let (abs, rel) = (tolerance["abs"].as_f64().unwrap(), tolerance["rel"].as_f64().unwrap());
    let pairs = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let excess = pairs.map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() / (abs + rel * b.abs()) });
    excess.fold(0.0, f64::max)
}

conformance_tests!(values_and_blocks_are_those_of_the_corpus);
fn values_and_blocks_are_those_of_the_corpus(corpus: &Goldens) {
    let root = corpus.join("formats/msmodelslim");
    let cases = files::entries(&root);
    let (mut n_cases, mut n_refused, mut n_tensors, mut n_hashes, mut n_blocks) = (0, 0, 0, 0, 0);
    for case in cases.iter().filter(|case| !case.ends_with("hostile")) {
        let name = case.file_name().unwrap().to_str().unwrap();
        let source = match (open(case), REFUSED.iter().find(|row| row.0 == name)) {
            (Err(message), Some((_, expected))) => {
                assert!(message.contains(expected), "{name}: {message}");
                n_refused += 1;
                continue;
            }
            (Err(message), None) => panic!("{name}: {message}"),
            (Ok(_), Some(_)) => panic!("{name}: is read, but was to be refused"),
            (Ok(source), None) => source,
        };
        let source = weights(&source);
        let about = json(&case.join("expected.json")).unwrap();
        let (plain, folded) =
            (stored(&case.join("expected.safetensors")), stored(&case.join("expected_folded.safetensors")));
        let mut seen = 0;
        for (tensor, expected) in about["tensors"].as_object().unwrap() {
            if !folded.is_empty() && tensor.ends_with("norm.bias") {
                // Folded into the following layer.
                assert_eq!(index(source, tensor), None, "{name}: {tensor}");
                continue;
            }
            let at = index(source, tensor).unwrap_or_else(|| panic!("{name}: {tensor} is missing"));
            let dims: Vec<u64> = serde_json::from_value(expected["shape"].clone()).unwrap();
            assert_eq!(source.weights()[at].shape.dims(), dims, "{name}: {tensor}");
            let found = floats(source, at);
            if sha256(&f32_bytes(&found)) == expected["sha256_f32le"].as_str().unwrap() {
                n_hashes += 1;
            } else {
                let stored = plain.get(tensor).unwrap_or_else(|| panic!("{name}: {tensor} differs"));
                let distance = distance(&found, stored, &about["tolerance"]);
                assert!(distance <= 1.0, "{name}: {tensor} is off by {distance} tolerances");
            }
            (seen, n_tensors) = (seen + 1, n_tensors + 1);
        }
        for (tensor, expected) in folded.iter().filter(|(tensor, _)| !plain.contains_key(*tensor)) {
            let at = index(source, tensor).unwrap_or_else(|| panic!("{name}: {tensor} is missing"));
            let distance = distance(&floats(source, at), expected, &about["tolerance"]);
            assert!(distance <= 1.0, "{name}: {tensor} is off by {distance} tolerances");
            (seen, n_tensors) = (seen + 1, n_tensors + 1);
        }
        assert_eq!(seen, source.weights().len(), "{name}: weights that nobody expects");

        let blocks = json(&case.join("gguf_blocks.json")).unwrap_or_else(|| Json::Object(Map::default()));
        for (tensor, expected) in blocks.as_object().unwrap() {
            let at = index(source, tensor).unwrap();
            let ty = GgmlType::from_name(expected["type"].as_str().unwrap()).unwrap();
            let packings = source.packings(at).unwrap();
            let packing = packings.iter().find(|packing| packing.ty == ty);
            assert_eq!(packings.first(), packing, "{name}: {tensor} as {ty}: {packings:?}");
            let mut packed = vec![0; expected["bytes"].as_u64().unwrap() as usize];
            source.read_packed(at, ty, 0, &mut packed).unwrap();
            assert_eq!(sha256(&packed), expected["sha256"].as_str().unwrap(), "{name}: {tensor} as {ty}");
            let exact = floats(source, at);
            let mut rounded = vec![0.0; exact.len()];
            quant::dequantize(ty, SimdLevel::Scalar, &packed, &mut rounded).unwrap();
            let diffs = rounded.iter().zip(&exact).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
            let diff = diffs.fold(0.0, f64::max);
            let expected = expected["max_abs_diff"].as_f64().unwrap();
            assert!((diff - expected).abs() <= 1e-6 * expected + 5e-7, "{name}: {tensor}: {diff} {expected}");
            n_blocks += 1;
        }
        n_cases += 1;
    }
    println!("{n_tensors} tensors, {n_hashes} of them bit for bit; {n_blocks} tensors as blocks");
    assert_eq!(n_refused, REFUSED.len());
    report_cases("msmodelslim: models", n_cases);
    report_cases("msmodelslim: models refused", n_refused);
}

conformance_tests!(logits_are_those_of_the_reference);

/// Compares logits of a forward pass in F64 on the recovered weights, for every architecture that has a card.
fn logits_are_those_of_the_reference(corpus: &Goldens) {
    let mut cases = files::entries(corpus.join("formats/msmodelslim"));
    cases.retain(|case| {
        case.join("reference_logits.json").is_file() && !REFUSED.iter().any(|row| case.ends_with(row.0))
    });
    let mut archs = BTreeMap::<String, usize>::new();
    for case in &cases {
        let name = case.file_name().unwrap().to_str().unwrap();
        let reference = json(&case.join("reference_logits.json")).unwrap();
        let tokens: Vec<u32> = serde_json::from_value(reference["prompt_ids"].clone()).unwrap();
        let expected: Vec<f64> = serde_json::from_value(reference["last_logits"].clone()).unwrap();
        let mut options =
            ConvertOptions { file_type: Some(OutType::F32), tokenizer: false, ..ConvertOptions::default() };
        if name.ends_with("chatglm1") {
            // In the reference the last id always ends the prefix.
            let last = Value::U32(*tokens.last().unwrap());
            options.set.push(("tokenizer.ggml.bos_token_id".to_owned(), last));
        }
        let conversion = Conversion::plan(case, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let arch = conversion.metadata().get("general.architecture").unwrap().as_str().unwrap().to_owned();
        *archs.entry(arch).or_default() += 1;
        let found = &last_logits(conversion.metadata(), &conversion, &[tokens])[0];
        assert_eq!(found.len(), expected.len(), "{name}");
        let worst = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-3, "{name}: {worst}");
    }
    println!("{archs:?}");
    assert!(
        ["chatglm", "chatglm1", "llama", "qwen2"].iter().all(|arch| archs.contains_key(*arch)),
        "{archs:?}"
    );
    report_cases("msmodelslim: logits", cases.len());
}
