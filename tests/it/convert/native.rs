//! `--type native` on FP4 with separate factors, and `--fp8-as-q8`: the reference's bytes, and the use of such files by
//! the rest of the program.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_foundry::arch::{GraphFeatures, OutType, Registry};
use gguf_foundry::convert::{Codes, Conversion, ConvertOptions, FloatReason, ToHfOptions, gguf_to_hf};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{ElementType, GgmlType, TensorSource};
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::gguf::{Array, GgufFile, Metadata, Value};
use gguf_foundry::quant::dequantize;
use serde_json::Value as Json;

use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::programs::run;
use crate::support::{files, fixture, report_cases, sha256};
use crate::testkit::checkpoints::Safetensors;
use crate::testkit::memory::{tensor_bytes, write_source};

const NATIVE: Codes = Codes::Native { allow_rounding: false };

fn plan(dir: &Path, options: ConvertOptions) -> Conversion {
    let options = ConvertOptions { tokenizer: false, ..options };
    Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

fn native(dir: &Path) -> Conversion {
    plan(dir, ConvertOptions { file_type: Some(OutType::F32), codes: NATIVE, ..ConvertOptions::default() })
}

fn floats(dir: &Path) -> Conversion {
    plan(dir, ConvertOptions { file_type: Some(OutType::F32), ..ConvertOptions::default() })
}

/// Conversion for a row of the expectations: `bf16`, which is native here, or `fp8_as_q8 TYPE`.
fn asked(dir: &Path, what: &str) -> Conversion {
    match what.split_once(' ') {
        None => native(dir),
        Some((switch, file_type)) => {
            assert_eq!(switch, "fp8_as_q8");
            let file_type = OutType::from_name(file_type);
            plan(dir, ConvertOptions { file_type, fp8_as_q8: true, ..ConvertOptions::default() })
        }
    }
}

fn write(conversion: &Conversion, target: &Path) -> GgufFile {
    write_source(target, conversion.metadata(), conversion);
    GgufFile::open(target).unwrap()
}

/// All values of a tensor as stored, without factors.
fn values(source: &dyn TensorSource, at: usize) -> Vec<f32> {
    let meta = &source.tensors()[at];
    let bytes = tensor_bytes(source, at);
    let mut values = vec![0f32; meta.shape.n_elems() as usize];
    dequantize(meta.ty, SimdLevel::detect(), &bytes, &mut values).unwrap();
    values
}

fn index(source: &dyn TensorSource, name: &str) -> Option<usize> {
    source.tensors().iter().position(|tensor| tensor.name == name)
}

#[test]
fn fixtures_convert_to_the_bytes_of_the_reference() {
    let out = tempfile::tempdir().unwrap();
    let mut n = 0;
    for case in files::entries(fixture("native")) {
        if !case.is_dir() {
            continue;
        }
        let manifest: toml::Table =
            fs_err::read_to_string(case.join("MANIFEST.toml")).unwrap().parse().unwrap();
        for (name, sum) in manifest["files"].as_table().unwrap() {
            assert_eq!(sha256(&fs_err::read(case.join(name)).unwrap()), sum.as_str().unwrap(), "{name}");
        }
        for (what, expect) in files::json(case.join("expect.json")).as_object().unwrap() {
            let place = format!("{} {what}", case.display());
            let conversion = asked(&case.join("hf"), what);
            let target = out.path().join("model.gguf");
            let file = write(&conversion, &target);
            let ours: Vec<[String; 3]> = file
                .tensors()
                .iter()
                .enumerate()
                .map(|(at, meta)| [meta.name.clone(), meta.ty.name().to_owned(), sha256(file.raw_tensor(at))])
                .collect();
            let theirs: Vec<[String; 3]> = serde_json::from_value(expect["tensors"].clone()).unwrap();
            assert_eq!(ours, theirs, "{place}");
            let found = sha256(&fs_err::read(&target).unwrap());
            assert_eq!(found, expect["sha256"].as_str().unwrap(), "{place}");
            n += 1;
        }
    }
    assert!(n >= 5, "{n} files compared");
}

conformance_tests!(files_of_the_corpus_equal_the_references);
fn files_of_the_corpus_equal_the_references(corpus: &Goldens) {
    let out = tempfile::tempdir().unwrap();
    let expected: BTreeMap<String, String> =
        serde_json::from_value(files::json(fixture("native/corpus.json"))).unwrap();
    let mut n_cases = 0;
    for (row, sum) in &expected {
        let (case, what) = row.split_once(' ').unwrap();
        let Some(dir) = corpus.find(case) else { continue };
        let conversion = asked(&dir.join("hf"), what);
        let target = out.path().join("model.gguf");
        write(&conversion, &target);
        assert_eq!(&sha256(&fs_err::read(&target).unwrap()), sum, "{row}");
        n_cases += 1;
    }
    report_cases("native and FP8 files", n_cases);
}

/// Blocks times factor are compared with the floats of the same checkpoint: one more rounding.
#[test]
fn factors_make_the_values_of_the_checkpoint() {
    let mut n_factors = 0;
    for case in ["nvfp4_llama_mixed", "nvfp4_qwen3_w4a16", "nvfp4_qwen3moe"] {
        let dir = fixture("native").join(case).join("hf");
        let (blocks, floats) = (native(&dir), floats(&dir));
        for (at, meta) in floats.tensors().iter().enumerate() {
            let place = format!("{case}: {}", meta.name);
            let want = values(&floats, at);
            let at = index(&blocks, &meta.name).unwrap_or_else(|| panic!("{place} is missing"));
            let mut found = values(&blocks, at);
            if blocks.tensors()[at].ty != GgmlType::Nvfp4 {
                assert_eq!(found, want, "{place}");
                continue;
            }
            let base = meta.name.strip_suffix(".weight").unwrap();
            let factors = index(&blocks, &format!("{base}.scale")).map(|at| values(&blocks, at));
            n_factors += factors.as_ref().map_or(0, Vec::len);
            if let Some(factors) = factors {
                let per_factor = found.len() / factors.len();
                for (slab, factor) in found.chunks_mut(per_factor).zip(factors) {
                    for value in slab {
                        *value *= factor;
                    }
                }
            }
            // The reference rounds scale times factor and the product, the blocks only the product. So the difference
            // is at most three halves of a unit in the last place.
            let close =
                |(a, b): (&f32, &f32)| f64::from((a - b).abs()) <= 1.5 * f64::from(b.abs() * f32::EPSILON);
            assert!(found.iter().zip(&want).all(close), "{place}");
        }
    }
    // The output and all matrices except `k` (its factor is 1) and `up`; seven; four and three stacks of eleven.
    assert_eq!(n_factors, 6 + 7 + 4 + 3 * 11);
}

fn logits(source: &dyn TensorSource, metadata: &Metadata) -> Vec<f32> {
    let arch = metadata.get("general.architecture").unwrap().as_str().unwrap();
    let plan = GraphPlan::new(&GraphFeatures::of(arch).unwrap(), metadata, source.tensors()).unwrap();
    let engine = Engine::new(plan, source, EngineOptions::default()).unwrap();
    let tokens: Vec<u32> = (0..24).map(|i| i * 7 % 32).collect();
    let rows = 0..tokens.len();
    let hidden = engine.hidden(&[TokenChunk { tokens, rows, n_source: 0 }]).unwrap();
    engine.logits(&hidden, &Silent).unwrap()
}

#[test]
fn the_engine_multiplies_factors_in() {
    for case in ["nvfp4_llama_mixed", "nvfp4_qwen3_w4a16", "nvfp4_qwen3moe"] {
        let dir = fixture("native").join(case).join("hf");
        let (blocks, floats) = (native(&dir), floats(&dir));
        let want = logits(&floats, floats.metadata());
        let found = logits(&blocks, blocks.metadata());
        let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        println!("{case}: logits up to {largest}, off by {worst}");
        assert!(largest > 0.1 && worst <= largest * 1e-5, "{case}: {worst} of {largest}");
    }
}

#[test]
fn a_factor_of_the_wrong_size_is_no_graph() {
    let dir = fixture("native/nvfp4_qwen3moe/hf");
    let blocks = native(&dir);
    let mut tensors = blocks.tensors().to_vec();
    let at = index(&blocks, "blk.0.ffn_up_exps.scale").unwrap();
    tensors[at].shape = gguf_foundry::core::Shape::new(vec![10]).unwrap();
    let error = GraphPlan::new(&GraphFeatures::of("qwen3moe").unwrap(), blocks.metadata(), &tensors);
    let message = error.unwrap_err().to_string();
    assert!(message.contains("`blk.0.ffn_up_exps.scale`") && message.contains("[11]"), "{message}");
}

#[test]
fn the_way_back_multiplies_factors_in() {
    let out = tempfile::tempdir().unwrap();
    for case in ["nvfp4_llama_mixed", "nvfp4_qwen3moe"] {
        let dir = fixture("native").join(case).join("hf");
        let file = write(&native(&dir), &out.path().join("model.gguf"));
        let options = ToHfOptions {
            ty: Some(ElementType::F32),
            max_shard_bytes: 1 << 30,
            memory_bytes: 8 << 20,
            sync: false,
            level: SimdLevel::detect(),
            ..ToHfOptions::default()
        };
        let back = out.path().join(case);
        let registry = Registry::embedded().unwrap();
        gguf_to_hf(&registry, file.metadata(), &file, &back, &options, &Silent).unwrap();
        let (floats, again) = (floats(&dir), self::floats(&back));
        assert_eq!(floats.tensors().len(), again.tensors().len());
        for (at, meta) in floats.tensors().iter().enumerate() {
            let want = values(&floats, at);
            let found = values(&again, index(&again, &meta.name).unwrap());
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() * f32::EPSILON;
            assert!(found.iter().zip(&want).all(close), "{case}: {}", meta.name);
        }
    }
}

/// Copy of a fixture with a changed configuration.
fn edited(case: &str, edit: impl Fn(&mut serde_json::Map<String, Json>)) -> tempfile::TempDir {
    let (from, to) = (fixture("native").join(case).join("hf"), tempfile::tempdir().unwrap());
    fs_err::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let mut config = files::json(from.join("config.json"));
    edit(config.as_object_mut().unwrap());
    fs_err::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

#[test]
fn tensors_without_a_place_for_the_factor_become_floats() {
    // The graph of Granite does not apply factors in the feed-forward network.
    let dir = edited("nvfp4_llama_mixed", |config| {
        config.insert("architectures".to_owned(), serde_json::json!(["GraniteForCausalLM"]));
        config.insert("model_type".to_owned(), "granite".into());
        for key in ["embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"] {
            config.insert(key.to_owned(), 1.0.into());
        }
    });
    let conversion = native(dir.path());
    let ty = |name: &str| conversion.tensors()[index(&conversion, name).unwrap()].ty;
    assert_eq!(ty("blk.0.attn_q.weight"), GgmlType::Nvfp4);
    assert_eq!(ty("output.weight"), GgmlType::Nvfp4);
    assert_eq!(ty("blk.0.ffn_down.weight"), GgmlType::F32);
    assert!(index(&conversion, "blk.0.ffn_down.scale").is_none());
    let rows = conversion.floats();
    let reason = |role: &str| rows.iter().find(|row| row.role == role).map(|row| row.reason);
    assert_eq!(reason("blk.*.ffn_down.weight"), Some(FloatReason::NoSlot));
    assert_eq!(reason("blk.*.ffn_up.weight"), Some(FloatReason::NoBlocks), "8-bit floats");
    assert_eq!(reason("blk.*.attn_q.weight"), None);
    assert_eq!(reason("token_embd.weight"), None, "it has no codes");
}

#[test]
fn modules_with_float_activations_are_named() {
    let dir = fixture("native/nvfp4_llama_mixed/hf");
    let names = |conversion: &Conversion| conversion.metadata().get("general.tensor_extra.name").cloned();
    // Only the output is a `W4A16_NVFP4` module of this checkpoint.
    let expected = Value::Array(Array::String(vec![b"output.weight".to_vec()]));
    assert_eq!(names(&native(&dir)), Some(expected));
    assert_eq!(names(&floats(&dir)), None, "floats are multiplied as floats");
}

#[test]
fn factors_that_are_no_numbers_are_refused() {
    for (name, value) in [("input_scale", f32::NAN), ("weight_scale_2", f32::INFINITY)] {
        let dir = edited("nvfp4_llama_mixed", |_| {});
        let path = dir.path().join("model.safetensors");
        let mut file = Safetensors::parse(&fs_err::read(&path).unwrap());
        let tensor = format!("model.layers.0.self_attn.q_proj.{name}");
        file.data_mut(&tensor)[..4].copy_from_slice(&value.to_le_bytes());
        file.write(&path);
        let error = Conversion::plan(dir.path(), &ConvertOptions::default()).unwrap_err().to_string();
        assert!(error.contains(&tensor), "{error}");
    }
}

#[test]
fn the_program_says_what_is_kept_and_what_is_not() {
    let out = tempfile::tempdir().unwrap();
    let dir = fixture("native/nvfp4_llama_mixed/hf");
    let dir = dir.to_str().unwrap();
    let base = ["hf2gguf", dir, "--no-tokenizer", "-o", "model.gguf", "--type"];
    let stdout = run("gguf-convert", out.path(), &[&base[..], &["native", "--no-sync"]].concat()).ok().out;
    assert!(stdout.contains("blk.*.attn_q.weight") && stdout.contains("NVFP4"), "{stdout}");
    let row = stdout.lines().find(|line| line.contains("blk.*.ffn_up.weight")).unwrap();
    assert!(row.contains("no block type holds such codes"), "{row}");

    // After requantizing, the factors are still there.
    let args = ["model.gguf", "again.gguf", "--type", "q8_0", "--allow-requantize", "--no-sync"];
    run("gguf-quantize", out.path(), &args).ok();
    let open = |name: &str| GgufFile::open(&out.path().join(name)).unwrap();
    let (before, after) = (open("model.gguf"), open("again.gguf"));
    let q = index(&after, "blk.0.attn_q.weight").unwrap();
    assert_eq!(after.tensors()[q].ty, GgmlType::Q8_0);
    let output = index(&after, "output.weight").unwrap();
    assert_eq!(after.tensors()[output].ty, GgmlType::Nvfp4, "its factor has no other place");
    for name in ["blk.0.attn_q.scale", "blk.0.attn_q.input_scale", "output.scale"] {
        let bytes = |file: &GgufFile| file.raw_tensor(index(file, name).unwrap()).to_vec();
        assert_eq!(bytes(&before), bytes(&after), "{name}");
    }

    let stderr =
        run("gguf-convert", out.path(), &[&base[..], &["q4_k_m", "--fp8-as-q8", "--no-sync"]].concat())
            .exits_with(2)
            .err;
    assert!(stderr.contains("--fp8-as-q8"), "{stderr}");
    run("gguf-convert", out.path(), &[&base[..], &["f16", "--fp8-as-q8", "--no-sync"]].concat()).ok();
    let file = open("model.gguf");
    let ty = |name: &str| file.tensors()[index(&file, name).unwrap()].ty;
    assert_eq!(ty("blk.0.ffn_up.weight"), GgmlType::Q8_0, "8-bit floats");
    assert_eq!(ty("blk.0.ffn_down.weight"), GgmlType::F16);
}
