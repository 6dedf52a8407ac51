//! Recipes: of any readable file, and damaged ones.

use std::cell::OnceCell;
use std::path::Path;

use gguf_foundry::convert::ConvertOptions;
use gguf_foundry::core::progress::Silent;
use gguf_foundry::core::{GgmlType, Shape, TensorMeta};
use gguf_foundry::gguf::{FilePlan, GgufFile, LayoutOptions, Metadata};
use gguf_foundry::job::JobInput;
use gguf_foundry::job::recipe::{RecipeOutput, RecipeSource, find_recipe, rebuild};

use super::bundle::{self, accepted};

/// Largest file that a damaged recipe may ask for, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Tensors of the source: name, rows, columns.
const TENSORS: [(&str, u64, u64); 3] =
    [("token_embd.weight", 3, 256), ("blk.0.ffn_up.weight", 2, 256), ("output_norm.weight", 1, 64)];

thread_local! {
    static SOURCE: OnceCell<RecipeSource> = const { OnceCell::new() };
}

/// The model that all files are compared with, in F32.
pub fn recipe_source() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 1u32);
    let metas = TENSORS.map(|(name, rows, columns)| TensorMeta {
        name: name.to_owned(),
        shape: Shape::new(vec![rows, columns]).expect("a small shape"),
        ty: GgmlType::F32,
    });
    let plan = FilePlan::new(&metadata, &metas, &LayoutOptions::default()).expect("a small file");
    let mut bytes = plan.header;
    bytes.resize(usize::try_from(plan.file_bytes).expect("a small file"), 0);
    for place in &plan.tensors {
        let start = usize::try_from(place.offset).expect("a small file");
        let end = start + usize::try_from(place.n_bytes).expect("a small file");
        for (at, word) in (0_u16..).zip(bytes[start..end].as_chunks_mut::<4>().0) {
            *word = (f32::from(at * 37 % 251) / 64.0 - 1.9).to_le_bytes();
        }
    }
    bytes
}

fn with_source<R>(work: impl FnOnce(&RecipeSource) -> R) -> R {
    SOURCE.with(|source| {
        work(source.get_or_init(|| {
            let input = JobInput::Gguf(bundle::file("recipe-source.gguf", &recipe_source()));
            RecipeSource::open(input, ConvertOptions::default(), None, &Silent).expect("a readable source")
        }))
    })
}

fn options() -> RecipeOutput {
    RecipeOutput { sync: false, memory_bytes: 1 << 20 }
}

/// Makes a file from a recipe: all of it with the recipe's own digest, or nothing.
fn made(recipe: &Path, source: &RecipeSource) -> Option<Vec<u8>> {
    let target = bundle::place("recipe-made.gguf");
    // One of an earlier input.
    let _ = fs_err::remove_file(&target);
    if accepted(rebuild(recipe, source, &target, &options(), &Silent)).is_none() {
        assert!(!target.exists(), "a failure leaves something");
        return None;
    }
    Some(fs_err::read(&target).expect("written by ourselves"))
}

/// Writes the recipe of any file, of which the same file has to come again.
pub(super) fn recipe(data: &[u8]) -> bool {
    let path = bundle::file("recipe-file.gguf", data);
    let recipe = bundle::place("recipe-written.gguf");
    with_source(|source| {
        let found = accepted(find_recipe(&path, source, Some(&recipe), &options(), &Silent));
        if found.is_none() {
            return false;
        }
        let made = made(&recipe, source).expect("a recipe of our own");
        assert!(made == data, "the file that is made is another one");
        true
    })
}

/// Follows any recipe.
pub(super) fn rebuilt(data: &[u8]) -> bool {
    let path = bundle::file("recipe-read.gguf", data);
    let n_bytes = GgufFile::open(&path).ok().and_then(|file| {
        file.metadata().get("gguf_foundry.recipe.file.bytes").and_then(gguf_foundry::gguf::Value::as_u64)
    });
    if n_bytes.is_some_and(|n| n > MAX_BYTES) {
        return false;
    }
    with_source(|source| made(&path, source).is_some())
}
