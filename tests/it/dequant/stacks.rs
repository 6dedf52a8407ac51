//! Stacks of experts in one tensor: FP8 and NVFP4 with scales for each expert or output. They are compared with test
//! implementations that look up one element at a time, and as whole checkpoints with the same values as floats.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gguf_foundry::arch::OutType;
use gguf_foundry::convert::{Codes, Conversion, ConvertOptions};
use gguf_foundry::core::{ElementType, TensorSource};
use gguf_foundry::gguf::GgufFile;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::floats::{e4m3_scales, small_float};
use super::made::{MODULE, Made, Noise, Part, Value, check, f32s, layer, noise, short_scale, write};
use crate::support::{files, fixture};
use crate::testkit::memory::write_source;

/// Number of matrices of every generated stack.
const EXPERTS: u64 = 3;

/// Granularity of the FP8 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    One,
    ByMatrix,
    ByRow,
    /// One scale per output: `[n, 1, outputs]`, or `[n, outputs, 1]` in FBGEMM's stacks.
    ByOutput,
}

/// Layout and tensor names of FP4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// `experts.down_proj`, a byte holds two elements of a row.
    Rows,
    /// `experts.down_proj`, a byte holds two elements of a column.
    Columns,
    /// `experts.down_proj.weight`.
    Modules,
    /// `experts.down_proj.weight_packed`, the factor divides.
    CompressedTensors,
}

/// FP8 stack without NaN. The weight has no module; its scales are `<name><suffix>`.
pub fn fp8_stack(shape: [u64; 2], noise: &mut Noise, scales: Scales, method: &str) -> Made {
    let [n_rows, n_cols] = shape;
    let codes: Vec<u8> = noise.bytes(EXPERTS * n_rows * n_cols).into_iter().map(number).collect();
    let (n_scales, dims) = match scales {
        Scales::One => (1, vec![]),
        Scales::ByMatrix => (EXPERTS, [vec![EXPERTS], vec![EXPERTS, 1, 1]][noise.below(2) as usize].clone()),
        Scales::ByRow => (EXPERTS * n_rows, vec![EXPERTS, n_rows, 1]),
        Scales::ByOutput if method == "fbgemm_fp8" && noise.flip() => {
            (EXPERTS * n_cols, vec![EXPERTS, n_cols, 1])
        }
        Scales::ByOutput => (EXPERTS * n_cols, vec![EXPERTS, 1, n_cols]),
    };
    let factors: Vec<f32> = (0..n_scales).map(|_| short_scale(noise)).collect();
    let (bytes, own) = (codes.clone(), factors.clone());
    let value = move |row: u64, col: u64| {
        let at = match scales {
            Scales::One => 0,
            Scales::ByMatrix => row / n_rows,
            Scales::ByRow => row,
            Scales::ByOutput => row / n_rows * n_cols + col,
        };
        small_float(&bytes, (row * n_cols + col) * 8, 8, 4) * own[at as usize]
    };
    let (suffix, settings) = match method {
        "modelopt" => ("_weight_scale", json!({ "quant_algo": "FP8" })),
        "fp8" if noise.flip() => ("_scale_inv", json!({})),
        _ => ("_scale", json!({})),
    };
    let made = Made::new(method, settings, [EXPERTS * n_rows, n_cols], Box::new(value))
        .part("", ElementType::F8E4M3, &[EXPERTS, n_rows, n_cols], &codes)
        .part(suffix, ElementType::F32, &dims, &f32s(&factors));
    Made { name: MODULE.to_owned(), ..made }
}

/// Replaces NaN codes by numbers.
fn number(code: u8) -> u8 {
    if code & 0x7f == 0x7f { code ^ 1 } else { code }
}

/// NVFP4 stack with one factor, or one for each expert.
pub fn nvfp4_stack(shape: [u64; 2], noise: &mut Noise, packed: Packed) -> Made {
    let by_columns = packed == Packed::Columns;
    // The packed dimension has whole groups.
    let (n_rows, n_cols) = if by_columns {
        (shape[0].next_multiple_of(16), shape[1].max(2))
    } else {
        (shape[0].max(2), shape[1].next_multiple_of(16))
    };
    let codes = noise.bytes(EXPERTS * n_rows * n_cols / 2);
    let scale = e4m3_scales(noise, EXPERTS * n_rows * n_cols / 16);
    let factors: Vec<f32> =
        (0..[1, EXPERTS][noise.below(2) as usize]).map(|_| (1 + noise.below(1000)) as f32 / 300.0).collect();
    let factor_dims = match factors.len() {
        1 => [vec![], vec![1]][noise.below(2) as usize].clone(),
        _ => [vec![EXPERTS], vec![EXPERTS, 1], vec![EXPERTS, 1, 1]][noise.below(3) as usize].clone(),
    };
    let (bytes, scales, own) = (codes.clone(), scale.clone(), factors.clone());
    let value: Value = Box::new(move |row, col| {
        let (expert, row) = (row / n_rows, row % n_rows);
        let (nibble, group) = if by_columns {
            let pairs = (expert * (n_rows / 2) + row / 2) * n_cols + col;
            (pairs * 2 + row % 2, (expert * (n_rows / 16) + row / 16) * n_cols + col)
        } else {
            let row = expert * n_rows + row;
            (row * n_cols + col, row * (n_cols / 16) + col / 16)
        };
        let factor = own[if own.len() == 1 { 0 } else { expert as usize }];
        let scale = small_float(&scales, group * 8, 8, 4);
        let scale = if packed == Packed::CompressedTensors { scale / factor } else { scale * factor };
        small_float(&bytes, nibble * 4, 4, 2) * scale
    });
    let dims = |packed: u64| {
        let (rows, cols) = if by_columns { (packed, 1) } else { (1, packed) };
        [EXPERTS, n_rows / rows, n_cols / cols]
    };
    let size = [EXPERTS * n_rows, n_cols];
    if packed == Packed::CompressedTensors {
        let weights = json!({ "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16 });
        let groups = json!({ "group_0": { "targets": ["Linear"], "weights": weights } });
        let settings = json!({ "format": "nvfp4-pack-quantized", "config_groups": groups });
        return Made::new("compressed-tensors", settings, size, value)
            .part(".weight_packed", ElementType::U8, &dims(2), &codes)
            .part(".weight_scale", ElementType::F8E4M3, &dims(16), &scale)
            .part(".weight_global_scale", ElementType::F32, &factor_dims, &f32s(&factors));
    }
    let names = match packed {
        Packed::Modules => [".weight", ".weight_scale", ".weight_scale_2"],
        _ => ["", "_weight_scale", "_weight_scale_2"],
    };
    let made = Made::new("modelopt", json!({ "quant_algo": "NVFP4" }), size, value)
        .part(names[0], ElementType::U8, &dims(2), &codes)
        .part(names[1], ElementType::F8E4M3, &dims(16), &scale)
        .part(names[2], ElementType::F32, &factor_dims, &f32s(&factors));
    Made { name: format!("{MODULE}{}", names[0]), ..made }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn stacks_equal_their_twins(rows in 1u64..40, cols in 1u64..140, seed: u64) {
        let noise = &mut noise(seed);
        for (scales, method) in [
            (Scales::One, "fp8"),
            (Scales::ByMatrix, "fp8"),
            (Scales::ByRow, "fp8"),
            (Scales::ByOutput, "fp8"),
            (Scales::ByOutput, "fbgemm_fp8"),
            (Scales::One, "modelopt"),
            (Scales::ByMatrix, "modelopt"),
            (Scales::ByOutput, "modelopt"),
        ] {
            check(&fp8_stack([rows, cols], noise, scales, method), noise);
        }
        for packed in [Packed::Rows, Packed::Columns, Packed::Modules, Packed::CompressedTensors] {
            check(&nvfp4_stack([rows, cols], noise, packed), noise);
        }
    }
}

/// Changes the shape of a part and expects an error.
fn refused(mut made: Made, suffix: &str, dims: &[u64], expected: &str) {
    let name = format!("{MODULE}{suffix}");
    let part = made.parts.iter_mut().find(|part| part.name == name).unwrap();
    dims.clone_into(&mut part.dims);
    part.bytes.resize(dims.iter().product::<u64>() as usize * part.ty.bytes().unwrap(), 0x38);
    let error = layer(&made, true).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), format!("tensor `{name}`: shape is {dims:?}, expected {expected}"));
}

#[test]
fn scales_of_another_shape_are_named_with_what_was_expected() {
    let noise = &mut noise(5);
    let shape = [32, 64];
    let outputs = "[3, 1, 64] or [3, 64, 1], one for each output";
    for dims in [&[3, 64][..], &[3, 32, 1], &[3, 1, 1], &[3], &[1], &[3, 1, 63]] {
        refused(fp8_stack(shape, noise, Scales::ByOutput, "fbgemm_fp8"), "_scale", dims, outputs);
    }
    for dims in [&[2][..], &[4, 1, 1], &[3, 2], &[3, 1, 63]] {
        refused(fp8_stack(shape, noise, Scales::One, "modelopt"), "_weight_scale", dims, "1 element");
    }
    let groups = "[3, 32, 4] where rows are packed, or [3, 4, 32] where columns are";
    for dims in [&[3, 32, 5][..], &[96, 4], &[3, 32, 32], &[2, 32, 4]] {
        refused(nvfp4_stack(shape, noise, Packed::Rows), "_weight_scale", dims, groups);
    }
    let groups = "[3, 16, 8] where rows are packed, or [3, 2, 64] where columns are";
    for dims in [&[3, 32, 4][..], &[3, 16, 4], &[3, 2, 63], &[6, 64]] {
        refused(nvfp4_stack(shape, noise, Packed::Columns), "_weight_scale", dims, groups);
    }
    for (packed, suffix) in [
        (Packed::Rows, "_weight_scale_2"),
        (Packed::Columns, "_weight_scale_2"),
        (Packed::Modules, ".weight_scale_2"),
        (Packed::CompressedTensors, ".weight_global_scale"),
    ] {
        // Two factors per expert, for gate and up separately, are not a documented layout.
        for dims in [&[2][..], &[4], &[3, 2], &[1, 3]] {
            let factors = "1 element, or [3], one for each matrix of the stack";
            refused(nvfp4_stack(shape, noise, packed), suffix, dims, factors);
        }
    }
    refused(nvfp4_stack(shape, noise, Packed::Modules), ".weight_scale", &[96, 4], "[3, 32, 4]");
}

#[test]
fn parts_of_stacks_that_are_missing_are_named() {
    let noise = &mut noise(6);
    for (packed, suffix, expected) in [
        (Packed::Rows, "_weight_scale_2", "_weight_scale_2` is missing"),
        (Packed::Columns, "_weight_scale_2", "_weight_scale_2` is missing"),
        (Packed::Rows, "", "_weight_scale`: part of a module quantized by ModelOpt"),
        (Packed::Columns, "_weight_scale", "_weight_scale_2`: part of a module quantized by ModelOpt"),
    ] {
        let mut made = nvfp4_stack([32, 64], noise, packed);
        made.parts.retain(|part| part.name != format!("{MODULE}{suffix}"));
        let error = layer(&made, true).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Checkpoint of `fixtures/cards`: its configuration, and its tensors filled with numbers.
fn model(case: &str, noise: &mut Noise) -> (Json, Vec<Part>) {
    let content = files::json(fixture(case));
    let part = |row: &Json| {
        let dims: Vec<u64> = row[2].as_array().unwrap().iter().filter_map(Json::as_u64).collect();
        let n: u64 = dims.iter().product();
        let bytes = (0..n).flat_map(|_| half::bf16::from_f32(short_scale(noise)).to_le_bytes()).collect();
        assert_eq!(row[1], "BF16", "{case}");
        Part { name: row[0].as_str().unwrap().to_owned(), ty: ElementType::Bf16, dims, bytes }
    };
    let parts = content["tensors"].as_array().unwrap().iter().map(part).collect();
    (content["config"].clone(), parts)
}

fn convert(dir: &Path, file_type: OutType, codes: Codes) -> (Conversion, Vec<u8>) {
    let options = ConvertOptions {
        file_type: Some(file_type),
        codes,
        model_name: Some("stacks".to_owned()),
        tokenizer: false,
        ..ConvertOptions::default()
    };
    let conversion = Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{error}"));
    let target = dir.join("model.gguf");
    write_source(&target, conversion.metadata(), &conversion);
    (conversion, fs_err::read(&target).unwrap())
}

/// Writes a checkpoint into a separate folder: all have the same name, which may become part of a file's metadata.
fn folder(dir: &tempfile::TempDir, outer: &str, config: &Json, parts: &[Part]) -> PathBuf {
    let path = dir.path().join(outer).join("experts");
    fs_err::create_dir_all(&path).unwrap();
    write(config, parts, &path);
    path
}

/// Experts in codes and the same experts as floats give the same file.
#[test]
fn stacks_make_the_files_of_their_values() {
    type Make = fn([u64; 2], &mut Noise) -> Made;
    let cases: [(&str, &str, Make); 6] = [
        ("llama4-fbgemm", "cards/llama4/scout.json", |shape, noise| {
            fp8_stack(shape, noise, Scales::ByOutput, "fbgemm_fp8")
        }),
        ("llama4-modelopt-fp8", "cards/llama4/scout.json", |shape, noise| {
            fp8_stack(shape, noise, Scales::One, "modelopt")
        }),
        ("llama4-modelopt-nvfp4", "cards/llama4/scout.json", |shape, noise| {
            nvfp4_stack(shape, noise, Packed::Columns)
        }),
        ("mistral4-fp8", "cards/mistral4/mistral4.json", |shape, noise| {
            fp8_stack(shape, noise, Scales::ByMatrix, "fp8")
        }),
        ("mistral4-modelopt-fp8", "cards/mistral4/mistral4.json", |shape, noise| {
            fp8_stack(shape, noise, Scales::ByMatrix, "modelopt")
        }),
        ("mistral4-modelopt-nvfp4", "cards/mistral4/mistral4.json", |shape, noise| {
            nvfp4_stack(shape, noise, Packed::Rows)
        }),
    ];
    for (name, case, make) in cases {
        let noise = &mut noise(21);
        let (mut config, parts) = model(case, noise);
        // Every generated stack has the same number of experts.
        let inner = if config["text_config"].is_object() { &mut config["text_config"] } else { &mut config };
        for key in ["num_local_experts", "n_routed_experts"] {
            if inner[key].is_u64() {
                inner[key] = json!(EXPERTS);
            }
        }
        let (mut coded, mut floats, mut settings) = (Vec::new(), Vec::new(), Json::Null);
        for mut part in parts {
            let is_stack = part.dims.len() == 3 && part.name.contains(".experts.");
            if !is_stack {
                if part.dims[0] == 4 && part.dims.len() <= 2 && part.name.contains("layers") {
                    part.dims[0] = EXPERTS;
                    part.bytes.truncate(part.dims.iter().product::<u64>() as usize * 2);
                }
                coded.push(part.clone());
                floats.push(part);
                continue;
            }
            let made = make([part.dims[1], part.dims[2]], noise);
            settings = made.config["quantization_config"].clone();
            for mut own in made.parts {
                own.name = own.name.replace(MODULE, &part.name);
                coded.push(own);
            }
            let rows = EXPERTS * part.dims[1];
            assert_eq!((made.n_rows, made.n_cols), (rows, part.dims[2]), "{name}");
            let values: Vec<f32> = (0..rows)
                .flat_map(|row| (0..made.n_cols).map(move |col| (row, col)))
                .map(|(r, c)| (made.value)(r, c))
                .collect();
            let dims = vec![EXPERTS, part.dims[1], part.dims[2]];
            floats.push(Part { name: part.name, ty: ElementType::F32, dims, bytes: f32s(&values) });
        }
        let mut quantized = config.clone();
        quantized["quantization_config"] = settings;
        let dir = tempfile::tempdir().unwrap();
        let dirs = [folder(&dir, "a", &quantized, &coded), folder(&dir, "b", &config, &floats)];
        for file_type in [OutType::F32, OutType::F16, OutType::Bf16, OutType::Q8_0] {
            let files = dirs.each_ref().map(|dir| convert(dir, file_type, Codes::Card).1);
            assert!(files[0] == files[1], "{name} {file_type}");
        }
        // Native types lose no value.
        let (native, _) = convert(&dirs[0], OutType::F32, Codes::Native { allow_rounding: false });
        let experts = native.tensors().iter().filter(|tensor| tensor.name.contains("_exps."));
        println!("{name}: {:?}", experts.map(|tensor| (&tensor.name, tensor.ty)).collect::<Vec<_>>());
    }
}

/// Blocks and factors are those of the same experts in separate modules.
#[test]
fn stacks_stay_blocks_as_single_experts_do() {
    let noise = &mut noise(22);
    let (mut config, parts) = model("cards/qwen3moe/plain.json", noise);
    let (n_experts, hidden, inner) = (4u64, 64u64, 64u64);
    config["num_experts"] = json!(n_experts);
    config["moe_intermediate_size"] = json!(inner);
    config["quantization_config"] = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4" });
    let (mut single, mut stacked): (Vec<Part>, Vec<Part>) = (Vec::new(), Vec::new());
    for mut part in parts {
        if part.name.contains(".experts.") {
            continue;
        }
        if part.name.ends_with("mlp.gate.weight") {
            part.dims[0] = n_experts;
            part.bytes.truncate((n_experts * hidden * 2) as usize);
        }
        single.push(part.clone());
        stacked.push(part);
    }
    for layer in 0..2 {
        let base = format!("model.layers.{layer}.mlp.experts");
        for (stack, names, rows, cols) in [
            ("gate_up_proj", &["gate_proj", "up_proj"][..], inner, hidden),
            ("down_proj", &["down_proj"], hidden, inner),
        ] {
            let mut whole = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
            for expert in 0..n_experts {
                let pair = [0, 1].map(|_| f32s(&[(1 + noise.below(1000)) as f32 / 300.0]));
                for name in names {
                    let codes = noise.bytes(rows * cols / 2);
                    let scales: Vec<u8> = (0..rows * cols / 16).map(|_| noise.below(0x7f) as u8).collect();
                    let mut add = |suffix: &str, ty: ElementType, dims: &[u64], bytes: &[u8]| {
                        let name = format!("{base}.{expert}.{name}.{suffix}");
                        single.push(Part { name, ty, dims: dims.to_vec(), bytes: bytes.to_vec() });
                    };
                    add("weight", ElementType::U8, &[rows, cols / 2], &codes);
                    add("weight_scale", ElementType::F8E4M3, &[rows, cols / 16], &scales);
                    add("weight_scale_2", ElementType::F32, &[], &pair[0]);
                    add("input_scale", ElementType::F32, &[], &pair[1]);
                    whole[0].extend(codes);
                    whole[1].extend(scales);
                }
                whole[2].extend(pair[0].iter().copied());
                whole[3].extend(pair[1].iter().copied());
            }
            let rows = rows * names.len() as u64;
            let kinds = [
                ("", ElementType::U8, vec![n_experts, rows, cols / 2]),
                ("_weight_scale", ElementType::F8E4M3, vec![n_experts, rows, cols / 16]),
                ("_weight_scale_2", ElementType::F32, vec![n_experts]),
                ("_input_scale", ElementType::F32, vec![n_experts]),
            ];
            for ((suffix, ty, dims), bytes) in kinds.into_iter().zip(whole) {
                stacked.push(Part { name: format!("{base}.{stack}{suffix}"), ty, dims, bytes });
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let dirs = [folder(&dir, "a", &config, &single), folder(&dir, "b", &config, &stacked)];
    for codes in [Codes::Native { allow_rounding: false }, Codes::Float] {
        let files = dirs.each_ref().map(|dir| {
            let (conversion, _) = convert(dir, OutType::F32, codes);
            let file = GgufFile::open(&dir.join("model.gguf")).unwrap();
            let tensors: BTreeMap<_, _> = (0..file.tensors().len())
                .map(|at| {
                    (
                        file.tensors()[at].clone().name,
                        (file.tensors()[at].clone(), file.raw_tensor(at).to_vec()),
                    )
                })
                .collect();
            let left_out = &conversion.quantization().unwrap().left_out;
            assert_eq!(left_out.is_empty(), codes != Codes::Float, "{codes:?}: {left_out:?}");
            (tensors, conversion.metadata().clone())
        });
        let names: Vec<_> =
            files.each_ref().map(|(tensors, _)| tensors.keys().cloned().collect::<Vec<_>>()).into();
        assert_eq!(names[0], names[1], "{codes:?}");
        for ((name, ours), theirs) in files[1].0.iter().zip(files[0].0.values()) {
            assert!(ours == theirs, "{codes:?}: {name} is {:?}, not {:?}", ours.0, theirs.0);
        }
        assert!(files[0].1 == files[1].1, "{codes:?}: metadata");
        let beside = files[1]
            .0
            .values()
            .filter(|(meta, _)| meta.name.contains("exps") && meta.name.ends_with("scale"));
        let n_beside = beside.inspect(|(meta, _)| assert_eq!(meta.shape.dims(), [n_experts])).count();
        assert_eq!(n_beside, if codes == Codes::Float { 0 } else { 12 }, "{codes:?}");
    }
}
