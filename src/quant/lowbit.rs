//! Q1_0 and Q2_0: signs and near-ternary codes under one F16 scale, stored first.
//!
//! # Layout
//! Q1_0: 128 elements, bits from byte 2, element `i` in bit `i % 8` of byte `i / 8`. Q2_0: 64 elements, pairs of
//! bits from byte 2, element `i` in bits `2 * (i % 4)` of byte `i / 4`; codes 0..=3 mean -1, 0, 1, 2.

use super::codec::{Codec, Rows, decode_blocks, put_u16, u16_at, validate_f16};
use super::search::signed_max;
use crate::core::numeric::{c_trunc_i32, f16_to_f32, f32_to_f16, roundf};
use crate::core::{GgmlType, simd::SimdLevel};

pub(super) static Q1_0: Codec = Codec {
    ty: GgmlType::Q1_0,
    quantize: Some(q1_0_quantize),
    dequantize: q1_0_dequantize,
    validate: validate_f16::<18, 0>,
};

pub(super) static Q2_0: Codec = Codec {
    ty: GgmlType::Q2_0,
    quantize: Some(q2_0_quantize),
    dequantize: q2_0_dequantize,
    validate: validate_f16::<18, 0>,
};

fn q1_0_quantize(_level: SimdLevel, rows: &Rows<'_>, dst: &mut [u8]) {
    for ((x, _), out) in rows.blocks::<128>().zip(dst.as_chunks_mut::<18>().0) {
        let sum_abs = x.iter().fold(0f32, |sum, value| sum + value.abs());
        q1_0_block(x, sum_abs / 128.0, out);
    }
}

#[inline(always)]
fn q1_0_block(x: &[f32; 128], d: f32, out: &mut [u8; 18]) {
    put_u16(out, 0, f32_to_f16(d));
    for j in 0..16 {
        let mut bits = 0;
        for i in 0..8 {
            // -0.0 counts as positive, NaN as negative.
            bits |= u8::from(x[8 * j + i] >= 0.0) << i;
        }
        out[2 + j] = bits;
    }
}

fn q1_0_dequantize(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block: &[u8; 18], out: &mut [f32; 128]| {
        let d = f16_to_f32(u16_at(block, 0));
        for i in 0..128 {
            out[i] = if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
        }
    });
}

fn q2_0_quantize(_level: SimdLevel, rows: &Rows<'_>, dst: &mut [u8]) {
    for ((x, _), out) in rows.blocks::<64>().zip(dst.as_chunks_mut::<18>().0) {
        let (_, d) = signed_max(x);
        q2_0_block(x, d, out);
    }
}

#[inline(always)]
fn q2_0_block(x: &[f32; 64], d: f32, out: &mut [u8; 18]) {
    let id = if d > 0.0 { 1.0 / d } else { 0.0 };
    put_u16(out, 0, f32_to_f16(d));
    let mut codes = [0; 64];
    for i in 0..64 {
        codes[i] = c_trunc_i32(roundf(x[i] * id)).wrapping_add(1).clamp(0, 3) as u8;
    }
    for j in 0..16 {
        out[2 + j] = codes[4 * j] | codes[4 * j + 1] << 2 | codes[4 * j + 2] << 4 | codes[4 * j + 3] << 6;
    }
}

fn q2_0_dequantize(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block: &[u8; 18], out: &mut [f32; 64]| {
        let d = f16_to_f32(u16_at(block, 0));
        for i in 0..64 {
            out[i] = f32::from((block[2 + i / 4] >> (2 * (i % 4)) & 3) as i8 - 1) * d;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_of_zero_is_positive_and_decoding_keeps_it() {
        let mut x = [-1.0; 128];
        (x[0], x[9]) = (-0.0, 3.0);
        let mut block = [0; 18];
        q1_0_quantize(SimdLevel::Scalar, &Rows { n_cols: 128, src: &x, imatrix: None }, &mut block);
        assert_eq!(block[2..5], [1, 2, 0]);
        let mut back = [0.0; 128];
        q1_0_dequantize(SimdLevel::Scalar, &block, &mut back);
        assert!(back[0] > 0.0 && back[1] < 0.0);
    }

    #[test]
    fn ternary_values_keep_their_codes() {
        let x = std::array::from_fn(|i| [-2.0, 0.0, 2.0, 0.9][i % 4]);
        let mut block = [0; 18];
        q2_0_block(&x, 2.0, &mut block);
        assert_eq!(block[2], 0b01_10_01_00);
    }
}
