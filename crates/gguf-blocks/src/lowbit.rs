//! Q1_0 and Q2_0: signs and near-ternary codes under one F16 scale, stored first.
//!
//! # Layout
//! Q1_0: 128 elements, bits from byte 2, element `i` in bit `i % 8` of byte `i / 8`. Q2_0: 64 elements, pairs of
//! bits from byte 2, element `i` in bits `2 * (i % 4)` of byte `i / 4`; codes 0..=3 mean -1, 0, 1, 2.

use super::batch::{BATCH, BlockBatch};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::signed_max;
use super::superblock::field_mut;
use gguf_core::GgmlType;
use gguf_core::numeric::{c_trunc_i32, f16_to_f32, f32_to_f16, roundf};

pub(super) static Q1_0: Codec = Codec {
    ty: GgmlType::Q1_0,
    quantize: Some(quantize_with::<QuantizeQ1>),
    dequantize: q1_0_dequantize,
    validate: validate_f16::<18, 0>,
};

pub(super) static Q2_0: Codec = Codec {
    ty: GgmlType::Q2_0,
    quantize: Some(quantize_with::<QuantizeQ2>),
    dequantize: q2_0_dequantize,
    validate: validate_f16::<18, 0>,
};

/// Kernel of all Q1_0 blocks: scales with one block per lane, signs along the block.
struct QuantizeQ1;

impl RowsKernel for QuantizeQ1 {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, _), out) in rows.blocks::<128>().zip(dst.as_chunks_mut::<18>().0) {
            let sum_abs = x.iter().fold(0f32, |sum, value| sum + value.abs());
            put_u16(out, 0, f32_to_f16(sum_abs / 128.0));
            for j in 0..16 {
                let mut bits = 0;
                for i in 0..8 {
                    // -0.0 counts as positive, NaN as negative.
                    bits |= u8::from(x[8 * j + i] >= 0.0) << i;
                }
                out[2 + j] = bits;
            }
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const BATCH_BLOCKS: usize = BATCH / 128;
        let mut batch = BlockBatch::EMPTY;
        let mut sums = [0.0; BATCH_BLOCKS];
        let zero = l.splat(0.0);
        for (index, out) in dst.as_chunks_mut::<18>().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            batch.sums_of_magnitudes::<L, 128>(l, &mut sums);
            for ((x, sum), out) in batch.x.as_chunks::<128>().0.iter().zip(sums).zip(out) {
                put_u16(out, 0, f32_to_f16(sum / 128.0));
                let mut bits = 0u128;
                for at in (0..128).step_by(L::WIDTH) {
                    let value = l.load(&x[at..]);
                    bits |= u128::from(l.mask_bits(l.gt(value, zero) | l.eq(value, zero))) << at;
                }
                *field_mut::<2, 16, _>(out) = bits.to_le_bytes();
            }
        }
    }
}

decoder!(q1_0_dequantize = q1_0_load);

#[inline(always)]
fn q1_0_load(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16_to_f32(u16_at(block, 0));
    for i in 0..128 {
        out[i] = if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
    }
}

/// Kernel of all Q2_0 blocks: scales with one block per lane, codes along the block.
struct QuantizeQ2;

impl RowsKernel for QuantizeQ2 {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, _), out) in rows.blocks::<64>().zip(dst.as_chunks_mut::<18>().0) {
            let (_, d) = signed_max(x);
            let id = if d > 0.0 { 1.0 / d } else { 0.0 };
            put_u16(out, 0, f32_to_f16(d));
            let codes = x.map(|x| c_trunc_i32(roundf(x * id)).wrapping_add(1).clamp(0, 3) as u8);
            for j in 0..16 {
                let [a, b, c, d] = codes.as_chunks().0[j];
                out[2 + j] = a | b << 2 | c << 4 | d << 6;
            }
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const BATCH_BLOCKS: usize = BATCH / 64;
        let mut batch = BlockBatch::EMPTY;
        let mut amaxes = [0.0; BATCH_BLOCKS];
        for (index, out) in dst.as_chunks_mut::<18>().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            batch.largest_magnitudes::<L, 64>(l, &mut amaxes);
            for ((x, d), out) in batch.x.as_chunks::<64>().0.iter().zip(amaxes).zip(out) {
                let id = if d > 0.0 { 1.0 / d } else { 0.0 };
                put_u16(out, 0, f32_to_f16(d));
                let mut codes = [0; 64];
                for at in (0..64).step_by(L::WIDTH) {
                    let code = l.round_away(l.load(&x[at..]) * l.splat(id)) + l.splat_i(1);
                    let code = l.min_i(l.max_i(code, l.splat_i(0)), l.splat_i(3));
                    l.store_low_bytes(code, &mut codes[at..]);
                }
                for (codes, out) in codes.as_chunks().0.iter().zip(out[2..].as_chunks_mut::<2>().0) {
                    // Codes of neighbours are combined, first in pairs, then in fours.
                    let word = u64::from_le_bytes(*codes);
                    let word = (word | word >> 6) & 0x000f_000f_000f_000f;
                    let word = word | word >> 12;
                    *out = [word as u8, (word >> 32) as u8];
                }
            }
        }
    }
}

decoder!(q2_0_dequantize = q2_0_load);

#[inline(always)]
fn q2_0_load(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = f16_to_f32(u16_at(block, 0));
    for i in 0..64 {
        out[i] = f32::from((block[2 + i / 4] >> (2 * (i % 4)) & 3) as i8 - 1) * d;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::simd::SimdLevel;

    #[test]
    fn the_sign_of_zero_is_positive_and_decoding_keeps_it() {
        let mut x = [-1.0; 128];
        (x[0], x[9]) = (-0.0, 3.0);
        let mut block = [0; 18];
        QuantizeQ1::scalar(
            &SourceRows { n_cols: 128, src: &x, imatrix: None, refused: &std::cell::Cell::default() },
            &mut block,
        );
        assert_eq!(block[2..5], [1, 2, 0]);
        let mut back = [0.0; 128];
        q1_0_dequantize(SimdLevel::Scalar, &block, &mut back);
        assert!(back[0] > 0.0 && back[1] < 0.0);
    }

    #[test]
    fn ternary_values_keep_their_codes() {
        let x: [f32; 64] = std::array::from_fn(|i| [-2.0, 0.0, 2.0, 0.9][i % 4]);
        let mut block = [0; 18];
        QuantizeQ2::scalar(
            &SourceRows { n_cols: 64, src: &x, imatrix: None, refused: &std::cell::Cell::new(None) },
            &mut block,
        );
        assert_eq!(block[2], 0b01_10_01_00);
    }
}
