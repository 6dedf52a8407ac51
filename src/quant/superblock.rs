//! What the K types share: 256 elements in parts of 16 or 32, each with a scale, some with a minimum.

use super::search::{MinSearch, importance_weights, sum, sum_squares, unsigned, with_min};
use crate::core::numeric::nearest_int;

/// Elements per super-block.
pub(super) const SUPER: usize = 256;

/// Outcome of the searches in the `P` parts of one super-block.
#[derive(Clone, Copy)]
pub(super) struct Parts<const P: usize> {
    /// Scale per part.
    pub scales: [f32; P],
    /// Offset (minus the minimum) per part.
    pub mins: [f32; P],
    /// Sum of importance weights per part; unused without importance.
    pub weight_sums: [f32; P],
    /// Level per element.
    pub levels: [u8; SUPER],
}

impl<const P: usize> Parts<P> {
    /// No scales, no levels.
    pub(super) const ZERO: Self =
        Self { scales: [0.0; P], mins: [0.0; P], weight_sums: [0.0; P], levels: [0; SUPER] };
}

/// Scales of scales of a super-block, still as floats, with the levels of its parts.
#[derive(Clone, Copy)]
pub(super) struct SuperScales<const P: usize> {
    /// Scale of the scales.
    pub d: f32,
    /// Scale of the offsets.
    pub d_min: f32,
    /// Level of each scale.
    pub scales: [u8; P],
    /// Level of each offset.
    pub mins: [u8; P],
}

/// Searches each part of `N` elements for scale, offset and levels under importance weights.
///
/// `sigma2_factor` times the mean square of the super-block flattens the weights.
pub(super) fn parts_with_importance<const N: usize, const P: usize>(
    search: &MinSearch,
    sigma2_factor: f32,
    x: &[f32; SUPER],
    importance: &[f32; SUPER],
) -> Parts<P> {
    let sigma2 = sigma2_factor * sum_squares(x) / SUPER as f32;
    let mut parts = Parts::ZERO;
    let xs = x.as_chunks::<N>().0.iter();
    let importances = importance.as_chunks::<N>().0.iter();
    let levels = parts.levels.as_chunks_mut::<N>().0.iter_mut();
    for (j, ((x, importance), levels)) in xs.zip(importances).zip(levels).enumerate() {
        let weights = importance_weights(x, importance, sigma2);
        parts.weight_sums[j] = sum(&weights);
        (parts.scales[j], parts.mins[j]) = with_min::<N, false>(search, x, &weights, levels);
    }
    parts
}

/// Quantizes scales and offsets to `0..=n_max` by weighted search.
pub(super) fn scales_with_importance<const P: usize>(n_max: i32, parts: &Parts<P>) -> SuperScales<P> {
    let (mut scales, mut mins) = ([0; P], [0; P]);
    let d = unsigned(n_max, &parts.scales, &parts.weight_sums, &mut scales);
    let d_min = unsigned(n_max, &parts.mins, &parts.weight_sums, &mut mins);
    SuperScales { d, d_min, scales, mins }
}

/// The largest of the values that are above zero, else zero.
#[inline(always)]
pub(super) fn positive_max(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, value| if *value > max { *value } else { max })
}

/// Levels `0..=n_max` of one part for the scale and offset that the block stores; kept where the scale is zero.
#[inline(always)]
pub(super) fn relevel_min<const N: usize>(
    n_max: i32,
    d: f32,
    offset: f32,
    x: &[f32; N],
    levels: &mut [u8; N],
) {
    if d == 0.0 {
        return;
    }
    for i in 0..N {
        levels[i] = nearest_int((x[i] + offset) / d).clamp(0, n_max) as u8;
    }
}

/// Levels `0..2 * n_max` (offset `n_max`) of one part for the scale that the block stores; kept where it is zero.
#[inline(always)]
pub(super) fn relevel_signed<const N: usize>(n_max: i32, d: f32, x: &[f32; N], levels: &mut [u8; N]) {
    if d == 0.0 {
        return;
    }
    for i in 0..N {
        levels[i] = (nearest_int(x[i] / d).clamp(-n_max, n_max - 1) + n_max) as u8;
    }
}

/// Packs pairs of bits: byte `32 k + l` holds levels `128 k + 32 n + l` in bits `2 n`.
///
/// Levels are OR-ed as they are; a level above 3 spills upwards.
#[inline(always)]
pub(super) fn pack_pairs(levels: &[u8; SUPER], out: &mut [u8; 64]) {
    for k in 0..2 {
        let levels = &levels[128 * k..128 * k + 128];
        let out = &mut out[32 * k..32 * k + 32];
        for l in 0..32 {
            out[l] = levels[l] | levels[l + 32] << 2 | levels[l + 64] << 4 | levels[l + 96] << 6;
        }
    }
}

/// The fixed-size part of a block at byte `AT`.
#[inline(always)]
pub(super) fn field<const AT: usize, const LEN: usize, const B: usize>(block: &[u8; B]) -> &[u8; LEN] {
    const { assert!(AT + LEN <= B) };
    block[AT..].first_chunk().expect("the block is longer: checked when compiled")
}

/// The fixed-size part of a block at byte `AT`, to write.
#[inline(always)]
pub(super) fn field_mut<const AT: usize, const LEN: usize, const B: usize>(
    block: &mut [u8; B],
) -> &mut [u8; LEN] {
    const { assert!(AT + LEN <= B) };
    block[AT..].first_chunk_mut().expect("the block is longer: checked when compiled")
}
