//! The search of IQ1_S and IQ1_M: sorted values are split into three levels, and the levels are placed on the grid.
//!
//! Scalar, the specification; `iq1_lanes` is its vector twin.

use super::codebook::{self, CodeBook, GridPosition};
use super::codec::{SourceRows, put_u16};
use super::grid_search::{OffGrid, ScalarSearch, Search, scale_level};
use super::search::{importance_weights, sum_squares};
use super::superblock::SUPER;
use gguf_core::numeric::{c_max, f32_to_f16};

pub(super) const S_BYTES: usize = 50;
pub(super) const M_BYTES: usize = 56;

/// Largest magnitude below which a part counts as zero.
pub(super) const EPS_S: f32 = 1e-12;
pub(super) const EPS_M: f32 = 1e-7;

pub(super) const DELTA: f32 = 0.125;
/// The three levels, shifted up and shifted down.
pub(super) const UP: [f32; 3] = [-1.0 + DELTA, DELTA, 1.0 + DELTA];
pub(super) const DOWN: [f32; 3] = [-1.0 - DELTA, -DELTA, 1.0 - DELTA];

/// Split of sorted values into three levels, and the resulting scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelSplit {
    /// Scale of the shifted levels; may be negative.
    pub scale: f32,
    /// Sorted positions below this have level 0.
    pub first: usize,
    /// Sorted positions from this on have level 2.
    pub second: usize,
    /// Index of the trial of this split: a combination of shifts.
    pub trial: usize,
}

/// Selects the best trial: largest `sum_qx^2 / sum_q2`, of equal ones the first.
struct BestSplit {
    score: f32,
    split: Option<LevelSplit>,
}

impl BestSplit {
    const NONE: Self = Self { score: -f32::MAX, split: None };

    #[inline(always)]
    fn offer(&mut self, sum_qx: f32, sum_q2: f32, first: usize, second: usize, trial: usize) {
        if sum_q2 > 0.0 && sum_qx * sum_qx > self.score * sum_q2 {
            let scale = sum_qx / sum_q2;
            self.score = scale * sum_qx;
            self.split = Some(LevelSplit { scale, first, second, trial });
        }
    }
}

/// Returns the indices of values in ascending order; equal ones (zeros of either sign) keep their order.
///
/// # Exactness
/// glibc's `qsort` on (value, index) pairs that compares values only: a stable merge sort.
fn ascending<const N: usize>(x: &[f32; N]) -> [usize; N] {
    let mut order = std::array::from_fn(|i| i);
    // ref: NaN compares equal to everything; insertion keeps such an order total enough not to fail
    for end in 1..N {
        let mut at = end;
        while at > 0 && x[order[at]] < x[order[at - 1]] {
            order.swap(at, at - 1);
            at -= 1;
        }
    }
    order
}

/// Returns the best split of 32 sorted values into three levels, for both shifts (trial 0 up, 1 down).
fn split_s(x: &[f32; 32], weights: &[f32; 32], order: &[usize; 32]) -> Option<LevelSplit> {
    let (mut sum_x, mut sum_w) = ([0f32; 33], [0f32; 33]);
    for (j, i) in order.iter().copied().enumerate() {
        sum_x[j + 1] = sum_x[j] + weights[i] * x[i];
        sum_w[j + 1] = sum_w[j] + weights[i];
    }
    let mut best = BestSplit::NONE;
    for first in 0..=32 {
        for second in first..=32 {
            let x = [sum_x[first] - sum_x[0], sum_x[second] - sum_x[first], sum_x[32] - sum_x[second]];
            let w = [sum_w[first] - sum_w[0], sum_w[second] - sum_w[first], sum_w[32] - sum_w[second]];
            for (trial, q) in [UP, DOWN].iter().enumerate() {
                let sum_qx = x[0] * q[0] + x[1] * q[1] + x[2] * q[2];
                let sum_q2 = w[0] * q[0] * q[0] + w[1] * q[1] * q[1] + w[2] * q[2] * q[2];
                best.offer(sum_qx, sum_q2, first, second, trial);
            }
        }
    }
    best.split
}

/// Returns the decrease of a level's square at each of the two splits.
pub(super) const fn square_steps(q: [f32; 3]) -> (f32, f32) {
    (q[0] * q[0] - q[1] * q[1], q[1] * q[1] - q[2] * q[2])
}

/// Returns the best split of 16 sorted values into three levels, for both shifts of each half (trial bit 1: the first
/// half is shifted down, bit 0: the second).
fn split_m(x: &[f32; 16], weights: &[f32; 16], order: &[usize; 16]) -> Option<LevelSplit> {
    let (mut sum_x, mut sum_w) = ([[0f32; 17]; 2], [[0f32; 17]; 2]);
    for (j, i) in order.iter().copied().enumerate() {
        for half in 0..2 {
            let mine = i / 8 == half;
            sum_x[half][j + 1] = if mine { sum_x[half][j] + weights[i] * x[i] } else { sum_x[half][j] };
            sum_w[half][j + 1] = if mine { sum_w[half][j] + weights[i] } else { sum_w[half][j] };
        }
    }
    let mut best = BestSplit::NONE;
    for first in 0..=16 {
        for second in first..=16 {
            // Per half and shift.
            let (mut qx, mut q2) = ([[0.0; 2]; 2], [[0.0; 2]; 2]);
            for half in 0..2 {
                let below = sum_x[half][first] + sum_x[half][second];
                for (shift, q) in [UP, DOWN].into_iter().enumerate() {
                    let (step_1, step_2) = square_steps(q);
                    qx[half][shift] = sum_x[half][16] * q[2] - below;
                    q2[half][shift] = sum_w[half][16] * q[2] * q[2]
                        + sum_w[half][first] * step_1
                        + sum_w[half][second] * step_2;
                }
            }
            for trial in 0..4 {
                let (a, b) = (trial >> 1, trial & 1);
                best.offer(qx[0][a] + qx[1][b], q2[0][a] + q2[1][b], first, second, trial);
            }
        }
    }
    best.split
}

/// Scale, grid indices and shifts of a part. The shifts are of the first and second half; IQ1_S has one for both.
#[derive(Clone, Copy)]
pub(super) struct CodedPart<const G: usize> {
    scale: f32,
    indices: [u16; G],
    down: [bool; 2],
}

/// Places the levels of a split on the grid.
///
/// # Errors
/// [`OffGrid`] if no neighbour is at a finite distance; the reference then reads past the row.
#[inline(always)]
pub(super) fn on_grid<X: Search, const G: usize>(
    search: X,
    x: &[[f32; 8]; G],
    weights: &[[f32; 8]; G],
    mut points: [u16; G],
    mut scale: f32,
    down: [bool; 2],
) -> Result<CodedPart<G>, OffGrid> {
    let book = codebook::iq1();
    let shifted = |k: usize| if down[2 * k / G] { DOWN } else { UP };
    let mut indices = [0; G];
    let mut all_on_grid = true;
    for k in 0..G {
        if let GridPosition::Near(neighbours) = book.position(points[k]) {
            all_on_grid = false;
            points[k] = search.shifted_neighbour(neighbours, &x[k], &weights[k], scale, &shifted(k))?;
        }
        indices[k] = book.index(points[k]).ok_or(OffGrid)?;
    }
    if !all_on_grid {
        let (mut sum_qx, mut sum_q2) = (0f32, 0f32);
        for k in 0..G {
            let levels = CodeBook::<8>::unpack(points[k]);
            for i in 0..8 {
                let (w, q) = (weights[k][i], shifted(k)[levels[i] as usize]);
                sum_qx += w * q * x[k][i];
                sum_q2 += w * q * q;
            }
        }
        if sum_qx > 0.0 && sum_q2 > 0.0 {
            scale = sum_qx / sum_q2;
        }
    }
    if scale.is_nan() {
        return Err(OffGrid);
    }
    Ok(CodedPart { scale, indices, down })
}

/// Returns the packed levels of a split, mirrored if its scale is negative.
#[inline(always)]
pub(super) fn points_of<const G: usize>(split: &LevelSplit, order: impl Iterator<Item = usize>) -> [u16; G] {
    let mut packed = 0u64;
    for (position, i) in order.enumerate() {
        let level = u64::from(position >= split.first) + u64::from(position >= split.second);
        packed |= level << (2 * i);
    }
    if split.scale < 0.0 {
        packed = 0xaaaa_aaaa_aaaa_aaaa - packed;
    }
    std::array::from_fn(|k| (packed >> (16 * k)) as u16)
}

/// Returns the largest magnitude as C's `MAX` finds it from the first on.
fn largest_magnitude(x: &[f32]) -> f32 {
    x[1..].iter().fold(x[0].abs(), |max, value| c_max(max, value.abs()))
}

/// Returns true for each half of a part of IQ1_S that is shifted down.
pub(super) fn down_s(split: &LevelSplit) -> [bool; 2] {
    [(split.trial == 1) != (split.scale < 0.0); 2]
}

/// Returns true for each half of a part of IQ1_M that is shifted down.
pub(super) fn down_m(split: &LevelSplit) -> [bool; 2] {
    let is_mirrored = split.scale < 0.0;
    [(split.trial >> 1 == 1) != is_mirrored, (split.trial & 1 == 1) != is_mirrored]
}

/// Codes one part of IQ1_S; `None` for a zero part.
pub(super) fn code_s(x: &[f32; 32], weights: &[f32; 32]) -> Result<Option<CodedPart<4>>, OffGrid> {
    if largest_magnitude(x) < EPS_S {
        return Ok(None);
    }
    let order = ascending(x);
    let Some(split) = split_s(x, weights, &order) else { return Ok(None) };
    let points = points_of(&split, order.iter().copied());
    on_grid(ScalarSearch, &groups(x), &groups(weights), points, split.scale.abs(), down_s(&split)).map(Some)
}

/// Codes one part of IQ1_M; `None` for a zero part.
pub(super) fn code_m(x: &[f32; 16], weights: &[f32; 16]) -> Result<Option<CodedPart<2>>, OffGrid> {
    if largest_magnitude(x) < EPS_M {
        return Ok(None);
    }
    let order = ascending(x);
    let Some(split) = split_m(x, weights, &order) else { return Ok(None) };
    let points = points_of(&split, order.iter().copied());
    on_grid(ScalarSearch, &groups(x), &groups(weights), points, split.scale.abs(), down_m(&split)).map(Some)
}

#[inline(always)]
pub(super) fn groups<const G: usize>(x: &[f32]) -> [[f32; 8]; G] {
    std::array::from_fn(|k| std::array::from_fn(|i| x[8 * k + i]))
}

pub(super) fn scalar_s(rows: &SourceRows<'_>, dst: &mut [u8]) {
    for (index, ((x, importance), out)) in rows.blocks().zip(dst.as_chunks_mut().0).enumerate() {
        let weights = weights_of(x, importance);
        let parts = x.as_chunks().0.iter().zip(weights.as_chunks().0);
        let mut coded = [Ok(None); 8];
        for (coded, (x, weights)) in coded.iter_mut().zip(parts) {
            *coded = code_s(x, weights);
        }
        if store_s(&coded, out).is_err() {
            return rows.refused.set(Some(index));
        }
    }
}

pub(super) fn scalar_m(rows: &SourceRows<'_>, dst: &mut [u8]) {
    for (index, ((x, importance), out)) in rows.blocks().zip(dst.as_chunks_mut().0).enumerate() {
        let weights = weights_of(x, importance);
        let parts = x.as_chunks().0.iter().zip(weights.as_chunks().0);
        let mut coded = [Ok(None); 16];
        for (coded, (x, weights)) in coded.iter_mut().zip(parts) {
            *coded = code_m(x, weights);
        }
        if store_m(x, &weights, &coded, out).is_err() {
            return rows.refused.set(Some(index));
        }
    }
}

fn weights_of(x: &[f32; SUPER], importance: Option<&[f32; SUPER]>) -> [f32; SUPER] {
    match importance {
        Some(importance) => importance_weights(x, importance, 2.0 * sum_squares(x) / SUPER as f32),
        None => x.map(|value| value * value),
    }
}

/// Result of coding a part: `None` for a zero part.
pub(super) type PartCode<const G: usize> = Result<Option<CodedPart<G>>, OffGrid>;

pub(super) fn store_s(parts: &[PartCode<4>; 8], out: &mut [u8; S_BYTES]) -> Result<(), OffGrid> {
    let (mut scales, mut down) = ([0.0; 8], [false; 8]);
    let mut max_scale = 0f32;
    out.fill(0);
    for (j, part) in parts.iter().enumerate() {
        let Some(coded) = (*part)? else { continue };
        let mut high = 0;
        for k in 0..4 {
            out[2 + 4 * j + k] = coded.indices[k] as u8;
            high |= (coded.indices[k] >> 8) << (3 * k);
        }
        put_u16(out, 34 + 2 * j, high);
        (scales[j], down[j]) = (coded.scale, coded.down[0]);
        max_scale = c_max(max_scale, coded.scale);
    }
    if max_scale == 0.0 {
        return Ok(());
    }
    let d = max_scale / 15.0;
    put_u16(out, 0, f32_to_f16(d * 1.125));
    let id = 1.0 / d;
    for j in 0..8 {
        out[34 + 2 * j + 1] |= scale_level(id, scales[j], 7) << 4 | u8::from(down[j]) << 7;
    }
    Ok(())
}

/// Stores the parts of a super-block, and fits its scale of scales.
pub(super) fn store_m(
    x: &[f32; SUPER],
    weights: &[f32; SUPER],
    parts: &[PartCode<2>; 16],
    out: &mut [u8; M_BYTES],
) -> Result<(), OffGrid> {
    let mut max_scale = 0f32;
    out.fill(0);
    for (j, part) in parts.iter().enumerate() {
        let Some(coded) = (*part)? else { continue };
        out[2 * j] = coded.indices[0] as u8;
        out[2 * j + 1] = coded.indices[1] as u8;
        out[32 + j] = (coded.indices[0] >> 8 | coded.indices[1] >> 8 << 4) as u8;
        max_scale = c_max(max_scale, coded.scale);
    }
    if max_scale == 0.0 {
        return Ok(());
    }
    // The scale of scales is fitted over the whole super-block, with the scales as stored.
    let points = codebook::iq1().points;
    let mut d = max_scale / 15.0;
    let id = 1.0 / d;
    let mut packed = [0u16; 4];
    let (mut sum_qx, mut sum_q2) = (0f32, 0f32);
    let groups = x.as_chunks::<8>().0.iter().zip(weights.as_chunks::<8>().0);
    for (group, (x, weights)) in groups.enumerate() {
        let (j, k) = (group / 2, group % 2);
        // A zero part counts with grid point 0.
        let zero = CodedPart { scale: 0.0, indices: [0; 2], down: [false; 2] };
        let CodedPart { scale, indices, down } = parts[j]?.unwrap_or(zero);
        let level = scale_level(id, scale, 7);
        if k == 0 {
            packed[j / 4] |= u16::from(level) << (3 * (j % 4));
            out[32 + j] |= u8::from(down[0]) << 3 | u8::from(down[1]) << 7;
        }
        let levels = CodeBook::<8>::unpack(points[usize::from(indices[k])]);
        let shifted = if down[k] { DOWN } else { UP };
        for i in 0..8 {
            let q = shifted[levels[i] as usize] * (2 * i32::from(level) + 1) as f32;
            sum_qx += weights[i] * q * x[i];
            sum_q2 += weights[i] * q * q;
        }
    }
    if sum_q2 > 0.0 {
        d = sum_qx / sum_q2;
    }
    let d = f32_to_f16(d * 1.1125);
    for k in 0..4 {
        put_u16(out, 48 + 2 * k, packed[k] | (d >> (4 * k) & 15) << 12);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_keep_their_order() {
        assert_eq!(ascending(&[1.0, -0.0, 0.0, -1.0, 0.0, 1.0]), [3, 1, 2, 4, 0, 5]);
        // NaN cannot be ordered, but must not fail.
        let order = ascending(&[f32::NAN, 1.0, 0.0, f32::NAN]);
        assert!((0..4).all(|i| order.contains(&i)));
    }

    #[test]
    fn all_weights_zero_is_a_zero_part() {
        assert!(code_s(&[1.0; 32], &[0.0; 32]).unwrap().is_none());
        assert!(code_m(&[1.0; 16], &[0.0; 16]).unwrap().is_none());
    }
}
