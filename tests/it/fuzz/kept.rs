//! Seeds of recipes and parts of a verdict.

use std::path::Path;

use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::GgmlType;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::job::recipe::{RecipeOutput, RecipeSource, find_recipe};
use gguf_foundry::job::{Job, JobInput, JobOutput, JobTypes, OutputPath};
use gguf_foundry::quantize::FileType;

use super::entries::recipe_source;

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
