//! Scales and zero points: small tensors beside the codes, read where they are needed.

use std::ops::Range;

use crate::core::simd::SimdLevel;
use crate::core::{ElementType, WeightSource};
use crate::dequant::{DequantError, Tensors, fp8};
use crate::quant::{NotANumber, decode_elements};

/// A tensor of numbers that is read in pieces as F32. Nothing is held in memory: scales grow with the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    /// The tensor.
    pub(super) index: usize,
    ty: ElementType,
    elem_bytes: usize,
    /// Number of elements.
    pub(super) n: u64,
    /// Bytes stand for powers of two: `2^(byte - 127)`.
    is_exponent: bool,
}

impl Values {
    /// The numbers of a tensor with one of these element types.
    ///
    /// # Errors
    /// [`DequantError::DtypeMismatch`].
    pub(super) fn new(
        tensors: &Tensors<'_>,
        index: usize,
        types: &[ElementType],
    ) -> Result<Self, DequantError> {
        tensors.check_type(index, types)?;
        let meta = tensors.meta(index);
        let elem_bytes = meta.ty.bytes().unwrap_or(1);
        Ok(Self { index, ty: meta.ty, elem_bytes, n: meta.shape.n_elems(), is_exponent: false })
    }

    /// A tensor of E8M0 bytes, whatever integer type it lies under.
    pub(super) fn exponents(tensors: &Tensors<'_>, index: usize) -> Self {
        let meta = tensors.meta(index);
        Self { index, ty: meta.ty, elem_bytes: 1, n: meta.shape.n_elems(), is_exponent: true }
    }

    /// Whether bytes stand for powers of two.
    pub(super) fn is_exponent(&self) -> bool {
        self.is_exponent
    }

    /// Elements `range`, each of them finite, appended to `out`.
    ///
    /// # Errors
    /// The source failed; [`DequantError::NonFinite`].
    ///
    /// # Panics
    /// If the range lies outside the tensor.
    pub(super) fn read(
        &self,
        source: &dyn WeightSource,
        range: Range<u64>,
        out: &mut Vec<f32>,
    ) -> Result<(), DequantError> {
        let (start, n) = (out.len(), (range.end - range.start) as usize);
        out.resize(start + n, 0.0);
        let values = &mut out[start..];
        let bytes = range.start as usize * self.elem_bytes..range.end as usize * self.elem_bytes;
        let name = || source.weights()[self.index].name.clone();
        let decoded = match source.borrow(self.index) {
            Some(all) => self.decode(&all[bytes], values),
            None => {
                let mut buffer = vec![0; bytes.len()];
                source.read_elems(self.index, range.start, &mut buffer)?;
                self.decode(&buffer, values)
            }
        };
        decoded.map_err(|_| DequantError::DtypeMismatch {
            tensor: name(),
            found: self.ty,
            expected: "numbers".to_owned(),
        })?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(at) => Err(DequantError::NonFinite {
                tensor: name(),
                index: range.start + at as u64,
                found: values[at].to_string(),
            }),
        }
    }

    fn decode(&self, bytes: &[u8], values: &mut [f32]) -> Result<(), NotANumber> {
        if self.is_exponent {
            for (value, &byte) in values.iter_mut().zip(bytes) {
                *value = power_of_two(byte);
            }
            return Ok(());
        }
        if let Some(table) = fp8::table_of(self.ty) {
            for (value, &byte) in values.iter_mut().zip(bytes) {
                *value = table[usize::from(byte)];
            }
            return Ok(());
        }
        decode_elements(self.ty, SimdLevel::Scalar, bytes, values)
    }

    /// One element.
    ///
    /// # Errors
    /// As [`Values::read`].
    pub(super) fn get(&self, source: &dyn WeightSource, at: u64) -> Result<f32, DequantError> {
        let mut one = Vec::with_capacity(1);
        self.read(source, at..at + 1, &mut one)?;
        Ok(one[0])
    }

    /// Whether `test` holds for every element.
    ///
    /// # Errors
    /// As [`Values::read`].
    pub(super) fn all(
        &self,
        source: &dyn WeightSource,
        test: impl Fn(f32) -> bool,
    ) -> Result<bool, DequantError> {
        const STEP: u64 = 1 << 14;
        let mut values = Vec::new();
        let mut at = 0;
        while at < self.n {
            let end = self.n.min(at + STEP);
            values.clear();
            self.read(source, at..end, &mut values)?;
            if !values.iter().all(|&value| test(value)) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }
}

/// The value of an E8M0 byte; 255 is NaN, 0 is a subnormal of F32.
fn power_of_two(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22),
        byte => f32::from_bits(u32::from(byte) << 23),
    }
}

/// Types that scales come in.
pub(super) const SCALE_TYPES: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];

/// Hands the bytes of elements `first .. first + n` of a byte-sized type on, from the mapping or through a buffer.
///
/// # Errors
/// The source failed, or `use_it` did.
pub(super) fn with_bytes<T>(
    source: &dyn WeightSource,
    index: usize,
    elem_bytes: usize,
    range: Range<u64>,
    use_it: impl FnOnce(&[u8]) -> Result<T, DequantError>,
) -> Result<T, DequantError> {
    let bytes = range.start as usize * elem_bytes..range.end as usize * elem_bytes;
    match source.borrow(index) {
        Some(all) => use_it(&all[bytes]),
        None => {
            let mut buffer = vec![0; bytes.len()];
            source.read_elems(index, range.start, &mut buffer)?;
            use_it(&buffer)
        }
    }
}

/// Walks a rectangle of a matrix of `n_cols` columns as stretches of lines of `width` elements: the same elements,
/// reshaped. `visit` gets the line, its columns, and their part of `out`.
///
/// # Errors
/// What `visit` says.
pub(super) fn each_stretch(
    (n_cols, width): (u64, u64),
    rows: Range<u64>,
    cols: &Range<u64>,
    out: &mut [f32],
    mut visit: impl FnMut(u64, Range<u64>, &mut [f32]) -> Result<(), DequantError>,
) -> Result<(), DequantError> {
    let n = (cols.end - cols.start) as usize;
    for (row, out) in rows.zip(out.chunks_exact_mut(n.max(1))) {
        let (first, end) = (row * n_cols + cols.start, row * n_cols + cols.end);
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
