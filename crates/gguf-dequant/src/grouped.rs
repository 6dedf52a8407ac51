//! Integer matrices with a scale and a zero point for each group of columns: `scale · (code - zero)`.
//!
//! GPTQ, AWQ and compressed-tensors differ in the positions of the bits and in their configuration keys; once
//! described, the matrices are the same. The difference of integers is exact; the product is rounded once, to F32.

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use std::ops::Range;

use crate::bits::CodeStream;
use crate::encoding::along_rows;
use crate::rectangle::Rectangle;
use crate::values::NumberTensor;
use crate::{CodedWeight, InnerSource, Result};
use gguf_blocks::pack::{BLOCK_ELEMS, f16_error, pack_q4_0, pack_q5_0, pack_q8_0};
use gguf_core::little_endian::u32s;
use gguf_core::simd::VectorLoop;
use gguf_core::{GgmlType, Packing};

/// Maximum bytes of codes, scales and zero points held at a time, if a row does not need more.
const TILE_BYTES: u64 = 128 << 10;
/// Maximum number of rows unpacked together: two cache lines of GPTQ words, four AWQ words.
const MAX_TILE_ROWS: u64 = 32;

#[derive(Clone, Copy, Debug)]
pub(super) enum CodeLayout {
    /// One stream of columns for each row.
    ByRow(CodeStream),
    /// One stream of rows for each column.
    ByColumn(CodeStream),
    /// One signed byte per code, row after row.
    Bytes(usize),
    /// A byte for two rows, the even one in the low nibble; two's complement, shifted up by 8 here.
    RowPairs(usize),
}

/// Layout of the zero points.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zeros {
    /// One constant for all groups.
    Const(i32),
    /// Codes: one stream of rows for each group.
    ByGroup(CodeStream, ZeroShift),
    /// Codes: one stream of groups for each row.
    ByRow(CodeStream),
    /// One signed byte per zero point, in the order of the scales; `middle` is added to it.
    Bytes {
        /// Index of the tensor.
        index: usize,
        /// What codes have in addition.
        middle: i32,
    },
}

/// Addition to a stored zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroShift {
    /// No addition.
    None,
    /// Adds one to every field of a word at once: a field that is all ones carries into its neighbour, as the writer
    /// borrowed from it.
    Word,
    /// Adds one to each field separately, modulo its size.
    Field,
}

/// Assignment of columns to groups.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnGroups {
    /// Runs of this many consecutive columns.
    Runs(u64),
    /// Index of an I32 tensor with the group of each column.
    Index(usize),
}

/// Order of scales (and of zero points in bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleOrder {
    /// Scales of a group are consecutive: `[n_groups, n_rows]`.
    GroupMajor,
    /// Scales of a row are consecutive: `[n_rows, stride]`, of which the first `n_groups` columns are used.
    RowMajor {
        /// Elements per row.
        stride: u64,
    },
    /// Scales of `rows` rows are consecutive: `[⌈n_rows/rows⌉, stride]`.
    Blocks {
        /// Rows per block.
        rows: u64,
        /// Scales of a row of blocks.
        stride: u64,
    },
}

impl ScaleOrder {
    /// Returns the index of the first scale of a row whose scales are consecutive.
    fn first_of(self, row: u64) -> Option<u64> {
        match self {
            Self::GroupMajor => None,
            Self::RowMajor { stride } => Some(row * stride),
            Self::Blocks { rows, stride } => Some(row / rows * stride),
        }
    }
}

/// Properties of a matrix for its description.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLayout {
    /// Columns per scale, in quantization order.
    pub(super) group_size: u64,
    /// True if all zero points are in the middle of the code range.
    pub(super) is_symmetric: bool,
}

/// An integer matrix.
pub(super) struct Grouped {
    pub(super) codes: CodeLayout,
    /// Smallest and greatest code.
    pub(super) code_range: (i32, i32),
    pub(super) zeros: Zeros,
    pub(super) scales: NumberTensor,
    pub(super) order: ScaleOrder,
    pub(super) groups: ColumnGroups,
    pub(super) n_groups: u64,
    pub(super) n_rows: u64,
    pub(super) n_cols: u64,
    pub(super) members: Vec<usize>,
    pub(super) layout: GroupLayout,
}

/// Rows that are decoded together, with their scales and zero points.
#[derive(Default)]
struct DecodeTile {
    /// Codes `[rows, width]`; signed bytes, and their zero points, are shifted up by 128.
    codes: Vec<u8>,
    /// Scales, `[rows, n_groups]`.
    scales: Vec<f32>,
    /// Zero points, `[rows, n_groups]`.
    zeros: Vec<i32>,
}

struct TileRow<'a> {
    codes: &'a [u8],
    scales: &'a [f32],
    zeros: &'a [i32],
}

impl Grouped {
    /// Returns the shift that makes codes unsigned.
    fn code_shift(&self) -> i32 {
        if matches!(self.codes, CodeLayout::Bytes(_)) { 128 } else { 0 }
    }

    /// Returns the number of rows of a tile of `width` columns: a power of two up to [`MAX_TILE_ROWS`] that fits
    /// [`TILE_BYTES`].
    fn tile_rows(&self, width: u64) -> u64 {
        let row_bytes = width.saturating_add(self.n_groups.saturating_mul(8)).max(1);
        let fit = (TILE_BYTES / row_bytes).clamp(1, MAX_TILE_ROWS);
        1 << fit.ilog2()
    }

    fn read_codes(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut Vec<u8>) -> Result<()> {
        out.resize(part.n_elems() as usize, 0);
        match self.codes {
            CodeLayout::ByRow(stream) => stream.read_along(inner, part, out),
            CodeLayout::ByColumn(stream) => stream.read_across(inner, part, 0, out),
            CodeLayout::RowPairs(index) => {
                for (row, out) in part.split_rows(out, part.width()) {
                    inner.with_elems(index, part.elems(row / 2, self.n_cols), |bytes| {
                        for (out, byte) in out.iter_mut().zip(bytes) {
                            *out = (byte >> (4 * (row % 2)) & 15) ^ 8;
                        }
                    })?;
                }
                Ok(())
            }
            CodeLayout::Bytes(index) => {
                for (row, out) in part.split_rows(out, part.width()) {
                    inner.with_elems(index, part.elems(row, self.n_cols), |bytes| {
                        for (out, byte) in out.iter_mut().zip(bytes) {
                            *out = byte ^ 0x80;
                        }
                    })?;
                }
                Ok(())
            }
        }
    }

    fn read_scales(&self, inner: InnerSource<'_>, rows: Range<u64>, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        match self.order {
            ScaleOrder::RowMajor { .. } | ScaleOrder::Blocks { .. } => {
                for first in rows.filter_map(|row| self.order.first_of(row)) {
                    self.scales.read(inner, first..first + self.n_groups, out)?;
                }
            }
            ScaleOrder::GroupMajor => {
                let n_groups = self.n_groups as usize;
                out.resize((rows.end - rows.start) as usize * n_groups, 0.0);
                let mut line = Vec::new();
                for group in 0..n_groups {
                    let first = group as u64 * self.n_rows;
                    line.clear();
                    self.scales.read(inner, first + rows.start..first + rows.end, &mut line)?;
                    spread(&line, n_groups, &mut out[group..]);
                }
            }
        }
        Ok(())
    }

    /// Reads zero points, shifted up like the codes.
    fn read_zeros(&self, inner: InnerSource<'_>, rows: Range<u64>, out: &mut Vec<i32>) -> Result<()> {
        let n_groups = self.n_groups as usize;
        let n = (rows.end - rows.start) as usize * n_groups;
        if let Zeros::Const(zero) = self.zeros {
            out.clear();
            out.resize(n, zero + self.code_shift());
            return Ok(());
        }
        let groups = Rectangle { rows: rows.clone(), cols: 0..self.n_groups };
        let mut bytes = vec![0; n];
        // Conversion of a byte to a zero point.
        let mut signed = None;
        let mut field = None;
        match self.zeros {
            Zeros::Const(_) => {}
            Zeros::ByRow(stream) => stream.read_along(inner, &groups, &mut bytes)?,
            Zeros::ByGroup(stream, shift) => {
                let add = if shift == ZeroShift::Word { u32::MAX / ((1 << stream.bits) - 1) } else { 0 };
                stream.read_across(inner, &groups, add, &mut bytes)?;
                field = (shift == ZeroShift::Field).then_some(u8::MAX >> (8 - stream.bits));
            }
            Zeros::Bytes { index, middle } => {
                signed = Some(middle);
                match self.order {
                    ScaleOrder::RowMajor { .. } | ScaleOrder::Blocks { .. } => {
                        for (row, out) in groups.split_rows(&mut bytes, n_groups) {
                            let first = self.order.first_of(row).unwrap_or_default();
                            inner.with_elems(index, first..first + self.n_groups, |bytes| {
                                out.copy_from_slice(bytes);
                            })?;
                        }
                    }
                    ScaleOrder::GroupMajor => {
                        for group in 0..n_groups {
                            let first = group as u64 * self.n_rows;
                            inner.with_elems(index, first + rows.start..first + rows.end, |line| {
                                spread(line, n_groups, &mut bytes[group..]);
                            })?;
                        }
                    }
                }
            }
        }
        out.clear();
        let shift = self.code_shift();
        out.extend(bytes.into_iter().map(|byte| match (signed, field) {
            (Some(middle), _) => i32::from(byte.cast_signed()) + middle + shift,
            (None, Some(mask)) => i32::from(byte.wrapping_add(1) & mask) + shift,
            (None, None) => i32::from(byte) + shift,
        }));
        Ok(())
    }

    /// Calls `visit` for every row of a rectangle, with the row's index relative to the first.
    fn each_row(
        &self,
        inner: InnerSource<'_>,
        part: &Rectangle,
        mut visit: impl FnMut(usize, TileRow<'_>),
    ) -> Result<()> {
        let Rectangle { rows, cols } = part;
        let (width, n_groups) = (part.width(), self.n_groups as usize);
        let tile_rows = self.tile_rows(width as u64);
        let mut tile = DecodeTile::default();
        let mut first = rows.start;
        while first < rows.end && width > 0 {
            let end = rows.end.min((first / tile_rows + 1) * tile_rows);
            let of_tile = Rectangle { rows: first..end, cols: cols.clone() };
            self.read_codes(inner, &of_tile, &mut tile.codes)?;
            self.read_scales(inner, first..end, &mut tile.scales)?;
            self.read_zeros(inner, first..end, &mut tile.zeros)?;
            let lines = tile.codes.chunks_exact(width);
            let groups = tile.scales.chunks_exact(n_groups).zip(tile.zeros.chunks_exact(n_groups));
            for ((row, codes), (scales, zeros)) in (first - rows.start..).zip(lines).zip(groups) {
                visit(row as usize, TileRow { codes, scales, zeros });
            }
            first = end;
        }
        Ok(())
    }

    /// Reads the group of every column from the index tensor; `None` if groups are runs of equal length.
    fn group_index(&self, inner: InnerSource<'_>, cols: Range<u64>) -> Result<Option<Vec<u32>>> {
        let ColumnGroups::Index(index) = self.groups else { return Ok(None) };
        inner.try_with_elems(index, cols.clone(), |bytes| {
            let groups: Vec<u32> = u32s(bytes).collect();
            let is_bad = |group: u32| u64::from(group) >= self.n_groups || group.cast_signed() < 0;
            if groups.iter().fold(false, |bad, &group| bad | is_bad(group))
                && let Some(at) = groups.iter().position(|&group| is_bad(group))
            {
                let expected = format!("0 to {}", self.n_groups.saturating_sub(1));
                let found = i64::from(groups[at].cast_signed());
                return Err(inner.out_of_range(index, cols.start + at as u64, found, expected));
            }
            Ok(Some(groups))
        })
    }

    /// Returns the smallest and greatest difference of code and zero point.
    fn value_range(&self, inner: InnerSource<'_>) -> Result<(i32, i32)> {
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        let mut see = |zeros: &[i32]| {
            low = zeros.iter().copied().fold(low, i32::min);
            high = zeros.iter().copied().fold(high, i32::max);
        };
        let shift = self.code_shift();
        match self.zeros {
            Zeros::Const(zero) => see(&[zero + shift]),
            _ => {
                let (step, mut zeros) = (self.tile_rows(0), Vec::new());
                let mut first = 0;
                while first < self.n_rows {
                    let end = self.n_rows.min(first + step);
                    self.read_zeros(inner, first..end, &mut zeros)?;
                    see(&zeros);
                    first = end;
                }
            }
        }
        Ok((
            (self.code_range.0 + shift).saturating_sub(high),
            (self.code_range.1 + shift).saturating_sub(low),
        ))
    }

    /// Returns true if every block of columns is in one group.
    fn has_whole_blocks(&self, inner: InnerSource<'_>) -> Result<bool> {
        let block = BLOCK_ELEMS as u64;
        if !self.n_cols.is_multiple_of(block) {
            return Ok(false);
        }
        Ok(match (self.groups, self.group_index(inner, 0..self.n_cols)?) {
            (ColumnGroups::Runs(run), _) => run % block == 0 || run >= self.n_cols,
            (ColumnGroups::Index(_), Some(groups)) => {
                groups.chunks(BLOCK_ELEMS).all(|block| block.iter().all(|group| *group == block[0]))
            }
            (ColumnGroups::Index(_), None) => false,
        })
    }
}

/// Writes a line into a matrix, one element every `pitch`.
fn spread<T: Copy>(line: &[T], pitch: usize, out: &mut [T]) {
    for (out, &value) in out.iter_mut().step_by(pitch).zip(line) {
        *out = value;
    }
}

/// A row whose groups are runs of equal length.
struct RowRuns<'a> {
    row: TileRow<'a>,
    cols: Range<u64>,
    run: u64,
    out: &'a mut [f32],
}

impl VectorLoop for RowRuns<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { row, cols, run, mut out } = self;
        let mut codes = row.codes;
        let mut at = cols.start;
        while at < cols.end {
            let group = at / run;
            let end = cols.end.min((group + 1).saturating_mul(run));
            let (scale, zero) = (row.scales[group as usize], row.zeros[group as usize]);
            let (head, rest) = out.split_at_mut((end - at) as usize);
            let (head_codes, rest_codes) = codes.split_at((end - at) as usize);
            for (out, &code) in head.iter_mut().zip(head_codes) {
                *out = scale * (i32::from(code) - zero) as f32;
            }
            (out, codes, at) = (rest, rest_codes, end);
        }
    }
}

/// Decodes a row whose columns have groups in any order.
///
/// The difference of small integers is exact in F32 too.
fn scattered(codes: &[u8], groups: &[u32], pairs: &[(f32, f32)], out: &mut [f32]) {
    for ((out, &code), &group) in out.iter_mut().zip(codes).zip(groups) {
        let (zero, scale) = pairs[group as usize];
        *out = scale * (f32::from(code) - zero);
    }
}

impl CodedWeight for Grouped {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let (width, cols) = (part.width(), &part.cols);
        let groups = self.group_index(inner, cols.clone())?;
        let mut pairs = Vec::new();
        self.each_row(inner, part, |at, row| {
            let out = &mut out[at * width..(at + 1) * width];
            match (&groups, self.groups) {
                (Some(groups), _) => {
                    pairs.clear();
                    pairs.extend(row.zeros.iter().map(|&zero| zero as f32).zip(row.scales.iter().copied()));
                    scattered(row.codes, groups, &pairs, out);
                }
                (None, ColumnGroups::Runs(run)) => {
                    inner.level.vectorize(RowRuns { row, cols: cols.clone(), run, out });
                }
                (None, ColumnGroups::Index(_)) => {}
            }
        })
    }

    /// Returns the block types that hold all differences of code and zero point, the narrowest first.
    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        if !self.has_whole_blocks(inner)? {
            return Ok(Vec::new());
        }
        let (low, high) = self.value_range(inner)?;
        let fits = |bits: u32| low >= -(1 << (bits - 1)) && high < 1 << (bits - 1);
        let types = [(4, GgmlType::Q4_0), (5, GgmlType::Q5_0), (8, GgmlType::Q8_0)];
        let types: Vec<GgmlType> = types.iter().filter(|row| fits(row.0)).map(|row| row.1).collect();
        if types.is_empty() {
            return Ok(Vec::new());
        }
        let error = std::cell::Cell::new(0.0f32);
        let is_finite = self.scales.all(inner, |scale| {
            error.set(error.get().max(f16_error(scale)));
            error.get().is_finite()
        })?;
        let packings = types.into_iter().map(|ty| Packing::rounded(ty, error.get()));
        Ok(if is_finite { packings.collect() } else { Vec::new() })
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let cols = &part.cols;
        let groups = self.group_index(inner, cols.clone())?;
        let row_bytes = part.width() / BLOCK_ELEMS * ty.block_bytes();
        self.each_row(inner, part, |at, row| {
            let out = &mut out[at * row_bytes..(at + 1) * row_bytes];
            let blocks = out.chunks_exact_mut(ty.block_bytes()).zip(row.codes.as_chunks::<BLOCK_ELEMS>().0);
            for (at, (out, codes)) in blocks.enumerate() {
                let col = cols.start + (at * BLOCK_ELEMS) as u64;
                let group = match (&groups, self.groups) {
                    (Some(groups), _) => groups[at * BLOCK_ELEMS] as usize,
                    (None, ColumnGroups::Runs(run)) => (col / run) as usize,
                    (None, ColumnGroups::Index(_)) => 0,
                };
                let (scale, zero) = (row.scales[group], row.zeros[group]);
                let shifted = |middle: i32| codes.map(|code| (i32::from(code) - zero + middle) as u8);
                match ty {
                    GgmlType::Q4_0 => pack_q4_0(&shifted(8), scale, out),
                    GgmlType::Q5_0 => pack_q5_0(&shifted(16), scale, out),
                    GgmlType::Q8_0 => pack_q8_0(&shifted(0).map(u8::cast_signed), scale, out),
                    _ => panic!("no packing as {ty}"),
                }
            }
        })
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        // The range has 2^bits codes and is never empty.
        let bits = (self.code_range.1 - self.code_range.0).ilog2() + 1;
        let size = self.layout.group_size;
        let scales = match self.order {
            ScaleOrder::RowMajor { stride: 0 } => "one scale".to_owned(),
            ScaleOrder::Blocks { rows, .. } => format!("blocks of {rows}x{size}"),
            ScaleOrder::RowMajor { .. } | ScaleOrder::GroupMajor => along_rows(size, self.n_cols),
        };
        let order = if matches!(self.groups, ColumnGroups::Index(_)) { ", activation order" } else { "" };
        let zeros = if self.layout.is_symmetric { "" } else { ", asymmetric" };
        format!("{bits} bit, {scales}{zeros}{order}")
    }
}
