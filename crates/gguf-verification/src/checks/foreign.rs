//! Check that the runtime's loader takes every tensor of a file: it refuses a file with any other.

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding};
use gguf_arch::{ForeignTensors, foreign_tensors};

/// Returns one finding for all tensors of a model that the loader of its architecture does not take.
pub(super) fn check(file: &CheckedFile<'_>) -> Option<Finding> {
    if file.content != FileContent::Model {
        return None;
    }
    let foreign = named(foreign_tensors(file.metadata, file.tensors())?)?;
    let message = format!("{foreign}; `gguf-convert hf2gguf` of the checkpoint writes those that it has");
    Some(Finding::error(Check::Tensors, message))
}

/// Leaves the heads that score texts to the graph, which knows by the keys whether they are used.
pub(super) fn named(mut foreign: ForeignTensors) -> Option<ForeignTensors> {
    foreign.names.retain(|name| !name.starts_with("cls."));
    (!foreign.names.is_empty()).then_some(foreign)
}
