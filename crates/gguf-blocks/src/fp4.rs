//! MXFP4 and NVFP4: the 16 values of E2M1 under block scales that are powers of two or UE4M3.
//!
//! # Layout
//! MXFP4: 32 elements, E8M0 scale at 0, nibbles 1..17, byte `j` holds elements `j` and `j + 16`. NVFP4: 64
//! elements in four groups of 16, UE4M3 scales 0..4, nibbles 4..36, byte `8 g + j` holds elements `16 g + j` and
//! `16 g + j + 8`.

use super::batch::{BATCH, BlockBatch};
use super::codec::{Codec, SourceRows, decoder, validate_nothing, validate_with};
use super::error::BlockFlaw;
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::signed_max;
use super::superblock::field_mut;
use gguf_core::GgmlType;
use gguf_core::numeric::{c_trunc_i32, c_trunc_u8, floor_log2f};
use gguf_core::small_float::magnitude;

pub(super) static MXFP4: Codec = Codec {
    ty: GgmlType::Mxfp4,
    quantize: Some(quantize_with::<QuantizeMxfp4>),
    dequantize: mxfp4_dequantize,
    validate: |bytes| validate_with::<17>(bytes, |block| (block[0] == 0xff).then_some(BlockFlaw::ScaleNan)),
};

pub(super) static NVFP4: Codec = Codec {
    ty: GgmlType::Nvfp4,
    quantize: Some(quantize_with::<QuantizeNvfp4>),
    dequantize: nvfp4_dequantize,
    // ggml accepts every UE4M3 byte; its NaN decodes to zero.
    validate: validate_nothing,
};

/// Twice the values of E2M1, which makes them whole numbers.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns half of an E8M0 scale, which matches [`VALUES`]: `2^(e - 128)`, subnormal for 0 and 1.
#[inline(always)]
fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// Returns half of a UE4M3 scale; the NaN code counts as zero.
#[inline(always)]
fn ue4m3_half(code: u8) -> f32 {
    if code == 0 || code == 0x7f {
        return 0.0;
    }
    magnitude::<4, 3>(code & 0x7f) * 0.5
}

/// Returns the UE4M3 code of a scale: nearest by the next bit alone, at most 448.
///
/// # Exactness
/// `ggml_fp32_to_ue4m3`: only the bit after the mantissa rounds, and everything from 256 up becomes 448.
fn ue4m3(x: f32) -> u8 {
    let positive = x > 0.0;
    if !positive {
        return 0;
    }
    let x = if x > 448.0 { 448.0 } else { x };
    let bits = x.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 7;
    if exponent <= 0 {
        return c_trunc_i32(x * 512.0 + 0.5).clamp(0, 7) as u8;
    }
    if exponent >= 15 {
        return 0x7e;
    }
    // A mantissa that rounds up to 8 carries into the exponent.
    let code = (exponent << 3) + (bits >> 20 & 7) as i32 + (bits >> 19 & 1) as i32;
    if code >= 15 << 3 { 0x7e } else { code as u8 }
}

/// Returns the first code whose value times `d` is nearest to `x`.
#[inline(always)]
fn nearest_code(x: f32, d: f32) -> u8 {
    let mut best = 0;
    let mut best_error = (f32::from(VALUES[0]) * d - x).abs();
    for code in 1..16 {
        let error = (f32::from(VALUES[code]) * d - x).abs();
        if error < best_error {
            best_error = error;
            best = code as u8;
        }
    }
    best
}

/// Returns the E8M0 scale for a largest magnitude: the largest value of E2M1 has exponent 2.
fn e8m0(amax: f32) -> u8 {
    // ref: narrowed without a limit, wraps below 2^-125
    if amax > 0.0 { c_trunc_u8(floor_log2f(amax) as f32 - 2.0 + 127.0) } else { 0 }
}

/// Runs [`nearest_code`] for 16 values.
///
/// Searches the magnitudes and adds the sign: a negative value is as far from `-v` as its magnitude is from `v`, and
/// values of the other sign are never nearer than zero, which comes first.
#[inline(always)]
fn nearest_codes<L: Lanes>(l: L, x: &[f32; 16], d: f32) -> [u8; 16] {
    let mut codes = [0; 16];
    let (zero, none) = (l.splat(0.0), l.splat_i(0));
    for at in (0..16).step_by(L::WIDTH) {
        let value = l.load(&x[at..]);
        let magnitude = l.abs(value);
        let mut best = none;
        let mut best_error = magnitude;
        for code in 1..8 {
            let error = l.abs(l.splat(f32::from(VALUES[code]) * d) - magnitude);
            let better = l.gt(best_error, error);
            best_error = l.select(better, error, best_error);
            best = l.select_i(better, l.splat_i(code as i32), best);
        }
        let negative = l.gt(zero, value) & !l.eq_i(best, none);
        l.store_low_bytes(best | l.select_i(negative, l.splat_i(8), none), &mut codes[at..]);
    }
    codes
}

/// Packs the code of `x[j]` in the low nibble and that of `x[j + 8]` in the high one.
#[inline(always)]
fn pack_halves(low: u64, high: u64) -> [u8; 8] {
    (low | high << 4).to_le_bytes()
}

/// Splits 16 codes into two words.
#[inline(always)]
fn words(codes: [u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(codes);
    [both as u64, (both >> 64) as u64]
}

/// Kernel of all MXFP4 blocks: scales with one block per lane, codes along the block.
struct QuantizeMxfp4;

impl RowsKernel for QuantizeMxfp4 {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, _), out) in rows.blocks::<32>().zip(dst.as_chunks_mut::<17>().0) {
            let (_, amax) = signed_max(x);
            let e = e8m0(amax);
            let d = e8m0_half(e);
            out[0] = e;
            for j in 0..16 {
                out[1 + j] = nearest_code(x[j], d) | nearest_code(x[j + 16], d) << 4;
            }
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const BATCH_BLOCKS: usize = BATCH / 32;
        let mut batch = BlockBatch::EMPTY;
        let mut amaxes = [0.0; BATCH_BLOCKS];
        for (index, out) in dst.as_chunks_mut::<17>().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            batch.largest_magnitudes::<L, 32>(l, &mut amaxes);
            for ((x, amax), out) in batch.x.as_chunks::<32>().0.iter().zip(amaxes).zip(out) {
                let e = e8m0(amax);
                let d = e8m0_half(e);
                out[0] = e;
                // No closures here: they would not be compiled for the level.
                let low = words(nearest_codes(l, &x.as_chunks().0[0], d));
                let high = words(nearest_codes(l, &x.as_chunks().0[1], d));
                *field_mut::<1, 8, _>(out) = pack_halves(low[0], high[0]);
                *field_mut::<9, 8, _>(out) = pack_halves(low[1], high[1]);
            }
        }
    }
}

/// Kernel of all NVFP4 blocks: scales with one group of 16 per lane, codes along the group.
struct QuantizeNvfp4;

impl RowsKernel for QuantizeNvfp4 {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, _), out) in rows.blocks::<64>().zip(dst.as_chunks_mut::<36>().0) {
            for (g, x) in x.as_chunks::<16>().0.iter().enumerate() {
                let (_, amax) = signed_max(x);
                let scale = ue4m3(amax / 6.0);
                let d = ue4m3_half(scale);
                out[g] = scale;
                for j in 0..8 {
                    out[4 + 8 * g + j] = nearest_code(x[j], d) | nearest_code(x[j + 8], d) << 4;
                }
            }
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const BATCH_BLOCKS: usize = BATCH / 64;
        let mut batch = BlockBatch::EMPTY;
        let mut amaxes = [[0.0; 4]; BATCH_BLOCKS];
        for (index, out) in dst.as_chunks_mut::<36>().0.chunks_mut(BATCH_BLOCKS).enumerate() {
            batch.load(rows, index * BATCH);
            batch.largest_magnitudes::<L, 16>(l, amaxes.as_flattened_mut());
            for ((x, amaxes), out) in batch.x.as_chunks::<64>().0.iter().zip(amaxes).zip(out) {
                for (g, x) in x.as_chunks::<16>().0.iter().enumerate() {
                    let scale = ue4m3(amaxes[g] / 6.0);
                    out[g] = scale;
                    let [low, high] = words(nearest_codes(l, x, ue4m3_half(scale)));
                    out[4 + 8 * g..][..8].copy_from_slice(&pack_halves(low, high));
                }
            }
        }
    }
}

decoder!(mxfp4_dequantize = mxfp4_load);

#[inline(always)]
fn mxfp4_load(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = e8m0_half(block[0]);
    for j in 0..16 {
        out[j] = f32::from(VALUES[usize::from(block[1 + j] & 15)]) * d;
        out[j + 16] = f32::from(VALUES[usize::from(block[1 + j] >> 4)]) * d;
    }
}

decoder!(nvfp4_dequantize = nvfp4_load);

#[inline(always)]
fn nvfp4_load(block: &[u8; 36], out: &mut [f32; 64]) {
    for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let d = ue4m3_half(block[g]);
        for j in 0..8 {
            let byte = block[4 + 8 * g + j];
            out[j] = f32::from(VALUES[usize::from(byte & 15)]) * d;
            out[j + 8] = f32::from(VALUES[usize::from(byte >> 4)]) * d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ue4m3_codes_decode_to_themselves() {
        for code in 0..0x7f {
            assert_eq!(ue4m3(2.0 * ue4m3_half(code)), if code >= 0x78 { 0x7e } else { code }, "{code:#x}");
        }
        assert_eq!(ue4m3(f32::INFINITY), 0x7e);
        assert_eq!(ue4m3(f32::NAN), 0);
    }

    #[test]
    fn scales_just_below_a_power_of_two_round_up() {
        assert_eq!(e8m0(8.0), 128);
        assert_eq!(e8m0(f32::from_bits(8f32.to_bits() - 1)), 128);
        assert_eq!(e8m0(7.9), 127);
        assert_eq!(e8m0(f32::from_bits(1)), (-149 + 125_i32) as u8);
        assert_eq!(e8m0(f32::INFINITY), 0);
    }

    #[test]
    fn a_tie_goes_to_the_smaller_magnitude() {
        assert_eq!(nearest_code(5.0, 1.0), 4);
        assert_eq!(nearest_code(-5.0, 1.0), 12);
        assert_eq!(nearest_code(-0.0, 1.0), 0);
    }
}
