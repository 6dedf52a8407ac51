//! A quantized weight: where its codes, scales and offsets lie, and the values they make.
//!
//! An element is `(code - offset) * scale`, the scale being one number or the product of two. Integer codes and
//! offsets are subtracted exactly. The product is taken in F64 and rounded once to F32; with one F32 scale that is the
//! F32 product itself.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use super::error::MsModelSlimError;
use crate::core::numeric::{bf16_to_f32, f16_to_f32};
use crate::core::{ElementType, Shape, SourceError, WeightSource};
use crate::dequant;
use crate::dequant::encoding::{along_rows, n_bytes};

/// How codes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// A signed byte each.
    Int8,
    /// Four bits, a signed byte each.
    Int4,
    /// Rows `2i` and `2i + 1` share a row of bytes, the even one in the low four bits.
    Int4Rows,
    /// Columns `2j` and `2j + 1` share a byte, the even one in the low four bits.
    Int4Columns,
    /// E4M3 without infinity.
    E4m3,
    /// E2M1, columns in pairs as above.
    E2m1,
}

impl Encoding {
    pub(super) fn is_four_bit(self) -> bool {
        matches!(self, Self::Int4 | Self::Int4Rows | Self::Int4Columns)
    }

    pub(super) fn is_integer(self) -> bool {
        self == Self::Int8 || self.is_four_bit()
    }

    /// The number that each code stands for.
    fn table(self) -> &'static [f32; 256] {
        static INT8: LazyLock<[f32; 256]> = LazyLock::new(|| table(|code| f32::from(code.cast_signed())));
        static E4M3: LazyLock<[f32; 256]> = LazyLock::new(|| table(e4m3));
        static E2M1: LazyLock<[f32; 256]> = LazyLock::new(|| table(e2m1));
        match self {
            Self::Int8 | Self::Int4 | Self::Int4Rows | Self::Int4Columns => &INT8,
            Self::E4m3 => &E4M3,
            Self::E2m1 => &E2M1,
        }
    }
}

fn table(value: impl Fn(u8) -> f32) -> [f32; 256] {
    std::array::from_fn(|code| value(code as u8))
}

/// One sign bit, four bits of exponent (bias 7), three of mantissa; all ones are NaN.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// One sign bit, two bits of exponent, one of mantissa.
fn e2m1(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// What a number of a grid is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// A float of this type.
    Float(ElementType),
    /// The exponent of a power of two, with a bias of 127.
    Exponent,
    /// The bits of an F32 in the low half of 64.
    Bits,
}

/// Numbers that belong to stretches of rows: as many for every row.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    /// Tensor of the checkpoint.
    pub(super) weight: usize,
    /// Numbers per row.
    pub(super) groups: u64,
    pub(super) stored: Stored,
    /// What the stored number is divided by.
    pub(super) divisor: f64,
}

impl Grid {
    /// The number in raw bytes.
    fn decode(&self, bytes: &[u8]) -> f64 {
        let bits =
            |n: usize| bytes.iter().take(n).rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        let value = match self.stored {
            Stored::Float(ElementType::F64) => f64::from_bits(bits(8)),
            Stored::Float(ElementType::F16) => f64::from(f16_to_f32(bits(2) as u16)),
            Stored::Float(ElementType::Bf16) => f64::from(bf16_to_f32(bits(2) as u16)),
            Stored::Float(_) => f64::from(f32::from_bits(bits(4) as u32)),
            Stored::Exponent if bits(1) == 255 => f64::NAN,
            Stored::Exponent => 2f64.powi(bits(1) as i32 - 127),
            Stored::Bits => f64::from(f32::from_bits(bits(8) as u32)),
        };
        value / self.divisor
    }

    /// Reads numbers `first ..` of the whole grid.
    pub(super) fn read(
        &self,
        source: &dyn WeightSource,
        first: u64,
        n: usize,
        out: &mut Vec<f64>,
    ) -> Result<(), SourceError> {
        out.clear();
        with_bytes(source, self.weight, first, n, |bytes, elem_bytes| {
            out.extend(bytes.chunks_exact(elem_bytes).map(|bytes| self.decode(bytes)));
        })
    }
}

/// Hands on elements of a tensor as they are stored.
pub(super) fn with_bytes(
    source: &dyn WeightSource,
    weight: usize,
    first: u64,
    n: usize,
    use_them: impl FnOnce(&[u8], usize),
) -> Result<(), SourceError> {
    // All element types that get here were checked to be whole bytes.
    let elem_bytes = source.weights()[weight].ty.bytes().unwrap_or(1);
    if let Some(bytes) = source.borrow(weight) {
        use_them(&bytes[first as usize * elem_bytes..][..n * elem_bytes], elem_bytes);
        return Ok(());
    }
    let mut bytes = vec![0; n * elem_bytes];
    source.read_elems(weight, first, &mut bytes)?;
    use_them(&bytes, elem_bytes);
    Ok(())
}

/// A quantized weight.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    /// Name of the weight in a float checkpoint.
    pub(super) name: String,
    /// Shape in a float checkpoint.
    pub(super) shape: Shape,
    /// Tensor with the codes.
    pub(super) codes: usize,
    pub(super) encoding: Encoding,
    pub(super) scale: Grid,
    pub(super) second: Option<Grid>,
    /// Offsets; `None` if all are zero.
    pub(super) offset: Option<Grid>,
    /// Whether offsets are added instead of subtracted.
    pub(super) adds_offset: bool,
    /// A factor for each column.
    pub(super) columns: Option<Arc<[f32]>>,
}

/// Numbers of one row, reused from row to row.
#[derive(Default)]
struct Scratch {
    codes: Vec<u8>,
    scale: Vec<f64>,
    second: Vec<f64>,
    offset: Vec<f64>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Neighbours in a row that share their scale and offset.
pub(super) struct Stretch<'a> {
    /// Their codes: as stored, those of four bits with the sign extended, those of E2M1 as 0..=15.
    pub(super) codes: &'a [u8],
    /// Column of the first.
    pub(super) column: u64,
    pub(super) scale: f64,
    /// What is subtracted from a code.
    pub(super) offset: f32,
}

impl Linear {
    pub(super) fn n_cols(&self) -> u64 {
        self.shape.n_cols()
    }

    pub(super) fn n_rows(&self) -> u64 {
        self.shape.n_rows()
    }

    /// How the weight is stored, under its label of the description.
    pub(super) fn stored(&self, source: &dyn WeightSource, label: &str) -> dequant::Encoding {
        let grids = [Some(&self.scale), self.second.as_ref(), self.offset.as_ref()];
        let own: Vec<usize> =
            [self.codes].into_iter().chain(grids.into_iter().flatten().map(|grid| grid.weight)).collect();
        let finest = [Some(&self.scale), self.second.as_ref()].into_iter().flatten();
        let groups = finest.map(|grid| grid.groups).max().unwrap_or(1).max(1);
        let scales = along_rows(self.n_cols().div_ceil(groups), self.n_cols());
        let offsets = if self.offset.is_some() { ", asymmetric" } else { "" };
        dequant::Encoding {
            method: "msModelSlim",
            form: format!("{label}, {scales}{offsets}"),
            n_bytes: n_bytes(source, &own),
        }
    }

    /// Whether every grid changes only between groups of `n` columns.
    pub(super) fn has_groups_of(&self, n: u64) -> bool {
        let grids = [Some(&self.scale), self.second.as_ref(), self.offset.as_ref()];
        grids.into_iter().flatten().all(|grid| (self.n_cols() / grid.groups).is_multiple_of(n))
    }

    /// Visits columns `first .. first + n` of a row in stretches that share scale and offset.
    ///
    /// # Errors
    /// The source failed; a code that four bits do not hold.
    pub(super) fn stretches(
        &self,
        source: &dyn WeightSource,
        row: u64,
        first: u64,
        n: usize,
        visit: impl FnMut(Stretch<'_>),
    ) -> Result<(), MsModelSlimError> {
        let mut scratch = SCRATCH.take();
        let read = self.read_codes(source, row, first, n, &mut scratch.codes);
        let result = read.and_then(|()| self.visit(source, row, first, n, &mut scratch, visit));
        SCRATCH.set(scratch);
        result
    }

    /// Visits the stretches of a row without reading its codes.
    ///
    /// # Errors
    /// The source failed.
    pub(super) fn scales(
        &self,
        source: &dyn WeightSource,
        row: u64,
        mut visit: impl FnMut(f64, f32),
    ) -> Result<(), MsModelSlimError> {
        let mut scratch = SCRATCH.take();
        scratch.codes.clear();
        let n = self.n_cols() as usize;
        let each = |stretch: Stretch<'_>| visit(stretch.scale, stretch.offset);
        let result = self.visit(source, row, 0, n, &mut scratch, each);
        SCRATCH.set(scratch);
        result
    }

    fn visit(
        &self,
        source: &dyn WeightSource,
        row: u64,
        first: u64,
        n: usize,
        scratch: &mut Scratch,
        mut visit: impl FnMut(Stretch<'_>),
    ) -> Result<(), MsModelSlimError> {
        self.read_grids(source, row, first, n, scratch)?;
        let part = Part { first, end: first + n as u64, n_cols: self.n_cols() };
        let at = |grid: &Grid, values: &[f64], column| values[part.index(grid, column)];
        let mut column = first;
        while column < part.end {
            let grids = [Some(&self.scale), self.second.as_ref(), self.offset.as_ref()];
            let ends = grids.into_iter().flatten().map(|grid| part.end_of(grid, column));
            let end = ends.min().unwrap_or(part.end);
            let second = self.second.as_ref().map_or(1.0, |grid| at(grid, &scratch.second, column));
            let offset = self.offset.as_ref().map_or(0.0, |grid| at(grid, &scratch.offset, column) as f32);
            visit(Stretch {
                codes: scratch
                    .codes
                    .get((column - first) as usize..(end - first) as usize)
                    .unwrap_or_default(),
                column,
                scale: at(&self.scale, &scratch.scale, column) * second,
                offset: if self.adds_offset { -offset } else { offset },
            });
            column = end;
        }
        Ok(())
    }

    fn read_grids(
        &self,
        source: &dyn WeightSource,
        row: u64,
        first: u64,
        n: usize,
        scratch: &mut Scratch,
    ) -> Result<(), MsModelSlimError> {
        let part = Part { first, end: first + n as u64, n_cols: self.n_cols() };
        let read = |grid: &Grid, out: &mut Vec<f64>| {
            let (begin, end) = part.groups(grid);
            grid.read(source, row * grid.groups + begin, (end - begin) as usize, out)
        };
        read(&self.scale, &mut scratch.scale)?;
        if let Some(grid) = &self.second {
            read(grid, &mut scratch.second)?;
        }
        if let Some(grid) = &self.offset {
            read(grid, &mut scratch.offset)?;
        }
        Ok(())
    }

    /// Reads the codes of a part of a row, as [`Stretch::codes`] has them.
    ///
    /// # Errors
    /// As [`Linear::stretches`].
    pub(super) fn read_codes(
        &self,
        source: &dyn WeightSource,
        row: u64,
        first: u64,
        n: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MsModelSlimError> {
        out.clear();
        let n_cols = self.n_cols();
        match self.encoding {
            Encoding::Int8 | Encoding::E4m3 | Encoding::Int4 => {
                with_bytes(source, self.codes, row * n_cols + first, n, |bytes, _| {
                    out.extend_from_slice(bytes);
                })?;
            }
            Encoding::Int4Rows => {
                with_bytes(source, self.codes, row / 2 * n_cols + first, n, |bytes, _| {
                    let shift = if row.is_multiple_of(2) { 4 } else { 0 };
                    out.extend(bytes.iter().map(|&byte| sign_extended(byte << shift)));
                })?;
            }
            Encoding::Int4Columns | Encoding::E2m1 => {
                let (begin, end) = (first / 2, (first + n as u64).div_ceil(2));
                let start = row * (n_cols / 2) + begin;
                let is_signed = self.encoding == Encoding::Int4Columns;
                with_bytes(source, self.codes, start, (end - begin) as usize, |bytes, _| {
                    let pair = |&byte: &u8| {
                        if is_signed {
                            [sign_extended(byte << 4), sign_extended(byte)]
                        } else {
                            [byte & 15, byte >> 4]
                        }
                    };
                    out.extend(bytes.iter().flat_map(pair).skip((first % 2) as usize).take(n));
                })?;
            }
        }
        if self.encoding == Encoding::Int4
            && let Some(at) = out.iter().position(|&code| !(-8..=7).contains(&code.cast_signed()))
        {
            let (index, value) = (row * n_cols + first + at as u64, out[at].cast_signed());
            return Err(MsModelSlimError::Code { tensor: self.name.clone(), index, value });
        }
        Ok(())
    }

    /// Computes columns `first ..` of a row.
    ///
    /// # Errors
    /// As [`Linear::stretches`].
    pub(super) fn read_values(
        &self,
        source: &dyn WeightSource,
        row: u64,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), MsModelSlimError> {
        let table = self.encoding.table();
        let factors = self.columns.as_deref();
        let n = out.len();
        self.stretches(source, row, first, n, |stretch| {
            let start = (stretch.column - first) as usize;
            let out = &mut out[start..start + stretch.codes.len()];
            let (scale, offset) = (stretch.scale, stretch.offset);
            for (value, &code) in out.iter_mut().zip(stretch.codes) {
                *value = (f64::from(table[usize::from(code)] - offset) * scale) as f32;
            }
            if let Some(factors) = factors {
                let factors = &factors[stretch.column as usize..];
                for ((value, &code), &factor) in out.iter_mut().zip(stretch.codes).zip(factors) {
                    let exact = f64::from(table[usize::from(code)] - offset) * scale;
                    *value = (exact * f64::from(factor)) as f32;
                }
            }
        })
    }

    /// Lets go of the pages of rows that were read.
    pub(super) fn release(&self, source: &dyn WeightSource, first_row: u64, n_rows: u64) {
        let stored_cols = match self.encoding {
            Encoding::Int4Columns | Encoding::E2m1 => self.n_cols() / 2,
            _ => self.n_cols(),
        };
        let end_row = first_row + n_rows;
        let (begin, end) = match self.encoding {
            // Rows that are half read are kept for whoever reads the other half.
            Encoding::Int4Rows => (first_row.div_ceil(2), end_row / 2),
            _ => (first_row, end_row),
        };
        if begin < end {
            source.release_elems(self.codes, begin * stored_cols, (end - begin) * stored_cols);
        }
    }
}

/// The high four bits as a signed number.
fn sign_extended(byte: u8) -> u8 {
    (byte.cast_signed() >> 4).cast_unsigned()
}

/// A range of columns.
#[derive(Clone, Copy)]
struct Part {
    first: u64,
    end: u64,
    n_cols: u64,
}

impl Part {
    /// The groups of a grid that the range touches.
    fn groups(&self, grid: &Grid) -> (u64, u64) {
        let cols = self.n_cols / grid.groups;
        (self.first / cols, self.end.div_ceil(cols))
    }

    /// Position of a column's number among those that were read.
    fn index(&self, grid: &Grid, column: u64) -> usize {
        let cols = self.n_cols / grid.groups;
        (column / cols - self.first / cols) as usize
    }

    /// Where the group of a column ends, within the range.
    fn end_of(&self, grid: &Grid, column: u64) -> u64 {
        let cols = self.n_cols / grid.groups;
        ((column / cols + 1) * cols).min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats() {
        assert_eq!(e4m3(0x7e), 448.0);
        assert_eq!(e4m3(0x01), 2f32.powi(-9));
        assert_eq!(e4m3(0x38), 1.0);
        assert_eq!(e4m3(0xb9), -1.125);
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!(e2m1(0x8).to_bits(), (-0.0f32).to_bits());
        assert_eq!(e2m1(0xf), -6.0);
    }

    #[test]
    fn half_bytes_have_signs() {
        let values: Vec<i8> = (0..16u8).map(|code| sign_extended(code << 4).cast_signed()).collect();
        assert_eq!(values, [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]);
    }
}
