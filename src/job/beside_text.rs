//! What a file is that is no language model.

use std::path::{Path, PathBuf};

use crate::arch::diffusion::DiffusionRules;
use crate::core::text::{escape, plural};
use crate::core::{TensorMeta, TensorSource as _};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::job::input::must_be_model;
use crate::job::{JobError, Result};

const VOCABULARY: &str = "a vocabulary without weights";
const IMAGES: &str = "an image or video model";
const TOWER: &str = "a vision or audio tower";
const ADAPTER: &str = "an adapter";
const CONTROL: &str = "a control vector";
/// Those that their readers take from one file, with these readers.
const IN_ONE_FILE: [(&str, &str); 4] = [
    (IMAGES, "the runtimes of image and video models read"),
    (TOWER, "llama.cpp reads a vision or audio tower from"),
    (ADAPTER, "llama.cpp reads an adapter from"),
    (CONTROL, "llama.cpp reads a control vector from"),
];

/// Returns what a file is in place of a language model.
pub fn beside_text(metadata: &Metadata, tensors: &[TensorMeta]) -> Option<&'static str> {
    let word = |key: &str| metadata.get(key).and_then(Value::as_str);
    match word("general.architecture") {
        _ if word("general.type") == Some("adapter") => Some(ADAPTER),
        Some("clip") => Some(TOWER),
        Some("controlvector") => Some(CONTROL),
        _ if tensors.is_empty() && metadata.contains("tokenizer.ggml.tokens") => Some(VOCABULARY),
        _ => DiffusionRules::of_file(metadata, tensors).ok().flatten().map(|_| IMAGES),
    }
}

/// Refuses a file that is no language model.
pub fn must_be_language_model(file: &GgufFile) -> Result<()> {
    must_be_model(file)?;
    match beside_text(file.metadata(), file.tensors()) {
        Some(what) => Err(JobError::NotALanguageModel { path: file.path().to_owned(), what }),
        None => Ok(()),
    }
}

/// Returns the hint about what to do with a file that is no language model.
pub(super) fn hint(what: &str) -> Vec<String> {
    let text = match what {
        ADAPTER => "give its model; `gguf-convert merge-lora BASE DIR` merges an adapter into it",
        IMAGES => {
            "`gguf-quantize` and `gguf-verify` take it; it has no form of transformers, and no text runs through it"
        }
        _ => "give the language model that it belongs to",
    };
    vec![text.to_owned()]
}

/// Returns the warning about a file in parts that its readers take from one file.
pub fn in_parts(paths: &[PathBuf], metadata: &Metadata, tensors: &[TensorMeta]) -> Option<String> {
    let (first, others) = paths.split_first()?;
    let others = others.len() as u64;
    let what = beside_text(metadata, tensors).filter(|_| others > 0)?;
    let (_, reader) = IN_ONE_FILE.iter().find(|row| row.0 == what)?;
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let others = plural(others, "other part");
    Some(format!("{} and {others}: {reader} one file: `gguf-inspect merge` joins them", escape(&name)))
}

/// Returns the warning about a source that has nothing to quantize.
pub(super) fn without_weights(path: &Path, metadata: &Metadata, tensors: &[TensorMeta]) -> Option<String> {
    let is_it = beside_text(metadata, tensors) == Some(VOCABULARY);
    is_it.then(|| format!("{}: {VOCABULARY}: there is nothing to quantize", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_reader_takes_whole_is_not_left_in_parts() {
        let parts: Vec<PathBuf> = ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"].map(Into::into).to_vec();
        let said = |key: &str, value: &str| {
            let mut metadata = Metadata::new();
            metadata.set(key, value);
            assert_eq!(in_parts(&parts[..1], &metadata, &[]), None);
            in_parts(&parts, &metadata, &[])
        };
        assert_eq!(
            said("general.architecture", "clip").unwrap(),
            "x-00001-of-00002.gguf and 1 other part: llama.cpp reads a vision or audio tower from one file: \
             `gguf-inspect merge` joins them"
        );
        assert!(
            said("general.type", "adapter").is_some_and(|text| text.contains("an adapter from one file"))
        );
        assert!(said("general.architecture", "controlvector").is_some());
        assert_eq!(said("general.architecture", "llama"), None);
        let mut vocabulary = Metadata::new();
        vocabulary.set("tokenizer.ggml.tokens", vec!["a".to_owned()]);
        let said = without_weights(Path::new("v.gguf"), &vocabulary, &[]).unwrap();
        assert_eq!(said, "v.gguf: a vocabulary without weights: there is nothing to quantize");
    }
}
