//! Keys compared with the baseline's: every listed damage is reported, and harmless differences are not.

use std::path::Path;

use gguf_foundry::arch::{DraftHeads, GraphFeatures, OutType};
use gguf_foundry::convert::{Conversion, ConvertOptions, ShownOptions};
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, SourceError, TensorMeta, TensorSource};
use gguf_foundry::engine::{Stage, stage};
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::verify::{Finding, Model, PromptSource, Severity, VerifyOptions, verify};
use serde_json::Value as Json;

use super::{bare_model, gguf_verify, options};
use crate::support::tiers::{Tier, two_tiers};
use crate::support::{files, fixture, tensor_of_row};
use crate::testkit::checkpoints::Safetensors;
use crate::testkit::memory::write_source;
use crate::testkit::tiny::Tiny;

/// Tensors of ones, from their headers.
struct Ones(Vec<TensorMeta>);

impl TensorSource for Ones {
    fn tensors(&self) -> &[TensorMeta] {
        &self.0
    }

    fn read_rows(&self, tensor: usize, _first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        match self.0[tensor].ty {
            GgmlType::F32 => out.as_chunks_mut::<4>().0.fill(1f32.to_le_bytes()),
            GgmlType::F16 => out.as_chunks_mut::<2>().0.fill(0x3c00u16.to_le_bytes()),
            // Blocks of zeros: their values do not matter here.
            _ => out.fill(0),
        }
        Ok(())
    }
}

pub(super) fn value(kind: &str, json: &Json) -> Value {
    if let Some(element) = kind.strip_prefix("arr[").and_then(|rest| rest.strip_suffix(']')) {
        let items = json.as_array().unwrap();
        let ints = || items.iter().map(|item| item.as_i64().unwrap() as i32).collect();
        return Value::Array(match element {
            "int32" => Array::I32(ints()),
            "uint64" => Array::U64(items.iter().map(|item| item.as_u64().unwrap()).collect()),
            "uint32" => Array::U32(items.iter().map(|item| item.as_u64().unwrap() as u32).collect()),
            "float32" => Array::F32(items.iter().map(|item| item.as_f64().unwrap() as f32).collect()),
            "bool" => Array::Bool(items.iter().map(|item| item.as_bool().unwrap()).collect()),
            "string" => Array::String(items.iter().map(|i| i.as_str().unwrap().into()).collect()),
            other => panic!("{other}"),
        });
    }
    match kind {
        "string" => Value::from(json.as_str().unwrap()),
        "uint32" => Value::U32(json.as_u64().unwrap() as u32),
        "int32" => Value::I32(json.as_i64().unwrap() as i32),
        "uint16" => Value::U16(json.as_u64().unwrap() as u16),
        "uint8" => Value::U8(json.as_u64().unwrap() as u8),
        "uint64" => Value::U64(json.as_u64().unwrap()),
        "float32" => Value::F32(json.as_f64().unwrap() as f32),
        "bool" => Value::Bool(json.as_bool().unwrap()),
        other => panic!("{other}"),
    }
}

/// Cases with a key that intentionally differs from llama.cpp's converter.
const OWN_KEYS: &[(&str, &str)] = &[
    ("cohere2/zero_biases", "rope.dimension_count"),
    ("deepseek2/v2_defaults", "q_lora_rank"),
    ("deepseek/gqa_tied_yarn", "rope.scaling.type"),
    ("llama/rope_yarn", "rope.scaling.attn_factor"),
    ("olmo2/olmo3", "rope.scaling.attn_factor"),
    ("t5encoder/t5_encoder", "attention.causal"),
];

/// Case of a card: the checkpoint, and the keys and tensors of llama.cpp's converted file.
struct Case {
    name: String,
    json: Json,
    metadata: Metadata,
    tensors: Ones,
    features: GraphFeatures,
}

impl Case {
    fn load(name: &str) -> Self {
        let path = fixture(&format!("cards/{name}.json"));
        let json = files::json(path);
        let expect = &json["expect"]["f16"];
        let mut metadata = Metadata::new();
        for row in expect["kv"].as_array().unwrap() {
            metadata.set(row[0].as_str().unwrap(), value(row[1].as_str().unwrap(), &row[2]));
        }
        let folder = name.split('/').next().unwrap();
        if !metadata.contains("general.architecture") {
            metadata.set("general.architecture", folder);
        }
        let tensors = Ones(expect["tensors"].as_array().unwrap().iter().map(tensor_of_row).collect());
        let arch = metadata.get("general.architecture").unwrap().as_str().unwrap().to_owned();
        let features = GraphFeatures::of(&arch).unwrap();
        Self { name: name.to_owned(), json, metadata, tensors, features }
    }

    /// Loads the cases with the file type that the tests use, some of them every day.
    fn all(tier: Tier) -> Vec<Self> {
        let mut names = Vec::new();
        for dir in fs_err::read_dir(fixture("cards")).unwrap() {
            let dir = dir.unwrap();
            for file in files::entries(dir.path()) {
                let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
                names.push(format!("{}/{stem}", dir.file_name().to_string_lossy()));
            }
        }
        names.sort();
        let has_f16 = |name: &String| {
            let json = files::json(fixture(&format!("cards/{name}.json")));
            !json["expect"]["f16"]["kv"].is_null()
        };
        // For other architectures the engine has no graph, so it does not know the effect of their keys.
        let has_graph = |name: &String| name.split('/').next().is_some_and(|arch| stage(arch) == Stage::Runs);
        names.retain(has_graph);
        tier.some(16, names).iter().filter(|name| has_f16(name)).map(|name| Self::load(name)).collect()
    }

    /// Writes the checkpoint with floats that pass the checks of values, and tables of zeros.
    fn write(&self, dir: &Path) {
        let mut file = Safetensors::default();
        for row in self.json["tensors"].as_array().unwrap() {
            let n: usize = row[2].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).product();
            let mut bytes = vec![0; n * if row[1] == "F32" || row[1] == "I32" { 4 } else { 2 }];
            if row[1] != "I32" {
                for (k, pair) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *pair = [(k * 37) as u8, 0x3c];
                }
            }
            file.add(row[0].as_str().unwrap(), row[1].as_str().unwrap(), &row[2], &bytes);
        }
        file.write_checkpoint(dir, &self.json["config"]);
        if let Some(files) = self.json["files"].as_object() {
            for (name, content) in files {
                let path = dir.join(name);
                fs_err::create_dir_all(path.parent().unwrap()).unwrap();
                fs_err::write(path, content.as_str().map_or_else(|| content.to_string(), str::to_owned))
                    .unwrap();
            }
        }
    }

    fn arch(&self) -> &str {
        self.metadata.get("general.architecture").unwrap().as_str().unwrap()
    }

    fn model<'a>(&'a self, metadata: &'a Metadata) -> Model<'a> {
        bare_model(&self.tensors, metadata, &self.features)
    }

    /// Findings about the keys of a file with other metadata, compared with a baseline.
    fn compared(&self, metadata: &Metadata, baseline: &Metadata) -> Vec<Finding> {
        compare(&self.model(metadata), &self.model(baseline))
    }
}

fn compare(model: &Model<'_>, baseline: &Model<'_>) -> Vec<Finding> {
    let options = VerifyOptions { structure_only: true, ..options(None) };
    let report =
        verify(model, Some(baseline), &[] as &[PromptSource], &options, &Silent, None).unwrap().report;
    let is_ours = |f: &Finding| ["hparams", "tokenizer-parity", "metadata"].contains(&f.check.name());
    report.findings.into_iter().filter(is_ours).collect()
}

/// Different value of the same type.
fn other(value: &Value) -> Value {
    match value {
        Value::U32(n) => Value::U32(n + 1),
        Value::I32(n) => Value::I32(n + 1),
        Value::F32(x) => Value::F32(x * 1.5 + 0.25),
        Value::Bool(flag) => Value::Bool(!flag),
        Value::String(_) => Value::from("other"),
        Value::Array(Array::I32(items)) => {
            let mut items = items.clone();
            items[0] += 1;
            Value::from(items)
        }
        Value::Array(Array::F32(items)) => {
            Value::Array(Array::F32(items.iter().map(|item| item * 1.5 + 0.25).collect()))
        }
        Value::Array(Array::Bool(items)) => {
            Value::from(items.iter().map(|flag| !flag).collect::<Vec<bool>>())
        }
        Value::Array(Array::String(items)) => {
            let mut items = items.clone();
            items.swap_remove(0);
            Value::Array(Array::String(items))
        }
        other => panic!("{other:?}"),
    }
}

two_tiers!(every_key_of_every_card_is_judged);

fn every_key_of_every_card_is_judged(tier: Tier) {
    let (mut n_keys, mut n_missing_errors) = (0, 0);
    for case in Case::all(tier) {
        assert_eq!(case.compared(&case.metadata, &case.metadata), [], "{}", case.name);
        let prefix = format!("{}.", case.arch());
        let keys: Vec<(String, Value)> = case
            .metadata
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value.clone())))
            .collect();
        for (key, value) in keys {
            n_keys += 1;
            let at = format!("{}: {key}", case.name);
            let free = [
                "context_length",
                "vocab_size",
                "tensor_data_layout",
                "pooling_type",
                "classifier.output_labels",
                "classifier.pooling_type",
            ]
            .contains(&&*key);
            let mut changed = case.metadata.clone();
            changed.set(format!("{prefix}{key}"), other(&value));
            let found = case.compared(&changed, &case.metadata);
            assert!(found.iter().any(|f| f.message.starts_with(&format!("`{key}` "))), "{at}: {found:?}");
            // The trained length determines the ramp of a rotation without its own length.
            let expected = if free { Severity::Warning } else { Severity::Error };
            assert!(found.iter().all(|f| f.severity >= expected), "{at}: {found:?}");

            let mut lacking = case.metadata.clone();
            lacking.remove(&format!("{prefix}{key}"));
            let found = case.compared(&lacking, &case.metadata);
            let named = found.iter().find(|f| f.message.contains(&format!("`{key}` is missing")));
            assert!(named.is_some() || free, "{at}: {found:?}");
            n_missing_errors += usize::from(named.is_some_and(|f| f.severity == Severity::Error));
        }
    }
    assert!(n_keys > tier.of(100, 300), "{n_keys}");
    // The other keys have defaults: head widths, bases of 10000.
    assert!(n_missing_errors * tier.of(3, 2) > n_keys, "{n_missing_errors} of {n_keys}");
}

two_tiers!(files_of_llama_cpp_equal_their_checkpoints);

/// Keys of llama.cpp's file for the same checkpoint are not differences; values that GGUF cannot express are warnings.
fn files_of_llama_cpp_equal_their_checkpoints(tier: Tier) {
    let mut n_cases = 0;
    for case in Case::all(tier) {
        let dir = tempfile::tempdir().unwrap();
        case.write(dir.path());
        let options = ConvertOptions {
            file_type: Some(OutType::F32),
            tokenizer: false,
            annotate: true,
            ..ConvertOptions::default()
        };
        let alike = |plain: &Conversion| {
            let shown = ShownOptions::between(plain, &case.metadata, &case.tensors.0);
            let asked: Vec<&str> = case.json["options"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str())
                .collect();
            let names: Vec<String> =
                shown.names().iter().map(|name| name.trim_start_matches("--").replace('-', "_")).collect();
            // Options that were given but are not shown had no effect.
            assert!(names.iter().all(|name| asked.contains(&name.as_str())), "{}: {names:?}", case.name);
            shown.of(options.clone())
        };
        let conversion = match Conversion::plan(dir.path(), &options)
            .and_then(|plain| Conversion::plan(dir.path(), &alike(&plain)))
        {
            Ok(conversion) => conversion,
            Err(error) => {
                println!("{}: {error}", case.name);
                continue;
            }
        };
        n_cases += 1;
        for finding in case.compared(&case.metadata, conversion.metadata()) {
            let is_known = finding.severity == Severity::Warning
                && (finding.message.contains("convert with `--annotate`")
                    // sentence-transformers declares pooling in a separate file.
                    || finding.message.contains("pooling_type")
                    // Written only by this project, since runtimes ask for it.
                    || (["qwen", "exaone"].contains(&case.arch()) && finding.message.contains("layer_norm_rms_epsilon")));
            // Computed from tensor values, which are different here.
            let is_of_values = finding.message.starts_with("`xielu.")
                || (case.arch() == "talkie" && finding.message.starts_with("`logit_scale`"));
            // Intentionally different here; each is in docs/differences.md.
            let is_own =
                OWN_KEYS.iter().any(|(name, key)| case.name == *name && finding.message.contains(key));
            assert!(is_known || is_of_values || is_own, "{}: {finding:?}", case.name);
        }
    }
    assert!(n_cases > tier.of(4, 20), "{n_cases}");
}

#[derive(Clone)]
enum Damage {
    Set(Value),
    Drop,
}

use Damage::{Drop, Set};

fn damaged(metadata: &Metadata, key: &str, damage: &Damage) -> Metadata {
    let mut damaged = metadata.clone();
    match damage {
        Set(value) => damaged.set(key, value.clone()),
        Drop => assert!(damaged.remove(key).is_some(), "{key}"),
    }
    damaged
}

/// Checks the finding that names a key: its severity, and words of its message.
fn assert_named(at: &str, found: &[Finding], severity: Severity, name: &str, words: &str) {
    let named = |f: &&Finding| f.severity == severity && f.message.contains(&format!("`{name}`"));
    let matching = found.iter().find(named).unwrap_or_else(|| panic!("{at}: {found:?}"));
    assert!(matching.message.contains(words), "{at}: {matching:?}");
}

#[test]
fn planned_damages_of_the_arithmetic_are_named() {
    let int = |n: u32| Set(Value::U32(n));
    let float = |x: f32| Set(Value::F32(x));
    let text = |text: &str| Set(Value::from(text));
    #[rustfmt::skip]
    let table: Vec<(&str, &str, Damage, Severity, &str)> = vec![
        ("llama/rope_yarn", "rope.freq_base", float(5e5), Severity::Error, "is 500000"),
        ("llama/rope_yarn", "rope.scaling.type", Drop, Severity::Error, "is missing, the baseline's is `yarn`: without it, another value is used"),
        ("llama/rope_yarn", "rope.scaling.factor", Drop, Severity::Error, "is missing"),
        ("llama/rope_yarn", "rope.scaling.factor", float(2.0), Severity::Error, "is 2, "),
        ("llama/rope_yarn_short", "rope.scaling.original_context_length", Drop, Severity::Error, "is missing"),
        ("llama/rope_yarn", "rope.scaling.type", text("linear"), Severity::Error, "is `linear`, the baseline's is `yarn`"),
        ("llama/plain", "attention.layer_norm_rms_epsilon", float(1e-3), Severity::Error, "is 0.001"),
        ("llama/plain", "attention.layer_norm_rms_epsilon", Drop, Severity::Error, "is missing"),
        ("llama/plain", "attention.head_count_kv", int(1), Severity::Error, "is 1, "),
        ("llama/plain", "attention.head_count_kv", Drop, Severity::Error, "is missing"),
        ("llama/plain", "attention.head_count", int(8), Severity::Error, "is 8, "),
        ("llama/plain", "block_count", int(1), Severity::Error, "is 1, "),
        ("llama/plain", "block_count", text("2"), Severity::Error, "is a string, `2`; the baseline's is a number, 2"),
        ("llama/plain", "embedding_length", int(32), Severity::Error, "is 32, "),
        ("llama/plain", "feed_forward_length", int(64), Severity::Error, "is 64, "),
        ("llama/plain", "rope.dimension_count", int(8), Severity::Error, "is 8, "),
        ("llama/plain", "context_length", int(7), Severity::Warning, "is 7, "),
        ("llama/plain", "vocab_size", int(7), Severity::Warning, "is 7, "),
        ("llama/mixtral", "expert_used_count", int(1), Severity::Error, "is 1, "),
        ("llama/mixtral", "expert_count", Drop, Severity::Error, "is missing"),
        ("granite/plain", "logit_scale", float(4.0), Severity::Error, "is 4, "),
        ("granite/plain", "logit_scale", Drop, Severity::Error, "is missing, the baseline's is 8"),
        ("granite/plain", "embedding_scale", Drop, Severity::Error, "is missing"),
        ("granite/plain", "residual_scale", float(1.0), Severity::Error, "is 1, "),
        ("granite/plain", "attention.scale", Drop, Severity::Error, "is missing"),
        ("gpt-oss/plain", "attention.sliding_window", Drop, Severity::Error, "is missing"),
        ("gpt-oss/plain", "attention.sliding_window", int(3), Severity::Error, "is 3, "),
        ("gpt-oss/plain", "attention.key_length", int(24), Severity::Error, "is 24, "),
        ("gpt-oss/plain", "expert_feed_forward_length", Drop, Severity::Error, "is missing"),
        ("olmo/plain", "attention.clamp_kqv", float(1.0), Severity::Error, "clamp_kqv"),
    ];
    for (name, key, damage, severity, words) in table {
        let case = Case::load(name);
        let full = format!("{}.{key}", case.arch());
        let mut baseline = case.metadata.clone();
        if !baseline.contains(&full) {
            baseline.set(&full, 30f32);
        }
        let found = case.compared(&damaged(&baseline, &full, &damage), &baseline);
        assert_named(&format!("{name} {key}"), &found, severity, key, words);
    }
    // A cap without a card here, and a gating: other runtimes read them, and a difference is an error.
    let case = Case::load("llama/mixtral");
    for (key, value, wrong) in [
        ("attn_logit_softcapping", Value::F32(50.0), Value::F32(30.0)),
        ("final_logit_softcapping", Value::F32(30.0), Value::F32(0.0)),
        ("expert_weights_scale", Value::F32(2.5), Value::F32(1.0)),
        ("expert_gating_func", Value::U32(2), Value::U32(1)),
        ("some_key_of_tomorrow", Value::U32(2), Value::U32(1)),
    ] {
        let mut baseline = case.metadata.clone();
        baseline.set(format!("llama.{key}"), value);
        let model = damaged(&baseline, &format!("llama.{key}"), &Set(wrong));
        assert_named(key, &case.compared(&model, &baseline), Severity::Error, key, "the baseline's is");
    }
    // A key that the baseline lacks is an error if it changes the graph, and a warning if it has the usual value.
    let model = damaged(&case.metadata, "llama.rope.scaling.factor", &Set(Value::F32(4.0)));
    let found = case.compared(&model, &case.metadata);
    assert_named(
        "added",
        &found,
        Severity::Error,
        "rope.scaling.factor",
        "is not in the baseline, and without it another value than 4 is used",
    );
    let model = damaged(&case.metadata, "llama.rope.scaling.factor", &Set(Value::F32(1.0)));
    let found = case.compared(&model, &case.metadata);
    assert_named("added", &found, Severity::Warning, "rope.scaling.factor", "is not in the baseline");
}

/// Replaces the keys of the vocabulary by those of a SentencePiece one.
fn with_pieces(metadata: &mut Metadata) {
    let n = metadata.get("tokenizer.ggml.tokens").unwrap().as_array().unwrap().len();
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.scores", (0..n).map(|at| -(at as f32)).collect::<Vec<f32>>());
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    metadata.set("tokenizer.ggml.add_eos_token", false);
    metadata.set("tokenizer.ggml.unknown_token_id", 3u32);
    metadata.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(vec![1, 2, 3])));
}

#[test]
fn planned_damages_of_the_tokenizer_are_named() {
    let tiny = Tiny::new();
    let mut baseline = tiny.metadata.clone();
    with_pieces(&mut baseline);
    baseline.set("tokenizer.chat_template", "{{ messages }}");
    baseline.set("tokenizer.ggml.eot_token_id", 1u32);
    baseline.set("tokenizer.ggml.padding_token_id", 1u32);
    let strings = |key: &str| match baseline.get(key) {
        Some(Value::Array(Array::String(strings))) => strings.clone(),
        other => panic!("{other:?}"),
    };
    let mut tokens = strings("tokenizer.ggml.tokens");
    tokens.swap(300, 301);
    let mut merges = strings("tokenizer.ggml.merges");
    merges.swap(7, 8);
    let mut types = vec![1i32; tokens.len()];
    (types[0], types[1], types[77]) = (3, 3, 4);
    let mut scores: Vec<f32> = (0..tokens.len()).map(|at| -(at as f32)).collect();
    scores[9] = 0.5;
    let error = Severity::Error;
    let warning = Severity::Warning;
    #[rustfmt::skip]
    let table: Vec<(&str, Damage, Severity, &str)> = vec![
        ("ggml.model", Set("gpt2".into()), error, "`gpt2`, not `llama`"),
        ("ggml.pre", Set("llama-bpe".into()), error, "`llama-bpe`, not `gpt-2`"),
        ("ggml.tokens", Set(Value::Array(Array::String(tokens))), error, "entry 300 is"),
        ("ggml.tokens", Drop, error, "is missing"),
        ("ggml.merges", Set(Value::Array(Array::String(merges))), error, "entry 7 is"),
        ("ggml.merges", Drop, error, "is missing"),
        ("ggml.token_type", Set(types.into()), error, "entry 77 is 4, not 1"),
        ("ggml.token_type", Set(vec![1i32; 5].into()), error, "5 entries, not"),
        ("ggml.scores", Set(scores.into()), error, "entry 9 is 0.5, not -9"),
        ("ggml.scores", Drop, error, "is missing"),
        ("ggml.precompiled_charsmap", Set(Value::Array(Array::U8(vec![1, 2, 4]))), error, "entry 2 is 4, not 3"),
        ("ggml.precompiled_charsmap", Drop, error, "without it, text becomes other tokens"),
        ("ggml.bos_token_id", Set(5u32.into()), error, "5, not 0"),
        ("ggml.bos_token_id", Drop, error, "without it, text becomes other tokens"),
        ("ggml.eos_token_id", Set(0u32.into()), error, "0, not 1"),
        ("ggml.unknown_token_id", Set(0u32.into()), error, "0, not 3"),
        ("ggml.unknown_token_id", Drop, error, "without it, text becomes other tokens"),
        ("ggml.add_bos_token", Set(false.into()), error, "false, not true"),
        ("ggml.add_bos_token", Set(1u32.into()), error, "a number 1, not a bool true"),
        // Default of this kind of vocabulary without the key.
        ("ggml.add_bos_token", Drop, warning, "is missing"),
        ("ggml.add_eos_token", Set(true.into()), error, "true, not false"),
        ("ggml.add_eos_token", Drop, warning, "is missing"),
        ("ggml.add_space_prefix", Set(true.into()), error, "true, not false"),
        ("ggml.add_space_prefix", Drop, error, "without it, text becomes other tokens"),
        ("ggml.eot_token_id", Set(9u32.into()), error, "9, not 1"),
        ("ggml.eot_token_id", Drop, warning, "is missing"),
        ("ggml.padding_token_id", Set(9u32.into()), warning, "9, not 1"),
        ("chat_template", Set("{{ other }}".into()), warning, "not `{{ messages }}`"),
        ("chat_template", Drop, warning, "is missing"),
    ];
    let features = super::llama();
    let compare = |metadata: &Metadata, baseline: &Metadata| {
        let model = super::model(&tiny, &features);
        let of = |metadata| Model { metadata, encoder: Err("not read"), ..model };
        compare(&of(metadata), &of(baseline))
    };
    for (key, damage, severity, words) in table {
        let full = format!("tokenizer.{key}");
        let metadata = damaged(&baseline, &full, &damage);
        let found = compare(&metadata, &baseline);
        assert_named(key, &found, severity, &full, words);
        assert_eq!(found.len(), 1, "{key}: {found:?}");
    }
    // Names, and keys that a quantizer writes, do not matter.
    let mut renamed = baseline.clone();
    renamed.set("general.name", "Other");
    renamed.set("general.file_type", 15u32);
    renamed.set("general.quantization_version", 2u32);
    renamed.set("quantize.imatrix.file", "imatrix.gguf");
    renamed.set("somebody.made_by", "somebody");
    let mut named = baseline.clone();
    named.set("general.name", "One");
    assert_eq!(compare(&renamed, &named), []);
    // Exception: runtimes recognize some models by their name.
    let mut phi = baseline.clone();
    phi.set("general.name", "Phi-3 mini");
    phi.set("tokenizer.ggml.token_type", vec![3i32; scores_len(&baseline)]);
    let mut other = phi.clone();
    other.set("general.name", "Mini");
    let found = compare(&phi, &other);
    assert_named("name", &found, Severity::Warning, "general.name", "read special tokens by it");
}

fn scores_len(metadata: &Metadata) -> usize {
    metadata.get("tokenizer.ggml.scores").unwrap().as_array().unwrap().len()
}

/// A file without its rotation scaling does not pass compared with its checkpoint, however short the text is.
#[test]
fn a_damaged_key_fails_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let base = Tiny::new().with_layers(1);
    let mut scaled = base.clone();
    scaled.metadata.set("llama.rope.scaling.type", "linear");
    scaled.metadata.set("llama.rope.scaling.factor", 1.001f32);
    base.write(dir.path(), "m.gguf");
    scaled.write(dir.path(), "base.gguf");
    fs_err::write(dir.path().join("p.jsonl"), r#"{"text": "It was a bright cold day in April."}"#).unwrap();
    let args = ["m.gguf", "--prompts", "p.jsonl", "--baseline", "base.gguf", "--quiet"];
    gguf_verify(&args, dir.path())
        .prints(3, "error     hparams: `rope.scaling.factor` is missing, the baseline's is 1.001");
}

/// A file that was made with options is compared with a checkpoint that is read with the same options.
#[test]
fn a_file_made_with_options_is_compared_with_its_like() {
    let case = Case::load("glm4moe/no_further_block");
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    fs_err::create_dir(&checkpoint).unwrap();
    case.write(&checkpoint);
    let make = |name: &str, shown: ShownOptions| {
        let options = ConvertOptions { tokenizer: false, ..ConvertOptions::default() };
        let conversion = Conversion::plan(&checkpoint, &shown.of(options)).unwrap();
        write_source(&dir.path().join(name), conversion.metadata(), &conversion);
    };
    let verify = |name: &str| {
        gguf_verify(&[name, "--baseline", "checkpoint", "--weights-only", "--accept-partial"], dir.path())
    };
    make("plain.gguf", ShownOptions::default());
    let (code, out, err) = verify("plain.gguf").parts();
    assert_eq!((code, err.contains("baseline converted")), (0, false), "{out}{err}");
    let without_heads = ShownOptions { heads: DraftHeads::Dropped, ..ShownOptions::default() };
    make("without.gguf", without_heads);
    verify("without.gguf").says(0, "baseline converted with `--no-mtp`, as the file was");
}
