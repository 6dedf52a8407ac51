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

use super::codec::{Codec, Rows, decode_blocks, put_u16, u16_at, validate_f16, validate_f16_pair};
use super::search::{MinSearch, importance_weights, signed, signed_max, sum_squares, with_min};
use crate::core::numeric::{c_trunc_i8, c_trunc_u8, f16_to_f32, f32_to_f16};
use crate::core::{GgmlType, simd::SimdLevel};

/// Elements per block of all four types.
pub(super) const BLOCK: usize = 32;

pub(super) static Q4_0: Codec = Codec {
    ty: GgmlType::Q4_0,
    quantize: Some(quantize::<18, 4, false>),
    dequantize: dequantize::<18, 4, false>,
    validate: validate_f16::<18, 0>,
};

pub(super) static Q4_1: Codec = Codec {
    ty: GgmlType::Q4_1,
    quantize: Some(quantize::<20, 4, true>),
    dequantize: dequantize::<20, 4, true>,
    validate: validate_f16_pair::<20, 0>,
};

pub(super) static Q5_0: Codec = Codec {
    ty: GgmlType::Q5_0,
    quantize: Some(quantize::<22, 5, false>),
    dequantize: dequantize::<22, 5, false>,
    validate: validate_f16::<22, 0>,
};

pub(super) static Q5_1: Codec = Codec {
    ty: GgmlType::Q5_1,
    quantize: Some(quantize::<24, 5, true>),
    dequantize: dequantize::<24, 5, true>,
    validate: validate_f16_pair::<24, 0>,
};

/// The search of the types with a minimum when importance weights are given.
pub(super) const fn min_search(bits: u32) -> MinSearch {
    MinSearch { n_max: (1 << bits) - 1, r_min: -0.9, r_delta: 0.05, n_step: 36 }
}

fn quantize<const B: usize, const BITS: u32, const MIN: bool>(
    level: SimdLevel,
    rows: &Rows<'_>,
    dst: &mut [u8],
) {
    let _ = level;
    quantize_scalar::<B, BITS, MIN>(rows, dst);
}

fn quantize_scalar<const B: usize, const BITS: u32, const MIN: bool>(rows: &Rows<'_>, dst: &mut [u8]) {
    let row_bytes = rows.n_cols / BLOCK * B;
    for (row, out) in rows.src.chunks_exact(rows.n_cols).zip(dst.chunks_exact_mut(row_bytes)) {
        // ref: the variance of the whole row, also when its blocks differ widely
        let sigma2 = if rows.imatrix.is_some() { sum_squares(row) / rows.n_cols as f32 } else { 0.0 };
        let row = Rows { src: row, ..*rows };
        for ((x, importance), out) in row.blocks().zip(out.as_chunks_mut::<B>().0) {
            let fit = match (importance, MIN) {
                (None, false) => fit_symmetric(1 << (BITS - 1), x),
                (None, true) => fit_min::<BITS>(x),
                (Some(importance), false) => {
                    let weights = importance_weights(x, importance, sigma2);
                    let mut codes = [0; BLOCK];
                    let d = signed(1 << (BITS - 1), x, &weights, &mut codes);
                    Fit { d, min: 0.0, codes }
                }
                (Some(importance), true) => {
                    let weights = importance_weights(x, importance, sigma2);
                    let mut codes = [0; BLOCK];
                    let (d, offset) = with_min::<BLOCK, false>(&min_search(BITS), x, &weights, &mut codes);
                    Fit { d, min: -offset, codes }
                }
            };
            store::<B, BITS, MIN>(&fit, out);
        }
    }
}

/// What a block stores.
#[derive(Clone, Copy)]
pub(super) struct Fit {
    /// Scale.
    pub d: f32,
    /// Minimum; not stored by the types without one.
    pub min: f32,
    /// One code per element.
    pub codes: [u8; BLOCK],
}

/// The first value of largest magnitude maps to `-half`, which is code 0.
fn fit_symmetric(half: i8, x: &[f32; BLOCK]) -> Fit {
    let (max, _) = signed_max(x);
    let d = max / -f32::from(half);
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut codes = [0; BLOCK];
    for i in 0..BLOCK {
        codes[i] = c_trunc_i8(x[i] * id + (f32::from(half) + 0.5)).min(2 * half - 1) as u8;
    }
    Fit { d, min: 0.0, codes }
}

/// The range from minimum to maximum maps to all codes.
fn fit_min<const BITS: u32>(x: &[f32; BLOCK]) -> Fit {
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
    Fit { d, min, codes }
}

/// Writes one block.
#[inline(always)]
pub(super) fn store<const B: usize, const BITS: u32, const MIN: bool>(fit: &Fit, out: &mut [u8; B]) {
    put_u16(out, 0, f32_to_f16(fit.d));
    if MIN {
        put_u16(out, 2, f32_to_f16(fit.min));
    }
    if BITS == 5 {
        let mut high = 0u32;
        for i in 0..BLOCK {
            high |= (u32::from(fit.codes[i]) >> 4 & 1) << i;
        }
        let at = B - 20;
        out[at..at + 4].copy_from_slice(&high.to_le_bytes());
    }
    let nibbles = &mut out[B - 16..];
    for j in 0..16 {
        let (low, high) = (fit.codes[j], fit.codes[j + 16]);
        // ref: the low code of the 4-bit types is not masked; out-of-range codes of subnormal blocks show it
        nibbles[j] = (if BITS == 5 { low & 15 } else { low }) | high << 4;
    }
}

fn dequantize<const B: usize, const BITS: u32, const MIN: bool>(
    _level: SimdLevel,
    src: &[u8],
    dst: &mut [f32],
) {
    decode_blocks(src, dst, load::<B, BITS, MIN>);
}

/// Decodes one block.
#[inline(always)]
fn load<const B: usize, const BITS: u32, const MIN: bool>(block: &[u8; B], out: &mut [f32; BLOCK]) {
    let d = f16_to_f32(u16_at(block, 0));
    let min = if MIN { f16_to_f32(u16_at(block, 2)) } else { 0.0 };
    let high =
        if BITS == 5 { u32::from(u16_at(block, B - 20)) | u32::from(u16_at(block, B - 18)) << 16 } else { 0 };
    let nibbles = &block[B - 16..];
    for j in 0..16 {
        let mut low = i32::from(nibbles[j] & 15);
        let mut top = i32::from(nibbles[j] >> 4);
        if BITS == 5 {
            low |= (high >> j << 4 & 16) as i32;
            top |= (high >> (j + 16) << 4 & 16) as i32;
        }
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
