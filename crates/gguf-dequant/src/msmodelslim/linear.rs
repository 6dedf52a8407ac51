//! A quantized weight: the location of its codes, scales and offsets, and their values.
//!
//! An element is `(code - offset) * scale`, where the scale is one number or the product of two. Integer codes and
//! offsets are subtracted exactly. The product is computed in F64 and rounded once to F32; with one F32 scale this
//! equals the F32 product.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::error::MsModelSlimError;
use super::facts::ScaleFacts;
use super::format::CodeFormat;
use super::grid::ScaleGrid;
use crate::InnerSource;
use gguf_core::Shape;

/// Sign convention of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// The offset is subtracted from the codes.
    Subtracted,
    /// The offset is added to the codes.
    Added,
}

/// A quantized weight.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    /// Name of the weight in a float checkpoint.
    pub(super) name: String,
    /// Label in the description.
    pub(super) label: String,
    /// Shape in a float checkpoint.
    pub(super) shape: Shape,
    pub(super) codes: usize,
    pub(super) format: CodeFormat,
    pub(super) scale: ScaleGrid,
    pub(super) second: Option<ScaleGrid>,
    /// Offsets; `None` if all are zero.
    pub(super) offset: Option<ScaleGrid>,
    pub(super) sign: Sign,
    /// Factor for each column.
    pub(super) columns: Option<Arc<[f32]>>,
    /// Properties of scales and offsets.
    pub(super) facts: ScaleFacts,
    /// Indices of the tensors of codes, scales and offsets.
    pub(super) members: Vec<usize>,
}

/// Numbers of one row, reused from row to row.
#[derive(Default)]
struct RowScratch {
    codes: Vec<u8>,
    scale: Vec<f64>,
    second: Vec<f64>,
    offset: Vec<f64>,
}

thread_local! {
    static SCRATCH: RefCell<RowScratch> = RefCell::new(RowScratch::default());
}

/// Consecutive elements of a row that share scale and offset.
pub(super) struct ScaledRun<'a> {
    /// Codes: as stored, except that four-bit codes are sign-extended, and E2M1 codes are 0..=15.
    pub(super) codes: &'a [u8],
    /// Column of the first element.
    pub(super) column: u64,
    pub(super) scale: f64,
    /// Offset subtracted from a code.
    pub(super) offset: f32,
}

impl Linear {
    pub(super) fn n_cols(&self) -> u64 {
        self.shape.n_cols()
    }

    pub(super) fn n_rows(&self) -> u64 {
        self.shape.n_rows()
    }

    /// Grids of scales and offsets.
    pub(super) fn grids(&self) -> impl Iterator<Item = &ScaleGrid> {
        [Some(&self.scale), self.second.as_ref(), self.offset.as_ref()].into_iter().flatten()
    }

    /// Returns true if every grid changes only between groups of `n` columns.
    pub(super) fn has_groups_of(&self, n: u64) -> bool {
        self.grids().all(|grid| (self.n_cols() / grid.groups).is_multiple_of(n))
    }

    /// Visits columns `first .. first + n` of a row in stretches that share scale and offset.
    pub(super) fn stretches(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        first: u64,
        n: usize,
        visit: impl FnMut(ScaledRun<'_>),
    ) -> Result<(), MsModelSlimError> {
        let mut scratch = SCRATCH.take();
        let read = self.read_codes(inner, row, first, n, &mut scratch.codes);
        let result = read.and_then(|()| self.visit(inner, row, first, n, &mut scratch, visit));
        SCRATCH.set(scratch);
        result
    }

    /// Visits the stretches of a row without reading its codes.
    pub(super) fn scales(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        mut visit: impl FnMut(f64, f32),
    ) -> Result<(), MsModelSlimError> {
        let mut scratch = SCRATCH.take();
        scratch.codes.clear();
        let n = self.n_cols() as usize;
        let each = |stretch: ScaledRun<'_>| visit(stretch.scale, stretch.offset);
        let result = self.visit(inner, row, 0, n, &mut scratch, each);
        SCRATCH.set(scratch);
        result
    }

    fn visit(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        first: u64,
        n: usize,
        scratch: &mut RowScratch,
        mut visit: impl FnMut(ScaledRun<'_>),
    ) -> Result<(), MsModelSlimError> {
        self.read_grids(inner, row, first, n, scratch)?;
        let part = ColumnRange { first, end: first + n as u64, n_cols: self.n_cols() };
        let at = |grid: &ScaleGrid, values: &[f64], column| values[part.index(grid, column)];
        let mut column = first;
        while column < part.end {
            let end = self.grids().map(|grid| part.end_of(grid, column)).min().unwrap_or(part.end);
            let second = self.second.as_ref().map_or(1.0, |grid| at(grid, &scratch.second, column));
            let offset = self.offset.as_ref().map_or(0.0, |grid| at(grid, &scratch.offset, column) as f32);
            visit(ScaledRun {
                codes: scratch
                    .codes
                    .get((column - first) as usize..(end - first) as usize)
                    .unwrap_or_default(),
                column,
                scale: at(&self.scale, &scratch.scale, column) * second,
                offset: match self.sign {
                    Sign::Subtracted => offset,
                    Sign::Added => -offset,
                },
            });
            column = end;
        }
        Ok(())
    }

    fn read_grids(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        first: u64,
        n: usize,
        scratch: &mut RowScratch,
    ) -> Result<(), MsModelSlimError> {
        let part = ColumnRange { first, end: first + n as u64, n_cols: self.n_cols() };
        let read = |grid: &ScaleGrid, out: &mut Vec<f64>| {
            let (begin, end) = part.groups(grid);
            grid.read(inner, row * grid.groups + begin..row * grid.groups + end, out)
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

    /// Reads the codes of a part of a row, in the form of [`ScaledRun::codes`].
    pub(super) fn read_codes(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        first: u64,
        n: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), MsModelSlimError> {
        out.clear();
        let n_cols = self.n_cols();
        match self.format {
            CodeFormat::Int8 | CodeFormat::E4m3 | CodeFormat::Int4 => {
                let start = row * n_cols + first;
                inner.with_elems(self.codes, start..start + n as u64, |bytes| {
                    out.extend_from_slice(bytes);
                })?;
            }
            CodeFormat::Int4Rows => {
                let start = row / 2 * n_cols + first;
                inner.with_elems(self.codes, start..start + n as u64, |bytes| {
                    let shift = if row.is_multiple_of(2) { 4 } else { 0 };
                    out.extend(bytes.iter().map(|&byte| sign_extended(byte << shift)));
                })?;
            }
            CodeFormat::Int4Columns | CodeFormat::E2m1 => {
                let (begin, end) = (first / 2, (first + n as u64).div_ceil(2));
                let start = row * (n_cols / 2) + begin;
                let is_signed = self.format == CodeFormat::Int4Columns;
                inner.with_elems(self.codes, start..start + (end - begin), |bytes| {
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
        if self.format == CodeFormat::Int4
            && let Some(at) = out.iter().position(|&code| !(-8..=7).contains(&code.cast_signed()))
        {
            let (index, value) = (row * n_cols + first + at as u64, out[at].cast_signed());
            return Err(MsModelSlimError::Code { tensor: self.name.clone(), index, value });
        }
        Ok(())
    }

    /// Computes columns `first ..` of a row.
    pub(super) fn read_values(
        &self,
        inner: InnerSource<'_>,
        row: u64,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), MsModelSlimError> {
        let table = self.format.table();
        let factors = self.columns.as_deref();
        let n = out.len();
        self.stretches(inner, row, first, n, |stretch| {
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

    /// Releases the pages of rows that were read.
    pub(super) fn release_rows(&self, inner: InnerSource<'_>, rows: Range<u64>) {
        let stored_cols = match self.format {
            CodeFormat::Int4Columns | CodeFormat::E2m1 => self.n_cols() / 2,
            _ => self.n_cols(),
        };
        let (begin, end) = match self.format {
            // A byte row of which only one weight row was read is kept for the reader of the other.
            CodeFormat::Int4Rows => (rows.start.div_ceil(2), rows.end / 2),
            _ => (rows.start, rows.end),
        };
        if begin < end {
            inner.source.release_elems(self.codes, begin * stored_cols, (end - begin) * stored_cols);
        }
    }
}

/// Returns the high four bits as a sign-extended byte.
fn sign_extended(byte: u8) -> u8 {
    (byte.cast_signed() >> 4).cast_unsigned()
}

#[derive(Clone, Copy)]
struct ColumnRange {
    first: u64,
    end: u64,
    n_cols: u64,
}

impl ColumnRange {
    /// Returns the groups of a grid that overlap the range.
    fn groups(&self, grid: &ScaleGrid) -> (u64, u64) {
        let cols = self.n_cols / grid.groups;
        (self.first / cols, self.end.div_ceil(cols))
    }

    /// Returns the index of a column's number among those that were read.
    fn index(&self, grid: &ScaleGrid, column: u64) -> usize {
        let cols = self.n_cols / grid.groups;
        (column / cols - self.first / cols) as usize
    }

    /// Returns the end of a column's group, within the range.
    fn end_of(&self, grid: &ScaleGrid, column: u64) -> u64 {
        let cols = self.n_cols / grid.groups;
        ((column / cols + 1) * cols).min(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_bytes_have_signs() {
        let values: Vec<i8> = (0..16u8).map(|code| sign_extended(code << 4).cast_signed()).collect();
        assert_eq!(values, [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1]);
    }
}
