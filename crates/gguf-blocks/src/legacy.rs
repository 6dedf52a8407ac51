//! Q4_0, Q4_1, Q5_0, Q5_1: 32 elements, one F16 scale, with or without an F16 minimum.
//!
//! # Layout
//! | type | scale | minimum | fifth bits | nibbles |
//! |---|---|---|---|---|
//! | Q4_0 | 0 | | | 2..18 |
//! | Q4_1 | 0 | 2 | | 4..20 |
//! | Q5_0 | 0 | | 2..6 | 6..22 |
//! | Q5_1 | 0 | 2 | 4..8 | 8..24 |
//!
//! Nibble byte `j` holds element `j` low and element `j + 16` high; fifth bits are a little-endian word, bit `i`
//! for element `i`.

use super::batch::{BATCH, BlockBatch, sums_of_squares};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16, validate_f16_pair};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::{Lanes, Twice};
use super::search::{
    MinSearch, importance_weights, signed, signed_max as signed_max_of, sum_squares, with_min,
};
use super::search_lanes::{
    min_levels_lanes, signed as signed_lanes, signed_levels_lanes, signed_max_after,
    with_min as with_min_lanes,
};
use super::superblock::each_byte;
use gguf_core::GgmlType;
use gguf_core::numeric::{c_trunc_i8, c_trunc_u8, f16_to_f32, f32_to_f16};

/// Elements per block of all four types.
pub(super) const BLOCK: usize = 32;

pub(super) static Q4_0: Codec = Codec {
    ty: GgmlType::Q4_0,
    quantize: Some(quantize_with::<QuantizeLegacy<18, 4, false>>),
    dequantize: q4_0_dequantize,
    validate: validate_f16::<18, 0>,
};

pub(super) static Q4_1: Codec = Codec {
    ty: GgmlType::Q4_1,
    quantize: Some(quantize_with::<QuantizeLegacy<20, 4, true>>),
    dequantize: q4_1_dequantize,
    validate: validate_f16_pair::<20, 0>,
};

pub(super) static Q5_0: Codec = Codec {
    ty: GgmlType::Q5_0,
    quantize: Some(quantize_with::<QuantizeLegacy<22, 5, false>>),
    dequantize: q5_0_dequantize,
    validate: validate_f16::<22, 0>,
};

pub(super) static Q5_1: Codec = Codec {
    ty: GgmlType::Q5_1,
    quantize: Some(quantize_with::<QuantizeLegacy<24, 5, true>>),
    dequantize: q5_1_dequantize,
    validate: validate_f16_pair::<24, 0>,
};

/// Returns the search parameters of the types with a minimum, when importance weights are given.
pub(super) const fn min_search(bits: u32) -> MinSearch {
    MinSearch { n_max: (1 << bits) - 1, r_min: -0.9, r_delta: 0.05, n_step: 36 }
}

/// Values that a block stores.
#[derive(Clone, Copy)]
pub(super) struct BlockFit {
    /// Scale.
    pub d: f32,
    /// Minimum; not stored by the types without one.
    pub min: f32,
    /// One code per element.
    pub codes: [u8; BLOCK],
}

/// Fits a block so that the first value of largest magnitude maps to `-half`, which is code 0.
fn fit_symmetric(half: i8, x: &[f32; BLOCK]) -> BlockFit {
    let (max, _) = signed_max_of(x);
    let d = max / -f32::from(half);
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut codes = [0; BLOCK];
    for i in 0..BLOCK {
        codes[i] = c_trunc_i8(x[i] * id + (f32::from(half) + 0.5)).min(2 * half - 1) as u8;
    }
    BlockFit { d, min: 0.0, codes }
}

/// Fits a block so that the range from minimum to maximum maps to all codes.
fn fit_min<const BITS: u32>(x: &[f32; BLOCK]) -> BlockFit {
    let (mut min, mut max) = (f32::MAX, -f32::MAX);
    for &value in x {
        if value < min {
            min = value;
        }
        if value > max {
            max = value;
        }
    }
    let n_max = ((1 << BITS) - 1) as f32;
    let d = (max - min) / n_max;
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut codes = [0; BLOCK];
    for i in 0..BLOCK {
        let code = (x[i] - min) * id + 0.5;
        // ref: Q5_1 narrows without a limit
        codes[i] = if BITS == 4 { c_trunc_i8(code).min(15) as u8 } else { c_trunc_u8(code) };
    }
    BlockFit { d, min, codes }
}

#[inline(always)]
pub(super) fn store<const B: usize, const BITS: u32, const MIN: bool>(fit: &BlockFit, out: &mut [u8; B]) {
    put_u16(out, 0, f32_to_f16(fit.d));
    if MIN {
        put_u16(out, 2, f32_to_f16(fit.min));
    }
    let words = fit.codes.as_chunks::<8>().0;
    let (low, high) = ([word(words[0]), word(words[1])], [word(words[2]), word(words[3])]);
    if BITS == 5 {
        for (at, word) in [low[0], low[1], high[0], high[1]].into_iter().enumerate() {
            out[B - 20 + at] = fifth_bits(word);
        }
    }
    for (w, out) in out[B - 16..].as_chunks_mut().0.iter_mut().enumerate() {
        // ref: the low code of the 4-bit types is not masked; out-of-range codes of subnormal blocks show it
        let low = if BITS == 5 { low[w] & each_byte(15) } else { low[w] };
        *out = (low | (high[w] & each_byte(15)) << 4).to_le_bytes();
    }
}

#[inline(always)]
fn word(codes: [u8; 8]) -> u64 {
    u64::from_le_bytes(codes)
}

/// Returns bit 4 of each of eight bytes.
#[inline(always)]
fn fifth_bits(word: u64) -> u8 {
    // The factor moves the bit of byte i to bit 56 + i; its products do not overlap.
    ((word >> 4 & each_byte(1)).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Kernel of all blocks, one per lane; codes along the block.
struct QuantizeLegacy<const B: usize, const BITS: u32, const MIN: bool>;

const BATCH_BLOCKS: usize = BATCH / BLOCK;

/// Fit of each block of a batch.
struct BatchFits {
    d: [f32; BATCH_BLOCKS],
    min: [f32; BATCH_BLOCKS],
    /// Factor of the codes: `x * factor` for the plain fits, the inverse scale of the levels for the searched ones.
    factor: [f32; BATCH_BLOCKS],
    /// Minimum used for the codes.
    code_min: [f32; BATCH_BLOCKS],
}

impl<const B: usize, const BITS: u32, const MIN: bool> RowsKernel for QuantizeLegacy<B, BITS, MIN> {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        let row_bytes = rows.n_cols / BLOCK * B;
        for (row, out) in rows.src.chunks_exact(rows.n_cols).zip(dst.chunks_exact_mut(row_bytes)) {
            // ref: the variance of the whole row, even if its blocks differ widely
            let sigma2 = if rows.imatrix.is_some() { sum_squares(row) / rows.n_cols as f32 } else { 0.0 };
            let row = SourceRows { src: row, ..*rows };
            for ((x, importance), out) in row.blocks().zip(out.as_chunks_mut::<B>().0) {
                let fit = match (importance, MIN) {
                    (None, false) => fit_symmetric(1 << (BITS - 1), x),
                    (None, true) => fit_min::<BITS>(x),
                    (Some(importance), false) => {
                        let weights = importance_weights(x, importance, sigma2);
                        let mut codes = [0; BLOCK];
                        let d = signed(1 << (BITS - 1), x, &weights, &mut codes);
                        BlockFit { d, min: 0.0, codes }
                    }
                    (Some(importance), true) => {
                        let weights = importance_weights(x, importance, sigma2);
                        let mut codes = [0; BLOCK];
                        let (d, offset) =
                            with_min::<BLOCK, false>(&min_search(BITS), x, &weights, &mut codes);
                        BlockFit { d, min: -offset, codes }
                    }
                };
                store::<B, BITS, MIN>(&fit, out);
            }
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        let mut batch = BlockBatch::EMPTY;
        let none = [0.0; BATCH_BLOCKS];
        let mut fits = BatchFits { d: none, min: none, factor: none, code_min: none };
        let sigma2s = if rows.imatrix.is_some() { row_variances(l, rows) } else { Vec::new() };
        for (index, out) in dst.as_chunks_mut().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            if let Some(importance) = rows.imatrix {
                let first = batch.first;
                let row_of = |block: usize| (first + block * BLOCK) / rows.n_cols;
                batch.weigh::<L, BLOCK>(l, rows, importance, |block| sigma2s[row_of(block)]);
                fits.search::<L, BITS, MIN>(l, &batch);
                for (b, (x, out)) in batch.x.as_chunks().0.iter().zip(out).enumerate() {
                    let codes = fits.levels::<L, BITS, MIN>(l, b, x);
                    store::<B, BITS, MIN>(&BlockFit { d: fits.d[b], min: fits.min[b], codes }, out);
                }
            } else {
                fits.plain::<L, BITS, MIN>(l, &batch);
                for (b, (x, out)) in batch.x.as_chunks().0.iter().zip(out).enumerate() {
                    let codes = fits.codes::<L, BITS, MIN>(l, b, x);
                    store::<B, BITS, MIN>(&BlockFit { d: fits.d[b], min: fits.min[b], codes }, out);
                }
            }
        }
    }
}

/// Computes the mean square of each row.
#[inline(always)]
fn row_variances<L: Lanes>(l: L, rows: &SourceRows<'_>) -> Vec<f32> {
    let n_cols = rows.n_cols;
    let n_rows = rows.src.len() / n_cols;
    let mut variances = vec![0.0; n_rows];
    let whole = n_rows / L::WIDTH * L::WIDTH;
    for at in (0..whole).step_by(L::WIDTH) {
        let sums = sums_of_squares(l, &rows.src[at * n_cols..], n_cols, n_cols);
        l.store(sums / l.splat(n_cols as f32), &mut variances[at..]);
    }
    for row in whole..n_rows {
        variances[row] = sum_squares(&rows.src[row * n_cols..][..n_cols]) / n_cols as f32;
    }
    variances
}

impl BatchFits {
    /// Computes `fit_symmetric` and `fit_min`, without the codes.
    #[inline(always)]
    fn plain<L: Lanes, const BITS: u32, const MIN: bool>(&mut self, l: L, batch: &BlockBatch) {
        let zero = l.splat(0.0);
        for at in (0..batch.n_elems / BLOCK).step_by(L::WIDTH) {
            let src = &batch.x[at * BLOCK..];
            let d = if MIN {
                let (mut min, mut max) = (l.splat(f32::MAX), l.splat(-f32::MAX));
                for column in (0..BLOCK).step_by(16) {
                    for value in l.tile(&src[column..], BLOCK) {
                        min = l.select(l.gt(min, value), value, min);
                        max = l.select(l.gt(value, max), value, max);
                    }
                }
                l.store(min, &mut self.min[at..]);
                (max - min) / l.splat(((1 << BITS) - 1) as f32)
            } else {
                let (mut max, mut amax) = (zero, zero);
                for column in (0..BLOCK).step_by(16) {
                    (max, amax) = signed_max_after(l, max, amax, &l.tile(&src[column..], BLOCK));
                }
                max / l.splat(-((1 << (BITS - 1)) as f32))
            };
            l.store(d, &mut self.d[at..]);
            l.store(l.select(l.eq(d, zero), zero, l.splat(1.0) / d), &mut self.factor[at..]);
        }
    }

    /// Computes the codes of a plain fit, along the block.
    #[inline(always)]
    fn codes<L: Lanes, const BITS: u32, const MIN: bool>(
        &self,
        l: L,
        b: usize,
        x: &[f32; BLOCK],
    ) -> [u8; BLOCK] {
        let (factor, min) = (l.splat(self.factor[b]), l.splat(self.min[b]));
        let round = l.splat(if MIN { 0.5 } else { (1 << (BITS - 1)) as f32 + 0.5 });
        let mut codes = [0; BLOCK];
        for at in (0..BLOCK).step_by(L::WIDTH) {
            let value = l.load(&x[at..]);
            let value = if MIN { value - min } else { value };
            l.store_low_bytes(l.trunc(value * factor + round), &mut codes[at..]);
        }
        if !(MIN && BITS == 5) {
            for code in &mut codes {
                *code = (*code as i8).min((1 << BITS) - 1) as u8;
            }
        }
        codes
    }

    /// Runs the searches under importance weights.
    #[inline(always)]
    fn search<L: Lanes, const BITS: u32, const MIN: bool>(&mut self, l: L, batch: &BlockBatch) {
        if MIN {
            let l = Twice(l);
            let (mut x, mut weights) = ([l.splat(0.0); BLOCK], [l.splat(0.0); BLOCK]);
            for at in (0..batch.n_elems / BLOCK).step_by(2 * L::WIDTH) {
                l.columns(&batch.x[at * BLOCK..], BLOCK, &mut x);
                l.columns(&batch.weights[at * BLOCK..], BLOCK, &mut weights);
                let fit = with_min_lanes::<_, BLOCK, false>(l, &min_search(BITS), &x, &weights);
                l.store(fit.scale, &mut self.d[at..]);
                l.store(fit.min, &mut self.min[at..]);
                l.store(fit.iscale, &mut self.factor[at..]);
                l.store(fit.level_min, &mut self.code_min[at..]);
            }
        } else {
            let (mut x, mut weights) = ([l.splat(0.0); BLOCK], [l.splat(0.0); BLOCK]);
            for at in (0..batch.n_elems / BLOCK).step_by(L::WIDTH) {
                l.columns(&batch.x[at * BLOCK..], BLOCK, &mut x);
                l.columns(&batch.weights[at * BLOCK..], BLOCK, &mut weights);
                let (d, iscale) = signed_lanes(l, 1 << (BITS - 1), &x, &weights);
                l.store(d, &mut self.d[at..]);
                l.store(iscale, &mut self.factor[at..]);
            }
        }
    }

    /// Computes the levels that a search ended with, along the block.
    #[inline(always)]
    fn levels<L: Lanes, const BITS: u32, const MIN: bool>(
        &self,
        l: L,
        b: usize,
        x: &[f32; BLOCK],
    ) -> [u8; BLOCK] {
        if MIN {
            min_levels_lanes(l, (1 << BITS) - 1, self.factor[b], self.code_min[b], x)
        } else {
            signed_levels_lanes(l, 1 << (BITS - 1), self.factor[b], x)
        }
    }
}

decoder!(q4_0_dequantize = load::<18, 4, false>);
decoder!(q4_1_dequantize = load::<20, 4, true>);
decoder!(q5_0_dequantize = load::<22, 5, false>);
decoder!(q5_1_dequantize = load::<24, 5, true>);

/// Returns the stored levels of elements `j` and `j + 16`.
#[inline(always)]
fn levels<const B: usize, const BITS: u32>(block: &[u8; B]) -> impl Fn(usize) -> (i32, i32) {
    let high =
        if BITS == 5 { u32::from(u16_at(block, B - 20)) | u32::from(u16_at(block, B - 18)) << 16 } else { 0 };
    let nibbles = &block[B - 16..];
    move |j| {
        let mut low = i32::from(nibbles[j] & 15);
        let mut top = i32::from(nibbles[j] >> 4);
        if BITS == 5 {
            low |= (high >> j << 4 & 16) as i32;
            top |= (high >> (j + 16) << 4 & 16) as i32;
        }
        (low, top)
    }
}

#[inline(always)]
fn load<const B: usize, const BITS: u32, const MIN: bool>(block: &[u8; B], out: &mut [f32; BLOCK]) {
    let d = f16_to_f32(u16_at(block, 0));
    let min = if MIN { f16_to_f32(u16_at(block, 2)) } else { 0.0 };
    let levels = levels::<B, BITS>(block);
    for j in 0..16 {
        let (low, top) = levels(j);
        if MIN {
            out[j] = low as f32 * d + min;
            out[j + 16] = top as f32 * d + min;
        } else {
            out[j] = (low - (1 << (BITS - 1))) as f32 * d;
            out[j + 16] = (top - (1 << (BITS - 1))) as f32 * d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::quantize_rows;
    use super::*;
    use gguf_core::simd::SimdLevel;

    fn quantized(ty: GgmlType, x: &[f32; BLOCK], imatrix: Option<&[f32]>) -> Vec<u8> {
        let mut out = vec![0xaa; ty.block_bytes()];
        quantize_rows(ty, SimdLevel::Scalar, BLOCK, x, imatrix, &mut out).unwrap();
        out
    }

    #[test]
    fn a_block_of_zeros_has_the_reference_bytes() {
        let zeros = [0.0; BLOCK];
        let mut want = vec![0x88; 18];
        want[..2].copy_from_slice(&[0x00, 0x80]);
        assert_eq!(quantized(GgmlType::Q4_0, &zeros, None), want);
        assert_eq!(quantized(GgmlType::Q4_0, &zeros, Some(&[1.0; BLOCK])), [0; 18]);
        assert_eq!(quantized(GgmlType::Q5_0, &zeros, None)[2..6], [0xff; 4]);
        assert_eq!(quantized(GgmlType::Q4_1, &[-0.0; BLOCK], None)[..4], [0, 0, 0, 0x80]);
    }

    #[test]
    fn the_first_of_equal_magnitudes_sets_the_sign() {
        let x = std::array::from_fn(|i| if i % 2 == 0 { 8.0 } else { -8.0 });
        let block = quantized(GgmlType::Q4_0, &x, None);
        assert_eq!(f16_to_f32(u16::from_le_bytes([block[0], block[1]])), -1.0);
        assert_eq!(block[2] & 15, 0);
        assert_eq!(block[3] & 15, 15);
    }
}
