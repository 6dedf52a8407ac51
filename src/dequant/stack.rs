//! Stacks of matrices in one tensor, such as experts `[experts, rows, columns]`.
//!
//! All dimensions before the last two count matrices.

use crate::core::{ElementType, Shape};
use crate::dequant::{DequantError, Tensors};

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

/// Returns name, codes and scales of stacks that are not modules, by the suffix of their scales.
///
/// An example is `experts.down_proj` with `experts.down_proj_weight_scale`.
pub(super) fn codes_with_scales<'a>(
    tensors: &Tensors<'a>,
    suffix: &str,
    types: &[ElementType],
) -> Vec<(&'a str, usize, usize)> {
    let pair = |(name, scale): (&'a str, usize)| {
        let codes = tensors.find(name).filter(|&codes| tensors.is_free(codes))?;
        types.contains(&tensors.meta(codes).ty).then_some((name, codes, scale))
    };
    tensors.ending(suffix).into_iter().filter_map(pair).collect()
}

/// Returns the unpacked shape of bytes that hold two codes each along the last dimension.
///
/// # Errors
/// Fewer than two dimensions, or a size that overflows.
pub(super) fn unpacked(tensors: &Tensors<'_>, packed: usize) -> Result<Shape, DequantError> {
    let mut dims = tensors.meta(packed).shape.dims().to_vec();
    let n_dims = dims.len();
    let doubled = dims.last_mut().and_then(|last| {
        *last = last.checked_mul(2)?;
        Some(())
    });
    match doubled {
        Some(()) if n_dims >= 2 => {
            Shape::new(dims).ok_or_else(|| tensors.shape_error(packed, "a size that fits 63 bits".to_owned()))
        }
        Some(()) => Err(tensors.shape_error(packed, "two dimensions, or a stack of those".to_owned())),
        None => Err(tensors.shape_error(packed, "a size that fits 63 bits".to_owned())),
    }
}

/// Checks that a stack's scales of `group` columns have its dimensions; those of a single matrix may be flat.
///
/// # Errors
/// Other dimensions.
pub(super) fn check_groups(
    tensors: &Tensors<'_>,
    scale: usize,
    shape: &Shape,
    group: u64,
) -> Result<(), DequantError> {
    match shape.dims() {
        [outer @ .., rows, cols] if !outer.is_empty() => {
            tensors.check_shape(scale, &[outer, &[*rows, cols.div_ceil(group)]].concat())
        }
        _ => Ok(()),
    }
}
