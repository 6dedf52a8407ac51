//! Q4_K and Q5_K: 8 parts of 32 elements, 6-bit scales and offsets, 4- or 5-bit levels.
//!
//! # Layout
//! 144 or 176 bytes: F16 scale of scales 0, F16 scale of offsets 2, scales and offsets 4..16, for Q5_K fifth bits
//! 16..48 (byte `m`, bit `n` for element `32 n + m`), then 128 bytes of nibbles: byte `32 k + l` holds element
//! `64 k + l` low and `64 k + 32 + l` high. Scale and offset of part `j < 4` are the low six bits of bytes `j` and
//! `j + 4`; those of part `j + 4` are the nibbles of byte `j + 8` below the top two bits of bytes `j` and `j + 4`.

use super::codec::{Codec, Rows, decode_blocks, put_u16, u16_at, validate_f16_pair};
use super::search::{MinSearch, sum_squares, with_min};
use super::superblock::{
    Parts, SUPER, SuperScales, field, field_mut, parts_with_importance, positive_max, relevel_min,
    scales_with_importance,
};
use crate::core::numeric::{f16_to_f32, f32_to_f16, nearest_int};
use crate::core::{GgmlType, simd::SimdLevel};

const PART: usize = 32;
const PARTS: usize = SUPER / PART;

pub(super) static Q4_K: Codec = Codec {
    ty: GgmlType::Q4K,
    quantize: Some(quantize::<144, 4>),
    dequantize: dequantize::<144, 4>,
    validate: validate_f16_pair::<144, 0>,
};

pub(super) static Q5_K: Codec = Codec {
    ty: GgmlType::Q5K,
    quantize: Some(quantize::<176, 5>),
    dequantize: dequantize::<176, 5>,
    validate: validate_f16_pair::<176, 0>,
};

const fn plain_search(bits: u32) -> MinSearch {
    match bits {
        4 => MinSearch { n_max: 15, r_min: -1.0, r_delta: 0.1, n_step: 20 },
        _ => MinSearch { n_max: 31, r_min: -0.5, r_delta: 0.1, n_step: 15 },
    }
}

const fn importance_search(bits: u32) -> MinSearch {
    MinSearch { n_max: (1 << bits) - 1, r_min: -0.9, r_delta: 0.05, n_step: 36 }
}

fn quantize<const B: usize, const BITS: u32>(_level: SimdLevel, rows: &Rows<'_>, dst: &mut [u8]) {
    for ((x, importance), out) in rows.blocks().zip(dst.as_chunks_mut().0) {
        let (mut parts, scales);
        match importance {
            None => {
                parts = parts_plain(&plain_search(BITS), x);
                scales = scales_plain(&parts);
            }
            Some(importance) => {
                let search = importance_search(BITS);
                parts = parts_with_importance::<PART, PARTS>(&search, 2.0, x, importance);
                scales = scales_with_importance(63, &parts);
            }
        }
        store::<B, BITS>(x, &mut parts.levels, scales, out);
    }
}

/// Weights are magnitudes plus the root mean square of the part.
fn parts_plain(search: &MinSearch, x: &[f32; SUPER]) -> Parts<PARTS> {
    let mut parts = Parts::ZERO;
    let levels = parts.levels.as_chunks_mut::<PART>().0.iter_mut();
    for (j, (x, levels)) in x.as_chunks::<PART>().0.iter().zip(levels).enumerate() {
        let rms = (sum_squares(x) / PART as f32).sqrt();
        let weights = x.map(|value| rms + value.abs());
        (parts.scales[j], parts.mins[j]) = with_min::<PART, false>(search, x, &weights, levels);
    }
    parts
}

#[inline(always)]
fn scales_plain(parts: &Parts<PARTS>) -> SuperScales<PARTS> {
    let quantized = |values: &[f32; PARTS]| {
        let max = positive_max(values);
        let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
        let mut levels = [0; PARTS];
        for j in 0..PARTS {
            // ref: narrowed before it is limited
            levels[j] = (nearest_int(inverse * values[j]) as u8).min(63);
        }
        (max / 63.0, levels)
    };
    let (d, scales) = quantized(&parts.scales);
    let (d_min, mins) = quantized(&parts.mins);
    SuperScales { d, d_min, scales, mins }
}

#[inline(always)]
fn store<const B: usize, const BITS: u32>(
    x: &[f32; SUPER],
    levels: &mut [u8; SUPER],
    mut scales: SuperScales<PARTS>,
    out: &mut [u8; B],
) {
    let (d, d_min) = (f32_to_f16(scales.d), f32_to_f16(scales.d_min));
    put_u16(out, 0, d);
    put_u16(out, 2, d_min);
    let (d, d_min) = (f16_to_f32(d), f16_to_f32(d_min));
    if BITS == 5 {
        // ref: Q5_K limits wrapped levels, Q4_K masks them
        scales.scales = scales.scales.map(|level| level.min(63));
        scales.mins = scales.mins.map(|level| level.min(63));
    }
    let packed = field_mut::<4, 12, _>(out);
    for j in 0..4 {
        let (scale, min) = (scales.scales[j + 4], scales.mins[j + 4]);
        packed[j] = scales.scales[j] | scale >> 4 << 6;
        packed[j + 4] = scales.mins[j] | min >> 4 << 6;
        packed[j + 8] = scale & 15 | min << 4;
    }
    let packed = *packed;
    let parts = x.as_chunks::<PART>().0.iter().zip(levels.as_chunks_mut::<PART>().0);
    for (j, (x, levels)) in parts.enumerate() {
        let (scale, min) = unpack_scale(&packed, j);
        relevel_min((1 << BITS) - 1, d * f32::from(scale), d_min * f32::from(min), x, levels);
    }
    if BITS == 5 {
        let high = field_mut::<16, 32, _>(out);
        for m in 0..32 {
            let mut bits = 0;
            for n in 0..8 {
                bits |= u8::from(levels[32 * n + m] > 15) << n;
            }
            high[m] = bits;
        }
        for level in levels.iter_mut() {
            *level &= 15;
        }
    }
    let nibbles = &mut out[B - 128..];
    for k in 0..4 {
        for l in 0..32 {
            nibbles[32 * k + l] = levels[64 * k + l] | levels[64 * k + 32 + l] << 4;
        }
    }
}

/// Scale and offset of part `j`.
#[inline(always)]
fn unpack_scale(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

fn dequantize<const B: usize, const BITS: u32>(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, load::<B, BITS>);
}

#[inline(always)]
fn load<const B: usize, const BITS: u32>(block: &[u8; B], out: &mut [f32; SUPER]) {
    let (d, d_min) = (f16_to_f32(u16_at(block, 0)), f16_to_f32(u16_at(block, 2)));
    let packed = field::<4, 12, _>(block);
    let high = field::<16, 32, _>(block);
    let nibbles = &block[B - 128..];
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let (scale, min) = unpack_scale(packed, j);
        let (scale, offset) = (d * f32::from(scale), d_min * f32::from(min));
        let nibbles = &nibbles[j / 2 * 32..][..PART];
        let shift = j % 2 * 4;
        for i in 0..PART {
            let mut level = nibbles[i] >> shift & 15;
            if BITS == 5 {
                level |= (high[i] >> j & 1) << 4;
            }
            out[i] = scale * f32::from(level) - offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_offsets_unpack_to_what_was_packed() {
        let scales: [u8; 8] = std::array::from_fn(|j| (j * 9) as u8);
        let mins: [u8; 8] = std::array::from_fn(|j| 63 - (j * 8) as u8);
        let super_scales = SuperScales { d: 1.0, d_min: 1.0, scales, mins };
        let mut block = [0; 144];
        store::<144, 4>(&[0.0; SUPER], &mut [0; SUPER], super_scales, &mut block);
        for j in 0..8 {
            assert_eq!(unpack_scale(field::<4, 12, _>(&block), j), (scales[j], mins[j]), "{j}");
        }
    }
}
