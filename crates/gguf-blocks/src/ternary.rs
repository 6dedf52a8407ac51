//! TQ1_0 and TQ2_0: 256 elements of -1, 0, 1 times one F16 scale, stored last.
//!
//! # Layout
//! TQ1_0 (54 bytes): base-3 digits as fractions of 256, five per byte: bytes 0..32 hold elements `32 n + m`,
//! bytes 32..48 elements `160 + 16 n + m`, bytes 48..52 elements `240 + 4 n + m` (four per byte), scale at 52.
//! TQ2_0 (66 bytes): byte `32 k + m` holds elements `128 k + 32 n + m` in bits `2 n`, scale at 64.

use std::marker::PhantomData;

use super::batch::{BATCH, BlockBatch};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::abs_max;
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16, lroundf};

pub(super) static TQ1_0: Codec = Codec {
    ty: GgmlType::Tq1_0,
    quantize: Some(quantize_with::<QuantizeTernary<54, Tq1>>),
    dequantize: tq1_0_dequantize,
    validate: validate_f16::<54, 52>,
};

pub(super) static TQ2_0: Codec = Codec {
    ty: GgmlType::Tq2_0,
    quantize: Some(quantize_with::<QuantizeTernary<66, Tq2>>),
    dequantize: tq2_0_dequantize,
    validate: validate_f16::<66, 64>,
};

/// Runs of TQ1_0: first byte, number of bytes (the stride of the elements), first element, digits per byte.
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4)];

/// Returns digits 0..=2 of a block, as low bytes of `lroundf(x / max) + 1`.
#[inline(always)]
fn digits(x: &[f32; 256], amax: f32) -> [u8; 256] {
    let id = if amax == 0.0 { 0.0 } else { 1.0 / amax };
    let mut digits = [0; 256];
    for i in 0..256 {
        digits[i] = (lroundf(x[i] * id) as u8).wrapping_add(1);
    }
    digits
}

decoder!(tq1_0_dequantize = tq1_0_load);

#[inline(always)]
fn tq1_0_load(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16_to_f32(u16_at(block, 52));
    each_digit(block, |element, digit| out[element] = f32::from(digit - 1) * d);
}

/// Calls `f` with every element's index and digit.
#[inline(always)]
fn each_digit(block: &[u8; 54], mut f: impl FnMut(usize, i16)) {
    for (at, n_bytes, first, n_digits) in RUNS {
        for (n, power) in [1u8, 3, 9, 27, 81].into_iter().enumerate().take(n_digits) {
            for m in 0..n_bytes {
                let fraction = block[at + m].wrapping_mul(power);
                f(first + n * n_bytes + m, ((u16::from(fraction) * 3) >> 8) as i16);
            }
        }
    }
}

decoder!(tq2_0_dequantize = tq2_0_load);

#[inline(always)]
fn tq2_0_load(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_to_f32(u16_at(block, 64));
    for (k, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for m in 0..32 {
                out[m] = f32::from((block[32 * k + m] >> (2 * n) & 3) as i8 - 1) * d;
            }
        }
    }
}

/// Storage of digits, which differs between the two types.
trait StoreDigits<const B: usize> {
    /// Writes digits and scale.
    fn store(digits: &[u8; 256], d: f32, out: &mut [u8; B]);
}

struct Tq1;

impl StoreDigits<54> for Tq1 {
    #[inline(always)]
    fn store(digits: &[u8; 256], d: f32, out: &mut [u8; 54]) {
        for (at, n_bytes, first, n_digits) in RUNS {
            for m in 0..n_bytes {
                let mut number = 0u8;
                for n in 0..5 {
                    let digit = if n < n_digits { digits[first + n * n_bytes + m] } else { 0 };
                    number = number.wrapping_mul(3).wrapping_add(digit);
                }
                // Rounded up, so that decoding can multiply by 3 and take the carry.
                out[at + m] = (u16::from(number) * 256).wrapping_add(242).wrapping_div(243) as u8;
            }
        }
        put_u16(out, 52, f32_to_f16(d));
    }
}

struct Tq2;

impl StoreDigits<66> for Tq2 {
    #[inline(always)]
    fn store(digits: &[u8; 256], d: f32, out: &mut [u8; 66]) {
        for k in 0..2 {
            for m in 0..32 {
                let mut byte = 0;
                for n in 0..4 {
                    byte |= (digits[128 * k + 32 * n + m] & 3) << (2 * n);
                }
                out[32 * k + m] = byte;
            }
        }
        put_u16(out, 64, f32_to_f16(d));
    }
}

/// Kernel of all blocks: scales with one block per lane, digits along the block.
struct QuantizeTernary<const B: usize, S>(PhantomData<S>);

impl<const B: usize, S: StoreDigits<B>> RowsKernel for QuantizeTernary<B, S> {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, _), out) in rows.blocks::<256>().zip(dst.as_chunks_mut::<B>().0) {
            let amax = abs_max(x);
            S::store(&digits(x, amax), amax, out);
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const BATCH_BLOCKS: usize = BATCH / 256;
        let mut batch = BlockBatch::EMPTY;
        let mut amaxes = [0.0; BATCH_BLOCKS];
        for (index, out) in dst.as_chunks_mut::<B>().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            batch.abs_maxes::<L, 256>(l, &mut amaxes);
            for ((x, amax), out) in batch.x.as_chunks::<256>().0.iter().zip(amaxes).zip(out) {
                let id = if amax == 0.0 { 0.0 } else { 1.0 / amax };
                let mut digits = [0; 256];
                for at in (0..256).step_by(L::WIDTH) {
                    // Beyond 32 bits `lroundf` gives a zero byte, like `round_away`.
                    let digit = l.round_away(l.load(&x[at..]) * l.splat(id)) + l.splat_i(1);
                    l.store_low_bytes(digit, &mut digits[at..]);
                }
                S::store(&digits, amax, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::simd::SimdLevel;

    #[test]
    fn ternary_values_come_back() {
        let x: [f32; 256] = std::array::from_fn(|i| (i * 7 % 3) as f32 * 0.5 - 0.5);
        let rows = SourceRows { n_cols: 256, src: &x, imatrix: None, refused: &std::cell::Cell::default() };
        let mut back = [0.0; 256];
        let mut block = [0; 54];
        QuantizeTernary::<54, Tq1>::scalar(&rows, &mut block);
        tq1_0_dequantize(SimdLevel::Scalar, &block, &mut back);
        assert_eq!(back, x);
        let mut block = [0; 66];
        QuantizeTernary::<66, Tq2>::scalar(&rows, &mut block);
        tq2_0_dequantize(SimdLevel::Scalar, &block, &mut back);
        assert_eq!(back, x);
    }
}
