//! IQ4_NL and IQ4_XS: 4-bit indices into sixteen uneven levels, 32 elements per scale.
//!
//! # Layout
//! IQ4_NL, 18 bytes: F16 scale 0, indices 2..18. IQ4_XS, 136 bytes for 8 parts: F16 scale 0, high pairs of bits of
//! the parts' scales 2..4, their low nibbles 4..8, indices 8..136. Index byte `l` of a part holds element `l` in its
//! low and `l + 16` in its high nibble.

use super::batch::{BATCH, BlockBatch, sums_of_squares};
use super::codec::{Codec, SourceRows, decoder, put_u16, u16_at, validate_f16};
use super::kernel::{RowsKernel, quantize_with};
use super::lanes::Lanes;
use super::search::{GROUP_MAX_EPS, importance_weights, signed_max, sum_squares};
use super::search_lanes::signed_max as signed_max_lanes;
use super::superblock::{SUPER, field, field_mut};
use super::superblock_lanes::BATCH_SUPERS;
use gguf_core::GgmlType;
use gguf_core::numeric::{f16_to_f32, f32_to_f16, nearest_int};
use gguf_core::simd::VectorLoop;

const PART: usize = 32;
const PARTS: usize = SUPER / PART;
const NL_BYTES: usize = 18;
const XS_BYTES: usize = 136;

/// Levels in units of the scale.
pub(super) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(super) static IQ4_NL: Codec = Codec {
    ty: GgmlType::Iq4Nl,
    quantize: Some(quantize_with::<QuantizeIq4Nl>),
    dequantize: dequantize_nl,
    validate: validate_f16::<NL_BYTES, 0>,
};

pub(super) static IQ4_XS: Codec = Codec {
    ty: GgmlType::Iq4Xs,
    quantize: Some(quantize_with::<QuantizeIq4Xs>),
    dequantize: dequantize_xs,
    validate: validate_f16::<XS_BYTES, 0>,
};

/// Returns the index of the level nearest to `x`; halfway goes up, NaN to the last.
///
/// # Exactness
/// `best_index_int8`.
#[inline(always)]
fn nearest_level(x: f32) -> u8 {
    if x <= f32::from(LEVELS[0]) {
        return 0;
    }
    if x >= f32::from(LEVELS[15]) {
        return 15;
    }
    let (mut low, mut high) = (0, 15);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        if x < f32::from(LEVELS[middle]) {
            high = middle;
        } else {
            low = middle;
        }
    }
    if x - f32::from(LEVELS[high - 1]) < f32::from(LEVELS[high]) - x { high as u8 - 1 } else { high as u8 }
}

/// Returns the scale of 32 values by weighted least squares over 15 starts; 0 for a group below [`GROUP_MAX_EPS`].
///
/// # Exactness
/// The first half of `quantize_row_iq4_nl_impl` with `ntry` 7.
fn search(x: &[f32; PART], weights: &[f32; PART]) -> f32 {
    let (max, amax) = signed_max(x);
    if amax < GROUP_MAX_EPS {
        return 0.0;
    }
    let lowest = f32::from(LEVELS[0]);
    let sums = |iscale: f32| {
        let (mut sum_qx, mut sum_q2) = (0f32, 0f32);
        for i in 0..PART {
            let q = f32::from(LEVELS[usize::from(nearest_level(iscale * x[i]))]);
            sum_qx += weights[i] * q * x[i];
            sum_q2 += weights[i] * q * q;
        }
        (sum_qx, sum_q2)
    };
    let (sum_qx, sum_q2) = sums(1.0 / (-max / lowest));
    let mut scale = if sum_q2 > 0.0 { sum_qx / sum_q2 } else { 0.0 };
    let mut best = scale * sum_qx;
    for step in -7..=7 {
        let (sum_qx, sum_q2) = sums((step as f32 + lowest) / max);
        if sum_q2 > 0.0 && sum_qx * sum_qx > best * sum_q2 {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
        }
    }
    scale
}

/// Returns the weights of a part: importance scaled by the values, or the squares.
fn part_weights(x: &[f32; PART], importance: Option<&[f32; PART]>, sigma2: f32) -> [f32; PART] {
    match importance {
        Some(importance) => importance_weights(x, importance, sigma2),
        None => x.map(|value| value * value),
    }
}

/// Stores the indices for the reciprocal of a scale.
fn store_indices(x: &[f32; PART], iscale: f32, out: &mut [u8; 16]) {
    for l in 0..16 {
        out[l] = nearest_level(iscale * x[l]) | nearest_level(iscale * x[l + 16]) << 4;
    }
}

#[inline(always)]
fn store_nl(
    x: &[f32; PART],
    scale: f32,
    out: &mut [u8; NL_BYTES],
    store_indices: impl Fn(&[f32; PART], f32, &mut [u8; 16]),
) {
    put_u16(out, 0, f32_to_f16(scale));
    // ref: the unrounded scale
    let iscale = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    store_indices(x, iscale, field_mut::<2, 16, _>(out));
}

#[inline(always)]
fn store_xs(
    x: &[f32; SUPER],
    scales: &[f32; PARTS],
    out: &mut [u8; XS_BYTES],
    store_indices: impl Fn(&[f32; PART], f32, &mut [u8; 16]),
) {
    let (max, _) = signed_max(scales);
    let d = -max / 32.0;
    put_u16(out, 0, f32_to_f16(d));
    let id = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut high = 0;
    out[4..8].fill(0);
    for (j, x) in x.as_chunks::<PART>().0.iter().enumerate() {
        let level = nearest_int(id * scales[j]).clamp(-32, 31);
        let scale = d * level as f32;
        let iscale = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        store_indices(x, iscale, &mut out[8..].as_chunks_mut::<16>().0[j]);
        let level = (level + 32) as u8;
        out[4 + j / 2] |= (level & 15) << (4 * (j % 2));
        high |= u16::from(level >> 4) << (2 * j);
    }
    put_u16(out, 2, high);
}

/// Midpoints of neighbouring levels; a level is chosen from its midpoint up. The last is a filler.
const HALFWAYS: [f32; 16] = {
    let mut halfways = [f32::MAX; 16];
    let mut i = 0;
    while i < 15 {
        halfways[i] = f32::midpoint(LEVELS[i] as f32, LEVELS[i + 1] as f32);
        i += 1;
    }
    halfways
};

/// Returns [`HALFWAYS`] from the `n`-th on.
const fn halfways_from(n: usize) -> [f32; 16] {
    let mut from = [f32::MAX; 16];
    let mut i = n;
    while i < 16 {
        from[i - n] = HALFWAYS[i];
        i += 1;
    }
    from
}

static FROM_3: [f32; 16] = halfways_from(3);
static FROM_1: [f32; 16] = halfways_from(1);
static FROM_0: [f32; 16] = HALFWAYS;
static VALUES: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = LEVELS[i] as f32;
        i += 1;
    }
    values
};

/// Runs [`nearest_level`] per lane, including NaN.
///
/// The scalar code compares two rounded differences. Next to a midpoint both are exact, and further away rounding keeps
/// their order, so comparing with the midpoint gives the same level.
#[inline(always)]
fn nearest_level_lanes<L: Lanes>(l: L, x: L::F) -> L::I {
    let mut index = l.select_i(l.gt(l.splat(HALFWAYS[7]), x), l.splat_i(0), l.splat_i(8));
    for (halfways, step) in [(&FROM_3, 4), (&FROM_1, 2), (&FROM_0, 1)] {
        let below = l.gt(l.lookup_16(halfways, index), x);
        index = l.select_i(below, index, index + l.splat_i(step));
    }
    index
}

/// Computes the sums of weighted least squares: `x * q` and `q * q` for the levels nearest to `iscale * x`.
#[inline(always)]
fn level_sums<L: Lanes>(l: L, x: &[L::F; PART], weights: &[L::F; PART], iscale: L::F) -> (L::F, L::F) {
    let (mut sum_qx, mut sum_q2) = (l.splat(0.0), l.splat(0.0));
    for i in 0..PART {
        let q = l.lookup_16(&VALUES, nearest_level_lanes(l, iscale * x[i]));
        let weighted = weights[i] * q;
        sum_qx = sum_qx + weighted * x[i];
        sum_q2 = sum_q2 + weighted * q;
    }
    (sum_qx, sum_q2)
}

/// Runs [`search`] with one part per lane, for both types.
#[inline(always)]
fn search_lanes<L: Lanes>(l: L, x: &[L::F; PART], weights: &[L::F; PART]) -> L::F {
    l.call(SearchLanes { l, x, weights })
}

struct SearchLanes<'a, L: Lanes> {
    l: L,
    x: &'a [L::F; PART],
    weights: &'a [L::F; PART],
}

impl<L: Lanes> VectorLoop for SearchLanes<'_, L> {
    type Output = L::F;

    #[inline(always)]
    fn run(self) -> L::F {
        search_inlined(self.l, self.x, self.weights)
    }
}

#[inline(always)]
fn search_inlined<L: Lanes>(l: L, x: &[L::F; PART], weights: &[L::F; PART]) -> L::F {
    let (max, amax) = signed_max_lanes(l, x);
    let lowest = f32::from(LEVELS[0]);
    let zero = l.splat(0.0);
    // The sign is applied to the level, not to the maximum: the same quotient, as division is odd.
    let (sum_qx, sum_q2) = level_sums(l, x, weights, l.splat(1.0) / (max / l.splat(-lowest)));
    let mut scale = l.select(l.gt(sum_q2, zero), sum_qx / sum_q2, zero);
    let mut best = scale * sum_qx;
    for step in -7..=7 {
        let (sum_qx, sum_q2) = level_sums(l, x, weights, l.splat(step as f32 + lowest) / max);
        let better = l.gt(sum_q2, zero) & l.gt(sum_qx * sum_qx, best * sum_q2);
        let trial = sum_qx / sum_q2;
        scale = l.select(better, trial, scale);
        best = l.select(better, trial * sum_qx, best);
    }
    l.select(l.gt(l.splat(GROUP_MAX_EPS), amax), zero, scale)
}

/// Runs [`store_indices`] with one element per lane.
#[inline(always)]
fn store_indices_lanes<L: Lanes>(l: L, x: &[f32; PART], iscale: f32, out: &mut [u8; 16]) {
    let iscale = l.splat(iscale);
    for at in (0..16).step_by(L::WIDTH) {
        let low = nearest_level_lanes(l, iscale * l.load(&x[at..]));
        let high = nearest_level_lanes(l, iscale * l.load(&x[at + 16..]));
        let high = high + high;
        let high = high + high;
        let high = high + high;
        l.store_low_bytes(low | (high + high), &mut out[at..]);
    }
}

/// Computes the scales of all parts of a batch whose weights are set, if there is importance.
#[inline(always)]
fn batch_scales<L: Lanes>(l: L, batch: &BlockBatch, with_importance: bool, scales: &mut [f32]) {
    let zero = l.splat(0.0);
    for at in (0..batch.n_elems / PART).step_by(L::WIDTH) {
        let (mut x, mut weights) = ([zero; PART], [zero; PART]);
        l.columns(&batch.x[at * PART..], PART, &mut x);
        if with_importance {
            l.columns(&batch.weights[at * PART..], PART, &mut weights);
        } else {
            for (weight, &x) in weights.iter_mut().zip(&x) {
                *weight = x * x;
            }
        }
        l.store(search_lanes(l, &x, &weights), &mut scales[at..]);
    }
}

const BATCH_PARTS: usize = BATCH / PART;

/// Returns twice the mean square of each block of `E` elements.
#[inline(always)]
fn sigma2<L: Lanes, const E: usize>(l: L, batch: &BlockBatch) -> [f32; BATCH_PARTS] {
    let mut sigma2 = [0.0; BATCH_PARTS];
    for at in (0..BATCH / E).step_by(L::WIDTH) {
        let sums = sums_of_squares(l, &batch.x[at * E..], E, E);
        l.store(sums * l.splat(2.0 / E as f32), &mut sigma2[at..]);
    }
    sigma2
}

/// Kernel of all IQ4_NL blocks, one per lane.
struct QuantizeIq4Nl;

impl RowsKernel for QuantizeIq4Nl {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, importance), out) in rows.blocks::<PART>().zip(dst.as_chunks_mut().0) {
            let sigma2 = sum_squares(x) * (2.0 / PART as f32);
            store_nl(x, search(x, &part_weights(x, importance, sigma2)), out, store_indices);
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        let mut batch = BlockBatch::EMPTY;
        let mut scales = [0.0; BATCH_PARTS];
        for (index, out) in dst.as_chunks_mut().0.chunks_mut(BATCH_PARTS).enumerate() {
            batch.load(rows, index * BATCH);
            if let Some(importance) = rows.imatrix {
                let sigma2 = sigma2::<L, PART>(l, &batch);
                batch.weigh::<L, PART>(l, rows, importance, |index| sigma2[index]);
            }
            batch_scales(l, &batch, rows.imatrix.is_some(), &mut scales);
            for (b, (x, out)) in batch.x.as_chunks::<PART>().0.iter().zip(out).enumerate() {
                store_nl(x, scales[b], out, |x, iscale, out| store_indices_lanes(l, x, iscale, out));
            }
        }
    }
}

/// Kernel of all IQ4_XS super-blocks, one part per lane.
struct QuantizeIq4Xs;

impl RowsKernel for QuantizeIq4Xs {
    fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
        for ((x, importance), out) in rows.blocks::<SUPER>().zip(dst.as_chunks_mut().0) {
            let sigma2 = sum_squares(x) * (2.0 / SUPER as f32);
            let mut scales = [0.0; PARTS];
            for (j, x) in x.as_chunks::<PART>().0.iter().enumerate() {
                let importance = importance.map(|importance| &importance.as_chunks::<PART>().0[j]);
                scales[j] = search(x, &part_weights(x, importance, sigma2));
            }
            store_xs(x, &scales, out, store_indices);
        }
    }

    #[inline(always)]
    fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
        let mut batch = BlockBatch::EMPTY;
        let mut scales = [[0.0; PARTS]; BATCH_SUPERS];
        for (index, out) in dst.as_chunks_mut().0.chunks_mut(BATCH_SUPERS).enumerate() {
            batch.load(rows, index * BATCH);
            if let Some(importance) = rows.imatrix {
                let sigma2 = sigma2::<L, SUPER>(l, &batch);
                batch.weigh::<L, SUPER>(l, rows, importance, |index| sigma2[index]);
            }
            batch_scales(l, &batch, rows.imatrix.is_some(), scales.as_flattened_mut());
            for (b, (x, out)) in batch.x.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
                store_xs(x, &scales[b], out, |x, iscale, out| store_indices_lanes(l, x, iscale, out));
            }
        }
    }
}

decoder!(
    dequantize_nl = |block: &[u8; NL_BYTES], out: &mut [f32; PART]| {
        load_indices(f16_to_f32(u16_at(block, 0)), field::<2, 16, _>(block), out);
    }
);

#[inline(always)]
fn load_indices(scale: f32, indices: &[u8; 16], out: &mut [f32; PART]) {
    for l in 0..16 {
        out[l] = scale * f32::from(LEVELS[usize::from(indices[l] & 15)]);
        out[l + 16] = scale * f32::from(LEVELS[usize::from(indices[l] >> 4)]);
    }
}

decoder!(dequantize_xs = load_xs);

#[inline(always)]
fn load_xs(block: &[u8; XS_BYTES], out: &mut [f32; SUPER]) {
    let d = f16_to_f32(u16_at(block, 0));
    let indices = field::<8, 128, _>(block).as_chunks::<16>().0;
    for (j, out) in out.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
        load_indices(d * f32::from(part_scale(block, j)), &indices[j], out);
    }
}

/// Returns the scale of part `j`, `-32..32`.
#[inline(always)]
fn part_scale(block: &[u8; XS_BYTES], j: usize) -> i8 {
    let high = u16_at(block, 2);
    let level = block[4 + j / 2] >> (4 * (j % 2)) & 15 | ((high >> (2 * j) & 3) as u8) << 4;
    level as i8 - 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halfway_goes_up() {
        for pair in LEVELS.windows(2) {
            let middle = f32::midpoint(f32::from(pair[0]), f32::from(pair[1]));
            let up = LEVELS[usize::from(nearest_level(middle))];
            assert_eq!(up, pair[1]);
            let below = if middle < 0.0 { middle.to_bits() + 1 } else { middle.to_bits() - 1 };
            assert_eq!(LEVELS[usize::from(nearest_level(f32::from_bits(below)))], pair[0]);
        }
        assert_eq!(nearest_level(f32::NAN), 15);
        assert_eq!(nearest_level(f32::NEG_INFINITY), 0);
    }
}
