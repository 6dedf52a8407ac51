//! Check that the keys exist that every reader needs.

use crate::checks::images;
use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding};
use gguf_arch::graph::GraphFeatures;
use gguf_arch::{Registry, has_loader};
use gguf_core::text::escape;
use gguf_format::ollama::unknown_architecture;
use gguf_format::{Metadata, Value};

/// Required keys of models of every architecture.
const OF_MODELS: [&str; 2] = ["general.architecture", "tokenizer.ggml.model"];
/// Required keys of models, after the architecture's name and a dot: llama.cpp opens no file without them.
const OF_ARCHITECTURES: [&str; 3] = ["context_length", "embedding_length", "block_count"];

/// Keys from which llama.cpp computes the shape of a tensor, with the end of the tensor's name.
const OF_SHAPES: [(&str, &str); 2] =
    [("feed_forward_length", ".ffn_up.weight"), ("rope.dimension_count", ".attn_kv_a_mqa.weight")];

/// Keys that every runtime needs to load an adapter.
const OF_ADAPTERS: [&str; 3] = ["general.architecture", "adapter.type", "adapter.lora.alpha"];

/// Returns an error for each missing key that files with this content need. [`super::towers`] checks those of towers.
pub(super) fn check(file: &CheckedFile<'_>) -> Vec<Finding> {
    match file.content {
        FileContent::Model => {
            required_of_models(file.metadata).into_iter().chain(required_by_shapes(file)).collect()
        }
        // An adapter has no vocabulary of its own.
        FileContent::Adapter => missing(file.metadata, &OF_ADAPTERS),
        // The other keys of such a file are those of the model that its vocabulary belongs to.
        FileContent::Vocabulary => missing(file.metadata, &OF_MODELS),
        FileContent::Image => images::check_keys(file),
        FileContent::Towers | FileContent::ControlVector => Vec::new(),
    }
}

/// Returns an error for each of these keys that is missing.
fn missing(metadata: &Metadata, keys: &[&str]) -> Vec<Finding> {
    let absent = keys.iter().filter(|key| !metadata.contains(key));
    absent
        .map(|key| Finding::error(Check::RequiredKeys, format!("key `{}` is missing", escape(key))))
        .collect()
}

/// Returns an error for each missing key from which llama.cpp computes the shape of a tensor that is there.
fn required_by_shapes(file: &CheckedFile<'_>) -> Vec<Finding> {
    let arch = file.metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    let lacks = |key: &str| !file.metadata.contains(&format!("{arch}.{key}"));
    let rows = OF_SHAPES.iter().filter(|(key, _)| has_loader(arch) && lacks(key));
    let finding = |(key, end): &(&str, &str)| {
        let tensor = file.tensors().iter().find(|tensor| tensor.name.ends_with(end))?;
        let text = format!(
            "key `{}.{key}` is missing: llama.cpp computes the shape of `{}` from it, and does not load the file",
            escape(arch),
            escape(&tensor.name)
        );
        Some(Finding::error(Check::RequiredKeys, text))
    };
    rows.filter_map(finding).collect()
}

/// Returns an error for each missing key that a model of a known architecture needs.
fn required_of_models(metadata: &Metadata) -> Vec<Finding> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str);
    // The keys of an unknown architecture are unknown: the file is for another program.
    let is_known = |arch: &str| arch.is_empty() || Registry::knows(arch) || has_loader(arch);
    if let Some(arch) = arch.filter(|arch| !is_known(arch)) {
        let text = format!("{}: its keys are not judged", unknown_architecture(arch));
        return vec![Finding::unchecked(Check::RequiredKeys, text)];
    }
    let mut findings = missing(metadata, &OF_MODELS);
    if let Some(arch) = arch.filter(|arch| GraphFeatures::of(arch).is_some()) {
        let keys = OF_ARCHITECTURES.map(|key| format!("{arch}.{key}"));
        findings.extend(missing(metadata, &keys.each_ref().map(String::as_str)));
    }
    findings
}
