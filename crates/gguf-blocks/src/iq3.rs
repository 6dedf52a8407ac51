//! IQ3_XXS and IQ3_S: groups of 4 magnitudes from a code book of 8 levels, signs stored separately, 32 elements per
//! scale.
//!
//! # Layout
//! Both start with an F16 scale.
//! IQ3_XXS, 98 bytes: 64 grid indices at 2, then per part a 32-bit number of four times 7 sign bits (the eighth makes
//! their number even) and the 4-bit scale on top.
//! IQ3_S, 110 bytes: low 8 bits of 64 grid indices at 2, their high bits at 66, 32 sign bytes at 74, scale nibbles
//! at 106.

use super::codebook::{self, CodeBook, even_signs};
use super::codec::{Codec, decode_blocks, put_u16, u16_at, validate_f16};
use super::grid_rows::{GridType, QuantizeGrid};
use super::grid_search::{
    GridFit, GridSearch, OffGrid, PartMagnitudes, PartSearch, Refit, Search, SignedFit, largest, scale_level,
    split_even_signs, split_signs, weights,
};
use super::grids;
use super::kernel::quantize_with;
use super::search::sum_squares;
use super::superblock::{SUPER, field};
use gguf_core::numeric::{c_max, f16_to_f32, f32_to_f16};
use gguf_core::{GgmlType, simd::SimdLevel};

const XXS_BYTES: usize = 98;
const S_BYTES: usize = 110;
const PART: usize = 32;

/// Magnitudes of IQ3_XXS's levels; IQ3_S has the odd numbers.
const MAGNITUDES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// Largest magnitude below which an IQ3_XXS group counts as zero.
const EPS_XXS: f32 = 1e-8;

const SEARCH_XXS: GridSearch = GridSearch::new::<4>(15, 0.2, Refit::OffGrid);
const SEARCH_S: GridSearch = GridSearch::new::<4>(9, 0.2, Refit::AllIfAny);

pub(super) static IQ3_XXS: Codec = Codec {
    ty: GgmlType::Iq3Xxs,
    quantize: Some(quantize_with::<QuantizeGrid<Iq3XxsGrid, XXS_BYTES>>),
    dequantize: dequantize_xxs,
    validate: validate_f16::<XXS_BYTES, 0>,
};

pub(super) static IQ3_S: Codec = Codec {
    ty: GgmlType::Iq3S,
    quantize: Some(quantize_with::<QuantizeGrid<Iq3SGrid, S_BYTES>>),
    dequantize: dequantize_s,
    validate: validate_f16::<S_BYTES, 0>,
};

/// Splits off the signs of one part; `EVEN` keeps their number even in each 8 elements.
#[inline(always)]
fn split<const EVEN: bool>(
    x: &[f32; PART],
    importance: Option<&[f32; PART]>,
    sigma2: f32,
) -> (PartMagnitudes<4, 8>, [u8; 4]) {
    let weights = weights(&groups(x), importance.map(|w| groups(w)).as_ref(), sigma2, |x| x * x);
    let weights_of_8: [[f32; 8]; 4] = groups(weights.as_flattened());
    let mut magnitudes: [[f32; 8]; 4] = groups(x);
    let mut signs = [0; 4];
    for k in 0..4 {
        (magnitudes[k], signs[k]) = if EVEN {
            split_even_signs(&magnitudes[k], &weights_of_8[k])
        } else {
            split_signs(&magnitudes[k])
        };
    }
    let roots = weights.map(|group| group.map(f32::sqrt));
    (PartMagnitudes { x: groups(magnitudes.as_flattened()), weights, roots }, signs)
}

/// Returns the values in groups of `D`.
#[inline(always)]
fn groups<const D: usize, const G: usize>(x: &[f32]) -> [[f32; D]; G] {
    std::array::from_fn(|k| std::array::from_fn(|i| x[D * k + i]))
}

/// Fits a part that is not zero.
#[inline(always)]
fn code<X: Search>(
    search: X,
    book: &CodeBook<4>,
    how: &GridSearch,
    part: &PartMagnitudes<4, 8>,
    max: f32,
    signs: [u8; 4],
) -> Result<SignedFit<8, 4>, OffGrid> {
    let start = GridFit { scale: max / 15.0, points: [0; 8] };
    let fit = search.search(PartSearch { book, how, part, range: max, start })?;
    Ok(fit.with_signs(signs))
}

struct Iq3XxsGrid;

impl GridType<XXS_BYTES> for Iq3XxsGrid {
    #[inline(always)]
    fn quantize<X: Search>(
        search: X,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; XXS_BYTES],
    ) -> Result<(), OffGrid> {
        let book = codebook::iq3_xxs();
        let sigma2 = 2.0 * sum_squares(x) / SUPER as f32;
        let mut scales = [0.0; 8];
        let mut max_scale = 0f32;
        out.fill(0);
        for (j, x) in x.as_chunks::<PART>().0.iter().enumerate() {
            let (part, signs) = split::<true>(x, importance.map(|w| &w.as_chunks::<PART>().0[j]), sigma2);
            let max = largest(part.x.as_flattened());
            if max < EPS_XXS {
                continue;
            }
            let SignedFit { scale, points, signs } = code(search, book, &SEARCH_XXS, &part, max, signs)?;
            for k in 0..8 {
                out[2 + 8 * j + k] = book.index(points[k]).ok_or(OffGrid)? as u8;
            }
            let packed_signs = (0..4).fold(0, |packed, k| packed | u32::from(signs[k] & 127) << (7 * k));
            out[66 + 4 * j..][..4].copy_from_slice(&packed_signs.to_le_bytes());
            scales[j] = scale;
            max_scale = c_max(max_scale, scale);
        }
        if max_scale == 0.0 {
            out.fill(0);
            return Ok(());
        }
        let d = max_scale / 31.0;
        put_u16(out, 0, f32_to_f16(d * 1.0125));
        let id = 1.0 / d;
        for j in 0..8 {
            out[66 + 4 * j + 3] |= scale_level(id, scales[j], 15) << 4;
        }
        Ok(())
    }
}

struct Iq3SGrid;

impl GridType<S_BYTES> for Iq3SGrid {
    #[inline(always)]
    fn quantize<X: Search>(
        search: X,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; S_BYTES],
    ) -> Result<(), OffGrid> {
        let book = codebook::iq3_s();
        let sigma2 = 2.0 * sum_squares(x) / SUPER as f32;
        let mut scales = [0.0; 8];
        let mut max_scale = 0f32;
        // ref: a zero part neither writes nor skips its place, so the parts after it move up
        let mut written = 0;
        out.fill(0);
        for (j, x) in x.as_chunks::<PART>().0.iter().enumerate() {
            let (part, signs) = split::<false>(x, importance.map(|w| &w.as_chunks::<PART>().0[j]), sigma2);
            let max = largest(part.x.as_flattened());
            if max == 0.0 {
                continue;
            }
            let SignedFit { scale, points, signs } = code(search, book, &SEARCH_S, &part, max, signs)?;
            for k in 0..8 {
                let index = book.index(points[k]).ok_or(OffGrid)?;
                out[2 + 8 * written + k] = index as u8;
                out[66 + j] |= ((index >> 8) as u8) << k;
            }
            out[74 + 4 * written..][..4].copy_from_slice(&signs);
            written += 1;
            scales[j] = scale;
            max_scale = c_max(max_scale, scale);
        }
        if max_scale == 0.0 {
            return Ok(());
        }
        let d = max_scale / 31.0;
        put_u16(out, 0, f32_to_f16(d * 1.033));
        let id = 1.0 / d;
        for j in 0..4 {
            out[106 + j] = scale_level(id, scales[2 * j], 15) | scale_level(id, scales[2 * j + 1], 15) << 4;
        }
        Ok(())
    }
}

#[inline(always)]
fn sign(signs: u8, i: usize) -> f32 {
    if signs >> i & 1 == 0 { 1.0 } else { -1.0 }
}

fn dequantize_xxs(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block: &[u8; XXS_BYTES], out: &mut [f32; SUPER]| {
        let d = f16_to_f32(u16_at(block, 0));
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (level, points, signs) = group_xxs(block, k);
            let scale = d * (0.5 + f32::from(level)) * 0.5;
            for i in 0..8 {
                let magnitude = MAGNITUDES[(points >> (3 * i) & 7) as usize];
                out[i] = scale * f32::from(magnitude) * sign(signs, i);
            }
        }
    });
}

/// Joins two points of 4 elements: three bits for each of 8.
#[inline(always)]
fn join(points: [u16; 2]) -> u32 {
    u32::from(points[0]) | u32::from(points[1]) << 12
}

/// Returns the level of the scale, the points and the signs of 8 elements.
#[inline(always)]
fn group_xxs(block: &[u8; XXS_BYTES], k: usize) -> (u8, u32, u8) {
    let indices = field::<2, 64, _>(block);
    let at = 66 + k / 4 * 4;
    let high = u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16;
    let points = [0, 1].map(|half| grids::IQ3_XXS[usize::from(indices[2 * k + half])]);
    ((high >> 28) as u8, join(points), even_signs((high >> (7 * (k % 4))) as u8))
}

fn dequantize_s(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block: &[u8; S_BYTES], out: &mut [f32; SUPER]| {
        let d = f16_to_f32(u16_at(block, 0));
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (level, points, signs) = group_s(block, k);
            let scale = d * (1 + 2 * i32::from(level)) as f32;
            for i in 0..8 {
                let level = (points >> (3 * i) & 7) as u8;
                out[i] = scale * f32::from(2 * level + 1) * sign(signs, i);
            }
        }
    });
}

/// Returns the level of the scale, the points and the signs of 8 elements.
#[inline(always)]
fn group_s(block: &[u8; S_BYTES], k: usize) -> (u8, u32, u8) {
    let (low, signs) = (field::<2, 64, _>(block), field::<74, 32, _>(block));
    let part = k / 4;
    let points = [0, 1].map(|half| {
        let group = 2 * k + half;
        let high = usize::from(block[66 + part] >> (group % 8) & 1);
        grids::IQ3_S[usize::from(low[group]) | high << 8]
    });
    (block[106 + part / 2] >> (part % 2 * 4) & 15, join(points), signs[k])
}
