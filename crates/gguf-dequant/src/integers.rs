//! Small tensors of integers: sizes, offsets and flags that are read while planning.

use std::ops::Range;

use crate::{Result, Tensors};
use gguf_core::little_endian::{i32s, i64s};

/// Reads elements of a tensor of 64-bit or 32-bit integers, or of bytes.
///
/// # Panics
/// If the range is outside the tensor.
pub(super) fn integers(tensors: &Tensors<'_>, index: usize, range: Range<u64>) -> Result<Vec<i64>> {
    let elem_bytes = tensors.meta(index).ty.bytes();
    Ok(tensors.inner().with_elems(index, range, |bytes| match elem_bytes {
        Some(8) => i64s(bytes).collect(),
        Some(4) => i32s(bytes).map(i64::from).collect(),
        _ => bytes.iter().map(|&byte| i64::from(byte)).collect(),
    })?)
}

/// Reads elements as [`integers`] does; none may be negative.
pub(super) fn sizes(
    tensors: &Tensors<'_>,
    index: usize,
    range: Range<u64>,
    expected: &str,
) -> Result<Vec<u64>> {
    let found = (range.start..).zip(integers(tensors, index, range)?);
    let size = |(at, found): (u64, i64)| {
        u64::try_from(found).map_err(|_| tensors.inner().out_of_range(index, at, found, expected))
    };
    found.map(size).collect()
}
