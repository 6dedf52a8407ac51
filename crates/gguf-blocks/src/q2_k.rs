//! Q2_K: 16 parts of 16 elements, 4-bit scales and offsets, 2-bit levels.
//!
//! # Layout
//! 84 bytes: scales low and offsets high in the nibbles of 0..16, levels 16..80 (see [`pack_pairs`]), F16 scale of
//! scales 80, F16 scale of offsets 82.

use super::batch::{BATCH, BlockBatch};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16_pair};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::{MinSearch, with_min};
use super::superblock::{
    PartFits, SUPER, SuperScales, field, field_mut, pack_pairs, parts_with_importance, positive_max,
    relevel_min, scales_with_importance,
};
use super::superblock_lanes::{BATCH_SUPERS, MinFits, Weigh, relevel_min as relevel_min_lanes};
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16, nearest_int};

const BLOCK_BYTES: usize = 84;
const PART: usize = 16;
const PARTS: usize = SUPER / PART;

const PLAIN: MinSearch = MinSearch { n_max: 3, r_min: -0.5, r_delta: 0.1, n_step: 15 };
const WITH_IMPORTANCE: MinSearch = MinSearch { n_max: 3, r_min: -0.9, r_delta: 0.05, n_step: 36 };

pub(super) static Q2_K: Codec = Codec {
    ty: GgmlType::Q2K,
    quantize: Some(quantize_with::<QuantizeQ2K>),
    dequantize,
    validate: validate_f16_pair::<BLOCK_BYTES, 80>,
};

/// Searches the parts with magnitudes as weights; fits are ranked by absolute error.
fn parts_plain(x: &[f32; SUPER]) -> PartFits<PARTS> {
    let mut parts = PartFits::ZERO;
    let levels = parts.levels.as_chunks_mut::<PART>().0.iter_mut();
    for (j, (x, levels)) in x.as_chunks::<PART>().0.iter().zip(levels).enumerate() {
        let weights = x.map(f32::abs);
        (parts.scales[j], parts.mins[j]) = with_min::<PART, true>(&PLAIN, x, &weights, levels);
    }
    parts
}

#[inline(always)]
fn scales_plain(scales: &[f32; PARTS], mins: &[f32; PARTS]) -> SuperScales<PARTS> {
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
    let (d, scales) = quantized(scales);
    let (d_min, mins) = quantized(mins);
    SuperScales { d, d_min, scales, mins }
}

/// Writes the scales; returns the step of each part's levels, and its offset.
#[inline(always)]
fn store_scales(scales: &SuperScales<PARTS>, out: &mut [u8; BLOCK_BYTES]) -> ([f32; PARTS], [f32; PARTS]) {
    let (d, d_min) = (f32_to_f16(scales.d), f32_to_f16(scales.d_min));
    put_u16(out, 80, d);
    put_u16(out, 82, d_min);
    let (d, d_min) = (f16_to_f32(d), f16_to_f32(d_min));
    let (mut ds, mut offsets) = ([0.0; PARTS], [0.0; PARTS]);
    for j in 0..PARTS {
        // ref: OR-ed unclamped
        let code = scales.scales[j] | scales.mins[j] << 4;
        out[j] = code;
        (ds[j], offsets[j]) = (d * f32::from(code & 15), d_min * f32::from(code >> 4));
    }
    (ds, offsets)
}

/// Kernel of all super-blocks, one part per lane.
struct QuantizeQ2K;

struct Magnitudes;

impl Weigh for Magnitudes {
    #[inline(always)]
    fn weights<L: Lanes, const N: usize>(l: L, x: &[L::F; N]) -> [L::F; N] {
        let mut weights = *x;
        for weight in &mut weights {
            *weight = l.abs(*weight);
        }
        weights
    }
}

impl RowsKernel for QuantizeQ2K {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, importance), out) in rows.blocks().zip(dst.as_chunks_mut().0) {
            let (mut parts, scales);
            match importance {
                None => {
                    parts = parts_plain(x);
                    scales = scales_plain(&parts.scales, &parts.mins);
                }
                Some(importance) => {
                    parts = parts_with_importance::<PART, PARTS>(&WITH_IMPORTANCE, 1.0, x, importance);
                    scales = scales_with_importance(15, &parts);
                }
            }
            let (ds, offsets) = store_scales(&scales, out);
            for (j, (x, levels)) in
                x.as_chunks::<PART>().0.iter().zip(parts.levels.as_chunks_mut().0).enumerate()
            {
                relevel_min(3, ds[j], offsets[j], x, levels);
            }
            pack_pairs(&parts.levels, field_mut::<16, 64, _>(out));
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        let mut batch = BlockBatch::EMPTY;
        let mut fits = MinFits::<PARTS>::ZERO;
        for (index, out) in dst.as_chunks_mut().0.chunks_mut(BATCH_SUPERS).enumerate() {
            batch.load(rows, index * BATCH);
            if let Some(importance) = rows.imatrix {
                batch.weigh_supers(l, 1.0, rows, importance);
                fits.search::<L, PART>(l, &WITH_IMPORTANCE, &batch);
                fits.scales_with_importance(l, 15, out.len());
            } else {
                fits.search_plain::<L, Magnitudes, PART, true>(l, &PLAIN, &batch);
                for b in 0..out.len() {
                    fits.super_scales[b] = scales_plain(&fits.scales[b], &fits.mins[b]);
                }
            }
            for (b, (x, out)) in batch.x.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
                let (ds, offsets) = store_scales(&fits.super_scales[b], out);
                let kept = |j: usize, x: &_| fits.kept(3, b, j, x);
                let levels = relevel_min_lanes::<L, PART, PARTS>(l, 3, x, &ds, &offsets, kept);
                pack_pairs(&levels, field_mut::<16, 64, _>(out));
            }
        }
    }
}

decoder!(dequantize = load);

#[inline(always)]
fn load(block: &[u8; BLOCK_BYTES], out: &mut [f32; SUPER]) {
    let (d, d_min) = (f16_to_f32(u16_at(block, 80)), f16_to_f32(u16_at(block, 82)));
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[j] & 15);
        let offset = d_min * f32::from(block[j] >> 4);
        let level = levels(block, j);
        for i in 0..PART {
            out[i] = scale * f32::from(level(i)) - offset;
        }
    }
}

/// Returns the level of each element of part `j`.
#[inline(always)]
fn levels(block: &[u8; BLOCK_BYTES], j: usize) -> impl Fn(usize) -> u8 {
    let pairs = &field::<16, 64, _>(block)[j / 8 * 32 + j % 2 * 16..][..PART];
    let shift = j / 2 % 4 * 2;
    move |i| pairs[i] >> shift & 3
}
