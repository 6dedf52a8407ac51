//! Q6_K: 16 parts of 16 elements around zero, 8-bit signed scales, 6-bit levels.
//!
//! # Layout
//! 210 bytes: low nibbles 0..128, high pairs of bits 128..192, signed scales 192..208, F16 scale of scales 208. In
//! each half `k` of 128 elements, nibble byte `64 k + l` holds elements `l` and `l + 64`, byte `64 k + 32 + l`
//! elements `l + 32` and `l + 96`; pair byte `32 k + l` holds elements `32 n + l` in bits `2 n`.

use super::codec::{Codec, Rows, decode_blocks, put_u16, u16_at, validate_f16};
use super::search::{GROUP_MAX_EPS, signed, signed_max};
use super::superblock::{SUPER, field, relevel_signed};
use crate::core::numeric::{f16_to_f32, f32_to_f16, nearest_int};
use crate::core::{GgmlType, simd::SimdLevel};

const BLOCK_BYTES: usize = 210;
const PART: usize = 16;
const PARTS: usize = SUPER / PART;

pub(super) static Q6_K: Codec = Codec {
    ty: GgmlType::Q6K,
    quantize: Some(quantize),
    dequantize,
    validate: validate_f16::<BLOCK_BYTES, 208>,
};

fn quantize(_level: SimdLevel, rows: &Rows<'_>, dst: &mut [u8]) {
    for ((x, importance), out) in rows.blocks::<SUPER>().zip(dst.as_chunks_mut().0) {
        let mut levels = [0; SUPER];
        let mut scales = [0.0; PARTS];
        for j in 0..PARTS {
            let part = 16 * j;
            let x: &[f32; PART] = field_f32(x, part);
            // ref: the importance alone, without the spread of the values
            let weights = match importance {
                Some(importance) => *field_f32(importance, part),
                None => x.map(|value| value * value),
            };
            scales[j] = signed(32, x, &weights, &mut levels.as_chunks_mut::<PART>().0[j]);
        }
        store(x, &mut levels, &scales, out);
    }
}

#[inline(always)]
fn field_f32(x: &[f32; SUPER], at: usize) -> &[f32; PART] {
    &x.as_chunks::<PART>().0[at / PART]
}

#[inline(always)]
fn store(x: &[f32; SUPER], levels: &mut [u8; SUPER], scales: &[f32; PARTS], out: &mut [u8; BLOCK_BYTES]) {
    let (max, amax) = signed_max(scales);
    if amax < GROUP_MAX_EPS {
        out.fill(0);
        return;
    }
    let iscale = -128.0 / max;
    let d = f32_to_f16(1.0 / iscale);
    put_u16(out, 208, d);
    let d = f16_to_f32(d);
    let parts = x.as_chunks::<PART>().0.iter().zip(levels.as_chunks_mut::<PART>().0);
    for (j, (x, levels)) in parts.enumerate() {
        let code = nearest_int(iscale * scales[j]).min(127) as i8;
        out[192 + j] = code as u8;
        relevel_signed(32, d * f32::from(code), x, levels);
    }
    for k in 0..2 {
        let levels = &levels[128 * k..128 * k + 128];
        for l in 0..32 {
            let [a, b, c, d] = [levels[l], levels[l + 32], levels[l + 64], levels[l + 96]];
            out[64 * k + l] = a & 15 | c << 4;
            out[64 * k + 32 + l] = b & 15 | d << 4;
            out[128 + 32 * k + l] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
}

fn dequantize(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, load);
}

#[inline(always)]
fn load(block: &[u8; BLOCK_BYTES], out: &mut [f32; SUPER]) {
    let d = f16_to_f32(u16_at(block, 208));
    let low = field::<0, 128, _>(block);
    let high = field::<128, 64, _>(block);
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + j] as i8);
        // Of the half's four quarters of 32 elements, this part lies in `quarter`.
        let (half, quarter, odd) = (j / 8, j / 2 % 4, j % 2);
        let low = &low[64 * half + 32 * (quarter % 2) + 16 * odd..][..PART];
        let high = &high[32 * half + 16 * odd..][..PART];
        for i in 0..PART {
            let level = low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (2 * quarter) & 3) << 4;
            out[i] = scale * f32::from(level as i8 - 32);
        }
    }
}
