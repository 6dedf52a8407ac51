//! Seeds of files that runs keep for each other.

use std::path::Path;

use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{ElementType, GgmlType};
use gguf_foundry::job::recipe::{RecipeOutput, RecipeSource, find_recipe};
use gguf_foundry::job::{Job, JobInput, JobOutput, JobTypes, OutputPath};
use gguf_foundry::quantize::FileType;
use serde_json::{Value as Json, json};

use super::entries::{join, recipe_source};
use super::seeds::container_of;
use gguf_testkit::codes::Part;

pub fn statistics() -> Vec<Vec<u8>> {
    vec![statistics_of()]
}

pub fn verdict_parts() -> Vec<Vec<u8>> {
    vec![verdict_part(None), verdict_part(Some("base.gguf"))]
}

/// Quantizations of the source of recipes, plain and edited.
pub fn files_of_recipes() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let quantized = |file_type| quantized(dir.path(), file_type);
    let mut edited = quantized(FileType::Q4KM);
    let n_bytes = edited.len();
    edited[n_bytes - 300] ^= 1;
    edited.push(7);
    vec![quantized(FileType::Q8_0), quantized(FileType::Q4KM), edited]
}

/// Recipes of these files.
pub fn recipes() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs_err::write(dir.join("source.gguf"), recipe_source()).unwrap();
    let input = JobInput::Gguf(dir.join("source.gguf"));
    let source = RecipeSource::open(input, ConvertOptions::default(), None, &Silent).unwrap();
    let recipe = |file: Vec<u8>| {
        let [path, recipe] = ["file.gguf", "recipe.gguf"].map(|name| dir.join(name));
        fs_err::write(&path, file).unwrap();
        let options = RecipeOutput { sync: false, ..RecipeOutput::default() };
        find_recipe(&path, &source, Some(&recipe), &options, &Silent).unwrap();
        fs_err::read(recipe).unwrap()
    };
    files_of_recipes().into_iter().map(recipe).collect()
}

fn quantized(dir: &Path, file_type: FileType) -> Vec<u8> {
    let [source, target] = ["source.gguf", "made.gguf"].map(|name| dir.join(name));
    fs_err::write(&source, recipe_source()).unwrap();
    let output = JobOutput::at(OutputPath::File(target.clone()));
    let job = Job::new(JobInput::Gguf(source), JobTypes::mixture(file_type), output);
    Job { sync: false, ..job }.run(&Silent).unwrap();
    fs_err::read(target).unwrap()
}

/// Statistics of two layers and two kinds of text.
fn statistics_of() -> Vec<u8> {
    let ty = ElementType::F32;
    let numbers = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let doubles = |values: &[f64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let integers = |values: &[i64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensor = |name: &str, ty: ElementType, dims: &[u64], bytes: Vec<u8>| Part {
        name: name.to_owned(),
        ty,
        dims: dims.to_vec(),
        bytes,
    };
    let first = vec![
        tensor("kind0.input0", ty, &[6], numbers(&[4.0, 1.0, 0.5, 3.0, -1.0, 2.0])),
        tensor("kind1.input0", ty, &[6], numbers(&[1.0, 0.0, 0.0, 1.0, 0.0, 1.0])),
        tensor("kind0.input1", ty, &[1], numbers(&[7.0])),
    ];
    let second = vec![tensor("kind1.input0", ty, &[3], numbers(&[2.0, 1.0, 2.0]))];
    let importance = vec![
        tensor("kind0/blk.0.a.weight.sums", ElementType::F64, &[1, 3], doubles(&[4.0, 3.0, 2.0])),
        tensor("kind0/blk.0.a.weight.counts", ElementType::I64, &[1], integers(&[5])),
    ];
    let window = json!({ "prompt": 0, "start": 0, "tokens": [1, 2, 3], "source": 0, "rows": [0, 2], "scored": [1, 2] });
    let kind = |name: &str, check: Json| json!({ "name": name, "tokens": 5, "sequences": 1, "weight": 1, "seed": null, "check": check });
    let manifest = json!({
        "format": "gguf-foundry statistics", "version": 1, "model": "00", "tokenizer": "11", "architecture": "llama",
        "n_ctx": 4, "seed": 1, "text": "22", "kinds": [kind("a", json!([window])), kind("b", json!([]))],
        "layers": [
            { "layer": 0, "inputs": [
                { "columns": 3, "matrices": [{ "tensor": "blk.0.a.weight" }, { "tensor": "blk.0.b.weight", "expert": 1 }],
                  "moments": [{ "at": 0, "rows": 5 }, { "at": 0, "rows": 3 }] },
                { "columns": 1, "matrices": [{ "tensor": "blk.0.c.weight" }], "moments": [{ "at": 1, "rows": 5 }, null] },
            ] },
            { "layer": null, "inputs": [
                { "columns": 2, "matrices": [{ "tensor": "output.weight" }], "moments": [null, { "at": 0, "rows": 2 }] },
            ] },
        ],
    });
    join(&[
        ("statistics.json", manifest.to_string().into_bytes()),
        ("moments-00000.safetensors", container_of(&first)),
        ("moments-00001.safetensors", container_of(&second)),
        ("importance.safetensors", container_of(&importance)),
    ])
}

/// Part of a verdict over a few tokens.
fn verdict_part(baseline: Option<&str>) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let model = crate::testkit::tiny::Tiny::new().with_layers(1);
    model.write(dir.path(), "base.gguf");
    model.quantized(GgmlType::Q8_0).write(dir.path(), "a.gguf");
    fs_err::write(dir.path().join("p.jsonl"), "{\"text\": \"In the beginning was the word.\"}\n").unwrap();
    let args = ["a.gguf", "--prompts", "p.jsonl", "--ctx", "8", "--part", "1/1", "-o", "a.part", "--no-sync"];
    let beside: Vec<&str> = baseline.into_iter().flat_map(|name| ["--baseline", name]).collect();
    crate::verify::gguf_verify(&[&args[..], &beside].concat(), dir.path()).ok();
    fs_err::read(dir.path().join("a.part")).unwrap()
}
