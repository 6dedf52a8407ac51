//! Tests of `arch` and `transform`: plans and bytes against the conformance corpus and the fixtures.

use std::path::{Path, PathBuf};

use gguf_foundry::arch::{FileType, Inputs, Mapping, Options, Pooling, Registry, resolve};
use gguf_foundry::checkpoint::{Checkpoint, ModelDir};
use gguf_foundry::core::WeightSource;
use gguf_foundry::core::limits::Limits;
use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::transform::{ReadPolicy, recipe};
use serde_json::{Value as Json, json};

use crate::support::{conformance, report_cases, sha256};

/// The cases of the corpus whose architectures have cards.
const CASES: &[&str] = &[
    "granite",
    "llama",
    "llama_f32_sharded",
    "llama_headdim_bias",
    "llama_model_card",
    "llama_rope_linear",
    "llama_rope_llama3",
    "llama_split",
    "llama_tied_f16",
    "llava_llama",
    "mistral",
    "mixtral",
    "olmo",
    "orion",
    "qwen2",
    "qwen2_model",
    "qwen3",
    "smollm3",
    "starcoder2",
    "xverse",
];

fn load(path: &Path) -> Json {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

/// A value as the corpus writes it.
fn shown(key: &str, value: &Value) -> Json {
    let one = |value: &Value| match value {
        Value::F32(x) => json!(f64::from(*x)),
        Value::F64(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(_) => json!(value.as_str().unwrap()),
        other => json!(i64::try_from(other.as_i128().unwrap()).unwrap()),
    };
    match value {
        Value::Array(array) => {
            let items: Vec<Json> = (0..array.len()).map(|i| one(&Array::get(array, i).unwrap())).collect();
            json!([key, format!("arr[{}]", array.element_type().long_name()), items])
        }
        other => json!([key, other.value_type().long_name(), one(other)]),
    }
}

fn keys(metadata: &Metadata) -> Vec<Json> {
    metadata.iter().map(|(key, value)| shown(key, value)).collect()
}

/// The keys of an expectation that cards are responsible for: no names, no tokenizer, no parts.
fn wanted_keys(expect: &Json) -> Vec<Json> {
    let is_ours = |row: &&Json| {
        let key = row[0].as_str().unwrap();
        key == "general.file_type"
            || !["general.", "tokenizer.", "split."].iter().any(|head| key.starts_with(head))
    };
    expect["kv"].as_array().unwrap().iter().filter(is_ours).cloned().collect()
}

/// Name, dimensions (innermost first) and type of each tensor.
fn tensors(mapping: &Mapping) -> Vec<Json> {
    let row = |output: &gguf_foundry::arch::OutputSpec| {
        let dims: Vec<u64> = output.shape.dims().iter().rev().copied().collect();
        json!([output.name, dims, output.ggml_type(mapping.file_type).name()])
    };
    mapping.outputs.iter().map(row).collect()
}

/// What `modules.json` of sentence-transformers says about pooling.
fn pooling(dir: &ModelDir) -> Option<Pooling> {
    let modules: Json = serde_json::from_slice(&dir.bytes("modules.json").unwrap()?).unwrap();
    let module =
        modules.as_array()?.iter().find(|module| module["type"].as_str().unwrap().ends_with("Pooling"))?;
    let config = dir.json(&format!("{}/config.json", module["path"].as_str()?)).unwrap()?;
    let is = |key: &str| config.get(key).and_then(Json::as_bool) == Some(true);
    if is("pooling_mode_mean_tokens") {
        Some(Pooling::Mean)
    } else if is("pooling_mode_cls_token") {
        Some(Pooling::Cls)
    } else {
        is("pooling_mode_lasttoken").then_some(Pooling::Last)
    }
}

fn map(registry: &Registry, checkpoint: &Checkpoint, file_type: Option<FileType>) -> Mapping {
    let dir = checkpoint.dir();
    let tokenizer_config = dir.json("tokenizer_config.json").unwrap();
    let generation_config = dir.json("generation_config.json").unwrap();
    let inputs = Inputs {
        config: dir.config(),
        weights: checkpoint.weights(),
        tokenizer_config: tokenizer_config.as_ref(),
        generation_config: generation_config.as_ref(),
        files: &[],
        pooling: pooling(dir),
    };
    let options = Options { file_type, ..Options::default() };
    resolve(registry, &inputs, &options).unwrap_or_else(|error| panic!("{}: {error}", dir.path().display()))
}

/// Each case and file type, with what is expected: the first part of a split file has the keys, all have tensors.
fn each_case(cases: &[&str], run: &mut dyn FnMut(&str, &Checkpoint, Option<FileType>, &Json)) -> usize {
    let Some(corpus) = conformance() else { return 0 };
    let mut n_cases = 0;
    for case in cases {
        let dir = corpus.join("arch").join(case);
        let checkpoint = Checkpoint::open(&dir.join("hf"), &Limits::default()).unwrap();
        for name in ["f32", "f16", "bf16", "q8_0", "auto"] {
            let path: PathBuf = dir.join(format!("expect-{name}.json"));
            if !path.is_file() {
                continue;
            }
            let mut expect = load(&path);
            if let Some(parts) = expect.get("parts").cloned() {
                let tensors =
                    parts.as_array().unwrap().iter().flat_map(|part| part["tensors"].as_array().unwrap());
                expect["tensors"] = tensors.cloned().collect::<Vec<_>>().into();
                expect["kv"] = parts[0]["kv"].clone();
            }
            run(case, &checkpoint, FileType::from_name(name), &expect);
            n_cases += 1;
        }
    }
    report_cases("arch", n_cases);
    n_cases
}

#[test]
fn every_card_loads() {
    let registry = Registry::embedded().unwrap();
    assert!(registry.classes().len() >= 10, "{:?}", registry.classes());
    for card in registry.cards().iter().filter(|card| !card.is_abstract) {
        assert!(!card.examples.is_empty(), "{}", card.name());
    }
}

#[test]
fn plans_equal_the_corpus() {
    let registry = Registry::embedded().unwrap();
    each_case(CASES, &mut |case, checkpoint, file_type, expect| {
        let at = format!("{case} {file_type:?}");
        let mapping = map(&registry, checkpoint, file_type);
        let wanted: Vec<Json> =
            expect["tensors"].as_array().unwrap().iter().map(|row| json!([row[0], row[1], row[2]])).collect();
        assert_eq!(tensors(&mapping), wanted, "{at}");
        let keys: Vec<Json> = keys(&mapping.early).into_iter().chain(keys(&mapping.metadata)).collect();
        assert_eq!(keys, wanted_keys(expect), "{at}");
    });
}

#[test]
fn bytes_equal_the_corpus() {
    let registry = Registry::embedded().unwrap();
    each_case(CASES, &mut |case, checkpoint, file_type, expect| {
        let mapping = map(&registry, checkpoint, file_type);
        let policy = ReadPolicy { level: SimdLevel::detect(), allow_nonfinite: false };
        for (output, row) in mapping.outputs.iter().zip(expect["tensors"].as_array().unwrap()) {
            let recipe = recipe(output, checkpoint.weights()).unwrap();
            let ty = output.ggml_type(mapping.file_type);
            let n_rows = output.shape.n_rows();
            let row_bytes = ty.row_bytes(output.shape.n_cols()).unwrap();
            let mut bytes = vec![0; usize::try_from(n_rows * row_bytes).unwrap()];
            // In two pieces, to see that a range of rows does not depend on the others.
            let cut = n_rows / 3;
            let (head, tail) = bytes.split_at_mut(usize::try_from(cut * row_bytes).unwrap());
            recipe.read_rows(checkpoint, ty, policy, 0, head).unwrap();
            recipe.read_rows(checkpoint, ty, policy, cut, tail).unwrap();
            assert_eq!(sha256(&bytes), row[4].as_str().unwrap(), "{case} {file_type:?} {}", output.name);
        }
    });
}
