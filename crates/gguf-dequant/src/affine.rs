//! Integer matrices with a scale and a bias for each group of columns: `code · scale + bias`.
//!
//! The product is rounded to F32, then the sum. A bias that is a whole number of scales is a zero point.

#![expect(clippy::inline_always, reason = "the loops must be compiled inside the level's function")]

use std::ops::Range;

use crate::bits::CodeStream;
use crate::encoding::along_rows;
use crate::rectangle::Rectangle;
use crate::values::NumberTensor;
use crate::{CodedWeight, InnerSource, Result};
use gguf_blocks::pack::{BLOCK_ELEMS, f16_error, pack_q4_0, pack_q4_1, pack_q5_0, pack_q5_1, pack_q8_0};
use gguf_core::simd::VectorLoop;
use gguf_core::{GgmlType, Packing};

/// Maximum bytes of codes unpacked at a time, if a row does not need more.
const TILE_BYTES: u64 = 64 << 10;

/// Block types that hold such codes, the narrowest first: with the bits of a code, and true for those with a minimum.
const TYPES: [(GgmlType, u32, bool); 5] = [
    (GgmlType::Q4_0, 4, false),
    (GgmlType::Q4_1, 4, true),
    (GgmlType::Q5_0, 5, false),
    (GgmlType::Q5_1, 5, true),
    (GgmlType::Q8_0, 8, false),
];

/// A matrix of codes, each row a stream of its own. Groups are whole blocks.
pub(super) struct Affine {
    pub(super) codes: CodeStream,
    pub(super) scales: NumberTensor,
    pub(super) biases: NumberTensor,
    /// Columns per scale.
    pub(super) group: u64,
    pub(super) n_cols: u64,
    pub(super) members: [usize; 3],
}

/// Scale and bias of a group.
type Pair = (f32, f32);

impl Affine {
    /// Calls `visit` for every row of a rectangle: its index relative to the first, its codes, and the scales and biases of
    /// the groups from that of the first column on.
    fn each_row(
        &self,
        inner: InnerSource<'_>,
        part: &Rectangle,
        mut visit: impl FnMut(usize, &[u8], &[Pair]),
    ) -> Result<()> {
        let (Rectangle { rows, cols }, width) = (part, part.width());
        let n_groups = self.n_cols / self.group;
        let groups = cols.start / self.group..cols.end.div_ceil(self.group);
        let per_row = (groups.end - groups.start) as usize;
        let step = (TILE_BYTES / width.max(1) as u64).max(1);
        let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = rows.start;
        while first < rows.end && width > 0 {
            let tile = first..rows.end.min(first + step);
            codes.resize((tile.end - first) as usize * width, 0);
            self.codes.read_along(
                inner,
                &Rectangle { rows: tile.clone(), cols: cols.clone() },
                &mut codes,
            )?;
            for (values, out) in [(self.scales, &mut scales), (self.biases, &mut biases)] {
                out.clear();
                for row in tile.clone() {
                    let at = row * n_groups;
                    values.read(inner, at + groups.start..at + groups.end, out)?;
                }
            }
            let pairs: Vec<Pair> = scales.iter().copied().zip(biases.iter().copied()).collect();
            let lines = codes.chunks_exact(width).zip(pairs.chunks_exact(per_row));
            for (at, (codes, pairs)) in (first - rows.start..).zip(lines) {
                visit(at as usize, codes, pairs);
            }
            first = tile.end;
        }
        Ok(())
    }

    /// Calls `visit` for scale and bias of every group.
    fn each_pair(&self, inner: InnerSource<'_>, mut visit: impl FnMut(Pair)) -> Result<()> {
        const STEP: u64 = 1 << 14;
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < self.scales.n {
            let end = self.scales.n.min(at + STEP);
            for (values, out) in [(self.scales, &mut scales), (self.biases, &mut biases)] {
                out.clear();
                values.read(inner, at..end, out)?;
            }
            scales.iter().copied().zip(biases.iter().copied()).for_each(&mut visit);
            at = end;
        }
        Ok(())
    }

    /// Returns the zero point of a group: the code whose value is zero, if the bias is a whole number of scales.
    fn zero(&self, (scale, bias): Pair) -> Option<i32> {
        let middle = 1 << (self.codes.bits - 1);
        if scale == 0.0 {
            // Every code has the value 0, so that any zero point does.
            return (bias == 0.0).then_some(middle);
        }
        let zero = (-f64::from(bias) / f64::from(scale)).round();
        (zero.abs() < 256.0 && zero * f64::from(scale) == -f64::from(bias)).then_some(zero as i32)
    }
}

/// A row whose groups are runs of equal length.
struct Row<'a> {
    codes: &'a [u8],
    pairs: &'a [Pair],
    cols: Range<u64>,
    group: u64,
    out: &'a mut [f32],
}

impl VectorLoop for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { mut codes, pairs, cols, group, mut out } = self;
        let mut at = cols.start;
        for &(scale, bias) in pairs {
            let end = cols.end.min((at / group + 1).saturating_mul(group));
            let (head, rest) = out.split_at_mut((end - at) as usize);
            let (head_codes, rest_codes) = codes.split_at((end - at) as usize);
            for (out, &code) in head.iter_mut().zip(head_codes) {
                *out = f32::from(code) * scale + bias;
            }
            (out, codes, at) = (rest, rest_codes, end);
        }
    }
}

impl CodedWeight for Affine {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let width = part.width();
        self.each_row(inner, part, |at, codes, pairs| {
            let out = &mut out[at * width..(at + 1) * width];
            inner.level.vectorize(Row { codes, pairs, cols: part.cols.clone(), group: self.group, out });
        })
    }

    /// Returns the block types that hold all codes, the narrowest first: those without a minimum if every bias is a zero
    /// point.
    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        let (mut scale_error, mut bias_error) = (0.0f32, 0.0f32);
        // Smallest and greatest difference of code and zero point.
        let mut range = Some((i32::MAX, i32::MIN));
        let top = (1 << self.codes.bits) - 1;
        self.each_pair(inner, |pair| {
            scale_error = scale_error.max(f16_error(pair.0));
            bias_error = bias_error.max(f16_error(pair.1));
            range =
                range.zip(self.zero(pair)).map(|((low, high), zero)| (low.min(-zero), high.max(top - zero)));
        })?;
        let fits = |bits: u32, has_minimum: bool| match range {
            _ if has_minimum => self.codes.bits <= bits,
            Some((low, high)) => low >= -(1 << (bits - 1)) && high < 1 << (bits - 1),
            None => false,
        };
        let error = |has_minimum| if has_minimum { scale_error.max(bias_error) } else { scale_error };
        let fitting = TYPES.iter().filter(|row| fits(row.1, row.2) && error(row.2).is_finite());
        Ok(fitting.map(|row| Packing::rounded(row.0, error(row.2))).collect())
    }

    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let block_bytes = ty.block_bytes();
        let row_bytes = part.width() / BLOCK_ELEMS * block_bytes;
        let first_group = part.cols.start / self.group;
        self.each_row(inner, part, |at, codes, pairs| {
            let out = &mut out[at * row_bytes..(at + 1) * row_bytes];
            let blocks = out.chunks_exact_mut(block_bytes).zip(codes.as_chunks::<BLOCK_ELEMS>().0);
            for (at, (out, codes)) in blocks.enumerate() {
                let col = part.cols.start + (at * BLOCK_ELEMS) as u64;
                let pair = pairs[(col / self.group - first_group) as usize];
                let zero = self.zero(pair).unwrap_or_default();
                let shifted = |middle: i32| codes.map(|code| (i32::from(code) - zero + middle) as u8);
                match ty {
                    GgmlType::Q4_0 => pack_q4_0(&shifted(8), pair.0, out),
                    GgmlType::Q4_1 => pack_q4_1(codes, pair.0, pair.1, out),
                    GgmlType::Q5_0 => pack_q5_0(&shifted(16), pair.0, out),
                    GgmlType::Q5_1 => pack_q5_1(codes, pair.0, pair.1, out),
                    GgmlType::Q8_0 => pack_q8_0(&shifted(0).map(u8::cast_signed), pair.0, out),
                    _ => panic!("no packing as {ty}"),
                }
            }
        })
    }

    fn members(&self) -> &[usize] {
        &self.members
    }

    fn form(&self) -> String {
        format!("{} bit, {}, with biases", self.codes.bits, along_rows(self.group, self.n_cols))
    }
}
