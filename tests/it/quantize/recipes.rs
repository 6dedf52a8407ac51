//! Type of every tensor, for every file type, option and model of the conformance corpus.

use gguf_foundry::core::{GgmlType, TensorMeta};
use gguf_foundry::gguf::{Array, Metadata, Value};
use gguf_foundry::quantize::{
    FileType, ModelFacts, QuantizeOptions, TensorTypeRule, choose_types, file_order, parse_ggml_type,
};
use serde_json::Value as Json;

use crate::support::goldens::{Goldens, tiered_conformance_tests};
use crate::support::tiers::Tier;
use crate::support::{files, report_cases, tensor_of_row};

/// Metadata value of the corpus, from its type and its JSON form.
pub fn metadata_value(ty: &str, json: &Json) -> Value {
    let int = |json: &Json| json.as_u64().unwrap();
    match ty {
        "str" => Value::from(json.as_str().unwrap()),
        "u32" => Value::U32(int(json) as u32),
        "f32" => Value::F32(json.as_f64().unwrap() as f32),
        "bool" => Value::Bool(json.as_bool().unwrap()),
        "arr" => {
            let items = json[1].as_array().unwrap().iter();
            Value::Array(match json[0].as_str().unwrap() {
                "u32" => Array::U32(items.map(|v| int(v) as u32).collect()),
                "i32" => Array::I32(items.map(|v| v.as_i64().unwrap() as i32).collect()),
                "bool" => Array::Bool(items.map(|v| v.as_bool().unwrap()).collect()),
                other => panic!("array of {other}"),
            })
        }
        other => panic!("value of type {other}"),
    }
}

struct Model {
    metadata: Metadata,
    tensors: Vec<TensorMeta>,
}

fn model(json: &Json) -> Model {
    let mut metadata = Metadata::new();
    for kv in json["kv"].as_array().unwrap() {
        metadata.set(kv[0].as_str().unwrap(), metadata_value(kv[1].as_str().unwrap(), &kv[2]));
    }
    let tensors: Vec<_> = json["tensors"].as_array().unwrap().iter().map(tensor_of_row).collect();
    let tensors = file_order(&tensors).into_iter().map(|at| tensors[at].clone()).collect();
    Model { metadata, tensors }
}

/// Parses a key such as `Q4_K_M | --pure --imatrix`; the second value is true if there is an importance matrix.
fn options(key: &str) -> (QuantizeOptions, bool) {
    let (file_type, flags) = key.split_once(" | ").unwrap_or((key, ""));
    let mut options = QuantizeOptions::new(FileType::parse(file_type).unwrap());
    let mut has_imatrix = false;
    let mut words = flags.split_whitespace();
    while let Some(flag) = words.next() {
        match flag {
            "--imatrix" => has_imatrix = true,
            "--pure" => options.pure = true,
            "--leave-output-tensor" => options.leave_output_tensor = true,
            "--output-tensor-type" => {
                options.output_tensor_type = Some(parse_ggml_type(words.next().unwrap()).unwrap());
            }
            "--token-embedding-type" => {
                options.token_embedding_type = Some(parse_ggml_type(words.next().unwrap()).unwrap());
            }
            "--tensor-type" => {
                options.tensor_types.push(TensorTypeRule::parse(words.next().unwrap()).unwrap());
            }
            other => panic!("flag {other}"),
        }
    }
    (options, has_imatrix)
}

/// Recipe in the corpus's letters: one per tensor, followed by `#` if it needs an importance matrix that is missing.
fn recipe(model: &Model, key: &str, codes: &[(GgmlType, char)]) -> Result<String, String> {
    let (options, has_imatrix) = options(key);
    let facts = ModelFacts::new(&model.metadata, &options.overrides, &model.tensors);
    let choices =
        choose_types(&facts, &model.tensors, &options, has_imatrix).map_err(|error| error.to_string())?;
    let mut letters = String::new();
    for choice in &choices {
        letters.push(codes.iter().find(|code| code.0 == choice.ty).unwrap().1);
    }
    if !has_imatrix && choices.iter().any(|choice| choice.needs_imatrix) {
        letters.push('#');
    }
    Ok(letters)
}

tiered_conformance_tests!(every_recipe_is_the_peers);

/// Every day of every twelfth model.
fn every_recipe_is_the_peers(dir: &Goldens, tier: Tier) {
    let read = |name: &str| -> Json { files::json(dir.join("quant").join(name)) };
    let models = read("recipe_models.json");
    let golden = read("recipes.compact.json");
    let codes = golden["codes"].as_object().unwrap().iter().map(|(letter, name)| {
        (GgmlType::from_name(name.as_str().unwrap()).unwrap(), letter.chars().next().unwrap())
    });
    let codes: Vec<_> = codes.collect();

    let mut n_cases = 0;
    let mut wrong = Vec::new();
    for (name, expected) in tier.some(12, golden["models"].as_object().unwrap()) {
        let model = model(&models[name]);
        let names: Vec<_> = model.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let expected_names: Vec<_> =
            expected["tensors"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(names, expected_names, "{name}");
        let recipes = &expected["recipes"];
        for key in recipes.as_object().unwrap().keys() {
            let mut expected = recipes[key].as_str().unwrap();
            while let Some(same) = expected.strip_prefix('=') {
                expected = recipes[same].as_str().unwrap();
            }
            let found = recipe(&model, key, &codes);
            let same = match (&found, expected.strip_prefix('!')) {
                (Ok(found), None) => found == expected,
                (Err(found), Some(_)) => found.contains("nothing stands in for Q1_0"),
                _ => false,
            };
            if !same {
                wrong.push(format!("{name}, {key}:\n  {expected}\n  {found:?}"));
            }
            n_cases += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {n_cases}:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
    report_cases("recipes", n_cases);
}
