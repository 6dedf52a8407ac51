//! Commands for `.flm` files.

use std::path::Path;

use gguf_foundry::core::{GgmlType, TensorSource};
use gguf_foundry::gguf::{GgufFile, Value};
use gguf_testkit::flm::{self, Writer, own, small};
use gguf_testkit::noise::Noise;

use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::programs::{command, run};
use crate::support::tiers::{Tier, deep_test};
use crate::support::{self, files, report_cases};

tiered_conformance_tests!(the_program_writes_files_that_pass);
fn the_program_writes_files_that_pass(corpus: &Goldens, tier: Tier) {
    let mut n_cases = 0;
    for case in tier.some(3, flm::good(corpus)).into_iter().filter(|case| flm::has_card(case)) {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("version") {
            continue;
        }
        let work = tempfile::tempdir().unwrap();
        let file = case.join("model.flm");
        let mut args = vec!["flm2gguf", file.to_str().unwrap(), "-o", "out.gguf", "--no-sync", "--type"];
        args.extend(if name.contains("int4") { &["q4_1"][..] } else { &["native", "--allow-rounding"] });
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
deep_test!(memory_does_not_grow_with_the_file);
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (few, many) = (4, 16);
    large(&dir.path().join("small.flm"), few);
    large(&dir.path().join("large.flm"), many);
    let small = peak_memory_kib(dir.path(), "small.flm");
    let large = peak_memory_kib(dir.path(), "large.flm");
    println!("{small} KiB, {large} KiB");
    assert!(small > 0 && large < 128 << 10, "{small} KiB, {large} KiB");
    assert!(large < small + (16 << 10), "{small} KiB for the small file, {large} KiB for the large one");
}

/// What neither the dictionary nor the tensors tell is taken from the configuration of the original model, and what the
/// file tells wins.
#[test]
fn numbers_that_a_file_lacks_are_taken_from_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = small();
    writer.dictionary.retain(|(key, _)| key != "num_attention_heads" && key != "architectures");
    fs_err::write(dir.path().join("old.flm"), writer.bytes()).unwrap();
    let args = ["flm2gguf", "old.flm", "-o", "o.gguf", "--no-sync"];
    run("gguf-convert", dir.path(), &args).says(1, "contradict each other");
    let config = r#"{"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "hidden_size": 1}"#;
    fs_err::write(dir.path().join("config.json"), config).unwrap();
    run("gguf-convert", dir.path(), &[&args[..], &["--config", "config.json"]].concat()).ok();
    let opened = GgufFile::open(&dir.path().join("o.gguf")).unwrap();
    let number = |key: &str| opened.metadata().get(key).and_then(Value::as_u64);
    assert_eq!((number("llama.attention.head_count"), number("llama.embedding_length")), (Some(4), Some(64)));
    fs_err::write(dir.path().join("config.json"), "[]").unwrap();
    run("gguf-convert", dir.path(), &[&args[..], &["--config", "config.json"]].concat())
        .says(1, "config.json");
}
