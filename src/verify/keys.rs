//! Checks of single keys: those that every reader needs, and well-known ones of a wrong type or length.

use crate::arch::graph::GraphFeatures;
use crate::core::text::escape;
use crate::gguf::key_faults::key_faults;
use crate::gguf::{KeyFault, Metadata, Value};
use crate::verify::Finding;

/// Required keys of models of every architecture.
pub(super) const OF_MODELS: [&str; 2] = ["general.architecture", "tokenizer.ggml.model"];
/// Required keys of models, after the architecture's name and a dot: llama.cpp opens no file without them.
const OF_ARCHITECTURES: [&str; 3] = ["context_length", "embedding_length", "block_count"];

/// Returns an error for each of these keys that is missing.
pub(super) fn missing(metadata: &Metadata, keys: &[&str]) -> Vec<Finding> {
    let absent = keys.iter().filter(|key| !metadata.contains(key));
    absent.map(|key| Finding::error("required-keys", format!("key `{}` is missing", escape(key)))).collect()
}

/// Returns an error for each missing key that a model of a known architecture needs.
pub(super) fn required_of_models(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = missing(metadata, &OF_MODELS);
    // The keys of an unknown architecture are unknown.
    if let Some(arch) = metadata.get("general.architecture").and_then(Value::as_str)
        && GraphFeatures::of(arch).is_some()
    {
        let keys = OF_ARCHITECTURES.map(|key| format!("{arch}.{key}"));
        findings.extend(missing(metadata, &keys.each_ref().map(String::as_str)));
    }
    findings
}

/// Reports well-known keys of another type or length than their readers expect.
pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    const CHECK: &str = "keys";
    let finding = |fault: KeyFault| match fault {
        fault if !fault.is_fatal() => Finding::warning(CHECK, fault.to_string()),
        KeyFault::Type { .. } => Finding::error(CHECK, format!("{fault}: llama.cpp refuses the file")),
        KeyFault::Length { .. } => Finding::error(CHECK, fault.to_string()),
    };
    // Older quantizers wrote their numbers as signed integers.
    let is_told = |fault: &KeyFault| fault.is_fatal() || !fault.is_of_width();
    key_faults(metadata).into_iter().filter(is_told).map(finding).collect()
}
