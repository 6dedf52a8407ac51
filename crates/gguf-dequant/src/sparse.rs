//! Sparse matrices of compressed-tensors: a bit for each element, and the values of the elements whose bit is set.

use std::ops::Range;

use serde_json::Value;

use crate::integers::sizes;
use crate::rectangle::Rectangle;
use crate::values::SCALE_TYPES;
use crate::{CodedWeight, DequantError, InnerSource, Result, Settings, Tensors};
use gguf_blocks::decode_elements;
use gguf_core::ElementType;

/// A matrix stored as bits and values.
struct Sparse {
    values: usize,
    ty: ElementType,
    mask: usize,
    n_rows: u64,
    n_cols: u64,
    /// Index of the first value of each row.
    offsets: Offsets,
    members: Vec<usize>,
}

enum Offsets {
    Even(u64),
    /// One offset per row, from a tensor of I64.
    Rows(Vec<u64>),
}

/// Sparsity pattern of a matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SparsityPattern {
    /// Two of four consecutive elements.
    TwoOfFour,
    /// Any elements.
    Free,
}

impl SparsityPattern {
    /// Returns the name of the tensors' parent, relative to the module: the module itself or its weight.
    fn prefix(self) -> &'static str {
        match self {
            Self::TwoOfFour => "",
            Self::Free => ".weight",
        }
    }
}

/// Plans all sparse modules; returns false if the checkpoint has none.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<bool> {
    const KEY: &str = "sparsity_config";
    let config = match settings.map.get(KEY) {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::Object(config)) if config.is_empty() => return Ok(false),
        Some(Value::Object(config)) => config,
        Some(_) => return Err(settings.bad(KEY, "must be an object")),
    };
    let own = Settings { map: config.clone(), ..settings.clone() };
    let pattern = match own.text("format")? {
        None | Some("dense") => return Ok(false),
        Some("sparse-24-bitmask") => SparsityPattern::TwoOfFour,
        Some("sparse-bitmask") => SparsityPattern::Free,
        Some(name) => return Err(own.variant("sparsity_config.format", name, "only bit masks are read")),
    };
    let suffix = format!("{}.compressed", pattern.prefix());
    for (module, values) in tensors.ending(&suffix) {
        put(&own, tensors, module, values, pattern)?;
    }
    Ok(true)
}

fn put(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    module: &str,
    values: usize,
    pattern: SparsityPattern,
) -> Result<()> {
    let prefix = pattern.prefix();
    let mask = tensors.member(module, &format!("{prefix}.bitmask"))?;
    let shape = tensors.member(module, &format!("{prefix}.shape"))?;
    let ty = tensors.meta(values).ty;
    if !SCALE_TYPES.contains(&ty) {
        let reason = "sparse and quantized at once";
        return Err(settings.variant("sparsity_config.format", &ty.to_string(), reason));
    }
    tensors.check_type(mask, &[ElementType::U8])?;
    tensors.check_type(shape, &[ElementType::I64])?;
    let dims = all_sizes(tensors, shape)?;
    let &[n_rows, n_cols] = dims.as_slice() else {
        return Err(tensors.shape_error(shape, "2 elements"));
    };
    tensors.check_shape(mask, &[n_rows, n_cols.div_ceil(8)])?;
    if n_cols == 0 {
        return Err(tensors.shape_error(mask, "at least one element"));
    }
    let n_values = tensors.meta(values).shape.n_elems();
    let mut members = vec![values, mask, shape];
    let offsets = if pattern == SparsityPattern::TwoOfFour {
        tensors.check_shape(values, &[n_rows, n_cols / 2])?;
        Offsets::Even(n_cols / 2)
    } else {
        let index = tensors.member(module, ".weight.row_offsets")?;
        tensors.check_type(index, &[ElementType::I64])?;
        tensors.check_shape(index, &[n_rows])?;
        members.push(index);
        let offsets = all_sizes(tensors, index)?;
        if offsets.iter().any(|&offset| offset > n_values) {
            return Err(tensors.shape_error(values, "as many values as the offsets of its rows say"));
        }
        Offsets::Rows(offsets)
    };
    let name = format!("{module}.weight");
    let whole = tensors.weight_shape(mask, Some(vec![n_rows, n_cols]))?;
    let sparse = Sparse { values, ty, mask, n_rows, n_cols, offsets, members };
    sparse.check_counts(tensors, n_values)?;
    tensors.append(name, whole, Box::new(sparse));
    Ok(())
}

/// Reads a whole tensor of integers that are not negative.
fn all_sizes(tensors: &Tensors<'_>, index: usize) -> Result<Vec<u64>> {
    sizes(tensors, index, 0..tensors.meta(index).shape.n_elems(), "no negative number")
}

impl Sparse {
    fn first_value(&self, row: u64) -> u64 {
        match &self.offsets {
            Offsets::Even(n) => row * n,
            Offsets::Rows(offsets) => offsets[row as usize],
        }
    }

    /// Checks that every row has as many values as set bits.
    fn check_counts(&self, tensors: &Tensors<'_>, n_values: u64) -> Result<()> {
        let inner = tensors.inner();
        for row in 0..self.n_rows {
            let n_bits = self.with_mask(inner, row, |mask| Ok(count(mask, 0..self.n_cols)))?;
            let (first, end) = (
                self.first_value(row),
                if row + 1 < self.n_rows { self.first_value(row + 1) } else { n_values },
            );
            if first.checked_add(n_bits) != Some(end) {
                return Err(DequantError::BadMetadata {
                    tensor: tensors.meta(self.mask).name.clone(),
                    problem: format!("row {row} has {n_bits} bits set, its values are {first} to {end}"),
                });
            }
        }
        Ok(())
    }

    fn with_mask<T>(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        use_it: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let n_bytes = self.n_cols.div_ceil(8);
        inner.try_with_elems(self.mask, row * n_bytes..(row + 1) * n_bytes, use_it)
    }
}

fn is_set(mask: &[u8], col: u64) -> bool {
    mask[(col / 8) as usize] >> (col % 8) & 1 == 1
}

fn count(mask: &[u8], cols: Range<u64>) -> u64 {
    let (first, end) = (cols.start.next_multiple_of(8).min(cols.end), cols.end / 8 * 8);
    let ones = |cols: Range<u64>| cols.filter(|&col| is_set(mask, col)).count() as u64;
    if first >= end {
        return ones(cols);
    }
    let whole = &mask[(first / 8) as usize..(end / 8) as usize];
    let whole: u64 = whole.iter().map(|byte| u64::from(byte.count_ones())).sum();
    ones(cols.start..first) + whole + ones(end..cols.end)
}

impl CodedWeight for Sparse {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let mut values = Vec::new();
        for (row, out) in part.split_rows(out, part.width()) {
            self.with_mask(inner, row, |mask| {
                let first = self.first_value(row) + count(mask, 0..part.cols.start);
                let n = count(mask, part.cols.clone());
                values.resize(n as usize, 0.0);
                inner.with_elems(self.values, first..first + n, |bytes| {
                    // The element type was checked while planning.
                    let _ = decode_elements(self.ty, inner.level, bytes, &mut values);
                })?;
                let mut next = values.iter();
                for (col, out) in part.cols.clone().zip(out) {
                    *out = if is_set(mask, col) { next.next().copied().unwrap_or(0.0) } else { 0.0 };
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        let kind = if matches!(self.offsets, Offsets::Even(_)) { "2:4 sparse" } else { "sparse" };
        format!("{kind}, bit mask, {} values", self.ty)
    }
}
