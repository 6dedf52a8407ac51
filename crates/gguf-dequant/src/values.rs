//! Scales and zero points: small tensors that accompany the codes, read on demand.

use std::ops::Range;

use crate::rectangle::Rectangle;
use crate::{DequantError, InnerSource, Result, Tensors};
use gguf_blocks::{NotANumber, decode_elements};
use gguf_core::ElementType;
use gguf_core::simd::SimdLevel;
use gguf_core::small_float::{self, e8m0};

/// A tensor of numbers that is read in pieces as F32.
///
/// It is not held in memory, since scales grow with the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberTensor {
    pub(super) index: usize,
    ty: ElementType,
    pub(super) n: u64,
    /// True if bytes are exponents: `2^(byte - 127)`.
    is_exponent: bool,
}

impl NumberTensor {
    /// Creates a reader for a tensor of one of these element types.
    pub(super) fn new(tensors: &Tensors<'_>, index: usize, types: &[ElementType]) -> Result<Self> {
        tensors.check_type(index, types)?;
        let meta = tensors.meta(index);
        Ok(Self { index, ty: meta.ty, n: meta.shape.n_elems(), is_exponent: false })
    }

    /// Creates a reader as [`NumberTensor::new`] does, of one number for each row.
    pub(super) fn by_row(
        tensors: &Tensors<'_>,
        index: usize,
        types: &[ElementType],
        n_rows: u64,
    ) -> Result<Self> {
        let values = Self::new(tensors, index, types)?;
        if values.n != n_rows {
            return Err(tensors.shape_error(index, format!("{n_rows} elements, one for each row")));
        }
        Ok(values)
    }

    /// Creates a reader for E8M0 bytes, stored under any integer type.
    pub(super) fn exponents(tensors: &Tensors<'_>, index: usize) -> Self {
        let meta = tensors.meta(index);
        Self { index, ty: meta.ty, n: meta.shape.n_elems(), is_exponent: true }
    }

    /// Creates a reader for E4M3 bytes, stored under any type of a byte.
    pub(super) fn e4m3(tensors: &Tensors<'_>, index: usize) -> Self {
        let n = tensors.meta(index).shape.n_elems();
        Self { index, ty: ElementType::F8E4M3, n, is_exponent: false }
    }

    pub(super) fn is_exponent(&self) -> bool {
        self.is_exponent
    }

    /// Appends elements `range` to `out`; each must be finite.
    ///
    /// # Panics
    /// If the range is outside the tensor.
    pub(super) fn read(&self, inner: InnerSource<'_>, range: Range<u64>, out: &mut Vec<f32>) -> Result<()> {
        let (start, n) = (out.len(), (range.end - range.start) as usize);
        out.resize(start + n, 0.0);
        let values = &mut out[start..];
        let decoded =
            inner.with_elems(self.index, range.clone(), |bytes| self.decode(inner.level, bytes, values))?;
        decoded.map_err(|_| inner.wrong_type(self.index, "numbers"))?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(at) => Err(DequantError::NonFinite {
                tensor: inner.meta(self.index).name.clone(),
                index: range.start + at as u64,
                found: values[at].to_string(),
            }),
        }
    }

    fn decode(&self, level: SimdLevel, bytes: &[u8], values: &mut [f32]) -> Result<(), NotANumber> {
        let mut look_up = |table: &small_float::FloatTable| {
            for (value, &byte) in values.iter_mut().zip(bytes) {
                *value = table[usize::from(byte)];
            }
            Ok(())
        };
        match self.ty {
            _ if self.is_exponent => {
                for (value, &byte) in values.iter_mut().zip(bytes) {
                    *value = e8m0(byte);
                }
                Ok(())
            }
            ElementType::F8E4M3 => look_up(&small_float::E4M3),
            ElementType::F8E5M2 => look_up(&small_float::E5M2),
            ty => decode_elements(ty, level, bytes, values),
        }
    }

    /// Reads one element.
    pub(super) fn get(&self, inner: InnerSource<'_>, at: u64) -> Result<f32> {
        let mut one = Vec::with_capacity(1);
        self.read(inner, at..at + 1, &mut one)?;
        Ok(one[0])
    }

    /// Returns true if `test` holds for every element.
    pub(super) fn all(&self, inner: InnerSource<'_>, mut test: impl FnMut(f32) -> bool) -> Result<bool> {
        const STEP: u64 = 1 << 14;
        let mut values = Vec::new();
        let mut at = 0;
        while at < self.n {
            let end = self.n.min(at + STEP);
            values.clear();
            self.read(inner, at..end, &mut values)?;
            if !values.iter().all(|&value| test(value)) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }
}

pub(super) const SCALE_TYPES: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];

/// A matrix whose scales belong to lines of another length than its rows: a reshape of the same elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScaleLines {
    /// Columns of the matrix.
    pub(super) n_cols: u64,
    /// Elements per line.
    pub(super) width: u64,
}

/// Visits a rectangle of a matrix as stretches of its lines.
///
/// `visit` gets the line, its columns, and their part of `out`.
pub(super) fn each_stretch(
    ScaleLines { n_cols, width }: ScaleLines,
    part: &Rectangle,
    out: &mut [f32],
    mut visit: impl FnMut(u64, Range<u64>, &mut [f32]) -> Result<()>,
) -> Result<()> {
    for (row, out) in part.split_rows(out, part.width()) {
        let Range { start: first, end } = part.elems(row, n_cols);
        let mut at = first;
        while at < end {
            let (line, col) = (at / width, at % width);
            let n = (width - col).min(end - at);
            visit(line, col..col + n, &mut out[(at - first) as usize..(at - first + n) as usize])?;
            at += n;
        }
    }
    Ok(())
}
