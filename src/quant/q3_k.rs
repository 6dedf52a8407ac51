//! Q3_K: 16 parts of 16 elements around zero, 6-bit signed scales, 3-bit levels.
//!
//! # Layout
//! 110 bytes: third bits 0..32 (byte `m`, bit `n` for element `32 n + m`), low pairs of bits 32..96 (see
//! [`pack_pairs`]), scales 96..108, F16 scale of scales 108. Scale `j`, offset by 32, has its low four bits in the
//! nibbles of bytes 0..8 (part `j % 8`, high nibble from part 8) and its high two in byte `8 + j % 4`, bits
//! `2 * (j / 4)`.

use super::codec::{Codec, Rows, decode_blocks, put_u16, u16_at, validate_f16};
use super::search::{importance_weights, signed, signed_refined, sum, sum_squares};
use super::superblock::{SUPER, field, field_mut, pack_pairs, relevel_signed};
use crate::core::numeric::{f16_to_f32, f32_to_f16, nearest_int};
use crate::core::{GgmlType, simd::SimdLevel};

const BLOCK_BYTES: usize = 110;
const PART: usize = 16;
const PARTS: usize = SUPER / PART;

pub(super) static Q3_K: Codec = Codec {
    ty: GgmlType::Q3K,
    quantize: Some(quantize),
    dequantize,
    validate: validate_f16::<BLOCK_BYTES, 108>,
};

/// Scale of the scales as a float, and the stored scales `0..64`, which mean `-32..32`.
#[derive(Clone, Copy)]
struct Scales {
    d: f32,
    codes: [u8; PARTS],
}

fn quantize(_level: SimdLevel, rows: &Rows<'_>, dst: &mut [u8]) {
    for ((x, importance), out) in rows.blocks().zip(dst.as_chunks_mut().0) {
        let mut levels = [0; SUPER];
        let scales = match importance {
            None => plain(x, &mut levels),
            Some(importance) => with_importance(x, importance, &mut levels),
        };
        store(x, &mut levels, &scales, out);
    }
}

fn plain(x: &[f32; SUPER], levels: &mut [u8; SUPER]) -> Scales {
    let mut scales = [0.0; PARTS];
    let parts = x.as_chunks::<PART>().0.iter().zip(levels.as_chunks_mut::<PART>().0);
    for (j, (x, levels)) in parts.enumerate() {
        scales[j] = signed_refined(4, x, levels);
    }
    scales_plain(&scales)
}

/// The first scale of largest magnitude gets code -32.
#[inline(always)]
fn scales_plain(scales: &[f32; PARTS]) -> Scales {
    let (max, _) = super::search::signed_max(scales);
    if max == 0.0 {
        // ref: the bytes of the scales are zero, which means -32
        return Scales { d: 0.0, codes: [0; PARTS] };
    }
    let iscale = -32.0 / max;
    let mut codes = [0; PARTS];
    for j in 0..PARTS {
        // ref: narrowed before it is limited
        codes[j] = (i32::from(nearest_int(iscale * scales[j]) as i8).clamp(-32, 31) + 32) as u8;
    }
    Scales { d: 1.0 / iscale, codes }
}

fn with_importance(x: &[f32; SUPER], importance: &[f32; SUPER], levels: &mut [u8; SUPER]) -> Scales {
    let sigma2 = 2.0 * sum_squares(x) / SUPER as f32;
    let (mut scales, mut weight_sums) = ([0.0; PARTS], [0.0; PARTS]);
    let parts = x.as_chunks::<PART>().0.iter().zip(importance.as_chunks::<PART>().0);
    for (j, ((x, importance), levels)) in parts.zip(levels.as_chunks_mut::<PART>().0).enumerate() {
        let weights = importance_weights(x, importance, sigma2);
        weight_sums[j] = sum(&weights);
        scales[j] = signed(4, x, &weights, levels);
    }
    let mut codes = [0; PARTS];
    let d = signed(32, &scales, &weight_sums, &mut codes);
    Scales { d, codes }
}

#[inline(always)]
fn store(x: &[f32; SUPER], levels: &mut [u8; SUPER], scales: &Scales, out: &mut [u8; BLOCK_BYTES]) {
    let d = f32_to_f16(scales.d);
    put_u16(out, 108, d);
    let d = f16_to_f32(d);
    let packed = field_mut::<96, 12, _>(out);
    *packed = [0; 12];
    for (j, code) in scales.codes.into_iter().enumerate() {
        packed[j % 8] |= (code & 15) << (j / 8 * 4);
        packed[8 + j % 4] |= code >> 4 << (j / 4 * 2);
    }
    let parts = x.as_chunks::<PART>().0.iter().zip(levels.as_chunks_mut::<PART>().0);
    for (j, (x, levels)) in parts.enumerate() {
        relevel_signed(4, d * f32::from(scales.codes[j] as i8 - 32), x, levels);
    }
    let high = field_mut::<0, 32, _>(out);
    for m in 0..32 {
        let mut bits = 0;
        for n in 0..8 {
            bits |= u8::from(levels[32 * n + m] > 3) << n;
        }
        high[m] = bits;
    }
    for level in levels.iter_mut() {
        *level &= 3;
    }
    pack_pairs(levels, field_mut::<32, 64, _>(out));
}

fn dequantize(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, load);
}

#[inline(always)]
fn load(block: &[u8; BLOCK_BYTES], out: &mut [f32; SUPER]) {
    let d = f16_to_f32(u16_at(block, 108));
    let high = field::<0, 32, _>(block);
    let pairs = field::<32, 64, _>(block);
    let packed = field::<96, 12, _>(block);
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let code = packed[j % 8] >> (j / 8 * 4) & 15 | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
        let scale = d * f32::from(code as i8 - 32);
        let pairs = &pairs[j / 8 * 32 + j % 2 * 16..][..PART];
        let high = &high[j % 2 * 16..][..PART];
        let (shift, bit) = (j / 2 % 4 * 2, j / 2);
        for i in 0..PART {
            let level = pairs[i] >> shift & 3 | (high[i] >> bit & 1) << 2;
            out[i] = scale * f32::from(level as i8 - 4);
        }
    }
}
