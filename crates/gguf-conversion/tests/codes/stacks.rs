//! Stacks of experts in one tensor as whole checkpoints: they give the files that the same values as floats give.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gguf_arch::OutType;
use gguf_checkpoint::Checkpoint;
use gguf_conversion::{Codes, Conversion, ConvertOptions, Fate, PieceKind};
use gguf_core::limits::Limits;
use gguf_core::{ElementType, TensorSource, WeightSource};
use gguf_format::GgufFile;
use serde_json::{Value as Json, json};

use gguf_testkit::codes::stacks::{EXPERTS, Packed, Scales, fp8_stack, nvfp4_stack};
use gguf_testkit::codes::{MODULE, Made, Noise, Part, f32s, noise, short_scale, write};
use gguf_testkit::memory::write_source;
use gguf_testkit::tiers::{Tier, two_tiers};
use gguf_testkit::{files, fixture};

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

two_tiers!(stacks_make_the_files_of_their_values);
/// Experts in codes and the same experts as floats give the same file.
fn stacks_make_the_files_of_their_values(tier: Tier) {
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
    for (name, case, make) in tier.some(2, cases) {
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
            let left_out = conversion.quantization().unwrap().left_out();
            assert_eq!(left_out.is_empty(), codes != Codes::Float, "{codes:?}: {left_out:?}");
            // Each stored tensor, codes and factors among them, has one fate.
            let stored = Checkpoint::open(dir, &Limits::default()).unwrap();
            let mut stored: Vec<&str> = stored.weights().iter().map(|meta| meta.name.as_str()).collect();
            let account = conversion.account();
            let pieces: Vec<_> = account.iter().filter(|piece| piece.kind == PieceKind::Tensor).collect();
            let mut told: Vec<&str> = pieces.iter().map(|piece| piece.name.as_str()).collect();
            stored.sort_unstable();
            told.sort_unstable();
            assert_eq!(told, stored, "{codes:?}");
            for piece in pieces {
                let is_lost = left_out.contains(&piece.name);
                assert_eq!(piece.fate == Fate::Written, !is_lost, "{piece:?}");
                assert_eq!(piece.to.iter().any(|name| tensors.contains_key(name)), !is_lost, "{piece:?}");
            }
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
