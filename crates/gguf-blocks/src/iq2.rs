//! IQ2_XXS, IQ2_XS and IQ2_S: groups of 8 magnitudes from a code book of 3 levels, signs stored separately.
//!
//! # Layout
//! All start with an F16 scale.
//! IQ2_XXS, 66 bytes, 8 parts of 32: per part, four grid indices of 8 bits, then a 32-bit number of four times 7 sign
//! bits (the eighth makes their number even) and the 4-bit scale on top.
//! IQ2_XS, 74 bytes, 16 parts of 16: 32 numbers of 9 bits grid index and 7 sign bits at 2, scale nibbles at 66.
//! IQ2_S, 82 bytes, 16 parts of 16: low 8 bits of 32 grid indices at 2, 32 sign bytes at 34, the indices' high pairs
//! of bits at 66, scale nibbles at 74.

use super::codebook::{self, CodeBook, even_signs};
use super::codec::{Codec, decode_blocks, put_u16, u16_at, validate_f16};
use super::grid_rows::{GridType, QuantizeGrid};
use super::grid_search::{
    GridFit, GridSearch, OffGrid, PartMagnitudes, PartSearch, Refit, Search, largest, mean_square,
    scale_level, split_even_signs, split_signs, weights,
};
use super::grids;
use super::kernel::quantize_with;
use super::search::GROUP_MAX_EPS;
use super::superblock::{SUPER, field, field_mut};
use gguf_core::numeric::{c_max, f16_to_f32, f32_to_f16};
use gguf_core::{GgmlType, simd::SimdLevel};

const XXS_BYTES: usize = 66;
const XS_BYTES: usize = 74;
const S_BYTES: usize = 82;

/// Magnitudes of the three levels, in eighths of the scale's unit.
const MAGNITUDES: [u8; 3] = [8, 25, 43];

/// Largest magnitude below which an IQ2_S group counts as zero.
const EPS_S: f32 = 1e-8;

const SEARCH_XXS: GridSearch = GridSearch::new::<8>(6, 0.1, Refit::All);
const SEARCH_XS: GridSearch = GridSearch::new::<8>(9, 0.1, Refit::OffGrid);

pub(super) static IQ2_XXS: Codec = Codec {
    ty: GgmlType::Iq2Xxs,
    quantize: Some(quantize_with::<QuantizeGrid<Iq2XxsGrid, XXS_BYTES>>),
    dequantize: dequantize_xxs,
    validate: validate_f16::<XXS_BYTES, 0>,
};

pub(super) static IQ2_XS: Codec = Codec {
    ty: GgmlType::Iq2Xs,
    quantize: Some(quantize_with::<QuantizeGrid<Iq2XsGrid, XS_BYTES>>),
    dequantize: dequantize_xs,
    validate: validate_f16::<XS_BYTES, 0>,
};

pub(super) static IQ2_S: Codec = Codec {
    ty: GgmlType::Iq2S,
    quantize: Some(quantize_with::<QuantizeGrid<Iq2SGrid, S_BYTES>>),
    dequantize: dequantize_s,
    validate: validate_f16::<S_BYTES, 0>,
};

type GroupsOf8<const G: usize> = [[f32; 8]; G];

/// Returns the parts of a super-block, each `G` groups of 8.
#[inline(always)]
fn parts<const G: usize>(x: &[f32; SUPER]) -> &[GroupsOf8<G>] {
    x.as_chunks::<8>().0.as_chunks::<G>().0
}

#[inline(always)]
fn flat_32(groups: &GroupsOf8<4>) -> [f32; 32] {
    std::array::from_fn(|i| groups[i / 8][i % 8])
}

/// Splits off the signs, an even number of them in each group.
#[inline(always)]
fn even_part<const G: usize>(x: &GroupsOf8<G>, weights: &GroupsOf8<G>) -> (PartMagnitudes<8, G>, [u8; G]) {
    let mut part =
        PartMagnitudes { x: *x, weights: *weights, roots: weights.map(|group| group.map(f32::sqrt)) };
    let mut signs = [0; G];
    for k in 0..G {
        (part.x[k], signs[k]) = split_even_signs(&x[k], &weights[k]);
    }
    (part, signs)
}

struct Iq2XxsGrid;

impl GridType<XXS_BYTES> for Iq2XxsGrid {
    #[inline(always)]
    fn quantize<X: Search>(
        search: X,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; XXS_BYTES],
    ) -> Result<(), OffGrid> {
        let book = codebook::iq2_xxs();
        let sigma2 = mean_square(x);
        let mut parts_and_signs =
            [(PartMagnitudes { x: [[0.0; 8]; 4], weights: [[0.0; 8]; 4], roots: [[0.0; 8]; 4] }, [0; 4]); 8];
        for (j, x) in parts::<4>(x).iter().enumerate() {
            let weights = weights(x, importance.map(|w| &parts::<4>(w)[j]), sigma2, |x| x * x);
            parts_and_signs[j] = even_part(x, &weights);
        }
        // ref: one level more than the grid has
        let flat = parts_and_signs.map(|(part, _)| (flat_32(&part.x), flat_32(&part.weights)));
        let starts = search.unsigned_scales(4, &flat.map(|(x, _)| x), &flat.map(|(_, weights)| weights));
        let mut scales = [0.0; 8];
        let mut max_scale = 0f32;
        out.fill(0);
        for (j, (part, signs)) in parts_and_signs.iter().enumerate() {
            // The start has no points: with a positive scale the last fit places all groups.
            let start = GridFit { scale: starts[j], points: [0; 4] };
            let range = start.scale * 3.0;
            if largest(part.x.as_flattened()) < GROUP_MAX_EPS || range <= 0.0 {
                continue;
            }
            let fit = search.search(PartSearch { book, how: &SEARCH_XXS, part, range, start })?;
            let coded = fit.with_signs(*signs);
            let mut packed_signs = 0;
            for k in 0..4 {
                out[2 + 8 * j + k] = book.index(coded.points[k]).ok_or(OffGrid)? as u8;
                packed_signs |= u32::from(coded.signs[k] & 127) << (7 * k);
            }
            out[2 + 8 * j + 4..][..4].copy_from_slice(&packed_signs.to_le_bytes());
            scales[j] = coded.scale;
            max_scale = c_max(max_scale, coded.scale);
        }
        if max_scale == 0.0 {
            out.fill(0);
            return Ok(());
        }
        let d = max_scale / 31.0;
        put_u16(out, 0, f32_to_f16(d));
        let id = 1.0 / d;
        for j in 0..8 {
            out[2 + 8 * j + 7] |= scale_level(id, scales[j], 15) << 4;
        }
        Ok(())
    }
}

/// Fits a part of IQ2_XS or IQ2_S; `None` for a zero part.
#[inline(always)]
fn code_xs<X: Search>(
    search: X,
    book: &CodeBook<8>,
    part: &PartMagnitudes<8, 2>,
    eps: f32,
) -> Result<Option<GridFit<2>>, OffGrid> {
    let max = largest(part.x.as_flattened());
    if max < eps {
        return Ok(None);
    }
    let start = GridFit { scale: max / 5.0, points: [0; 2] };
    search.search(PartSearch { book, how: &SEARCH_XS, part, range: max, start }).map(Some)
}

struct Iq2XsGrid;

impl GridType<XS_BYTES> for Iq2XsGrid {
    #[inline(always)]
    fn quantize<X: Search>(
        search: X,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; XS_BYTES],
    ) -> Result<(), OffGrid> {
        let book = codebook::iq2_xs();
        let sigma2 = mean_square(x);
        let mut scales = [0.0; 16];
        let mut max_scale = 0f32;
        out.fill(0);
        for (j, x) in parts::<2>(x).iter().enumerate() {
            let weights = weights(x, importance.map(|w| &parts::<2>(w)[j]), sigma2, |x| x * x);
            let (part, signs) = even_part(x, &weights);
            let Some(coded) = code_xs(search, book, &part, GROUP_MAX_EPS)?.map(|fit| fit.with_signs(signs))
            else {
                continue;
            };
            for k in 0..2 {
                let index = book.index(coded.points[k]).ok_or(OffGrid)?;
                put_u16(out, 2 + 4 * j + 2 * k, index | u16::from(coded.signs[k] & 127) << 9);
            }
            scales[j] = coded.scale;
            max_scale = c_max(max_scale, coded.scale);
        }
        if max_scale == 0.0 {
            out.fill(0);
            return Ok(());
        }
        let d = max_scale / 31.0;
        put_u16(out, 0, f32_to_f16(d));
        store_nibbles(1.0 / d, &scales, field_mut::<66, 8, _>(out));
        Ok(())
    }
}

/// Stores the levels of 16 scales, two per byte.
#[inline(always)]
fn store_nibbles(id: f32, scales: &[f32; 16], out: &mut [u8; 8]) {
    for j in 0..8 {
        out[j] = scale_level(id, scales[2 * j], 15) | scale_level(id, scales[2 * j + 1], 15) << 4;
    }
}

struct Iq2SGrid;

impl GridType<S_BYTES> for Iq2SGrid {
    #[inline(always)]
    fn quantize<X: Search>(
        search: X,
        x: &[f32; SUPER],
        importance: Option<&[f32; SUPER]>,
        out: &mut [u8; S_BYTES],
    ) -> Result<(), OffGrid> {
        let book = codebook::iq2_s();
        let sigma2 = 2.0 * super::search::sum_squares(x) / SUPER as f32;
        let mut scales = [0.0; 16];
        let mut max_scale = 0f32;
        out.fill(0);
        for (j, x) in parts::<2>(x).iter().enumerate() {
            let weights =
                weights(x, importance.map(|w| &parts::<2>(w)[j]), sigma2, |x| 0.25 * sigma2 + x * x);
            let mut part =
                PartMagnitudes { x: *x, weights, roots: weights.map(|group| group.map(f32::sqrt)) };
            let mut signs = [0; 2];
            for k in 0..2 {
                (part.x[k], signs[k]) = split_signs(&x[k]);
            }
            let Some(coded) = code_xs(search, book, &part, EPS_S)?.map(|fit| fit.with_signs(signs)) else {
                continue;
            };
            for k in 0..2 {
                let index = book.index(coded.points[k]).ok_or(OffGrid)?;
                let group = 2 * j + k;
                out[2 + group] = index as u8;
                out[34 + group] = coded.signs[k];
                out[66 + group / 4] |= ((index >> 8) as u8) << (2 * (group % 4));
            }
            scales[j] = coded.scale;
            max_scale = c_max(max_scale, coded.scale);
        }
        if max_scale == 0.0 {
            // ref: the indices and signs of parts with scale zero stay
            return Ok(());
        }
        let d = max_scale / 31.0;
        put_u16(out, 0, f32_to_f16(d * 0.9875));
        store_nibbles(1.0 / d, &scales, field_mut::<74, 8, _>(out));
        Ok(())
    }
}

#[inline(always)]
fn load_group(scale: f32, point: u16, signs: u8, out: &mut [f32; 8]) {
    for i in 0..8 {
        let magnitude = MAGNITUDES[usize::from(point >> (2 * i) & 3).min(2)];
        let sign = if signs >> i & 1 == 0 { 1.0 } else { -1.0 };
        out[i] = scale * f32::from(magnitude) * sign;
    }
}

/// Returns the scale of a part: odd multiples of an eighth.
#[inline(always)]
fn part_scale(d: f32, level: u8) -> f32 {
    d * (0.5 + f32::from(level)) * 0.25
}

fn dequantize_xxs(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block, out| load_blocks(block, group_xxs, out));
}

/// Returns the level of the scale, the point and the signs of group `k`.
#[inline(always)]
fn group_xxs(block: &[u8; XXS_BYTES], k: usize) -> (u8, u16, u8) {
    let at = 2 + k / 4 * 8;
    let high = u32::from(u16_at(block, at + 4)) | u32::from(u16_at(block, at + 6)) << 16;
    let signs = even_signs((high >> (7 * (k % 4))) as u8);
    ((high >> 28) as u8, grids::IQ2_XXS[usize::from(block[at + k % 4])], signs)
}

fn dequantize_xs(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block, out| load_blocks(block, group_xs, out));
}

/// Returns the level of the scale, the point and the signs of group `k`.
#[inline(always)]
fn group_xs(block: &[u8; XS_BYTES], k: usize) -> (u8, u16, u8) {
    let code = u16_at(block, 2 + 2 * k);
    let level = block[66 + k / 4] >> (k / 2 % 2 * 4) & 15;
    (level, grids::IQ2_XS[usize::from(code & 511)], even_signs((code >> 9) as u8))
}

fn dequantize_s(_level: SimdLevel, src: &[u8], dst: &mut [f32]) {
    decode_blocks(src, dst, |block, out| load_blocks(block, group_s, out));
}

/// Returns the level of the scale, the point and the signs of group `k`.
#[inline(always)]
fn group_s(block: &[u8; S_BYTES], k: usize) -> (u8, u16, u8) {
    let (low, signs) = (field::<2, 32, _>(block), field::<34, 32, _>(block));
    let level = block[74 + k / 4] >> (k / 2 % 2 * 4) & 15;
    let index = usize::from(low[k]) | usize::from(block[66 + k / 4] >> (2 * (k % 4)) & 3) << 8;
    (level, grids::IQ2_S[index], signs[k])
}

/// Decodes one block from the level of the scale, the point and the signs of each group of 8.
#[inline(always)]
fn load_blocks<const B: usize>(
    block: &[u8; B],
    group: impl Fn(&[u8; B], usize) -> (u8, u16, u8),
    out: &mut [f32; SUPER],
) {
    let d = f16_to_f32(u16_at(block, 0));
    for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (level, point, signs) = group(block, k);
        load_group(part_scale(d, level), point, signs, out);
    }
}
