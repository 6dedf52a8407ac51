//! Blocks that keep the integer codes.

use gguf_blocks as quant;
use gguf_checkpoint::fastllm::FlmFile;
use gguf_conversion::{Codes, Conversion, ConvertOptions, FlmOptions, ModelSource};
use gguf_core::limits::Limits;
use gguf_core::numeric::{f16_to_f32, f32_to_f16};
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, TensorSource, WeightSource};
use gguf_dequant::flm::FlmMeaning;

use super::cases::{floats, weights};
use gguf_testkit::flm::{good, llama};
use gguf_testkit::goldens::{Goldens, conformance_tests};
use gguf_testkit::{files, report_cases, sha256};

fn packed(source: &dyn WeightSource, weight: usize, ty: GgmlType) -> Vec<u8> {
    let n_blocks = source.weights()[weight].shape.n_elems() as usize / ty.block_elems();
    let mut bytes = vec![0; n_blocks * ty.block_bytes()];
    source.read_packed(weight, ty, 0, &mut bytes).unwrap();
    bytes
}

conformance_tests!(the_corpus_has_these_blocks);
fn the_corpus_has_these_blocks(corpus: &Goldens) {
    let (mut n_cases, mut n_tensors) = (0, 0);
    for dir in good(corpus).into_iter().filter(|dir| dir.join("gguf_blocks.json").exists()) {
        n_cases += 1;
        let file = FlmFile::open(&dir.join("model.flm"), &Limits::default()).unwrap();
        let weights = weights(file, FlmMeaning::Reader);
        let expected = files::json(dir.join("gguf_blocks.json"));
        for (at, meta) in weights.weights().iter().enumerate() {
            let found = weights.packings(at).unwrap();
            let Some(expected) = expected.get(&meta.name) else {
                // Unlisted tensors have codes that only another kind of lossless type could hold.
                assert!(found.is_empty() || meta.name.contains("up_proj"), "{}: {found:?}", meta.name);
                continue;
            };
            let ty = if expected["type"] == "Q8_0" { GgmlType::Q8_0 } else { GgmlType::Q4_1 };
            assert!(found.iter().any(|packing| packing.ty == ty), "{}: {found:?}", meta.name);
            let hash = sha256(&packed(&*weights, at, ty));
            assert_eq!(expected["sha256"], hash.as_str(), "{}: {}", dir.display(), meta.name);
            // All packings hold the same numbers, up to their declared error.
            let exact = floats(&*weights, at);
            for packing in found {
                let mut values = vec![0.0; exact.len()];
                let bytes = packed(&*weights, at, packing.ty);
                quant::dequantize(packing.ty, SimdLevel::Scalar, &bytes, &mut values).unwrap();
                let largest = exact.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (value, exact) in values.iter().zip(&exact) {
                    assert!((value - exact).abs() <= 4.0 * packing.scale_error * largest, "{}", meta.name);
                }
            }
            n_tensors += 1;
        }
    }
    println!("{n_tensors} tensors");
    report_cases("flm: blocks", n_cases);
}

conformance_tests!(int8_as_the_exporter_meant_it_always_fits);
fn int8_as_the_exporter_meant_it_always_fits(corpus: &Goldens) {
    let mut n_cases = 0;
    for dir in good(corpus).into_iter().filter(|dir| dir.join("expected_writer_intent.safetensors").exists())
    {
        let path = dir.join("model.flm");
        let open = || FlmFile::open(&path, &Limits::default()).unwrap();
        let (reader, writer) = (weights(open(), FlmMeaning::Reader), weights(open(), FlmMeaning::Writer));
        let is_code = |name: &str| open().weights().iter().any(|meta| meta.name == format!("{name}.ranges"));
        let mut n_reader = 0;
        for (at, meta) in writer.weights().iter().enumerate().filter(|(_, meta)| is_code(&meta.name)) {
            let types: Vec<GgmlType> =
                writer.packings(at).unwrap().iter().map(|packing| packing.ty).collect();
            assert_eq!(types, [GgmlType::Q8_0], "{}: {}", dir.display(), meta.name);
            n_reader += reader.packings(at).unwrap().len();
        }
        println!("{}: {n_reader} tensors fit as FastLLM reads them", dir.display());
        n_cases += 1;
    }
    report_cases("flm: INT8 blocks by the writer's meaning", n_cases);
}

/// Relative error of a number in half precision.
fn error(x: f32) -> f32 {
    let rounded = f64::from(f16_to_f32(f32_to_f16(x)));
    ((rounded - f64::from(x)) / f64::from(x)).abs() as f32
}

#[test]
fn the_error_that_is_told_is_the_largest_there_is() {
    let mut largest = 0.0f32;
    let writer = llama(|writer, name, [rows, cols], noise| {
        // Zero is code 128, and the scale follows from the range.
        let ranges: Vec<(f32, f32)> = (0..rows)
            .map(|_| {
                let scale = 0.01 + noise.signed().abs() * 0.01;
                (-128.0 * scale, 127.0 * scale)
            })
            .collect();
        for (min, max) in &ranges {
            largest = largest.max(error((max - min) / 255.0));
        }
        writer.codes(name, &[rows, cols], 3, &ranges, &noise.bytes((rows * cols) as u64));
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();
    let options = ConvertOptions { codes: Codes::Keep(GgmlType::Q8_0), ..ConvertOptions::default() };
    let source = ModelSource::open_flm(&path, &FlmOptions::default(), &options).unwrap();
    let conversion = Conversion::of(source, &options).unwrap();
    let kept = conversion.kept();
    assert_eq!(kept.iter().map(|kept| kept.n_tensors).sum::<usize>(), 8, "{kept:?}");
    let told = kept.iter().fold(0.0f32, |told, kept| told.max(kept.scale_error));
    assert!(told > 0.0);
    assert_eq!(told, largest);
}

#[test]
fn native_keeps_what_is_exact_and_with_rounding_all() {
    // Ranges whose scales are powers of two: nothing is rounded.
    let writer = llama(|writer, name, [rows, cols], noise| {
        let codes = noise.bytes((rows * cols) as u64).into_iter().map(|code| code & 15).collect::<Vec<u8>>();
        let scale = |row: usize| if name.contains("o_proj") { 0.01 } else { 0.25 / (1 << (row % 3)) as f32 };
        let zero = |row: usize| if name.contains("v_proj") { (row % 16) as f32 } else { 8.0 };
        let ranges: Vec<(f32, f32)> =
            (0..rows).map(|row| (-zero(row) * scale(row), (15.0 - zero(row)) * scale(row))).collect();
        writer.codes(name, &[rows, cols], 8, &ranges, &codes);
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();
    let types = |allow_rounding| {
        let options = ConvertOptions {
            codes: Codes::Native { allow_rounding },
            file_type: Some(gguf_arch::OutType::F32),
            ..ConvertOptions::default()
        };
        let source = ModelSource::open_flm(&path, &FlmOptions::default(), &options).unwrap();
        let conversion = Conversion::of(source, &options).unwrap();
        let ty =
            |name: &str| conversion.tensors().iter().find(|tensor| tensor.name.ends_with(name)).unwrap().ty;
        [ty("attn_q.weight"), ty("attn_v.weight"), ty("attn_output.weight")]
    };
    assert_eq!(types(false), [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::F32]);
    assert_eq!(types(true), [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q4_0]);
}
