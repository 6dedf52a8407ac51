//! Control vectors: directions that a runtime adds to the hidden state behind layers.

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Aspect, Check, Finding, Report};
use gguf_core::GgmlType;
use gguf_format::{Metadata, Value};

/// Value of `general.architecture` in such files.
const ARCH: &str = "controlvector";

/// Returns true for a file of a control vector.
pub(crate) fn is_one(metadata: &Metadata) -> bool {
    metadata.get("general.architecture").and_then(Value::as_str) == Some(ARCH)
}

/// Checks the tensors as llama.cpp reads them: `direction.N` from layer 1 on, F32, one row of one length.
pub(super) fn check(file: &CheckedFile<'_>) -> Vec<Finding> {
    if file.content != FileContent::ControlVector {
        return Vec::new();
    }
    let error = |text: String| Finding::error(Check::Tensors, text);
    let Some(first) = file.tensors().first() else {
        return vec![error("a control vector without a direction".to_owned())];
    };
    let width = first.shape.n_elems();
    let flaw = |tensor: &gguf_core::TensorMeta| {
        let layer = tensor.name.strip_prefix("direction.").and_then(|rest| rest.parse::<u32>().ok());
        let text = match () {
            () if layer.is_none_or(|layer| layer == 0) => "expected `direction.N` from layer 1 on".to_owned(),
            () if tensor.ty != GgmlType::F32 => format!("of type {}, expected F32", tensor.ty),
            () if tensor.shape.n_cols() != tensor.shape.n_elems() || tensor.shape.n_elems() != width => {
                format!("shape {}, expected [{width}]", tensor.shape)
            }
            () => return None,
        };
        Some(error(format!("{text}: llama.cpp does not load the control vector")).of(&tensor.name))
    };
    file.tensors().iter().filter_map(flaw).collect()
}

/// Records why no text is run.
pub(crate) fn leave_out(report: &mut Report) {
    report.add(Finding::unchecked(Check::Graph, "a control vector: only its structure is judged"));
    report.judged(Aspect::Tokenizer, "control vectors have none");
    for aspect in [Aspect::Perplexity, Aspect::Divergence] {
        report.not_judged(aspect, "a control vector is not run by itself", "its model, with it applied");
    }
}
