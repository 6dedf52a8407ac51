//! Searches of `search` with one block per lane: the same operations in the same order.
//!
//! Levels are not stored during a search. A search returns the inverse scale (and minimum) of its levels;
//! [`signed_levels`] and [`min_levels`] compute the levels for the few that are needed.
//!
//! A search that several types use is a separate function per level and length ([`Lanes::call`]): inlined into each of
//! them, the unrolled loops would be most of the crate's code.

use super::lanes::Lanes;
use super::search::{GROUP_MAX_EPS, MinSearch};
use gguf_core::numeric::nearest_int;
use gguf_core::simd::VectorLoop;

/// Inverse scale of a group that counts as zero. No search returns it, as groups from 1e-15 up stay below 1e18.
pub(super) const ZERO_GROUP: f32 = f32::MAX;

/// Runs `search::signed_max`.
#[inline(always)]
pub(super) fn signed_max<L: Lanes, const N: usize>(l: L, x: &[L::F; N]) -> (L::F, L::F) {
    signed_max_after(l, l.splat(0.0), l.splat(0.0), x)
}

/// Continues [`signed_max`] with more values, given its result for those before.
#[inline(always)]
pub(super) fn signed_max_after<L: Lanes, const N: usize>(
    l: L,
    mut max: L::F,
    mut amax: L::F,
    x: &[L::F; N],
) -> (L::F, L::F) {
    for &value in x {
        let magnitude = l.abs(value);
        let larger = l.gt(magnitude, amax);
        amax = l.select(larger, magnitude, amax);
        max = l.select(larger, value, max);
    }
    (max, amax)
}

/// Runs `search::signed`: returns scales, and inverse scales for [`signed_levels`].
#[inline(always)]
pub(super) fn signed<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    x: &[L::F; N],
    weights: &[L::F; N],
) -> (L::F, L::F) {
    l.call(SearchSigned { l, n_max, x, weights })
}

struct SearchSigned<'a, L: Lanes, const N: usize> {
    l: L,
    n_max: i32,
    x: &'a [L::F; N],
    weights: &'a [L::F; N],
}

impl<L: Lanes, const N: usize> VectorLoop for SearchSigned<'_, L, N> {
    type Output = (L::F, L::F);

    #[inline(always)]
    fn run(self) -> (L::F, L::F) {
        signed_inlined(self.l, self.n_max, self.x, self.weights)
    }
}

#[inline(always)]
fn signed_inlined<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    x: &[L::F; N],
    weights: &[L::F; N],
) -> (L::F, L::F) {
    let amax = largest_magnitude(l, x);
    // Infinities and NaN need the rounding that wraps.
    let (amax, (scale, iscale)) = if l.any(!l.gt(l.splat(f32::INFINITY), amax)) {
        let (max, amax) = signed_max(l, x);
        (amax, signed_steps::<L, N, true>(l, n_max, x, weights, max))
    } else {
        let max = first_of_magnitude(l, x, amax);
        (amax, signed_steps::<L, N, false>(l, n_max, x, weights, max))
    };
    let zero = l.gt(l.splat(GROUP_MAX_EPS), amax);
    (l.select(zero, l.splat(0.0), scale), l.select(zero, l.splat(ZERO_GROUP), iscale))
}

/// Returns the largest magnitude of each lane, by bits: NaN is larger than all else.
#[inline(always)]
pub(super) fn largest_magnitude<L: Lanes, const N: usize>(l: L, x: &[L::F; N]) -> L::F {
    // As the bits of two runs, so that values do not all wait for the previous one.
    let mut largest = [l.splat_i(0); 2];
    for i in 0..N {
        largest[i % 2] = l.max_i(largest[i % 2], l.bits(l.abs(x[i])));
    }
    l.float_of(l.max_i(largest[0], largest[1]))
}

/// Returns the first value with the largest magnitude: the result of [`signed_max`] if all are numbers and not all
/// zeros.
#[inline(always)]
pub(super) fn first_of_magnitude<L: Lanes, const N: usize>(l: L, x: &[L::F; N], amax: L::F) -> L::F {
    let mut max = x[N - 1];
    for i in (0..N - 1).rev() {
        max = l.select(l.eq(l.abs(x[i]), amax), x[i], max);
    }
    max
}

/// Steps of the scales tried after the first, three at a time.
const STEPS: [[i32; 3]; 6] = [[-9, -8, -7], [-6, -5, -4], [-3, -2, -1], [1, 2, 3], [4, 5, 6], [7, 8, 9]];

#[inline(always)]
fn signed_steps<L: Lanes, const N: usize, const WILD: bool>(
    l: L,
    n_max: i32,
    x: &[L::F; N],
    weights: &[L::F; N],
    max: L::F,
) -> (L::F, L::F) {
    let zero = l.splat(0.0);
    let mut wx = [zero; N];
    for i in 0..N {
        wx[i] = weights[i] * x[i];
    }
    let group = WeightedGroup::<L, N> { n_max, x, weights, wx: &wx };
    let mut best_iscale = l.splat(-n_max as f32) / max;
    let [(sum_lx, sum_l2)] = group.sums::<WILD, false, 1>(l, [best_iscale]);
    let mut scale = l.select(l.eq(sum_l2, zero), zero, sum_lx / sum_l2);
    let mut best = scale * sum_lx;
    for steps in STEPS {
        let iscales = steps.map(|step| l.splat(-(n_max as f32 + 0.1 * step as f32)) / max);
        let sums = if steps[2] < 5 {
            group.sums::<WILD, false, 3>(l, iscales)
        } else {
            group.sums::<WILD, true, 3>(l, iscales)
        };
        for (iscale, (sum_lx, sum_l2)) in iscales.into_iter().zip(sums) {
            let better = l.gt(sum_l2, zero) & l.gt(sum_lx * sum_lx, best * sum_l2);
            let trial = sum_lx / sum_l2;
            best_iscale = l.select(better, iscale, best_iscale);
            scale = l.select(better, trial, scale);
            best = l.select(better, trial * sum_lx, best);
        }
    }
    (scale, best_iscale)
}

/// A group with its weights, and their products.
struct WeightedGroup<'a, L: Lanes, const N: usize> {
    n_max: i32,
    x: &'a [L::F; N],
    weights: &'a [L::F; N],
    wx: &'a [L::F; N],
}

impl<L: Lanes, const N: usize> WeightedGroup<'_, L, N> {
    /// Computes the sums of `C` scales at once: values and weights are loaded once for all.
    #[inline(always)]
    fn sums<const WILD: bool, const BELOW: bool, const C: usize>(
        &self,
        l: L,
        iscales: [L::F; C],
    ) -> [(L::F, L::F); C] {
        let mut sums = [(l.splat(0.0), l.splat(0.0)); C];
        for i in 0..N {
            for (iscale, (sum_lx, sum_l2)) in iscales.iter().zip(&mut sums) {
                let value = *iscale * self.x[i];
                let level = if WILD {
                    l.nearest_level(-self.n_max, self.n_max - 1, value)
                } else if BELOW {
                    l.small_nearest_level(-self.n_max, self.n_max - 1, value)
                } else {
                    l.round_up_to(self.n_max - 1, value)
                };
                *sum_lx = *sum_lx + self.wx[i] * level;
                *sum_l2 = *sum_l2 + self.weights[i] * level * level;
            }
        }
        sums
    }
}

/// Returns the stored levels of a group from the inverse scale that `signed` returned.
#[inline(always)]
pub(super) fn signed_levels<const N: usize>(n_max: i32, iscale: f32, x: &[f32; N]) -> [u8; N] {
    let mut levels = [0; N];
    if iscale != ZERO_GROUP {
        for i in 0..N {
            levels[i] = (n_max + nearest_int(iscale * x[i]).clamp(-n_max, n_max - 1)) as u8;
        }
    }
    levels
}

/// Result of [`with_min`] in each lane.
#[derive(Clone, Copy)]
pub(super) struct MinFit<F> {
    /// Scale.
    pub scale: F,
    /// Minimum; the offset is its negative.
    pub min: F,
    /// Inverse scale used for the levels.
    pub(crate) iscale: F,
    /// Minimum used for the levels: not `min`, which the fit moved afterwards.
    pub(crate) level_min: F,
}

/// Runs `search::with_min`: returns scales and minima, and the arguments of [`min_levels`].
#[inline(always)]
pub(super) fn with_min<L: Lanes, const N: usize, const ABS_ERROR: bool>(
    l: L,
    search: &MinSearch,
    x: &[L::F; N],
    weights: &[L::F; N],
) -> MinFit<L::F> {
    l.call(SearchWithMin::<L, N, ABS_ERROR> { l, search, x, weights })
}

struct SearchWithMin<'a, L: Lanes, const N: usize, const ABS_ERROR: bool> {
    l: L,
    search: &'a MinSearch,
    x: &'a [L::F; N],
    weights: &'a [L::F; N],
}

impl<L: Lanes, const N: usize, const ABS_ERROR: bool> VectorLoop for SearchWithMin<'_, L, N, ABS_ERROR> {
    type Output = MinFit<L::F>;

    #[inline(always)]
    fn run(self) -> MinFit<L::F> {
        with_min_inlined::<L, N, ABS_ERROR>(self.l, self.search, self.x, self.weights)
    }
}

#[inline(always)]
fn with_min_inlined<L: Lanes, const N: usize, const ABS_ERROR: bool>(
    l: L,
    search: &MinSearch,
    x: &[L::F; N],
    weights: &[L::F; N],
) -> MinFit<L::F> {
    let zero = l.splat(0.0);
    let (mut low, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for i in 1..N {
        low = l.select(l.gt(low, x[i]), x[i], low);
        max = l.select(l.gt(x[i], max), x[i], max);
        sum_w = sum_w + weights[i];
        sum_x = sum_x + weights[i] * x[i];
    }
    let mut min = l.select(l.gt(low, zero), zero, low);
    let flat = l.eq(max, min);
    let no_nan = l.eq(sum_x, sum_x);
    let bounds = ValueBounds::<L> { low, high: max, no_nan };

    let mut best_iscale = l.select(flat, zero, l.splat(search.n_max as f32) / (max - min));
    let mut level_min = min;
    let mut scale = l.splat(1.0) / best_iscale;
    let mut levels = [zero; N];
    bounds.levels(l, search.n_max, best_iscale, min, x, &mut levels);
    let mut best_error = fit_error::<L, N, ABS_ERROR>(l, scale, min, x, weights, &levels);
    for step in 0..=search.n_step {
        let iscale = l.select(flat, zero, l.splat(search.range(step)) / (max - min));
        bounds.levels(l, search.n_max, iscale, min, x, &mut levels);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (zero, zero, zero);
        for i in 0..N {
            let wl = weights[i] * levels[i];
            sum_l = sum_l + wl;
            sum_l2 = sum_l2 + wl * levels[i];
            sum_xl = sum_xl + wl * x[i];
        }
        let det = sum_w * sum_l2 - sum_l * sum_l;
        let trial_scale = (sum_w * sum_xl - sum_x * sum_l) / det;
        let trial_min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
        let positive = l.gt(trial_min, zero);
        let trial_scale = l.select(positive, sum_xl / sum_l2, trial_scale);
        let trial_min = l.select(positive, zero, trial_min);
        let error = fit_error::<L, N, ABS_ERROR>(l, trial_scale, trial_min, x, weights, &levels);
        let better = l.gt(det, zero) & l.gt(best_error, error);
        best_error = l.select(better, error, best_error);
        best_iscale = l.select(better, iscale, best_iscale);
        level_min = l.select(better, min, level_min);
        scale = l.select(better, trial_scale, scale);
        min = l.select(better, trial_min, min);
    }
    // A flat lane keeps its initial minimum; its levels become 0 through the inverse scale 0.
    let start = l.select(l.gt(low, zero), zero, low);
    MinFit {
        scale: l.select(flat, zero, scale),
        min: l.select(flat, start, min),
        iscale: l.select(flat, zero, best_iscale),
        level_min: l.select(flat, start, level_min),
    }
}

/// Least and greatest value of each lane, and a mask of the lanes without NaN.
struct ValueBounds<L: Lanes> {
    low: L::F,
    high: L::F,
    no_nan: L::M,
}

impl<L: Lanes> ValueBounds<L> {
    /// Computes the levels of a step.
    #[inline(always)]
    fn levels<const N: usize>(
        &self,
        l: L,
        n_max: i32,
        iscale: L::F,
        min: L::F,
        x: &[L::F; N],
        levels: &mut [L::F; N],
    ) {
        // Rounding keeps order, so all `iscale * (x - min)` are between those of the bounds. If the fit shrank the
        // range to almost nothing, they can be beyond the limit where the rounding wraps.
        let limit = l.splat(4_194_303.0);
        let (a, b) = (iscale * (self.low - min), iscale * (self.high - min));
        let tame = !l.gt(l.abs(a), limit) & !l.gt(l.abs(b), limit) & l.eq(a, a) & l.eq(b, b) & self.no_nan;
        if l.any(!tame) {
            for i in 0..N {
                levels[i] = l.nearest_level(0, n_max, iscale * (x[i] - min));
            }
        } else {
            for i in 0..N {
                levels[i] = l.small_nearest_level(0, n_max, iscale * (x[i] - min));
            }
        }
    }
}

#[inline(always)]
fn fit_error<L: Lanes, const N: usize, const ABS_ERROR: bool>(
    l: L,
    scale: L::F,
    min: L::F,
    x: &[L::F; N],
    weights: &[L::F; N],
    levels: &[L::F; N],
) -> L::F {
    let mut error = l.splat(0.0);
    for i in 0..N {
        let diff = scale * levels[i] + min - x[i];
        error = error + weights[i] * if ABS_ERROR { l.abs(diff) } else { diff * diff };
    }
    error
}

/// Returns the levels of a group from the inverse scale and minimum that `with_min` returned.
#[inline(always)]
pub(super) fn min_levels<const N: usize>(n_max: i32, iscale: f32, min: f32, x: &[f32; N]) -> [u8; N] {
    let mut levels = [0; N];
    for i in 0..N {
        levels[i] = nearest_int(iscale * (x[i] - min)).clamp(0, n_max) as u8;
    }
    levels
}

/// Runs `search::unsigned`: returns scales and levels, which fit a byte.
#[inline(always)]
pub(super) fn unsigned<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    x: &[L::F; N],
    weights: &[L::F; N],
) -> (L::F, [L::I; N]) {
    l.call(SearchUnsigned { l, n_max, x, weights })
}

struct SearchUnsigned<'a, L: Lanes, const N: usize> {
    l: L,
    n_max: i32,
    x: &'a [L::F; N],
    weights: &'a [L::F; N],
}

impl<L: Lanes, const N: usize> VectorLoop for SearchUnsigned<'_, L, N> {
    type Output = (L::F, [L::I; N]);

    #[inline(always)]
    fn run(self) -> (L::F, [L::I; N]) {
        unsigned_inlined(self.l, self.n_max, self.x, self.weights)
    }
}

#[inline(always)]
fn unsigned_inlined<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    x: &[L::F; N],
    weights: &[L::F; N],
) -> (L::F, [L::I; N]) {
    let zero = l.splat(0.0);
    let byte = l.splat_i(0xff);
    let limit = l.splat_i(n_max);
    let mut max = zero;
    for &value in x {
        max = l.c_max(max, value);
    }
    let nothing = l.gt(l.splat(GROUP_MAX_EPS), max);
    let mut iscale = l.splat(n_max as f32) / max;
    let scale = l.splat(1.0) / iscale;
    let mut best_error = zero;
    for i in 0..N {
        let level = l.nearest_int(iscale * x[i]) & byte;
        let diff = x[i] - scale * l.to_f(level);
        best_error = best_error + weights[i] * diff * diff;
    }
    for step in -4..=4 {
        if step == 0 {
            continue;
        }
        let trial_iscale = l.splat(0.1 * step as f32 + n_max as f32) / max;
        let trial_scale = l.splat(1.0) / trial_iscale;
        let mut error = zero;
        for i in 0..N {
            let level = l.min_i(l.nearest_int(trial_iscale * x[i]), limit);
            let diff = x[i] - trial_scale * l.to_f(level);
            error = error + weights[i] * diff * diff;
        }
        let better = l.gt(best_error, error);
        best_error = l.select(better, error, best_error);
        iscale = l.select(better, trial_iscale, iscale);
    }
    let mut levels = [l.splat_i(0); N];
    let (mut sum_lx, mut sum_l2) = (zero, zero);
    for i in 0..N {
        let level = l.min_i(l.nearest_int(iscale * x[i]), limit);
        levels[i] = level & byte;
        let level = l.to_f(level);
        sum_lx = sum_lx + weights[i] * x[i] * level;
        sum_l2 = sum_l2 + weights[i] * level * level;
    }
    for _ in 0..5 {
        let mut changed = l.gt(zero, zero);
        for i in 0..N {
            let (w, level) = (weights[i], l.to_f(levels[i]));
            let rest_lx = sum_lx - w * x[i] * level;
            let rest_l2 = sum_l2 - w * level * level;
            let new = l.min_i(l.nearest_int(x[i] * rest_l2 / rest_lx), limit);
            let level = l.to_f(new);
            let s_lx = rest_lx + w * x[i] * level;
            let s_l2 = rest_l2 + w * level * level;
            let better = l.gt(rest_lx, zero)
                & l.gt(rest_l2, zero)
                & !l.eq_i(new, levels[i])
                & l.gt(s_lx * s_lx * sum_l2, sum_lx * sum_lx * s_l2);
            levels[i] = l.select_i(better, new & byte, levels[i]);
            sum_lx = l.select(better, s_lx, sum_lx);
            sum_l2 = l.select(better, s_l2, sum_l2);
            changed = changed | better;
        }
        if !l.any(changed) {
            break;
        }
    }
    let scale = l.select(l.gt(sum_l2, zero) & !nothing, sum_lx / sum_l2, zero);
    for level in &mut levels {
        *level = l.select_i(nothing, l.splat_i(0), *level);
    }
    (scale, levels)
}

/// Computes [`signed_levels`] along the block.
#[inline(always)]
pub(super) fn signed_levels_lanes<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    iscale: f32,
    x: &[f32; N],
) -> [u8; N] {
    let mut levels = [0; N];
    if iscale != ZERO_GROUP {
        let iscale = l.splat(iscale);
        for at in (0..N).step_by(L::WIDTH) {
            let level = l.max_i(l.nearest_int(iscale * l.load(&x[at..])), l.splat_i(-n_max));
            let level = l.min_i(level, l.splat_i(n_max - 1)) + l.splat_i(n_max);
            l.store_low_bytes(level, &mut levels[at..]);
        }
    }
    levels
}

/// Computes [`min_levels`] along the block.
#[inline(always)]
pub(super) fn min_levels_lanes<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    iscale: f32,
    min: f32,
    x: &[f32; N],
) -> [u8; N] {
    let (iscale, min) = (l.splat(iscale), l.splat(min));
    let mut levels = [0; N];
    for at in (0..N).step_by(L::WIDTH) {
        let level = l.max_i(l.nearest_int(iscale * (l.load(&x[at..]) - min)), l.splat_i(0));
        l.store_low_bytes(l.min_i(level, l.splat_i(n_max)), &mut levels[at..]);
    }
    levels
}
