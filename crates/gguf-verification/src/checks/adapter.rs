//! Adapter files: pairs of matrices that change tensors of another file.

use std::collections::HashMap;

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Aspect, Check, Finding, Report};
use gguf_core::TensorMeta;
use gguf_format::{Metadata, Value};

const CHECK: Check = Check::Adapter;

/// Returns true if a file declares that it is an adapter.
pub(crate) fn is_one(metadata: &Metadata) -> bool {
    metadata.get("general.type").and_then(Value::as_str) == Some("adapter")
}

/// Checks the tensors of an adapter: every matrix must have its counterpart, of the same rank.
pub(super) fn check(file: &CheckedFile<'_>) -> Vec<Finding> {
    match file.content {
        FileContent::Adapter => check_pairs(file.metadata, file.tensors()),
        _ => Vec::new(),
    }
}

fn check_pairs(metadata: &Metadata, tensors: &[TensorMeta]) -> Vec<Finding> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or("?");
    let what = format!(
        "an adapter ({}) for a model of `{}`: only its structure is judged",
        text("adapter.type"),
        text("general.architecture")
    );
    let mut findings = vec![Finding::unchecked(CHECK, what)];
    let by_name: HashMap<&str, &TensorMeta> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    for tensor in tensors {
        let (stem, other) = match (tensor.name.strip_suffix(".lora_a"), tensor.name.strip_suffix(".lora_b")) {
            (Some(stem), _) => (stem, ".lora_b"),
            (_, Some(stem)) => (stem, ".lora_a"),
            // Norms are stored whole.
            _ if tensor.name.contains("_norm") => continue,
            _ => {
                findings
                    .push(Finding::error(CHECK, "neither a matrix of a pair nor a norm").of(&tensor.name));
                continue;
            }
        };
        let Some(other) = by_name.get(format!("{stem}{other}").as_str()) else {
            findings.push(Finding::error(CHECK, format!("`{stem}{other}` is missing")).of(&tensor.name));
            continue;
        };
        // Reported once per pair. Rows of an embedding's first matrix are looked up: its rank is the number of columns.
        let rank = |dims: &[u64], from_end: usize| dims.len().checked_sub(from_end).map(|at| dims[at]);
        let is_embedding = stem == "token_embd.weight";
        let (own, its) = (tensor.shape.dims(), other.shape.dims());
        if tensor.name.ends_with(".lora_a")
            && (own.len() != its.len() || rank(own, if is_embedding { 1 } else { 2 }) != rank(its, 1))
        {
            let message =
                format!("{} and {} of its counterpart are not of one rank", tensor.shape, other.shape);
            findings.push(Finding::error(CHECK, message).of(&tensor.name));
        }
    }
    findings
}

/// Records why only the structure of an adapter is judged, and what judges the rest.
pub(crate) fn leave_out(report: &mut Report) {
    const ALONE: &str = "an adapter is not run without its model";
    const MERGED: &str = "`gguf-convert merge-lora`, and the model that it writes";
    report.judged(Aspect::Tokenizer, "adapters have none");
    for aspect in [Aspect::Metadata, Aspect::Weights, Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, ALONE, MERGED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    #[test]
    fn a_pair_has_two_matrices_of_one_rank() {
        let tensor = |name: &str, dims: &[u64]| TensorMeta {
            name: name.to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F32,
        };
        let messages = |tensors: &[TensorMeta]| -> Vec<String> {
            check_pairs(&Metadata::new(), tensors)
                .into_iter()
                .skip(1)
                .map(|finding| finding.message)
                .collect()
        };
        let sound = [
            tensor("q.lora_a", &[2, 8]),
            tensor("q.lora_b", &[6, 2]),
            tensor("token_embd.weight.lora_a", &[9, 2]),
            tensor("token_embd.weight.lora_b", &[8, 2]),
            tensor("blk.0.ffn_norm.weight", &[8]),
        ];
        assert!(messages(&sound).is_empty());
        let broken = [
            tensor("q.lora_a", &[3, 8]),
            tensor("q.lora_b", &[6, 2]),
            tensor("k.lora_b", &[6, 2]),
            tensor("v.weight", &[6, 2]),
        ];
        assert_eq!(
            messages(&broken),
            [
                "[3, 8] and [6, 2] of its counterpart are not of one rank",
                "`k.lora_a` is missing",
                "neither a matrix of a pair nor a norm"
            ]
        );
    }
}
