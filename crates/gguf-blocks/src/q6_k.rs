//! Q6_K: 16 parts of 16 elements around zero, 8-bit signed scales, 6-bit levels.
//!
//! # Layout
//! 210 bytes: low nibbles 0..128, high pairs of bits 128..192, signed scales 192..208, F16 scale of scales 208. In
//! each half `k` of 128 elements, nibble byte `64 k + l` holds elements `l` and `l + 64`, byte `64 k + 32 + l`
//! elements `l + 32` and `l + 96`; pair byte `32 k + l` holds elements `32 n + l` in bits `2 n`.

use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::{GROUP_MAX_EPS, signed, signed_max};
use super::search_lanes::{signed as signed_lanes, signed_levels};
use super::superblock::{SUPER, each_byte, field, field_mut, put_words, relevel_signed, words};
use super::superblock_lanes::relevel_signed as relevel_signed_lanes;
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16, nearest_int};

const BLOCK_BYTES: usize = 210;
const PART: usize = 16;
const PARTS: usize = SUPER / PART;

pub(super) static Q6_K: Codec = Codec {
    ty: GgmlType::Q6K,
    quantize: Some(quantize_with::<QuantizeQ6K>),
    dequantize,
    validate: validate_f16::<BLOCK_BYTES, 208>,
};

/// Writes scale of scales and scales; returns the step of each part's levels, or `None` if the block is all zeros.
#[inline(always)]
fn store_scales(scales: &[f32; PARTS], out: &mut [u8; BLOCK_BYTES]) -> Option<[f32; PARTS]> {
    let (max, amax) = signed_max(scales);
    if amax < GROUP_MAX_EPS {
        out.fill(0);
        return None;
    }
    let iscale = -128.0 / max;
    let d = f32_to_f16(1.0 / iscale);
    put_u16(out, 208, d);
    let d = f16_to_f32(d);
    let mut ds = [0.0; PARTS];
    for j in 0..PARTS {
        let code = nearest_int(iscale * scales[j]).min(127) as i8;
        out[192 + j] = code as u8;
        ds[j] = d * f32::from(code);
    }
    Some(ds)
}

/// Writes the levels, which are below 64.
#[inline(always)]
fn pack(levels: &[u8; SUPER], out: &mut [u8; BLOCK_BYTES]) {
    const LOW: u64 = each_byte(15);
    const HIGH: u64 = each_byte(3);
    for k in 0..2 {
        let (a, b) = (words(levels, 4 * k), words(levels, 4 * k + 1));
        let (c, d) = (words(levels, 4 * k + 2), words(levels, 4 * k + 3));
        let nibbles = |[low, high]: [u64; 2]| low & LOW | (high & LOW) << 4;
        let (out_low, out_high) = field_mut::<0, 192, _>(out).split_at_mut(128);
        let (out_low, out_high) = (out_low.as_chunks_mut().0, out_high.as_chunks_mut().0);
        put_words(&mut out_low[2 * k], [a, c], nibbles);
        put_words(&mut out_low[2 * k + 1], [b, d], nibbles);
        put_words(&mut out_high[k], [a, b, c, d], |[a, b, c, d]| {
            a >> 4 & HIGH | (b >> 4 & HIGH) << 2 | (c >> 4 & HIGH) << 4 | (d >> 4 & HIGH) << 6
        });
    }
}

/// Kernel of all super-blocks, one part per lane.
struct QuantizeQ6K;

impl RowsKernel for QuantizeQ6K {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, importance), out) in rows.blocks::<SUPER>().zip(dst.as_chunks_mut().0) {
            let mut levels = [0; SUPER];
            let mut scales = [0.0; PARTS];
            for (j, x) in x.as_chunks::<PART>().0.iter().enumerate() {
                // ref: the importance alone, not scaled by the values
                let weights = match importance {
                    Some(importance) => importance.as_chunks().0[j],
                    None => x.map(|value| value * value),
                };
                scales[j] = signed(32, x, &weights, &mut levels.as_chunks_mut().0[j]);
            }
            if let Some(ds) = store_scales(&scales, out) {
                for ((x, d), levels) in x.as_chunks::<PART>().0.iter().zip(ds).zip(levels.as_chunks_mut().0) {
                    relevel_signed(32, d, x, levels);
                }
                pack(&levels, out);
            }
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        const { assert!(PARTS.is_multiple_of(L::WIDTH)) };
        let zero = l.splat(0.0);
        // The importance of a row's columns, in vectors; all rows share it.
        let mut importance = vec![zero; rows.imatrix.map_or(0, |_| rows.n_cols / L::WIDTH)];
        let importance = importance.as_chunks_mut::<PART>().0;
        for (index, weights) in importance.iter_mut().enumerate() {
            let columns = rows.imatrix.unwrap_or_default();
            l.columns(&columns[index * PART * L::WIDTH..], PART, weights);
        }
        let mut importance = importance.iter().cycle();
        let (mut x, mut squares) = ([zero; PART], [zero; PART]);
        let (mut scales, mut iscales) = ([0.0; PARTS], [0.0; PARTS]);
        for (values, out) in rows.src.as_chunks::<SUPER>().0.iter().zip(dst.as_chunks_mut().0) {
            for at in (0..PARTS).step_by(L::WIDTH) {
                l.columns(&values[at * PART..], PART, &mut x);
                let weights = importance.next().unwrap_or_else(|| {
                    for (square, &x) in squares.iter_mut().zip(&x) {
                        *square = x * x;
                    }
                    &squares
                });
                let (scale, iscale) = signed_lanes(l, 32, &x, weights);
                l.store(scale, &mut scales[at..]);
                l.store(iscale, &mut iscales[at..]);
            }
            if let Some(ds) = store_scales(&scales, out) {
                let kept = |j: usize, x: &_| signed_levels(32, iscales[j], x);
                pack(&relevel_signed_lanes::<L, PART, PARTS>(l, 32, values, &ds, kept), out);
            }
        }
    }
}

decoder!(dequantize = load);

#[inline(always)]
fn load(block: &[u8; BLOCK_BYTES], out: &mut [f32; SUPER]) {
    let d = f16_to_f32(u16_at(block, 208));
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + j] as i8);
        let level = levels(block, j);
        for i in 0..PART {
            out[i] = scale * f32::from(level(i));
        }
    }
}

/// Returns the level of each element of part `j`, `-32..32`.
#[inline(always)]
fn levels(block: &[u8; BLOCK_BYTES], j: usize) -> impl Fn(usize) -> i8 {
    // Index of the quarter of 32 elements, within its half, that contains this part.
    let (half, quarter, odd) = (j / 8, j / 2 % 4, j % 2);
    let low = &field::<0, 128, _>(block)[64 * half + 32 * (quarter % 2) + 16 * odd..][..PART];
    let high = &field::<128, 64, _>(block)[32 * half + 16 * odd..][..PART];
    move |i| {
        let level = low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (2 * quarter) & 3) << 4;
        level as i8 - 32
    }
}
