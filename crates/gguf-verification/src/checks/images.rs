//! Files of image and video models: they have no vocabulary, hardly any keys, and are not run.

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Aspect, Check, Finding, Report};
use gguf_arch::diffusion::{DiffusionRules, first_names};
use gguf_core::TensorMeta;
use gguf_format::Metadata;

/// Returns true for a file of an image or video model.
pub(crate) fn is_one(metadata: &Metadata, tensors: &[TensorMeta]) -> bool {
    !metadata.contains("tokenizer.ggml.model")
        && DiffusionRules::of_file(metadata, tensors).is_ok_and(|rules| rules.is_some())
}

/// Warns of a file that names no architecture: some runtimes do not read it.
pub(super) fn check_keys(file: &CheckedFile<'_>) -> Vec<Finding> {
    const KEY: &str = "general.architecture";
    let is_lacking = file.content == FileContent::Image && !file.metadata.contains(KEY);
    let text = format!("key `{KEY}` is missing: ComfyUI-GGUF guesses the model by its tensors");
    is_lacking.then(|| Finding::warning(Check::RequiredKeys, text)).into_iter().collect()
}

/// Reports first and last layers that are missing, and tensors that a runtime does not load.
pub(super) fn check_tensors(file: &CheckedFile<'_>) -> Vec<Finding> {
    let rules = DiffusionRules::of_file(file.metadata, file.tensors()).ok().flatten();
    let Some(rules) = rules.filter(|_| file.content == FileContent::Image) else { return Vec::new() };
    let unlike = rules.unlike_in(file.tensors());
    let shown = |names: &[String]| first_names(names.iter().map(String::as_str));
    let missing = shown(&unlike.missing).map(|names| {
        let text = format!("{names}: missing, which every model of this kind or every other block has");
        Finding::error(Check::Tensors, text)
    });
    let odd = shown(&unlike.odd);
    let odd = odd.map(|names| Finding::warning(Check::Tensors, format!("{names}: not in every block")));
    let unloadable = rules.unloadable(file.tensors());
    missing
        .into_iter()
        .chain(odd)
        .chain(unloadable.iter().map(|text| Finding::warning(Check::Tensors, text)))
        .collect()
}

/// Records why no text is run, and what judges the model instead.
pub(crate) fn leave_out(report: &mut Report) {
    report.judged(Aspect::Tokenizer, "image and video models have none");
    for aspect in [Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, "image and video models are not run", "pictures that both models make");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    #[test]
    fn image_models_have_no_vocabulary() {
        let shape = Shape::new(vec![8, 256]).unwrap();
        let tensors = [TensorMeta { name: "blocks.0.a.weight".to_owned(), shape, ty: GgmlType::F16 }];
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "wan");
        assert!(is_one(&metadata, &tensors));
        metadata.set("tokenizer.ggml.model", "gpt2");
        assert!(!is_one(&metadata, &tensors));
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        assert!(!is_one(&metadata, &tensors));
    }
}
