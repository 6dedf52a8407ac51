//! Quantized checkpoints of other tools, compared with the values that their own tools give.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod flm;
#[path = "../engine/last_logits.rs"]
mod last_logits;
mod mlx;
mod msmodelslim;
mod stacks;
mod torch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gguf_arch::OutType;
use gguf_conversion::{Codes, Conversion, ConvertOptions, ModelSource};
use gguf_core::progress::Silent;
use gguf_core::{ElementType, GgmlType, Packing, TensorSource, WeightSource};
use gguf_format::{Array, GgufFile, Value, WriteOptions, write_gguf};
use serde_json::{Value as Json, json};

use gguf_testkit::goldens::{Goldens, conformance_tests, tiered_conformance_tests};
use gguf_testkit::memory::{decoded, f32_bytes, f32_values, tensor_bytes, write_source};
use gguf_testkit::tiers::Tier;
use gguf_testkit::{files, report_cases, sha256};

const CLASSES: &[&str] = &["GptOssForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"];
/// Models whose only layer has no window, but would get one from the runtime's own rule. Here a key prevents it; the
/// reference does not write one.
const WITHOUT_WINDOW: [&str; 2] = ["mxfp4-gpt-oss", "mxfp4-gpt-oss-extremes"];

/// Opens a case. An error must name a tensor, a key or a value.
fn open(case: &Path) -> Result<ModelSource, String> {
    ModelSource::open(&case.join("hf"), &ConvertOptions::default()).map_err(|error| {
        let message = error.to_string();
        assert!(message.contains('`'), "{}: {message}", case.display());
        message
    })
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
    if meta.ty == ElementType::F32 { bytes } else { f32_bytes(&decoded(meta.ty, &bytes)) }
}

/// Values of a tensor stored in `expected.safetensors`.
fn stored(case: &Path, name: &str) -> Option<Vec<f32>> {
    let bytes = fs_err::read(case.join("expected.safetensors")).ok()?;
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).ok()?;
    Some(f32_values(view.data()))
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
        if sha256(&bytes) != row["sha256_f32"].as_str().unwrap() {
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
            assert_eq!(sha256(&out), native["sha256"].as_str().unwrap(), "{place}: native blocks");
        }
    }
    tensors.len()
}

conformance_tests!(values_and_native_blocks_equal_the_corpus);
fn values_and_native_blocks_equal_the_corpus(corpus: &Goldens) {
    let (mut n_cases, mut n_tensors, mut n_errors) = (0, 0, 0);
    let cases = files::entries(corpus.join("prequant"));
    for case in cases.iter().filter(|case| case.join("case.json").is_file()) {
        let about = files::json(case.join("case.json"));
        let name = case.file_name().unwrap().to_string_lossy();
        let opened = open(case);
        if about["outcome"] == "error" {
            // Errors that headers do not show are found when rows are read.
            let error = match opened {
                Err(message) => message,
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
            n_tensors += check_values(case, &*source, &files::json(case.join("expected.json")));
            n_cases += 1;
        }
    }
    println!("{n_tensors} tensors, {n_errors} errors");
    report_cases("quantized checkpoints", n_cases + n_errors);
}

/// Checkpoints of the corpus that can be opened and have a card.
fn convertible(corpus: &Path) -> Vec<PathBuf> {
    let mut cases = files::entries(corpus.join("prequant"));
    cases.retain(|case| {
        case.join("expected.json").is_file() && {
            let class = files::json(case.join("hf/config.json"))["architectures"][0].clone();
            CLASSES.contains(&class.as_str().unwrap_or_default())
        }
    });
    cases
}

fn plan(case: &Path, file_type: OutType, codes: Codes) -> Conversion {
    let options = ConvertOptions {
        file_type: Some(file_type),
        codes,
        model_name: Some("golden".to_owned()),
        tokenizer: false,
        ..ConvertOptions::default()
    };
    Conversion::plan(&case.join("hf"), &options).unwrap_or_else(|error| panic!("{}: {error}", case.display()))
}

conformance_tests!(whole_files_equal_the_references);

/// Compares whole files with the reference's, byte for byte, if it reads the same values.
fn whole_files_equal_the_references(corpus: &Goldens) {
    let (mut n_equal, mut n_without_window, mut others) = (0, 0, Vec::new());
    let out = tempfile::tempdir().unwrap();
    for case in convertible(corpus) {
        let path = case.join("expect-llama-cpp.json");
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        if !path.is_file() {
            continue;
        }
        let expect = files::json(path);
        // Skips tensors whose values differ, and FP4, which the reference always packs.
        let differs = expect["f32"]["differs_from_expected"].as_object().is_some_and(|map| !map.is_empty())
            || expect["f32"]["differs_from_expected"].as_array().is_some_and(|list| !list.is_empty());
        let packs = expect["f32"]["tensors"].to_string().contains("NVFP4");
        if differs || packs {
            others.push(name);
            continue;
        }
        for (key, file_type) in [("f32", OutType::F32), ("f16", OutType::F16)] {
            let conversion = plan(&case, file_type, Codes::Card);
            let target = out.path().join("model.gguf");
            let write = WriteOptions { sync: false, ..WriteOptions::default() };
            // The corpus has `vocab_size` in every file, at the end unless the card writes it.
            let mut metadata = conversion.metadata().clone();
            let n_vocab = files::json(case.join("hf/config.json"))["vocab_size"].as_u64().unwrap();
            metadata.set(format!("{}.vocab_size", conversion.mapping().card.gguf), n_vocab as u32);
            if WITHOUT_WINDOW.contains(&name.as_str()) {
                let windows = metadata.remove("gpt-oss.attention.sliding_window_pattern");
                assert_eq!(windows, Some(Value::Array(Array::Bool(vec![false]))), "{name} {key}");
                n_without_window += 1;
            }
            write_gguf(&target, &metadata, &conversion, &write, &Silent).unwrap();
            let file = GgufFile::open(&target).unwrap();
            for (index, meta) in file.tensors().iter().enumerate() {
                let bytes = tensor_bytes(&file, index);
                let row = &expect[key]["tensors"][&meta.name];
                assert_eq!(sha256(&bytes), row["sha256"].as_str().unwrap(), "{name} {key} {}", meta.name);
            }
            let found = sha256(&fs_err::read(&target).unwrap());
            assert_eq!(found, expect[key]["sha256"].as_str().unwrap(), "{name} {key}");
            n_equal += 1;
        }
    }
    println!("other values by the reference: {}", others.join(", "));
    assert!(n_without_window > 0, "every name is a case");
    report_cases("quantized checkpoints, whole files", n_equal);
}

/// Values of `general.file_type` in native files: that of the type with the most bytes. For all others it is 0 (F32),
/// since weights that neither blocks nor narrow floats hold exactly outweigh the rest.
const FILE_TYPES: &[(u64, &[&str])] = &[
    (
        2,
        &[
            "autoround-gptq",
            "awq-gemm-sym",
            "ct-old-3bit-padded",
            "ct-w3a16-g32-dense",
            "ct-w4a16-channel",
            "ct-w4a16-g32",
            "gptq-2bit-g32-asym",
            "gptq-3bit-g32-sym",
            "gptq-4bit-g32-sym",
            "gptq-4bit-lm-head",
            "gptq-4bit-no-gidx",
            "gptq-dynamic-mixed",
            "gptq-dynamic-skip",
        ],
    ),
    (7, &["ct-int8-w8a8", "ct-w8a16-channel", "gptq-8bit-g-1-sym", "gptq-8bit-g64-v2-sym", "quanto-int8"]),
    (
        8,
        &[
            "autoround-awq",
            "autoround-native-zp",
            "awq-gemm-g128-noconv",
            "awq-gemm-g32",
            "awq-gemv-g64",
            "ct-w4a16-g64-asym",
            "gptq-4bit-g32-asym",
            "gptq-4bit-g32-v2-asym",
            "gptq-4bit-v1-zero0",
        ],
    ),
    (32, &["ct-ignore-regex", "ct-mxfp8", "mxfp4-gpt-oss", "mxfp4-gpt-oss-extremes"]),
    (37, &["bitnet-autobitlinear"]),
    (38, &["ct-mxfp4"]),
    (39, &["ct-nvfp4", "ct-nvfp4a16", "modelopt-nvfp4", "modelopt-nvfp4-qwen3moe", "modelopt-nvfp4-sidecar"]),
];

conformance_tests!(experts_stay_blocks_unless_floats_are_asked_for);

/// Experts that the reference keeps as blocks get a separate type in a file of floats, and come first.
fn experts_stay_blocks_unless_floats_are_asked_for(corpus: &Goldens) {
    let case = corpus.join("prequant/mxfp4-gpt-oss");
    let mut n_cases = 0;
    for (file_type, codes, ty, id, encoding) in [
        (OutType::F32, Codes::Card, "MXFP4", 38, "MXFP4_MOE"),
        (OutType::F16, Codes::Card, "MXFP4", 38, "MXFP4_MOE"),
        (OutType::Bf16, Codes::Card, "MXFP4", 38, "MXFP4_MOE"),
        (OutType::Q8_0, Codes::Card, "MXFP4", 7, "Q8_0"),
        (OutType::Q8_0, Codes::Keep(GgmlType::Q8_0), "MXFP4", 7, "Q8_0"),
        (OutType::F16, Codes::Float, "F16", 1, "F16"),
        (OutType::Q8_0, Codes::Float, "Q8_0", 7, "Q8_0"),
    ] {
        let conversion = plan(&case, file_type, codes);
        let names = ["blk.0.ffn_down_exps.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"];
        for (tensor, name) in conversion.tensors().iter().zip(names) {
            assert_eq!((tensor.name.as_str(), tensor.ty.name()), (name, ty), "{file_type} {codes:?}");
        }
        assert!(!conversion.tensors()[3..].iter().any(|tensor| tensor.ty == GgmlType::Mxfp4));
        let found = conversion.metadata().get("general.file_type").and_then(Value::as_u64);
        assert_eq!((found, conversion.encoding().as_str()), (Some(id), encoding), "{file_type} {codes:?}");
        n_cases += 1;
    }
    report_cases("experts in blocks", n_cases);
}

tiered_conformance_tests!(native_files_hold_the_same_values);

/// Compares files that keep the integers with files of floats: the values are equal, or with separate factors equal up
/// to the roundings of the factor.
fn native_files_hold_the_same_values(corpus: &Goldens, tier: Tier) {
    let out = tempfile::tempdir().unwrap();
    let (mut n_files, mut n_kept, mut n_factors) = (0, 0, 0);
    let mut file_types = BTreeMap::new();
    for case in tier.some(4, convertible(corpus)) {
        let write = |name: &str, conversion: &Conversion| {
            let target = out.path().join(name);
            write_source(&target, conversion.metadata(), conversion);
            GgufFile::open(&target).unwrap()
        };
        let floats = write("f32.gguf", &plan(&case, OutType::F32, Codes::Float));
        let conversion = plan(&case, OutType::F32, Codes::Native { allow_rounding: false });
        let native = write("native.gguf", &conversion);
        let index: BTreeMap<&str, usize> =
            native.tensors().iter().enumerate().map(|(at, meta)| (meta.name.as_str(), at)).collect();
        let values = |file: &GgufFile, index: usize| {
            let meta = &file.tensors()[index];
            let mut values = vec![0f32; meta.shape.n_elems() as usize];
            let level = gguf_core::simd::SimdLevel::detect();
            gguf_blocks::dequantize(meta.ty, level, file.raw_tensor(index), &mut values).unwrap();
            values
        };
        let mut n_beside = 0;
        for (at, meta) in floats.tensors().iter().enumerate() {
            let place = format!("{}: {}", case.display(), meta.name);
            let kept = *index.get(meta.name.as_str()).unwrap_or_else(|| panic!("{place} is missing"));
            assert_eq!(native.tensors()[kept].shape, meta.shape, "{place}");
            let (want, mut found) = (values(&floats, at), values(&native, kept));
            let stem = meta.name.strip_suffix(".weight");
            let beside = |suffix: &str| index.get(format!("{}{suffix}", stem?).as_str()).copied();
            n_beside += usize::from(beside(".input_scale").is_some());
            let Some(factors) = beside(".scale").map(|at| values(&native, at)) else {
                // Compared as numbers: block types have no negative zero.
                assert_eq!(want, found, "{place}");
                continue;
            };
            n_beside += 1;
            n_factors += factors.len();
            let per_factor = found.len() / factors.len();
            for (slab, factor) in found.chunks_mut(per_factor).zip(factors) {
                for value in slab {
                    *value *= factor;
                }
            }
            // At most four roundings: the scale divided by the divisor and its product, the reciprocal and its product.
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2.0 * b.abs() * f32::EPSILON;
            assert!(found.iter().zip(&want).all(close), "{place}");
        }
        assert_eq!(floats.tensors().len() + n_beside, native.tensors().len(), "{}", case.display());
        if native.tensors().iter().any(|tensor| tensor.name.ends_with(".input_scale")) {
            let left_out = conversion.quantization().unwrap().left_out();
            let is_input = |name: &String| name.contains(".input_");
            assert!(!left_out.iter().any(is_input), "{}: {left_out:?}", case.display());
        }
        let number = |key: &str| native.metadata().get(key).and_then(Value::as_u64);
        assert_eq!(number("general.quantization_version"), Some(2), "{}", case.display());
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        file_types.insert(name, number("general.file_type").unwrap());
        n_kept += conversion.kept().iter().map(|kept| kept.n_tensors).sum::<usize>();
        n_files += 1;
    }
    println!("{n_kept} tensors keep their integers, {n_factors} factors stand beside them");
    assert!(n_kept > 0 && n_factors > 0);
    let is_chosen = |name: &str| tier.is_deep() || file_types.contains_key(name);
    let here = |name: &&&str| is_chosen(name) && corpus.find(format!("prequant/{name}")).is_some();
    let named: usize = FILE_TYPES.iter().map(|row| row.1.iter().filter(here).count()).sum();
    for (name, found) in &file_types {
        let row = FILE_TYPES.iter().find(|row| row.1.contains(&name.as_str()));
        assert_eq!(*found, row.map_or(0, |row| row.0), "{name}");
    }
    assert_eq!(file_types.values().filter(|&&found| found != 0).count(), named, "every name is a case");
    report_cases("quantized checkpoints, native files", n_files);
}

/// Copies a checkpoint with another configuration.
fn copied(case: &Path, edit: impl FnOnce(&mut Json)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs_err::create_dir(dir.path().join("hf")).unwrap();
    for path in files::entries(case.join("hf")) {
        fs_err::copy(&path, dir.path().join("hf").join(path.file_name().unwrap())).unwrap();
    }
    let mut config = files::json(case.join("hf/config.json"));
    edit(&mut config);
    let path = dir.path().join("hf/config.json");
    fs_err::remove_file(&path).unwrap();
    fs_err::write(path, config.to_string()).unwrap();
    dir
}

fn without_settings(config: &mut Json) {
    config.as_object_mut().unwrap().remove("quantization_config").unwrap();
}

conformance_tests!(what_the_tensors_tell_needs_no_configuration);
fn what_the_tensors_tell_needs_no_configuration(corpus: &Goldens) {
    let cases =
        ["bnb-fp4", "bnb-int8", "bnb-nf4", "bnb-nf4-nested", "fp8-tensor-scale-inv", "fp8-tensor-static"];
    for name in cases {
        let case = corpus.join("prequant").join(name);
        let dir = copied(&case, without_settings);
        let source = open(dir.path()).unwrap();
        assert!(source.warnings.iter().any(|text| text.contains("`quantization_config`")), "{name}");
        check_values(&case, &*source.weights.unwrap(), &files::json(case.join("expected.json")));
    }
    // Blocks of another size than all known writers use.
    let dir = copied(&corpus.join("prequant/fp8-block64x32"), without_settings);
    assert!(open(dir.path()).unwrap_err().contains("weight_scale_inv"));
    // Settings of AutoAWQ in its own file, under the names of its command line.
    let case = corpus.join("prequant/awq-gemm-g32");
    let dir = copied(&case, without_settings);
    let settings = json!({"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"});
    fs_err::write(dir.path().join("hf/quant_config.json"), settings.to_string()).unwrap();
    let source = open(dir.path()).unwrap().weights.unwrap();
    check_values(&case, &*source, &files::json(case.join("expected.json")));
    report_cases("checkpoints without their settings", cases.len() + 2);
}

#[test]
fn numbers_in_few_bits_without_scales_are_told() {
    for (ty, code, value, says) in [
        ("F8_E4M3", 0x39, 1.125, "FP8 without scales"),
        ("F8_E5M2", 0x3d, 1.25, "FP8 without scales"),
        ("I8", 0xfe, 0.0, "integers without scales"),
        ("BOOL", 0x01, 1.0, "integers without scales"),
    ] {
        let mut file = gguf_testkit::checkpoints::Safetensors::default();
        file.add("a.weight", ty, [2, 4], &[code; 8]);
        let dir = tempfile::tempdir().unwrap();
        let config =
            |settings: Json| json!({"architectures": ["LlamaForCausalLM"], "quantization_config": settings});
        file.write_checkpoint(&dir.path().join("hf"), &config(Json::Null));
        let source = open(dir.path()).unwrap();
        assert!(source.warnings.iter().any(|text| text.contains(says)), "{ty}: {:?}", source.warnings);
        let weights = source.weights.unwrap();
        if weights.weights()[0].ty == ElementType::F32 {
            assert_eq!(f32_values(&floats(&*weights, 0)), [value; 8], "{ty}");
        }
        // A scale, or settings that require one, show that something is missing. No quantizer's are bools.
        if ty == "BOOL" {
            continue;
        }
        file.write_checkpoint(&dir.path().join("hf"), &config(json!({"quant_method": "fp8"})));
        assert!(open(dir.path()).unwrap_err().contains("without a scale"), "{ty}");
    }
}

#[test]
fn integers_of_gemma_have_the_width_of_their_module() {
    let mut file = gguf_testkit::checkpoints::Safetensors::default();
    // Lowest bits first, shifted up by half of the range.
    file.add("a.q_proj.weight", "U8", [2, 2], &[0x1f, 0x80, 0x78, 0x97]);
    file.add_f32("a.q_proj.weight_scale", [2, 1], &[1.0, 0.5]);
    file.add_f32("a.q_proj.input_activation_scale", [1], &[0.25]);
    file.add("a.o_proj.weight", "U8", [1, 2], &[0b1110_0100, 0b0001_1011]);
    file.add_f32("a.o_proj.weight_scale", [1, 1], &[2.0]);
    file.add("a.k_proj.weight", "I8", [1, 4], &[0x80, 0xff, 0, 0x7f]);
    file.add_f32("a.k_proj.weight_scale", [1, 1], &[0.5]);
    file.add("e.embedding_quantized", "U8", [1, 2], &[0x98, 0xa9]);
    file.add_f32("e.embedding_scale", [1, 2], &[1.0, 10.0]);
    let dir = tempfile::tempdir().unwrap();
    let settings =
        json!({"quant_method": "gemma", "num_bits": 4, "module_quant_configs": {"o_proj$": {"num_bits": 2}}});
    let config =
        |settings: &Json| json!({"architectures": ["LlamaForCausalLM"], "quantization_config": settings});
    file.write_checkpoint(&dir.path().join("hf"), &config(&settings));
    let source = open(dir.path()).unwrap().weights.unwrap();
    let of = |name: &str| {
        let at = source.weights().iter().position(|meta| meta.name == name).unwrap();
        f32_values(&floats(&*source, at))
    };
    assert_eq!(of("a.q_proj.weight"), [7.0, -7.0, -8.0, 0.0, 0.0, -0.5, -0.5, 0.5]);
    assert_eq!(of("a.o_proj.weight"), [-4.0, -2.0, 0.0, 2.0, 2.0, 0.0, -2.0, -4.0]);
    assert_eq!(of("a.k_proj.weight"), [-64.0, -0.5, 0.0, 63.5]);
    assert_eq!(of("e.weight"), [0.0, 1.0, 10.0, 20.0]);
    let wide = json!({"quant_method": "gemma", "num_bits": 3});
    file.write_checkpoint(&dir.path().join("hf"), &config(&wide));
    assert!(open(dir.path()).unwrap_err().contains("2 or 4 bits"));
}

#[test]
fn scales_of_blocks_may_be_powers_of_two() {
    let mut file = gguf_testkit::checkpoints::Safetensors::default();
    file.add("a.weight", "F8_E4M3", [2, 4], &[0x39; 8]);
    file.add("a.weight_scale_inv", "F8_E8M0", [1, 2], &[128, 126]);
    let dir = tempfile::tempdir().unwrap();
    let settings = json!({"quant_method": "fp8", "weight_block_size": [2, 2]});
    let config = json!({"architectures": ["LlamaForCausalLM"], "quantization_config": settings});
    file.write_checkpoint(&dir.path().join("hf"), &config);
    let source = open(dir.path()).unwrap().weights.unwrap();
    assert_eq!(f32_values(&floats(&*source, 0)), [2.25, 2.25, 0.5625, 0.5625, 2.25, 2.25, 0.5625, 0.5625]);
    // Exponents may be bytes, and blocks without a size are of 128 rows and columns or, in MXFP8, of 32 columns.
    let mut file = gguf_testkit::checkpoints::Safetensors::default();
    file.add("a.weight", "F8_E4M3", [3, 64], &[0x38; 192]);
    file.add("a.weight_scale_inv", "U8", [3, 2], &[127, 128, 129, 130, 131, 126]);
    let settings = json!({"quant_method": "mxfp8", "scale_fmt": "ue8m0"});
    let config = |key: &str| json!({"architectures": ["LlamaForCausalLM"], key: settings});
    for key in ["quantization_config", "compression_config"] {
        file.write_checkpoint(&dir.path().join("hf"), &config(key));
        let source = open(dir.path()).unwrap().weights.unwrap();
        let values = f32_values(&floats(&*source, 0));
        assert_eq!(
            [values[0], values[63], values[64], values[127], values[128], values[191]],
            [1.0, 2.0, 4.0, 8.0, 16.0, 0.5]
        );
    }
    // Without settings, scales of neither the tensor nor its rows are of 128 rows and columns.
    let mut file = gguf_testkit::checkpoints::Safetensors::default();
    file.add("a.weight", "F8_E4M3", [130, 130], &vec![0x38; 130 * 130]);
    file.add_f32("a.weight_scale_inv", [2, 2], &[1.0, 2.0, 3.0, 4.0]);
    file.write_checkpoint(&dir.path().join("hf"), &json!({"architectures": ["LlamaForCausalLM"]}));
    let source = open(dir.path()).unwrap().weights.unwrap();
    let values = f32_values(&floats(&*source, 0));
    assert_eq!([values[0], values[129], values[128 * 130], values[129 * 130 + 128]], [1.0, 2.0, 3.0, 4.0]);
}
