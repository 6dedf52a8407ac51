//! A quantized tensor with value ranges.

use std::ops::Range;

use crate::encoding::along_rows;
use crate::flm::RangeError;
use crate::flm::affine::{Affine, AffineForm, Reading};
use crate::nibbles::look_up;
use crate::rectangle::Rectangle;
use crate::values::{ScaleLines, each_stretch};
use crate::{CodedWeight, InnerSource, Result};
use gguf_blocks::pack::{BLOCK_ELEMS, f16_error, pack_q4_0, pack_q4_1, pack_q8_0};
use gguf_checkpoint::fastllm::{Coding, Ranges};
use gguf_core::little_endian::f32s;
use gguf_core::{GgmlType, Packing, Shape};

/// Number of ranges that are read at a time.
const RANGES_PER_STEP: u64 = 1 << 12;
/// Number of codes that are read at a time.
const CODES_PER_STEP: u64 = 1 << 16;

/// A quantized tensor, stored as two weights of a file.
pub(super) struct Ranged {
    /// Mapping from codes to values.
    pub(super) coding: Coding,
    /// Interpretation of the ranges.
    pub(super) reading: Reading,
    /// Index of the weight with the codes as bytes (of two 4-bit codes, the first is in the upper half), and of the
    /// weight with minima and maxima, as F32 `[n, 2]`.
    members: [usize; 2],
    ranges: Ranges,
    n_elems: u64,
    n_cols: u64,
}

struct CodeRun<'a> {
    bytes: &'a [u8],
    coding: Coding,
    /// Number of codes before the first one in its byte.
    skip: usize,
    n: usize,
}

impl CodeRun<'_> {
    fn get(&self, at: usize) -> u8 {
        match self.coding {
            Coding::Int8 => self.bytes[at],
            Coding::Int4 | Coding::Int4NoZero | Coding::Int4Group => {
                let at = at + self.skip;
                let pair = self.bytes[at / 2];
                if at.is_multiple_of(2) { pair >> 4 } else { pair & 15 }
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = u8> {
        (0..self.n).map(|at| self.get(at))
    }
}

impl Ranged {
    /// Creates a tensor of this shape; `members` are the weights of codes and ranges.
    pub(super) fn new(coding: Coding, shape: &Shape, ranges: Ranges, members: [usize; 2]) -> Self {
        let (n_elems, n_cols) = (shape.n_elems(), shape.n_cols());
        Self { coding, reading: Reading::Loader, members, ranges, n_elems, n_cols }
    }

    /// Calls `visit` with the index, minimum and maximum of every range.
    pub(super) fn each_range(
        &self,
        inner: InnerSource<'_>,
        mut visit: impl FnMut(u64, f32, f32) -> Result<()>,
    ) -> Result<()> {
        let [_, ranges] = self.members;
        let mut first = 0;
        while first < self.ranges.n {
            let count = (self.ranges.n - first).min(RANGES_PER_STEP);
            inner.try_with_elems(ranges, first * 2..(first + count) * 2, |bytes| {
                (first..).zip(bytes.chunks_exact(8)).try_for_each(|(index, pair)| {
                    let (min, max) = split(pair);
                    visit(index, min, max)
                })
            })?;
            inner.source.release_elems(ranges, first * 2, count * 2);
            first += count;
        }
        Ok(())
    }

    /// Reads a range and computes its parameters.
    fn affine(&self, inner: InnerSource<'_>, index: u64) -> Result<Affine> {
        let (min, max) = inner.with_elems(self.members[1], index * 2..index * 2 + 2, split)?;
        self.affine_of(inner, index, min, max)
    }

    /// Computes the parameters of a range that was read already.
    pub(super) fn affine_of(&self, inner: InnerSource<'_>, index: u64, min: f32, max: f32) -> Result<Affine> {
        let broken = || RangeError { index, min, max }.into();
        if min.is_nan() {
            // The Python exporter divides by zero where all values are zero; it then also stores zeros as codes.
            let is_nothing = max == 0.0 && self.coding != Coding::Int8 && self.is_zero(inner, index)?;
            return if is_nothing { Ok(Affine::NOTHING) } else { Err(broken()) };
        }
        let affine = self.reading.affine(min, max, self.coding);
        if min.is_finite() && max.is_finite() && affine.is_finite() { Ok(affine) } else { Err(broken()) }
    }

    /// Returns true if all codes of a range are zero.
    fn is_zero(&self, inner: InnerSource<'_>, index: u64) -> Result<bool> {
        self.with_codes(inner, self.elems_of(index), |codes| codes.iter().all(|code| code == 0))
    }

    /// Passes the codes of some elements to `use_them`.
    fn with_codes<T>(
        &self,
        inner: InnerSource<'_>,
        elems: Range<u64>,
        use_them: impl FnOnce(CodeRun<'_>) -> T,
    ) -> Result<T> {
        let (coding, bits) = (self.coding, u64::from(self.coding.bits()));
        let bytes = elems.start * bits / 8..(elems.end * bits).div_ceil(8);
        let (skip, n) = ((elems.start * bits / 4 % 2) as usize, (elems.end - elems.start) as usize);
        Ok(inner.with_elems(self.members[0], bytes, |bytes| use_them(CodeRun { bytes, coding, skip, n }))?)
    }

    /// Visits some elements, one range at a time: `visit` gets the position of the first, the parameters, and the
    /// codes.
    fn each_span(
        &self,
        inner: InnerSource<'_>,
        elems: Range<u64>,
        mut visit: impl FnMut(usize, Affine, CodeRun<'_>),
    ) -> Result<()> {
        let mut at = elems.start;
        while at < elems.end {
            let index = self.range_of(at);
            let end = self.elems_of(index).end.min(elems.end);
            let affine = self.affine(inner, index)?;
            self.with_codes(inner, at..end, |codes| visit((at - elems.start) as usize, affine, codes))?;
            at = end;
        }
        Ok(())
    }

    /// Returns true if all codes of a range, minus its zero point, fit a signed byte.
    fn fits_i8(&self, inner: InnerSource<'_>, index: u64, affine: Affine) -> Result<bool> {
        // 0 - 128 and 255 - 128 fit, so the codes need not be read.
        if affine.zero == 128.0 || affine.scale == 0.0 {
            return Ok(true);
        }
        let elems = self.elems_of(index);
        let mut at = elems.start;
        while at < elems.end {
            let end = elems.end.min(at + CODES_PER_STEP);
            let fits = self.with_codes(inner, at..end, |codes| {
                codes.iter().all(|code| (-128.0..=127.0).contains(&(f32::from(code) - affine.zero)))
            })?;
            inner.source.release_elems(self.members[0], at, end - at);
            if !fits {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    fn range_of(&self, elem: u64) -> u64 {
        let Ranges { cols, n_groups, group_cols, .. } = self.ranges;
        elem / cols * n_groups + elem % cols / group_cols
    }

    fn elems_of(&self, index: u64) -> Range<u64> {
        let Ranges { cols, n_groups, group_cols, .. } = self.ranges;
        let (row, group) = (index / n_groups, index % n_groups);
        let first = row * cols + group * group_cols;
        first..first + group_cols.min(cols - group * group_cols)
    }

    /// Returns true if every range covers whole blocks of a row.
    fn has_whole_blocks(&self) -> bool {
        let blocks = BLOCK_ELEMS as u64;
        self.n_elems > 0
            && self.n_cols.is_multiple_of(blocks)
            && self.ranges.cols.is_multiple_of(blocks)
            && (self.ranges.n_groups == 1 || self.ranges.group_cols.is_multiple_of(blocks))
    }
}

/// Splits a stored pair into minimum and maximum.
fn split(pair: &[u8]) -> (f32, f32) {
    let mut values = f32s(pair);
    (values.next().unwrap_or(0.0), values.next().unwrap_or(0.0))
}

impl CodedWeight for Ranged {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let form = AffineForm::of(self.coding);
        // Rows of ranges differ from rows of the weight: a range may cover a whole tensor.
        let lines = ScaleLines { n_cols: self.n_cols, width: self.ranges.cols };
        each_stretch(lines, part, out, |line, cols, out| {
            let first = line * self.ranges.cols;
            self.each_span(inner, first + cols.start..first + cols.end, |at, affine, codes| {
                let out = &mut out[at..at + codes.n];
                match self.coding {
                    Coding::Int8 => {
                        for (value, &code) in out.iter_mut().zip(codes.bytes) {
                            *value = affine.value(code, form);
                        }
                    }
                    Coding::Int4 | Coding::Int4NoZero | Coding::Int4Group => {
                        let values = std::array::from_fn(|code| affine.value(code as u8, form));
                        look_up::<true>(&values, codes.bytes, codes.skip as u64, out);
                    }
                }
            })
        })
    }

    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        if !self.has_whole_blocks() {
            return Ok(Vec::new());
        }
        let is_int8 = self.coding == Coding::Int8;
        let (mut scale_error, mut min_error) = (0.0f32, 0.0f32);
        let (mut is_q8_0, mut is_q4_0) = (true, true);
        self.each_range(inner, |index, min, max| {
            let affine = self.affine_of(inner, index, min, max)?;
            scale_error = scale_error.max(f16_error(affine.scale));
            min_error = min_error.max(f16_error(affine.min));
            // The minimum is exactly -8 · scale (also if the whole range is zero).
            is_q4_0 &= affine.min == -8.0 * affine.scale;
            if is_int8 && is_q8_0 {
                is_q8_0 = self.fits_i8(inner, index, affine)?;
            }
            Ok(())
        })?;
        let offers = [
            (GgmlType::Q8_0, is_int8 && is_q8_0, scale_error),
            (GgmlType::Q4_0, !is_int8 && is_q4_0, scale_error),
            (GgmlType::Q4_1, !is_int8, scale_error.max(min_error)),
        ];
        let holds = offers.into_iter().filter(|(_, holds, error)| *holds && error.is_finite());
        Ok(holds.map(|(ty, _, error)| Packing::rounded(ty, error)).collect())
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let block_bytes = ty.block_bytes();
        for (row, out) in part.split_rows(out, part.width() / BLOCK_ELEMS * block_bytes) {
            self.each_span(inner, part.elems(row, self.n_cols), |at, affine, codes| {
                let blocks = out[at / BLOCK_ELEMS * block_bytes..].chunks_exact_mut(block_bytes);
                for (begin, block) in (0..codes.n).step_by(BLOCK_ELEMS).zip(blocks) {
                    pack_block(ty, affine, std::array::from_fn(|i| codes.get(begin + i)), block);
                }
            })?;
        }
        Ok(())
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        format!("{}, {}", self.coding.name(), along_rows(self.ranges.group_cols, self.ranges.cols))
    }

    /// Releases codes with their elements, and a range once the element after its last one was read.
    fn release(&self, inner: InnerSource<'_>, _: &Shape, elems: Range<u64>) {
        if elems.is_empty() {
            return;
        }
        let ([codes, ranges], bits) = (self.members, u64::from(self.coding.bits()));
        let (begin, end) = (elems.start * bits / 8, elems.end * bits / 8);
        inner.source.release_elems(codes, begin, end - begin);
        let (begin, end) = (self.range_of(elems.start), self.range_of(elems.end - 1));
        inner.source.release_elems(ranges, begin * 2, (end - begin) * 2);
    }
}

fn pack_block(ty: GgmlType, affine: Affine, codes: [u8; BLOCK_ELEMS], block: &mut [u8]) {
    match ty {
        GgmlType::Q8_0 if affine.scale == 0.0 => block.fill(0),
        GgmlType::Q8_0 => {
            pack_q8_0(&codes.map(|code| (f32::from(code) - affine.zero) as i8), affine.scale, block);
        }
        GgmlType::Q4_0 => pack_q4_0(&codes, affine.scale, block),
        GgmlType::Q4_1 => pack_q4_1(&codes, affine.scale, affine.min, block),
        _ => panic!("no packing as {ty}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_four_bits_start_anywhere() {
        let codes = CodeRun { bytes: &[0x12, 0x34], coding: Coding::Int4, skip: 1, n: 3 };
        assert_eq!(codes.iter().collect::<Vec<_>>(), [2, 3, 4]);
    }
}
