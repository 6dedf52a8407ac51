//! Check that the runtime's loader takes every tensor of a file: it refuses a file with any other.

use crate::checks::input::{CheckedFile, FileContent};
use crate::{Check, Finding};
use gguf_arch::{ForeignTensors, LoaderFault, foreign_tensors, loader_faults};
use gguf_format::ollama::without_towers;

/// Returns what the loader of a model's architecture refuses: all tensors that it never takes in one finding, and what does
/// not go with the keys.
pub(super) fn check(file: &CheckedFile<'_>) -> Vec<Finding> {
    if file.content != FileContent::Model {
        return Vec::new();
    }
    let foreign = foreign_tensors(file.metadata, file.tensors()).and_then(named);
    let foreign = foreign.map(|foreign| {
        let again = || "`gguf-convert hf2gguf` of the checkpoint writes those that it has".to_owned();
        format!("{foreign}; {}", without_towers(&foreign.names).unwrap_or_else(again))
    });
    let faults = loader_faults(file.metadata, file.tensors());
    let faults = faults.iter().map(|fault| match fault {
        // The file is whole, and this program runs it.
        LoaderFault::Keys { .. } => Finding::warning(Check::Tensors, fault.to_string()),
        _ => Finding::error(Check::Tensors, fault.to_string()),
    });
    let foreign = foreign.map(|message| Finding::error(Check::Tensors, message));
    foreign.into_iter().chain(faults).collect()
}

/// Leaves the heads that score texts to the graph, which knows by the keys whether they are used.
pub(super) fn named(mut foreign: ForeignTensors) -> Option<ForeignTensors> {
    foreign.names.retain(|name| !name.starts_with("cls."));
    (!foreign.names.is_empty()).then_some(foreign)
}
