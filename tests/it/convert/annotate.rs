//! `--annotate`: numbers that GGUF has no key for, from the configuration to the engine and back. The expected figures
//! are from transformers (`lab/peers/annotate_fixtures.py`); only `fixtures/` is needed.

use std::path::Path;

use gguf_foundry::arch::{GraphFeatures, OutType, Registry};
use gguf_foundry::convert::{Conversion, ConvertOptions, ToHfOptions, gguf_to_hf};
use gguf_foundry::core::TensorSource;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::engine::{Engine, EngineOptions, GraphPlan, TokenChunk};
use gguf_foundry::gguf::{Array, GgufFile, Metadata, Value, WriteOptions};
use gguf_foundry::quantize::{self, Input, QuantizeOptions, QuantizePlan};
use serde_json::{Value as Json, json};

use crate::support::programs::run;
use crate::support::{files, fixture};
use crate::testkit::checkpoints::write_case;
use crate::testkit::memory::write_source;

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";
const TRUNCATE: &str = "rope.scaling.yarn_truncate";
const DISTANCE: &str = "attention.relative_max_distance";

/// All cases, each with the keys that it must give.
fn cases() -> Vec<(&'static str, Vec<(&'static str, Value)>)> {
    let window = |n: u32| (WINDOW, Value::U32(n));
    let pattern = |layers: &[bool]| (PATTERN, Value::Array(Array::Bool(layers.to_vec())));
    vec![
        ("mistral", vec![window(7)]),
        ("mixtral", vec![window(9)]),
        ("llama_yarn", vec![(TRUNCATE, Value::Bool(false))]),
        ("qwen2_max_window_layers", vec![window(6), pattern(&[false, false, true, true])]),
        ("qwen2_layer_types", vec![window(6), pattern(&[true, false, false, true])]),
        ("qwen2_all_layers", vec![window(6)]),
        ("qwen3", vec![window(5), pattern(&[false, false, false, true])]),
        ("qwen3_moe", vec![window(5)]),
        ("smollm3", vec![window(6), pattern(&[false, false, false, true])]),
        ("starcoder2", vec![window(8)]),
        (
            "llama4",
            vec![
                window(7),
                ("attention.temperature_length", Value::U32(6)),
                ("attention.temperature_scale", Value::F32(0.25)),
            ],
        ),
        ("gpt_oss", vec![(TRUNCATE, Value::Bool(true))]),
        ("t5", vec![(DISTANCE, Value::U32(20))]),
        ("deepseek", vec![("expert_weights_norm", Value::Bool(true))]),
    ]
}

fn case(name: &str) -> Json {
    let path = fixture(&format!("annotate/{name}.json"));
    files::json(path)
}

fn convert(dir: &Path, annotate: bool) -> Conversion {
    let options = ConvertOptions {
        file_type: Some(OutType::F32),
        tokenizer: false,
        annotate,
        ..ConvertOptions::default()
    };
    Conversion::plan(dir, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

fn write(conversion: &Conversion, path: &Path) -> GgufFile {
    write_source(path, conversion.metadata(), conversion);
    GgufFile::open(path).unwrap()
}

fn own_keys(metadata: &Metadata) -> Vec<(&str, Value)> {
    let own = metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix("gguf_foundry.")?, value)));
    own.map(|(key, value)| (key, value.clone())).collect()
}

/// Largest differences from transformers: of a negative log likelihood, and of a logit after the last token.
fn differences(source: &dyn TensorSource, metadata: &Metadata, case: &Json) -> (f64, f64) {
    let features =
        GraphFeatures::of(metadata.get("general.architecture").unwrap().as_str().unwrap()).unwrap();
    let plan = GraphPlan::new(&features, metadata, source.tensors()).unwrap();
    let engine = Engine::new(plan, source, EngineOptions::default()).unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        case[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let ids = |key: &str| numbers(key).into_iter().map(|token| token as u32).collect::<Vec<u32>>();
    // The tokens that an encoder reads come first.
    let source = if case["source"].is_array() { ids("source") } else { Vec::new() };
    let own = ids("tokens");
    let tokens = [&source[..], &own].concat();
    let chunk = TokenChunk { rows: source.len()..tokens.len(), tokens, n_source: source.len() };
    let hidden = engine.hidden(&[chunk]).unwrap();
    let targets: Vec<u32> = own[1..].iter().copied().chain([0]).collect();
    let scores = engine.scores(&hidden, &targets, &Silent, None).unwrap();
    let logits = engine.logits(&hidden, &Silent).unwrap();
    let last = &logits[logits.len() - engine.plan().n_vocab..];
    let worst = |found: &mut dyn Iterator<Item = f64>, expected: &[f64]| {
        let pairs: Vec<_> = found.zip(expected).collect();
        assert_eq!(pairs.len(), expected.len());
        pairs.into_iter().map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max)
    };
    (
        worst(&mut scores.iter().map(|score| score.nll), &numbers("nll")),
        worst(&mut last.iter().map(|&logit| f64::from(logit)), &numbers("last_logits")),
    )
}

#[test]
fn annotated_models_compute_what_transformers_does_and_others_do_not() {
    for (name, keys) in cases() {
        let dir = tempfile::tempdir().unwrap();
        let case = case(name);
        write_case(&case, dir.path());
        let (plain, annotated) = (convert(dir.path(), false), convert(dir.path(), true));
        assert_eq!(own_keys(annotated.metadata()), keys, "{name}");
        assert_eq!(own_keys(plain.metadata()), [], "{name}");

        // Nothing else changes, and the keys follow those of the architecture.
        let arch = annotated.metadata().get("general.architecture").unwrap().as_str().unwrap().to_owned();
        let all: Vec<_> = annotated.metadata().iter().map(|(key, _)| key).collect();
        let others: Vec<_> = all.iter().filter(|key| !key.starts_with("gguf_foundry.")).copied().collect();
        assert_eq!(others, plain.metadata().iter().map(|(key, _)| key).collect::<Vec<_>>(), "{name}");
        let last = all.iter().rposition(|key| key.starts_with(&format!("{arch}."))).unwrap();
        assert!(
            all.iter().position(|key| key.starts_with("gguf_foundry.")).unwrap() > last,
            "{name}: {all:?}"
        );

        let (nll, logit) = differences(&annotated, annotated.metadata(), &case);
        println!("{name}: nll {nll:.2e}, last logits {logit:.2e}");
        assert!(nll < 1e-4 && logit < 1e-4, "{name}: nll {nll:.3e}, last logits {logit:.3e}");
        let (nll, logit) = differences(&plain, plain.metadata(), &case);
        println!("{name} without: nll {nll:.2e}, last logits {logit:.2e}");
        assert!(nll > 1e-2 && logit > 1e-2, "{name}: the case shows no difference: {nll:.3e}, {logit:.3e}");
    }
}

/// The keys for shared heads and the rope base have other names there, or are missing.
#[test]
fn the_language_part_of_cogvlm_2_computes_what_transformers_does() {
    let dir = tempfile::tempdir().unwrap();
    let case = case("cogvlm2");
    write_case(&case, dir.path());
    let model = convert(dir.path(), false);
    let (nll, logit) = differences(&model, model.metadata(), &case);
    assert!(nll < 1e-4 && logit < 1e-4, "nll {nll:.3e}, last logits {logit:.3e}");
}

#[test]
fn annotations_come_back_into_the_configuration() {
    for (name, keys) in cases() {
        let dir = tempfile::tempdir().unwrap();
        let case = case(name);
        write_case(&case, dir.path());
        let file = write(&convert(dir.path(), true), &dir.path().join("m.gguf"));
        let options = ToHfOptions {
            ty: None,
            max_shard_bytes: 1 << 20,
            memory_bytes: 8 << 20,
            sync: false,
            level: SimdLevel::detect(),
            ..ToHfOptions::default()
        };
        let back = dir.path().join("back");
        let report =
            gguf_to_hf(&Registry::embedded().unwrap(), file.metadata(), &file, &back, &options, &Silent)
                .unwrap();
        assert_eq!(Some(report.class.as_str()), case["config"]["architectures"][0].as_str(), "{name}");
        let again = convert(&back, true);
        assert_eq!(own_keys(again.metadata()), keys, "{name}");
        let (nll, _) = differences(&again, again.metadata(), &case);
        assert!(nll < 1e-4, "{name}: {nll:.3e}");
    }
}

#[test]
fn configurations_without_a_window_give_no_key() {
    for (name, key, value) in [
        ("mistral", "sliding_window", Json::Null),
        ("mistral", "model_type", json!("llama")),
        ("starcoder2", "sliding_window", Json::Null),
        ("qwen2_layer_types", "use_sliding_window", json!(false)),
        ("qwen2_layer_types", "sliding_window", Json::Null),
        ("qwen2_max_window_layers", "max_window_layers", json!(4)),
        ("smollm3", "use_sliding_window", json!(false)),
        ("qwen3_moe", "use_sliding_window", json!(false)),
        ("llama_yarn", "rope_scaling", Json::Null),
        ("t5", "relative_attention_max_distance", json!(128)),
        ("t5", "relative_attention_max_distance", Json::Null),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut case = case(name);
        case["config"][key] = value.clone();
        write_case(&case, dir.path());
        assert_eq!(own_keys(convert(dir.path(), true).metadata()), [], "{name}: {key} = {value}");
    }
    // A Mistral without the key gets the window of transformers' configuration class.
    let dir = tempfile::tempdir().unwrap();
    let mut case = case("mistral");
    case["config"].as_object_mut().unwrap().remove("sliding_window");
    write_case(&case, dir.path());
    assert_eq!(own_keys(convert(dir.path(), true).metadata()), [(WINDOW, Value::U32(4096))]);
}

#[test]
fn quantizing_keeps_annotations() {
    let dir = tempfile::tempdir().unwrap();
    write_case(&case("qwen2_layer_types"), dir.path());
    let file = write(&convert(dir.path(), true), &dir.path().join("m.gguf"));
    let options = QuantizeOptions::new(quantize::FileType::parse("Q8_0").unwrap());
    let plan = QuantizePlan::new(&Input::file(&file), &options, None).unwrap();
    let path = dir.path().join("q8_0.gguf");
    plan.write(&path, &WriteOptions { sync: false, ..WriteOptions::default() }, &Silent).unwrap();
    let quantized = GgufFile::open(&path).unwrap();
    assert_eq!(own_keys(quantized.metadata()).len(), 2);
    assert_eq!(own_keys(quantized.metadata()), own_keys(file.metadata()));
}

#[test]
fn a_file_without_its_window_is_warned_of_and_an_annotated_one_passes() {
    let dir = tempfile::tempdir().unwrap();
    write_case(&case("mistral"), &dir.path().join("hf"));
    let common = ["hf2gguf", "hf", "--type", "f32", "--no-tokenizer", "--quiet", "--no-sync", "-o"];
    for more in [&["plain.gguf"][..], &["annotated.gguf", "--annotate"]] {
        run("gguf-convert", dir.path(), &[&common[..], more].concat()).ok();
    }
    let out = run("gguf-inspect", dir.path(), &["annotated.gguf"]).out;
    assert!(out.contains("gguf_foundry.attention.sliding_window"), "{out}");

    let tokens: Vec<u64> =
        case("mistral")["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    fs_err::write(dir.path().join("long.jsonl"), json!({ "tokens": tokens }).to_string()).unwrap();
    fs_err::write(dir.path().join("short.jsonl"), json!({ "tokens": &tokens[..7] }).to_string()).unwrap();
    let verify = |file: &str, prompts: &str| {
        let args = [file, "--baseline", "hf", "--prompts", prompts, "--score", "all", "--json", "--quiet"];
        let (code, out, err) = run("gguf-verify", dir.path(), &args).parts();
        let report: Json = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
        let findings = report["models"][0]["findings"].as_array().unwrap().iter();
        let hparams: Vec<String> = findings
            .filter(|finding| finding["check"] == "hparams")
            .map(|finding| format!("{}: {}", finding["severity"], finding["message"]))
            .collect();
        (code, report["models"][0]["kld"]["max"].as_f64().unwrap(), hparams)
    };
    let warning = "\"warning\": \"the file does not say `attention.sliding_window`, which is 7 in the baseline: GGUF has \
                   no key for it here, and results beyond 7 tokens differ; convert with `--annotate`\"";
    // Within the window the file is correct, as far as so few tokens show.
    assert_eq!(verify("plain.gguf", "short.jsonl"), (4, 0.0, vec![warning.to_owned()]));
    // An annotated file has everything that the baseline has, including its weights, so more text would show nothing.
    assert_eq!(verify("annotated.gguf", "long.jsonl"), (0, 0.0, Vec::new()));
    // Beyond it the figures show what is missing.
    let (code, max, hparams) = verify("plain.gguf", "long.jsonl");
    assert!(code == 3 && max > 1e-3, "{code} {max}");
    assert_eq!(hparams, [warning]);
}
