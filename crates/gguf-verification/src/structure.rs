//! Structural checks: everything that can be judged without running the model.

use crate::checks::check_file;
use crate::checks::header::narrow_alignment;
use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding, Severity, VerifyError, drafts};
use gguf_arch::missing_tensors;
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{TensorMeta, TensorSource};
use gguf_format::Metadata;

/// Options of the structural checks.
#[derive(Clone, Copy, Debug)]
pub struct StructureOptions {
    /// Vector instructions.
    pub level: SimdLevel,
}

/// Checks a model's metadata and every block of its tensors.
pub fn check_structure(
    source: &dyn TensorSource,
    metadata: &Metadata,
    options: &StructureOptions,
    progress: &dyn Progress,
) -> Result<Vec<Finding>, VerifyError> {
    check_file(&CheckedFile::new(source, metadata, None, options.level, progress))
}

/// Returns the errors of a model file that its keys and its list of tensors show: what a runtime refuses, or stops at.
pub fn header_errors(metadata: &Metadata, tensors: &[TensorMeta]) -> Vec<Finding> {
    let file = CheckedFile::header(metadata, tensors);
    // Without blocks, nothing can fail.
    let mut found = check_file(&file).unwrap_or_default();
    if file.content == FileContent::Model && !drafts::are_alone(metadata, tensors) {
        let missing = missing_tensors(metadata, tensors);
        found.extend(missing.map(|missing| Finding::error(Check::Graph, missing.to_string())));
    }
    found.extend(narrow_alignment(metadata));
    found.retain(|finding| finding.severity == Severity::Error);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    fn tensor(name: &str, dims: &[u64], ty: GgmlType) -> TensorMeta {
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims.to_vec()).unwrap(), ty }
    }

    fn first_error(keys: &[(&str, gguf_format::Value)], tensors: &[TensorMeta]) -> Option<String> {
        let mut metadata = Metadata::new();
        for (key, value) in keys {
            metadata.set((*key).to_owned(), value.clone());
        }
        header_errors(&metadata, tensors).into_iter().map(|error| error.message).next()
    }

    #[test]
    fn what_a_runtime_refuses_is_seen_in_the_header() {
        let model = [("general.architecture", "llama".into()), ("tokenizer.ggml.model", "none".into())];
        let error = first_error(&model, &[tensor("v.blk.0.attn_q.weight", &[4, 4], GgmlType::F32)]);
        assert!(
            error.as_ref().is_some_and(|text| text.contains("key `llama.context_length` is missing")),
            "{error:?}"
        );
        let mut wide = Metadata::new();
        wide.set("general.architecture", "llama");
        wide.set("llama.block_count", 4u64);
        let found = header_errors(&wide, &[tensor("token_embd.weight", &[4, 4], GgmlType::F32)]);
        let told =
            |error: &Finding| error.message.contains("`llama.block_count` must be of type u32, not u64");
        assert!(found.iter().any(told), "{found:?}");
        wide.set("general.alignment", 8u32);
        let found = header_errors(&wide, &[]);
        assert!(found.iter().any(|error| error.message.contains("`general.alignment` is 8")), "{found:?}");
        // The files of other programs have keys of their own.
        let other = [("general.architecture", "kokoro".into())];
        assert_eq!(first_error(&other, &[tensor("a.weight", &[4, 4], GgmlType::F32)]), None);
    }

    #[test]
    fn control_vectors_have_directions_alone() {
        let keys = [("general.architecture", "controlvector".into())];
        let direction = |name: &str, n, ty| first_error(&keys, &[tensor(name, &[n], ty)]);
        assert_eq!(direction("direction.1", 8, GgmlType::F32), None);
        assert!(direction("direction.0", 8, GgmlType::F32).unwrap().contains("from layer 1 on"));
        assert!(direction("direction.2", 8, GgmlType::F16).unwrap().contains("F16, expected F32"));
        let two = [tensor("direction.1", &[8], GgmlType::F32), tensor("direction.2", &[4], GgmlType::F32)];
        assert!(first_error(&keys, &two).unwrap().contains("expected [8]"));
        assert!(first_error(&keys, &[]).unwrap().contains("without a direction"));
    }
}
