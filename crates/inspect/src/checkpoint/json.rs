//! The description of a checkpoint as JSON.
//!
//! All keys are always present; unknown values are null.

use serde_json::{Value as Json, json};

use crate::checkpoint::{CheckpointReport, PlannedOutput, WeightFiles};

/// Converts the whole description to JSON.
#[must_use]
pub fn checkpoint_json(report: &CheckpointReport) -> Json {
    let container = report.container.as_ref();
    let architecture = report
        .architecture
        .as_ref()
        .map(|own| json!({ "class": own.class, "card": own.card, "gguf": own.gguf }));
    let vocabulary = report.vocabulary.as_ref().map(|own| {
        json!({
            "mode": own.mode, "model": own.model, "pre": own.pre, "tokens": own.n_tokens,
            "chat_template": own.has_chat_template,
        })
    });
    let problems: Vec<_> = report
        .problems
        .iter()
        .map(|problem| {
            json!({
                "part": problem.part.name(),
                "kind": if problem.is_unsupported { "unsupported" } else { "broken" },
                "message": problem.message,
                "hints": problem.hints,
            })
        })
        .collect();
    json!({
        "path": report.path.to_string_lossy(),
        "name": report.name,
        "model_type": report.model_type,
        "classes": report.classes,
        "architecture": architecture,
        "container": container.map(container_json),
        "weights": report.parameters.map(|parameters| parameters.0),
        "parameters": report.parameters.map(|parameters| parameters.1),
        "types": container.map(types_json).unwrap_or_default(),
        "quantization": quantization_json(report),
        "tokenizer": vocabulary,
        "outputs": report.outputs.iter().map(output_json).collect::<Vec<_>>(),
        "problems": problems,
        "warnings": report.warnings,
        "tensors": container.map(tensors_json).unwrap_or_default(),
    })
}

fn container_json(container: &WeightFiles) -> Json {
    let files: Vec<_> =
        container.files.iter().map(|file| json!({ "name": file.name, "bytes": file.n_bytes })).collect();
    json!({ "format": container.format, "files": files, "file_bytes": container.file_bytes() })
}

fn types_json(container: &WeightFiles) -> Vec<Json> {
    let row = |share: &super::ElementShare| {
        json!({
            "type": share.ty.name(), "tensors": share.n_tensors, "elements": share.n_elems,
            "bytes": share.n_bytes,
        })
    };
    container.shares().iter().map(row).collect()
}

fn tensors_json(container: &WeightFiles) -> Vec<Json> {
    let row = |tensor: &super::ListedTensor| {
        json!({
            "name": tensor.name, "type": tensor.ty.name(), "shape": tensor.shape.dims(),
            "bytes": tensor.n_bytes,
            "file": container.files.get(tensor.file).map(|file| file.name.as_str()),
        })
    };
    container.tensors.iter().map(row).collect()
}

fn quantization_json(report: &CheckpointReport) -> Option<Json> {
    let quantization = report.quantization.as_ref()?;
    let names = |types: &[gguf_core::GgmlType]| -> Vec<&str> { types.iter().map(|ty| ty.name()).collect() };
    let classes: Vec<_> = report
        .stored
        .iter()
        .map(|class| {
            json!({
                "weights": class.pattern, "method": class.method, "form": class.form, "count": class.n_weights,
                "elements": class.n_elems, "bytes": class.n_bytes, "bits_per_weight": class.bits_per_weight(),
                "auto": names(&class.becomes.auto), "native": names(&class.becomes.native),
            })
        })
        .collect();
    Some(json!({
        "method": quantization.method,
        "classes": classes,
        "left_out": quantization.left_out,
        "plain_targets": quantization.plain_targets,
    }))
}

fn output_json(output: &PlannedOutput) -> Json {
    let types: Vec<_> =
        output.types.iter().map(|(ty, n)| json!({ "type": ty.name(), "tensors": n })).collect();
    let sampled = output.sampled.map(|(n_read, n_all)| json!({ "weights_read": n_read, "weights": n_all }));
    json!({
        "option": output.option, "type": output.file_type, "file_name": output.file_name,
        "file_bytes": output.file_bytes,
        "tensors": output.types.iter().map(|row| row.1).sum::<usize>(),
        "types": types, "sampled": sampled,
    })
}
