//! Conversion from `.flm` to GGUF: hyper-parameters, logits, adapters, the program.

use std::path::Path;

use gguf_foundry::arch::OutType;
use gguf_foundry::convert::{Conversion, ConvertOptions, FlmOptions, ModelSource};
use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::{GgufFile, Value};

use super::cases::good;
use super::writer::{Writer, llama, own};
use crate::engine::last_logits;
use crate::support::goldens::{Goldens, conformance_tests};
use crate::support::programs::{command, run};
use crate::support::{self, files, report_cases};
use crate::testkit::memory::{f32_values, tensor_bytes};
use crate::testkit::noise::Noise;

fn options(ty: OutType) -> ConvertOptions {
    ConvertOptions { file_type: Some(ty), tokenizer: false, ..ConvertOptions::default() }
}

/// Returns true if a card converts the case's architecture.
fn has_card(case: &Path) -> bool {
    let arch = files::json(case.join("case.json"))["arch"].as_str().unwrap_or_default().to_owned();
    let registry = gguf_foundry::arch::Registry::embedded().unwrap();
    let name = if arch == "chatglm2" { "chatglm" } else { arch.as_str() };
    registry.cards().iter().any(|card| card.gguf == name)
}

conformance_tests!(logits_equal_the_reference);
fn logits_equal_the_reference(corpus: &Goldens) {
    let (mut n_cases, mut wrong, mut worst) = (0, Vec::new(), 0.0f64);
    for dir in good(corpus).into_iter().filter(|dir| dir.join("oracle.json").exists() && has_card(dir)) {
        let oracle = files::json(dir.join("oracle.json"));
        let prompt = oracle["prompt_ids"].as_array().or(oracle["prompts"][0].as_array()).unwrap();
        let expected = ["reference_last_logits", "reference_last_logits_prompt0"];
        let expected = expected.iter().find_map(|key| oracle[key].as_array()).unwrap();
        let tokens: Vec<u32> = prompt.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let mut options = options(OutType::F32);
        if dir.ends_with("chatglm1-float32") {
            // In the reference the last id always ends the prefix.
            let last = *tokens.last().unwrap();
            options.set.push(("tokenizer.ggml.bos_token_id".to_owned(), Value::U32(last)));
        }
        let source = ModelSource::open_flm(&dir.join("model.flm"), &FlmOptions::default(), &options);
        let conversion = match Conversion::of(source.unwrap(), &options) {
            Ok(conversion) => conversion,
            Err(error) => {
                wrong.push(format!("{}: {error}", dir.display()));
                continue;
            }
        };
        let logits = &last_logits(conversion.metadata(), &conversion, &[tokens])[0];
        assert_eq!(logits.len(), expected.len(), "{}", dir.display());
        assert!(logits.iter().all(|logit| logit.is_finite()), "{}", dir.display());
        let difference = logits
            .iter()
            .zip(expected)
            .fold(0.0f64, |most, (found, want)| most.max((f64::from(*found) - want.as_f64().unwrap()).abs()));
        println!("{}: {difference:.1e}", dir.file_name().unwrap().to_string_lossy());
        worst = worst.max(difference);
        n_cases += 1;
        if difference > 1e-3 {
            wrong.push(format!("{}: logits differ by {difference:.2e}", dir.display()));
        }
    }
    println!("largest difference {worst:.1e}");
    report_cases("flm: logits", n_cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

conformance_tests!(the_program_writes_files_that_pass);
fn the_program_writes_files_that_pass(corpus: &Goldens) {
    let mut n_cases = 0;
    for case in good(corpus).into_iter().filter(|case| has_card(case)) {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("version") {
            continue;
        }
        let work = tempfile::tempdir().unwrap();
        let file = case.join("model.flm");
        let mut args = vec!["flm2gguf", file.to_str().unwrap(), "-o", "out.gguf", "--no-sync", "--type"];
        args.push(if name.contains("int4") { "q4_1" } else { "native" });
        if name == "llama-peft" {
            args.push("--merge-adapters");
        }
        if name.contains("bytelevel") || name == "old-llama-fast" {
            args.extend(["--pre", "gpt-2"]);
        }
        let (code, out, err) = run("gguf-convert", work.path(), &args).parts();
        if name == "cpp-int4" {
            // It has a tensor that is not part of any model.
            assert_eq!(code, 1);
            assert!(err.contains("odd.weight"), "{err}");
            continue;
        }
        assert_eq!(code, 0, "{name}: {out}{err}");
        let opened = GgufFile::open(&work.path().join("out.gguf")).unwrap();
        assert!(opened.tensors().len() > 8, "{name}");
        if name.ends_with("int4") && !name.contains("odd") {
            assert!(opened.tensors().iter().any(|tensor| tensor.ty == GgmlType::Q4_1), "{name}");
        }
        run("gguf-verify", work.path(), &["out.gguf", "--structure-only"]).exits_with_one_of(&[0, 4]);
        n_cases += 1;
    }
    report_cases("flm: whole conversions", n_cases);
}

fn small() -> Writer {
    let mut writer = llama(|writer, name, [rows, cols], noise| {
        let ranges: Vec<(f32, f32)> =
            (0..rows).map(|_| (-0.5 - noise.signed().abs(), 0.5 + noise.signed().abs())).collect();
        writer.codes(name, &[rows, cols], 3, &ranges, &noise.bytes((rows * cols) as u64));
    });
    for (id, text) in ["<unk>", "<s>", "</s>", "a", "b"].iter().enumerate() {
        writer.tokens.push((text.as_bytes().to_vec(), id as i32, None));
    }
    writer
}

#[test]
fn the_dictionary_becomes_hyper_parameters_and_the_names_those_of_gguf() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("tiny.flm"), small().bytes()).unwrap();
    // Files of another model in the same directory must have no effect.
    fs_err::write(dir.path().join("config.json"), r#"{"hidden_size": 1}"#).unwrap();
    fs_err::write(dir.path().join("README.md"), "---\nlicense: mit\n---\n").unwrap();
    for ty in ["f32", "f16", "bf16", "q8_0", "q4_1", "native", "auto"] {
        let out = format!("{ty}.gguf");
        let args = ["flm2gguf", "tiny.flm", "-o", &out, "--type", ty, "--no-sync"];
        run("gguf-convert", dir.path(), &args).ok();
        let file = GgufFile::open(&dir.path().join(&out)).unwrap();
        assert_eq!(file.tensors().len(), 12, "{ty}");
        let metadata = file.metadata();
        for (key, value) in [
            ("llama.block_count", 1u32),
            ("llama.embedding_length", 64),
            ("llama.feed_forward_length", 96),
            ("llama.attention.head_count", 4),
            ("llama.attention.head_count_kv", 2),
            ("llama.context_length", 256),
        ] {
            assert_eq!(metadata.get(key), Some(&Value::U32(value)), "{key}");
        }
        assert_eq!(metadata.get("general.name"), Some(&Value::String(b"Tiny".to_vec())));
        assert!(!metadata.contains("general.license"));
        assert!(!metadata.contains("llama.rope.scaling.type"));
    }
}

#[test]
fn the_default_name_lies_beside_the_file() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("tiny.flm"), small().bytes()).unwrap();
    run("gguf-convert", dir.path(), &["flm2gguf", "tiny.flm", "--no-sync", "--type", "f16"]).ok();
    let mut names = files::names(dir.path());
    names.retain(|name| Path::new(name).extension().is_some_and(|ext| ext == "gguf"));
    assert_eq!(names.len(), 1);
    assert!(names[0].starts_with("Tiny") && names[0].ends_with("F16.gguf"), "{names:?}");
}

#[test]
fn a_file_without_model_type_needs_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = small();
    writer.version = 1;
    writer.dictionary = own(&[("bos", "1"), ("eos", "2")]);
    fs_err::write(dir.path().join("old.flm"), writer.bytes()).unwrap();
    let err = run("gguf-convert", dir.path(), &["flm2gguf", "old.flm", "-o", "o.gguf"]).exits_with(1).err;
    assert!(err.contains("the dictionary has no `model_type`") && err.contains("--arch NAME"), "{err}");
    let args = ["flm2gguf", "old.flm", "-o", "o.gguf", "--arch", "nobody"];
    let err = run("gguf-convert", dir.path(), &args).exits_with(1).err;
    assert!(err.contains("no architecture card for `nobody`"), "{err}");
    let args = ["flm2gguf", "old.flm", "-o", "o.gguf", "--arch", "llama", "--no-sync"];
    let err = run("gguf-convert", dir.path(), &args).ok().err;
    assert!(err.contains("seen from its tensors"), "{err}");
    let file = GgufFile::open(&dir.path().join("o.gguf")).unwrap();
    assert_eq!(file.metadata().get("llama.block_count"), Some(&Value::U32(1)));
    assert_eq!(file.metadata().get("llama.attention.head_count"), Some(&Value::U32(4)));
    assert_eq!(file.metadata().get("tokenizer.ggml.eos_token_id"), Some(&Value::U32(2)));
}

/// All tensors of a conversion as F32, by name.
fn rows(conversion: &Conversion) -> Vec<(String, Vec<f32>)> {
    let tensors = conversion.tensors().iter().enumerate();
    tensors.map(|(at, tensor)| (tensor.name.clone(), f32_values(&tensor_bytes(conversion, at)))).collect()
}

#[test]
fn adapters_are_merged_on_request_and_refused_otherwise() {
    let (rank, alpha) = (3usize, 6.0f64);
    let mut noise = Noise::new(3);
    let (a, b) = (noise.floats(rank * 64), noise.floats(32 * rank));
    let mut base = Vec::new();
    let mut writer = llama(|writer, name, [rows, cols], noise| {
        let values = noise.floats(rows * cols);
        if name.contains("v_proj") {
            base.clone_from(&values);
        }
        writer.f32(name, &[rows, cols], &values);
    });
    writer.f32("model.layers.0.self_attn.v_proj.lora_A.mine.weight", &[rank, 64], &a);
    writer.f32("model.layers.0.self_attn.v_proj.lora_B.mine.weight", &[32, rank], &b);
    writer.dictionary.extend(own(&[("peft_size", "1")]));
    let lora =
        own(&[("peft_type", "LORA"), ("r", "3"), ("lora_alpha", "6"), ("target_modules", "['v_proj']")]);
    writer.adapters = vec![("mine".to_owned(), lora)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.flm");
    fs_err::write(&path, writer.bytes()).unwrap();

    let options = options(OutType::F32);
    let error = ModelSource::open_flm(&path, &FlmOptions::default(), &options).unwrap_err();
    assert!(error.to_string().ends_with("the file holds adapters (`mine`), their matrices change the model"));

    let flm = FlmOptions { merge_adapters: true, ..FlmOptions::default() };
    let conversion = Conversion::of(ModelSource::open_flm(&path, &flm, &options).unwrap(), &options).unwrap();
    let rows = rows(&conversion);
    let merged = &rows.iter().find(|row| row.0 == "blk.0.attn_v.weight").unwrap().1;
    for (at, value) in merged.iter().enumerate() {
        let (i, j) = (at / 64, at % 64);
        let product: f64 = (0..rank).map(|k| f64::from(b[i * rank + k]) * f64::from(a[k * 64 + j])).sum();
        let expected = f64::from(base[at]) + alpha / rank as f64 * product;
        assert_eq!(*value, expected as f32, "{i}, {j}");
    }
    assert!(!rows.iter().any(|row| row.0.contains("lora")));
}

conformance_tests!(the_corpus_adapter_is_merged);
fn the_corpus_adapter_is_merged(corpus: &Goldens) {
    let path = corpus.join("formats/flm/llama-peft/model.flm");
    let options = options(OutType::F32);
    let flm = FlmOptions { merge_adapters: true, ..FlmOptions::default() };
    let conversion = Conversion::of(ModelSource::open_flm(&path, &flm, &options).unwrap(), &options).unwrap();
    let logits = &last_logits(conversion.metadata(), &conversion, &[vec![5, 17, 200]])[0];
    assert!(logits.iter().all(|logit| logit.is_finite()));
    assert_eq!(conversion.tensors().len(), 12);
    report_cases("flm: adapters", 1);
}

#[test]
fn non_finite_weights_stop_the_conversion() {
    let mut writer = small();
    writer.f32("lm_head.bias", &[32], &[f32::NAN; 32]);
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("m.flm"), writer.bytes()).unwrap();
    let err = run("gguf-convert", dir.path(), &["flm2gguf", "m.flm", "-o", "o.gguf", "--no-sync"])
        .exits_with(1)
        .err;
    assert!(err.contains("lm_head.bias"), "{err}");
    assert!(!dir.path().join("o.gguf").exists());
}

/// Highest `RssAnon` of a conversion in KiB: memory that is not a mapped file.
#[cfg(target_os = "linux")]
fn peak_memory_kib(dir: &Path, input: &str) -> u64 {
    let options = ["-o", "out.gguf", "--type", "f16", "--quiet", "--no-sync", "--threads", "2"];
    support::peak_memory_kib(command("gguf-convert", dir).args(["flm2gguf", input]).args(options))
}

/// Writes a llama with `n_layers` layers of 7 MiB.
#[cfg(target_os = "linux")]
fn large(path: &Path, n_layers: usize) {
    let (hidden, inner) = (512usize, 4096usize);
    let mut writer = Writer::new(&[
        ("architectures", "['LlamaForCausalLM']"),
        ("hidden_size", "512"),
        ("intermediate_size", "4096"),
        ("max_position_embeddings", "256"),
        ("model_type", "llama"),
        ("num_attention_heads", "8"),
        ("num_key_value_heads", "8"),
        ("rms_norm_eps", "1e-05"),
        ("vocab_size", "32"),
    ]);
    writer.dictionary.extend(own(&[("num_hidden_layers", &n_layers.to_string())]));
    let mut noise = Noise::new(5);
    writer.f32("model.embed_tokens.weight", &[32, hidden], &noise.floats(32 * hidden));
    writer.f32("model.norm.weight", &[hidden], &vec![1.0; hidden]);
    for layer in 0..n_layers {
        let name = |end: &str| format!("model.layers.{layer}.{end}.weight");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            writer.f32(&name(norm), &[hidden], &vec![1.0; hidden]);
        }
        let mut add = |end: &str, rows: usize, cols: usize| {
            let ranges = vec![(-1.0, 1.5); rows];
            writer.codes(&name(end), &[rows, cols], 3, &ranges, &noise.bytes((rows * cols) as u64));
        };
        for end in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{end}"), hidden, hidden);
        }
        add("mlp.gate_proj", inner, hidden);
        add("mlp.up_proj", inner, hidden);
        add("mlp.down_proj", hidden, inner);
    }
    fs_err::write(path, writer.bytes()).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    large(&dir.path().join("small.flm"), 4);
    large(&dir.path().join("large.flm"), 16);
    let small = peak_memory_kib(dir.path(), "small.flm");
    let large = peak_memory_kib(dir.path(), "large.flm");
    println!("{small} KiB, {large} KiB");
    assert!(small > 0 && large < 128 << 10, "{small} KiB, {large} KiB");
    assert!(large < small + (16 << 10), "{small} KiB for the small file, {large} KiB for the large one");
}
