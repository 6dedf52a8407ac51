//! Stacks of matrices in one tensor, such as experts `[experts, rows, columns]`.
//!
//! All dimensions before the last two count matrices.

use crate::{Result, Tensors};
use gguf_core::Shape;

/// Returns the number of matrices of a shape, and the rows of each.
pub(super) fn matrices(shape: &Shape) -> (u64, u64) {
    match shape.dims() {
        [outer @ .., rows, _] => (outer.iter().fold(1, |n, &dim| n.saturating_mul(dim)), *rows),
        _ => (1, shape.n_rows()),
    }
}

/// Returns true if scales of this shape are one per matrix: `[n]`, `[n, 1]`, `[n, 1, 1]`.
pub(super) fn is_by_matrix(scales: &Shape, n_mats: u64) -> bool {
    scales.dims().first() == Some(&n_mats) && scales.n_elems() == n_mats
}

/// Returns the unpacked shape of bytes that hold two codes each along the last dimension.
pub(super) fn unpacked(tensors: &Tensors<'_>, packed: usize) -> Result<Shape> {
    let dims = tensors.meta(packed).shape.dims();
    let doubled = dims.split_last().and_then(|(last, outer)| Some([outer, &[last.checked_mul(2)?]].concat()));
    if doubled.is_some() && dims.len() < 2 {
        return Err(tensors.shape_error(packed, "two dimensions, or a stack of those"));
    }
    tensors.weight_shape(packed, doubled)
}

/// Checks that a stack's scales of `group` columns have its dimensions; those of a single matrix may be flat.
pub(super) fn check_groups(tensors: &Tensors<'_>, scale: usize, shape: &Shape, group: u64) -> Result<()> {
    match shape.dims() {
        [outer @ .., rows, cols] if !outer.is_empty() => {
            tensors.check_shape(scale, &[outer, &[*rows, cols.div_ceil(group)]].concat())
        }
        _ => Ok(()),
    }
}
