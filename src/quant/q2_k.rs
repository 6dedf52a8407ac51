//! Q2_K: 16 parts of 16 elements, 4-bit scales and offsets, 2-bit levels.
//!
//! # Layout
//! 84 bytes: scales low and offsets high in the nibbles of 0..16, levels 16..80 (see [`pack_pairs`]), F16 scale of
//! scales 80, F16 scale of offsets 82.

use super::codec::{Codec, Rows, decode_blocks, put_u16, u16_at, validate_f16_pair};
use super::search::{MinSearch, with_min};
use super::superblock::{
    Parts, SUPER, SuperScales, field, field_mut, pack_pairs, parts_with_importance, positive_max,
    relevel_min, scales_with_importance,
};
use crate::core::numeric::{f16_to_f32, f32_to_f16, nearest_int};
use crate::core::{GgmlType, simd::SimdLevel};

const BLOCK_BYTES: usize = 84;
const PART: usize = 16;
const PARTS: usize = SUPER / PART;

const PLAIN: MinSearch = MinSearch { n_max: 3, r_min: -0.5, r_delta: 0.1, n_step: 15 };
const WITH_IMPORTANCE: MinSearch = MinSearch { n_max: 3, r_min: -0.9, r_delta: 0.05, n_step: 36 };

pub(super) static Q2_K: Codec = Codec {
    ty: GgmlType::Q2K,
    quantize: Some(quantize),
    dequantize,
    validate: validate_f16_pair::<BLOCK_BYTES, 80>,
};

fn quantize(_level: SimdLevel, rows: &Rows<'_>, dst: &mut [u8]) {
    for ((x, importance), out) in rows.blocks().zip(dst.as_chunks_mut().0) {
        let (mut parts, scales);
        match importance {
            None => {
                parts = parts_plain(x);
                scales = scales_plain(&parts);
            }
            Some(importance) => {
                parts = parts_with_importance::<PART, PARTS>(&WITH_IMPORTANCE, 1.0, x, importance);
                scales = scales_with_importance(15, &parts);
            }
        }
        store(x, &mut parts.levels, &scales, out);
    }
}

/// Weights are magnitudes, fits are ranked by absolute error.
fn parts_plain(x: &[f32; SUPER]) -> Parts<PARTS> {
    let mut parts = Parts::ZERO;
    let levels = parts.levels.as_chunks_mut::<PART>().0.iter_mut();
    for (j, (x, levels)) in x.as_chunks::<PART>().0.iter().zip(levels).enumerate() {
        let weights = x.map(f32::abs);
        (parts.scales[j], parts.mins[j]) = with_min::<PART, true>(&PLAIN, x, &weights, levels);
    }
    parts
}

#[inline(always)]
fn scales_plain(parts: &Parts<PARTS>) -> SuperScales<PARTS> {
    let quantized = |values: &[f32; PARTS]| {
        let max = positive_max(values);
        let mut levels = [0; PARTS];
        if max > 0.0 {
            let iscale = 15.0 / max;
            for j in 0..PARTS {
                levels[j] = nearest_int(iscale * values[j]) as u8;
            }
            (max / 15.0, levels)
        } else {
            (0.0, levels)
        }
    };
    let (d, scales) = quantized(&parts.scales);
    let (d_min, mins) = quantized(&parts.mins);
    SuperScales { d, d_min, scales, mins }
}

#[inline(always)]
fn store(
    x: &[f32; SUPER],
    levels: &mut [u8; SUPER],
    scales: &SuperScales<PARTS>,
    out: &mut [u8; BLOCK_BYTES],
) {
    let (d, d_min) = (f32_to_f16(scales.d), f32_to_f16(scales.d_min));
    put_u16(out, 80, d);
    put_u16(out, 82, d_min);
    let (d, d_min) = (f16_to_f32(d), f16_to_f32(d_min));
    let parts = x.as_chunks::<PART>().0.iter().zip(levels.as_chunks_mut::<PART>().0);
    for (j, (x, levels)) in parts.enumerate() {
        // ref: OR-ed unclamped
        let code = scales.scales[j] | scales.mins[j] << 4;
        out[j] = code;
        relevel_min(3, d * f32::from(code & 15), d_min * f32::from(code >> 4), x, levels);
    }
    pack_pairs(levels, field_mut::<16, 64, _>(out));
}

fn dequantize(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, load);
}

#[inline(always)]
fn load(block: &[u8; BLOCK_BYTES], out: &mut [f32; SUPER]) {
    let (d, d_min) = (f16_to_f32(u16_at(block, 80)), f16_to_f32(u16_at(block, 82)));
    let pairs = field::<16, 64, _>(block);
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[j] & 15);
        let offset = d_min * f32::from(block[j] >> 4);
        let pairs = &pairs[j / 8 * 32 + j % 2 * 16..][..PART];
        let shift = j / 2 % 4 * 2;
        for i in 0..PART {
            out[i] = scale * f32::from(pairs[i] >> shift & 3) - offset;
        }
    }
}
