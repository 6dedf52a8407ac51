//! Order of the tensors of an image or video model: that of the checkpoint, with one exception.

use std::collections::HashMap;

use super::PlannedTensor;
use gguf_format::MAX_DIMS;

/// Moves tensors of five dimensions behind the bias that belongs to them, or to the end.
///
/// # Exactness
/// ref: these tensors are added by a second program, `fix_5d_tensors.py`, after the bias of the same name.
pub(super) fn convolutions_behind_their_biases(tensors: &mut Vec<PlannedTensor>) {
    let is_moved = |tensor: &PlannedTensor| tensor.meta.shape.rank() > MAX_DIMS as usize;
    let (moved, rest): (Vec<_>, Vec<_>) = std::mem::take(tensors).into_iter().partition(is_moved);
    let mut by_bias: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, tensor) in moved.iter().enumerate() {
        by_bias.entry(tensor.meta.name.replace(".weight", ".bias")).or_default().push(at);
    }
    let mut moved: Vec<Option<PlannedTensor>> = moved.into_iter().map(Some).collect();
    for tensor in rest {
        let behind = by_bias.remove(&tensor.meta.name).unwrap_or_default();
        tensors.push(tensor);
        tensors.extend(behind.into_iter().filter_map(|at| moved[at].take()));
    }
    tensors.extend(moved.into_iter().flatten());
}
