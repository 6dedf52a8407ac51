//! Q4_K and Q5_K: 8 parts of 32 elements, 6-bit scales and offsets, 4- or 5-bit levels.
//!
//! # Layout
//! 144 or 176 bytes: F16 scale of scales 0, F16 scale of offsets 2, scales and offsets 4..16, for Q5_K fifth bits
//! 16..48 (byte `m`, bit `n` for element `32 n + m`), then 128 bytes of nibbles: byte `32 k + l` holds element
//! `64 k + l` low and `64 k + 32 + l` high. Scale and offset of part `j < 4` are the low six bits of bytes `j` and
//! `j + 4`; those of part `j + 4` are the nibbles of byte `j + 8` below the top two bits of bytes `j` and `j + 4`.

use super::batch::{BATCH, BlockBatch};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16_pair};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::{MinSearch, sum_squares, with_min};
use super::superblock::{
    PartFits, SUPER, SuperScales, each_byte, field, field_mut, pack_bits, parts_with_importance,
    positive_max, put_words, relevel_min, scales_with_importance, words,
};
use super::superblock_lanes::{BATCH_SUPERS, MinFits, Weigh, relevel_min as relevel_min_lanes};
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16, nearest_int};

const PART: usize = 32;
const PARTS: usize = SUPER / PART;

pub(super) static Q4_K: Codec = Codec {
    ty: GgmlType::Q4K,
    quantize: Some(quantize_with::<QuantizeQ45K<144, 4>>),
    dequantize: q4_dequantize,
    validate: validate_f16_pair::<144, 0>,
};

pub(super) static Q5_K: Codec = Codec {
    ty: GgmlType::Q5K,
    quantize: Some(quantize_with::<QuantizeQ45K<176, 5>>),
    dequantize: q5_dequantize,
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

/// Searches the parts; weights are magnitudes plus the root mean square of the part.
fn parts_plain(search: &MinSearch, x: &[f32; SUPER]) -> PartFits<PARTS> {
    let mut parts = PartFits::ZERO;
    let levels = parts.levels.as_chunks_mut::<PART>().0.iter_mut();
    for (j, (x, levels)) in x.as_chunks::<PART>().0.iter().zip(levels).enumerate() {
        let rms = (sum_squares(x) / PART as f32).sqrt();
        let weights = x.map(|value| rms + value.abs());
        (parts.scales[j], parts.mins[j]) = with_min::<PART, false>(search, x, &weights, levels);
    }
    parts
}

#[inline(always)]
fn scales_plain(scales: &[f32; PARTS], mins: &[f32; PARTS]) -> SuperScales<PARTS> {
    let quantized = |values: &[f32; PARTS]| {
        let max = positive_max(values);
        let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
        let mut levels = [0; PARTS];
        for j in 0..PARTS {
            // ref: narrowed before it is clamped
            levels[j] = (nearest_int(inverse * values[j]) as u8).min(63);
        }
        (max / 63.0, levels)
    };
    let (d, scales) = quantized(scales);
    let (d_min, mins) = quantized(mins);
    SuperScales { d, d_min, scales, mins }
}

/// Writes the scales; returns the step of each part's levels, and its offset.
#[inline(always)]
fn store_scales<const B: usize, const BITS: u32>(
    mut scales: SuperScales<PARTS>,
    out: &mut [u8; B],
) -> ([f32; PARTS], [f32; PARTS]) {
    let (d, d_min) = (f32_to_f16(scales.d), f32_to_f16(scales.d_min));
    put_u16(out, 0, d);
    put_u16(out, 2, d_min);
    let (d, d_min) = (f16_to_f32(d), f16_to_f32(d_min));
    if BITS == 5 {
        // ref: Q5_K clamps wrapped levels, Q4_K masks them
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
    let (mut ds, mut offsets) = ([0.0; PARTS], [0.0; PARTS]);
    for j in 0..PARTS {
        let (scale, min) = unpack_scale(packed, j);
        (ds[j], offsets[j]) = (d * f32::from(scale), d_min * f32::from(min));
    }
    (ds, offsets)
}

/// Writes the levels, which have `BITS` bits.
#[inline(always)]
fn pack<const B: usize, const BITS: u32>(levels: &[u8; SUPER], out: &mut [u8; B]) {
    const LOW: u64 = each_byte(15);
    if BITS == 5 {
        pack_bits(4, levels, field_mut::<16, 32, _>(out));
    }
    for (k, out) in out[B - 128..].as_chunks_mut().0.iter_mut().enumerate() {
        let groups = [words(levels, 2 * k), words(levels, 2 * k + 1)];
        put_words(out, groups, |[low, high]| low & LOW | (high & LOW) << 4);
    }
}

/// Returns scale and offset of part `j`.
#[inline(always)]
fn unpack_scale(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

/// Kernel of all super-blocks, one part per lane.
struct QuantizeQ45K<const B: usize, const BITS: u32>;

/// Weights that are magnitudes plus the root mean square.
struct MagnitudesAndRms;

impl Weigh for MagnitudesAndRms {
    #[inline(always)]
    fn weights<L: Lanes, const N: usize>(l: L, x: &[L::F; N]) -> [L::F; N] {
        let mut squares = l.splat(0.0);
        for &value in x {
            squares = squares + value * value;
        }
        let rms = l.sqrt(squares / l.splat(N as f32));
        let mut weights = *x;
        for weight in &mut weights {
            *weight = rms + l.abs(*weight);
        }
        weights
    }
}

impl<const B: usize, const BITS: u32> RowsKernel for QuantizeQ45K<B, BITS> {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, importance), out) in rows.blocks().zip(dst.as_chunks_mut().0) {
            let (mut parts, scales);
            match importance {
                None => {
                    parts = parts_plain(&plain_search(BITS), x);
                    scales = scales_plain(&parts.scales, &parts.mins);
                }
                Some(importance) => {
                    let search = importance_search(BITS);
                    parts = parts_with_importance::<PART, PARTS>(&search, 2.0, x, importance);
                    scales = scales_with_importance(63, &parts);
                }
            }
            let (ds, offsets) = store_scales::<B, BITS>(scales, out);
            for (j, (x, levels)) in
                x.as_chunks::<PART>().0.iter().zip(parts.levels.as_chunks_mut().0).enumerate()
            {
                relevel_min((1 << BITS) - 1, ds[j], offsets[j], x, levels);
            }
            pack::<B, BITS>(&parts.levels, out);
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        let mut batch = BlockBatch::EMPTY;
        let mut fits = MinFits::<PARTS>::ZERO;
        for (index, out) in dst.as_chunks_mut().0.chunks_mut(BATCH_SUPERS).enumerate() {
            batch.load(rows, index * BATCH);
            if let Some(importance) = rows.imatrix {
                batch.weigh_supers(l, 2.0, rows, importance);
                fits.search::<L, PART>(l, &importance_search(BITS), &batch);
                fits.scales_with_importance(l, 63, out.len());
            } else {
                fits.search_plain::<L, MagnitudesAndRms, PART, false>(l, &plain_search(BITS), &batch);
                for b in 0..out.len() {
                    fits.super_scales[b] = scales_plain(&fits.scales[b], &fits.mins[b]);
                }
            }
            for (b, (x, out)) in batch.x.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
                let n_max = (1 << BITS) - 1;
                let (ds, offsets) = store_scales::<B, BITS>(fits.super_scales[b], out);
                let kept = |j: usize, x: &_| fits.kept(n_max, b, j, x);
                let levels = relevel_min_lanes::<L, PART, PARTS>(l, n_max, x, &ds, &offsets, kept);
                pack::<B, BITS>(&levels, out);
            }
        }
    }
}

decoder!(q4_dequantize = load::<144, 4>);
decoder!(q5_dequantize = load::<176, 5>);

#[inline(always)]
fn load<const B: usize, const BITS: u32>(block: &[u8; B], out: &mut [f32; SUPER]) {
    let (d, d_min) = (f16_to_f32(u16_at(block, 0)), f16_to_f32(u16_at(block, 2)));
    let packed = field::<4, 12, _>(block);
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let (scale, min) = unpack_scale(packed, j);
        let (scale, offset) = (d * f32::from(scale), d_min * f32::from(min));
        let level = levels::<B, BITS>(block, j);
        for i in 0..PART {
            out[i] = scale * f32::from(level(i)) - offset;
        }
    }
}

/// Returns the level of each element of part `j`.
#[inline(always)]
fn levels<const B: usize, const BITS: u32>(block: &[u8; B], j: usize) -> impl Fn(usize) -> u8 {
    let high = field::<16, 32, _>(block);
    let nibbles = &block[B - 128..][j / 2 * 32..][..PART];
    let shift = j % 2 * 4;
    move |i| {
        let mut level = nibbles[i] >> shift & 15;
        if BITS == 5 {
            level |= (high[i] >> j & 1) << 4;
        }
        level
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
        store_scales::<144, 4>(super_scales, &mut block);
        for j in 0..8 {
            assert_eq!(unpack_scale(field::<4, 12, _>(&block), j), (scales[j], mins[j]), "{j}");
        }
    }
}
