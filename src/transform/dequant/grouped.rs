//! Integer matrices with a scale and a zero point for each group of columns: `scale · (code - zero)`.
//!
//! GPTQ, AWQ and compressed-tensors differ in where the bits lie and in the words of their configuration; a matrix,
//! once described, is the same. The difference of integers is exact, the product is rounded once, to F32.

use std::ops::Range;

use crate::core::{GgmlType, Packing, SourceError, WeightSource};
use crate::transform::dequant::bits::Stream;
use crate::transform::dequant::encoding::along_rows;
use crate::transform::dequant::values::{Values, with_bytes};
use crate::transform::dequant::{Decoder, DequantError};
use crate::transform::repack::{BLOCK_ELEMS, f16_error, pack_q4_0, pack_q5_0, pack_q8_0};

/// Rows that are unpacked together: AWQ keeps eight of them in a word.
const TILE_ROWS: u64 = 8;

/// Where the codes of a row lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Codes {
    /// One stream of columns for each row.
    ByRow(Stream),
    /// One stream of rows for each column.
    ByColumn(Stream),
    /// One signed byte each, row after row.
    Bytes(usize),
}

/// Where the zero point of a row's group lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zeros {
    /// The same for all.
    Const(i32),
    /// Codes: one stream of rows for each group.
    ByGroup(Stream, ZeroShift),
    /// Codes: one stream of groups for each row.
    ByRow(Stream),
    /// One signed byte each, laid out as the scales.
    Bytes(usize),
}

/// What is added to a stored zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroShift {
    /// Nothing.
    None,
    /// One to every field of a word at once: a field that is all ones carries into its neighbour, as the writer had
    /// borrowed from it.
    Word,
    /// One to each field alone, modulo its size.
    Field,
}

/// Which group a column belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Groups {
    /// So many columns after another.
    Runs(u64),
    /// As a tensor of I32 says, one for each column.
    Index(usize),
}

/// How scales (and zero points in bytes) lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `[n_groups, n_rows]`
    GroupMajor,
    /// `[n_rows, stride]`, of which the first `n_groups` count.
    RowMajor {
        /// Elements of a row.
        stride: u64,
    },
}

/// What the description says of a matrix, for people.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Columns that share a scale, in the order they were quantized.
    pub(super) group_size: u64,
    /// Whether zero points are all in the middle of the codes.
    pub(super) is_symmetric: bool,
}

/// An integer matrix.
pub(super) struct Grouped {
    /// Name of the weight, for messages.
    pub(super) name: String,
    pub(super) codes: Codes,
    /// Least and greatest code.
    pub(super) code_range: (i32, i32),
    pub(super) zeros: Zeros,
    pub(super) scales: Values,
    pub(super) order: Order,
    pub(super) groups: Groups,
    pub(super) n_groups: u64,
    pub(super) n_rows: u64,
    pub(super) n_cols: u64,
    pub(super) members: Vec<usize>,
    pub(super) layout: Layout,
}

/// What one row needs besides its codes.
#[derive(Default)]
struct RowScales {
    scales: Vec<f32>,
    zeros: Vec<i32>,
}

impl Grouped {
    fn row_scales(
        &self,
        source: &dyn WeightSource,
        row: u64,
        out: &mut RowScales,
    ) -> Result<(), DequantError> {
        out.scales.clear();
        out.zeros.clear();
        match self.order {
            Order::RowMajor { stride } => {
                self.scales.read(source, row * stride..row * stride + self.n_groups, &mut out.scales)?;
            }
            Order::GroupMajor => {
                for group in 0..self.n_groups {
                    let at = group * self.n_rows + row;
                    self.scales.read(source, at..at + 1, &mut out.scales)?;
                }
            }
        }
        match self.zeros {
            Zeros::Const(zero) => out.zeros.resize(self.n_groups as usize, zero),
            Zeros::ByRow(stream) => {
                out.zeros.resize(self.n_groups as usize, 0);
                stream.read(source, row, 0..self.n_groups, &mut out.zeros)?;
            }
            Zeros::ByGroup(stream, shift) => {
                for group in 0..self.n_groups {
                    out.zeros.push(shifted_zero(source, &stream, shift, group, row)?);
                }
            }
            Zeros::Bytes(index) => {
                for group in 0..self.n_groups {
                    let at = match self.order {
                        Order::RowMajor { stride } => row * stride + group,
                        Order::GroupMajor => group * self.n_rows + row,
                    };
                    let zero = with_bytes(source, index, 1, at..at + 1, |bytes| Ok(bytes[0].cast_signed()))?;
                    out.zeros.push(i32::from(zero));
                }
            }
        }
        Ok(())
    }

    /// The codes of a rectangle, row after row.
    fn read_codes(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [i32],
    ) -> Result<(), DequantError> {
        let width = (cols.end - cols.start) as usize;
        match self.codes {
            Codes::ByRow(stream) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                    stream.read(source, row, cols.clone(), out)?;
                }
            }
            Codes::ByColumn(stream) => {
                let mut column = [0; TILE_ROWS as usize];
                let column = &mut column[..(rows.end - rows.start) as usize];
                for (at, col) in cols.enumerate() {
                    stream.read(source, col, rows.clone(), column)?;
                    for (out, &code) in out[at..].iter_mut().step_by(width).zip(&*column) {
                        *out = code;
                    }
                }
            }
            Codes::Bytes(index) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                    let first = row * self.n_cols;
                    with_bytes(source, index, 1, first + cols.start..first + cols.end, |bytes| {
                        for (out, &byte) in out.iter_mut().zip(bytes) {
                            *out = i32::from(byte.cast_signed());
                        }
                        Ok(())
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Calls `visit` for every row of a rectangle with its codes and scales.
    fn each_row(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: &Range<u64>,
        mut visit: impl FnMut(usize, &[i32], &RowScales),
    ) -> Result<(), DequantError> {
        let width = (cols.end - cols.start) as usize;
        let mut codes = vec![0; width * TILE_ROWS.min(rows.end - rows.start) as usize];
        let mut row_scales = RowScales::default();
        let mut first = rows.start;
        while first < rows.end && width > 0 {
            let end = rows.end.min((first / TILE_ROWS + 1) * TILE_ROWS);
            let codes = &mut codes[..width * (end - first) as usize];
            self.read_codes(source, first..end, cols.clone(), codes)?;
            for (row, codes) in (first..end).zip(codes.chunks_exact(width)) {
                self.row_scales(source, row, &mut row_scales)?;
                visit((row - rows.start) as usize, codes, &row_scales);
            }
            first = end;
        }
        Ok(())
    }

    /// The group of every column, in order; for runs of equal length there is no need to ask.
    fn group_index(
        &self,
        source: &dyn WeightSource,
        cols: Range<u64>,
    ) -> Result<Option<Vec<usize>>, DequantError> {
        let Groups::Index(index) = self.groups else { return Ok(None) };
        with_bytes(source, index, 4, cols.clone(), |bytes| {
            let groups = bytes.as_chunks::<4>().0.iter().zip(cols.clone()).map(|(&bytes, col)| {
                let found = i32::from_le_bytes(bytes);
                let group = u64::try_from(found).ok().filter(|&group| group < self.n_groups);
                group.map(|group| group as usize).ok_or_else(|| DequantError::IndexOutOfRange {
                    tensor: source.weights()[index].name.clone(),
                    index: col,
                    found: i64::from(found),
                    expected: format!("0 to {}", self.n_groups.saturating_sub(1)),
                })
            });
            groups.collect::<Result<Vec<_>, _>>().map(Some)
        })
    }

    fn read(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let width = (cols.end - cols.start) as usize;
        let groups = self.group_index(source, cols.clone())?;
        self.each_row(source, rows, &cols, |row, codes, RowScales { scales, zeros }| {
            let out = &mut out[row * width..(row + 1) * width];
            match (&groups, self.groups) {
                (Some(groups), _) => {
                    for ((out, &code), &group) in out.iter_mut().zip(codes).zip(groups) {
                        *out = scales[group] * (code - zeros[group]) as f32;
                    }
                }
                (None, Groups::Runs(run)) => {
                    each_run(cols.clone(), run, |group, span| {
                        let (scale, zero) = (scales[group], zeros[group]);
                        for (out, &code) in out[span.clone()].iter_mut().zip(&codes[span]) {
                            *out = scale * (code - zero) as f32;
                        }
                    });
                }
                (None, Groups::Index(_)) => {}
            }
        })
    }

    /// Least and greatest difference of code and zero point.
    fn value_range(&self, source: &dyn WeightSource) -> Result<(i32, i32), DequantError> {
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        let mut see = |zeros: &[i32]| {
            low = zeros.iter().copied().fold(low, i32::min);
            high = zeros.iter().copied().fold(high, i32::max);
        };
        match self.zeros {
            Zeros::Const(zero) => see(&[zero]),
            _ => {
                let mut row_scales = RowScales::default();
                for row in 0..self.n_rows {
                    self.row_scales(source, row, &mut row_scales)?;
                    see(&row_scales.zeros);
                }
            }
        }
        Ok((self.code_range.0 - high, self.code_range.1 - low))
    }

    /// Whether every block of columns lies in one group.
    fn has_whole_blocks(&self, source: &dyn WeightSource) -> Result<bool, DequantError> {
        let block = BLOCK_ELEMS as u64;
        if !self.n_cols.is_multiple_of(block) {
            return Ok(false);
        }
        Ok(match (self.groups, self.group_index(source, 0..self.n_cols)?) {
            (Groups::Runs(run), _) => run % block == 0 || run >= self.n_cols,
            (Groups::Index(_), Some(groups)) => {
                groups.chunks(BLOCK_ELEMS).all(|block| block.iter().all(|group| *group == block[0]))
            }
            (Groups::Index(_), None) => false,
        })
    }

    /// Block types that hold all differences of code and zero point, the narrowest first.
    fn block_types(&self, source: &dyn WeightSource) -> Result<Vec<Packing>, DequantError> {
        if !self.has_whole_blocks(source)? {
            return Ok(Vec::new());
        }
        let (low, high) = self.value_range(source)?;
        let fits = |bits: u32| low >= -(1 << (bits - 1)) && high < 1 << (bits - 1);
        let types = [(4, GgmlType::Q4_0), (5, GgmlType::Q5_0), (8, GgmlType::Q8_0)];
        let types: Vec<GgmlType> = types.iter().filter(|row| fits(row.0)).map(|row| row.1).collect();
        if types.is_empty() {
            return Ok(Vec::new());
        }
        let error = std::cell::Cell::new(0.0f32);
        let is_finite = self.scales.all(source, |scale| {
            error.set(error.get().max(f16_error(scale)));
            error.get().is_finite()
        })?;
        let packings = types.into_iter().map(|ty| Packing::rounded(ty, error.get()));
        Ok(if is_finite { packings.collect() } else { Vec::new() })
    }

    fn write_blocks(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), DequantError> {
        let width = (cols.end - cols.start) as usize;
        let groups = self.group_index(source, cols.clone())?;
        let row_bytes = width / BLOCK_ELEMS * ty.block_bytes();
        self.each_row(source, rows, &cols, |row, codes, row_scales| {
            let out = &mut out[row * row_bytes..(row + 1) * row_bytes];
            let blocks = out.chunks_exact_mut(ty.block_bytes()).zip(codes.as_chunks::<BLOCK_ELEMS>().0);
            for (at, (out, codes)) in blocks.enumerate() {
                let col = cols.start + (at * BLOCK_ELEMS) as u64;
                let group = match (&groups, self.groups) {
                    (Some(groups), _) => groups[at * BLOCK_ELEMS],
                    (None, Groups::Runs(run)) => (col / run) as usize,
                    (None, Groups::Index(_)) => 0,
                };
                let (scale, zero) = (row_scales.scales[group], row_scales.zeros[group]);
                let shifted = |middle: i32| codes.map(|code| (code - zero + middle) as u8);
                match ty {
                    GgmlType::Q4_0 => pack_q4_0(&shifted(8), scale, out),
                    GgmlType::Q5_0 => pack_q5_0(&shifted(16), scale, out),
                    GgmlType::Q8_0 => pack_q8_0(&codes.map(|code| (code - zero) as i8), scale, out),
                    _ => panic!("no packing as {ty}"),
                }
            }
        })
    }
}

/// Cuts columns where the group changes: `visit` gets the group and the columns counted from the first.
fn each_run(cols: Range<u64>, run: u64, mut visit: impl FnMut(usize, Range<usize>)) {
    let mut at = cols.start;
    while at < cols.end {
        let end = cols.end.min((at / run + 1).saturating_mul(run));
        visit((at / run) as usize, (at - cols.start) as usize..(end - cols.start) as usize);
        at = end;
    }
}

/// A stored zero point with what its format adds.
fn shifted_zero(
    source: &dyn WeightSource,
    stream: &Stream,
    shift: ZeroShift,
    group: u64,
    row: u64,
) -> Result<i32, DequantError> {
    let per_word = u64::from(32 / stream.bits);
    let mut one = [0];
    match shift {
        ZeroShift::None => stream.read(source, group, row..row + 1, &mut one)?,
        ZeroShift::Field => {
            stream.read(source, group, row..row + 1, &mut one)?;
            one[0] = (one[0] + 1) & ((1 << stream.bits) - 1);
        }
        ZeroShift::Word => {
            // The carry comes up from the fields below in the same word.
            let start = row / per_word * per_word;
            let mut fields = [0; 32];
            let fields = &mut fields[..(row - start + 1) as usize];
            stream.read(source, group, start..row + 1, fields)?;
            let full = (1 << stream.bits) - 1;
            let mut carried = 0;
            for field in fields {
                let sum = *field + 1 + carried;
                carried = i32::from(sum > full);
                one[0] = sum & full;
            }
        }
    }
    Ok(one[0])
}

impl Decoder for Grouped {
    fn decode(
        &self,
        source: &dyn WeightSource,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        self.read(source, rows, cols, out).map_err(|error| error.reading(&self.name))
    }

    fn packings(&self, source: &dyn WeightSource) -> Result<Vec<Packing>, SourceError> {
        self.block_types(source).map_err(|error| error.reading(&self.name))
    }

    fn pack(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.write_blocks(source, ty, rows, cols, out).map_err(|error| error.reading(&self.name))
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        // As many codes as bits have values; a range of codes is never empty.
        let bits = (self.code_range.1 - self.code_range.0).ilog2() + 1;
        let is_one = self.order == Order::RowMajor { stride: 0 };
        let scales =
            if is_one { "one scale".to_owned() } else { along_rows(self.layout.group_size, self.n_cols) };
        let order = if matches!(self.groups, Groups::Index(_)) { ", activation order" } else { "" };
        let zeros = if self.layout.is_symmetric { "" } else { ", asymmetric" };
        format!("{bits} bit, {scales}{zeros}{order}")
    }
}
