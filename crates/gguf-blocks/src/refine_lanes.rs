//! The search `search::signed_refined` with one part per lane, without the levels.
//!
//! For bell-shaped values, four parts of five keep the levels of the first scale, and three of four others are final
//! after one round. The test whether a level moves while the sums stay as they are can be made for all levels of a part
//! at once: [`first_fit`] and [`refine`] report in this way which parts need (more) rounds. In a round every level
//! waits for the one before it.

use super::lanes::Lanes;
use super::search::GROUP_MAX_EPS;
use super::search_lanes::{first_of_magnitude, largest_magnitude, signed_max};
use gguf_core::simd::VectorLoop;

/// Scales, with a mask of those that may not be final.
pub(super) struct RefineFit<L: Lanes> {
    /// Scale so far.
    pub scale: L::F,
    /// Mask of the lanes where a level may still move.
    pub open: L::M,
}

impl<L: Lanes> RefineFit<L> {
    #[inline(always)]
    fn new(l: L, sum_lx: L::F, sum_l2: L::F, amax: L::F, open: L::M) -> Self {
        let zero = l.splat(0.0);
        let nothing = l.gt(l.splat(GROUP_MAX_EPS), amax);
        let scale = l.select(l.gt(sum_l2, zero) & !nothing, sum_lx / sum_l2, zero);
        Self { scale, open: open & !nothing }
    }
}

/// Returns a mask of the lanes whose level may move, given the sums without it.
#[inline(always)]
fn may_move<L: Lanes>(l: L, n_max: i32, x: L::F, level: L::F, rest_lx: L::F, rest_l2: L::F) -> L::M {
    let new = x * rest_l2 / rest_lx;
    let new_level = l.small_nearest_level(-n_max, n_max - 1, new);
    // Beyond this limit rounding wraps.
    let moves = !l.eq(new_level, level) | !l.gt(l.splat(4_194_303.0), l.abs(new));
    l.gt(rest_lx, l.splat(0.0)) & moves
}

/// Parts and the values that [`first_fit`] stores for each element: reused memory, because filling it takes time.
pub(super) struct FirstFitBuffers<L: Lanes, const N: usize> {
    /// Values of the parts.
    pub x: [L::F; N],
    levels: [L::F; N],
    lx: [L::F; N],
    l2: [L::F; N],
}

impl<L: Lanes, const N: usize> FirstFitBuffers<L, N> {
    #[inline(always)]
    pub(super) fn zero(l: L) -> Self {
        let zero = [l.splat(0.0); N];
        Self { x: zero, levels: zero, lx: zero, l2: zero }
    }
}

#[inline(always)]
pub(super) fn first_fit<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    parts: &mut FirstFitBuffers<L, N>,
) -> RefineFit<L> {
    l.call(FirstFit { l, n_max, parts })
}

struct FirstFit<'a, L: Lanes, const N: usize> {
    l: L,
    n_max: i32,
    parts: &'a mut FirstFitBuffers<L, N>,
}

impl<L: Lanes, const N: usize> VectorLoop for FirstFit<'_, L, N> {
    type Output = RefineFit<L>;

    #[inline(always)]
    fn run(self) -> RefineFit<L> {
        let Self { l, n_max, parts: FirstFitBuffers { x, levels, lx, l2 } } = self;
        let zero = l.splat(0.0);
        let amax = largest_magnitude(l, x);
        let iscale = l.splat(-n_max as f32) / first_of_magnitude(l, x, amax);
        let (mut sum_lx, mut sum_l2) = (zero, zero);
        for i in 0..N {
            let w = x[i] * x[i];
            // No product is below `-n_max`: that of the largest magnitude rounds to it.
            let level = l.round_up_to(n_max - 1, iscale * x[i]);
            (levels[i], lx[i], l2[i]) = (level, w * x[i] * level, w * level * level);
            sum_lx = sum_lx + lx[i];
            sum_l2 = sum_l2 + l2[i];
        }
        // The first level that moves in a round uses the sums as they are now. Infinities and NaN are left to `refine`.
        let mut moving = l.select(l.gt(l.splat(f32::INFINITY), amax), zero, l.splat(1.0));
        for i in 0..N {
            let may_move = may_move(l, n_max, x[i], levels[i], sum_lx - lx[i], sum_l2 - l2[i]);
            moving = l.select(may_move, l.splat(1.0), moving);
        }
        RefineFit::new(l, sum_lx, sum_l2, amax, l.gt(moving, zero))
    }
}

/// Parts in rounds, with the values needed for each element: memory that a caller reuses.
pub(super) struct RefineBuffers<L: Lanes, const N: usize> {
    /// Values of the parts.
    pub x: [L::F; N],
    w: [L::F; N],
    wx: [L::F; N],
    levels: [L::F; N],
    lx: [L::F; N],
    l2: [L::F; N],
}

impl<L: Lanes, const N: usize> RefineBuffers<L, N> {
    #[inline(always)]
    pub(super) fn zero(l: L) -> Self {
        let zero = [l.splat(0.0); N];
        Self { x: zero, w: zero, wx: zero, levels: zero, lx: zero, l2: zero }
    }
}

/// Returns the fits after up to `n_rounds` rounds.
#[inline(always)]
pub(super) fn refine<L: Lanes, const N: usize>(
    l: L,
    n_max: i32,
    n_rounds: usize,
    parts: &mut RefineBuffers<L, N>,
) -> RefineFit<L> {
    l.call(RefineRounds { l, n_max, n_rounds, parts })
}

struct RefineRounds<'a, L: Lanes, const N: usize> {
    l: L,
    n_max: i32,
    n_rounds: usize,
    parts: &'a mut RefineBuffers<L, N>,
}

impl<L: Lanes, const N: usize> VectorLoop for RefineRounds<'_, L, N> {
    type Output = RefineFit<L>;

    #[inline(always)]
    fn run(self) -> RefineFit<L> {
        let Self { l, n_max, n_rounds, parts: RefineBuffers { x, w, wx, levels, lx, l2 } } = self;
        let (max, amax) = signed_max(l, x);
        let iscale = l.splat(-n_max as f32) / max;
        let zero = l.splat(0.0);
        let (mut sum_lx, mut sum_l2) = (zero, zero);
        for i in 0..N {
            let level = l.nearest_level(-n_max, n_max - 1, iscale * x[i]);
            w[i] = x[i] * x[i];
            wx[i] = w[i] * x[i];
            (levels[i], lx[i], l2[i]) = (level, wx[i] * level, w[i] * level * level);
            sum_lx = sum_lx + lx[i];
            sum_l2 = sum_l2 + l2[i];
        }
        let mut sum_lx_2 = sum_lx * sum_lx;
        // A lane that changes nothing in a round changes nothing in the next, so no lane needs to be stopped.
        for _ in 0..n_rounds {
            let mut moved = l.splat_i(0);
            for i in 0..N {
                let (rest_lx, rest_l2) = (sum_lx - lx[i], sum_l2 - l2[i]);
                let new = l.nearest_level(-n_max, n_max - 1, x[i] * rest_l2 / rest_lx);
                let (new_lx, new_l2) = (wx[i] * new, w[i] * new * new);
                let (s_lx, s_l2) = (rest_lx + new_lx, rest_l2 + new_l2);
                // Compares both with zero by their bits; NaN fails the last comparison.
                let above = l.float_of(l.min_i(l.bits(rest_lx), l.bits(s_l2)));
                let s_lx_2 = s_lx * s_lx;
                let better =
                    l.gt(above, zero) & !l.eq(new, levels[i]) & l.gt(s_lx_2 * sum_l2, sum_lx_2 * s_l2);
                sum_lx = l.select(better, s_lx, sum_lx);
                sum_l2 = l.select(better, s_l2, sum_l2);
                sum_lx_2 = l.select(better, s_lx_2, sum_lx_2);
                moved = moved | replace(l, better, new, &mut levels[i]);
                replace(l, better, new_lx, &mut lx[i]);
                replace(l, better, new_l2, &mut l2[i]);
            }
            if !l.any(!l.eq_i(moved, l.splat_i(0))) {
                break;
            }
        }
        let mut moving = zero;
        for i in 0..N {
            let may_move = may_move(l, n_max, x[i], levels[i], sum_lx - lx[i], sum_l2 - l2[i]);
            moving = l.select(may_move, l.splat(1.0), moving);
        }
        RefineFit::new(l, sum_lx, sum_l2, amax, l.gt(moving, zero))
    }
}

/// Replaces `place` where the mask is set; returns a nonzero value where it changes.
///
/// By differences: for a selection, compilers use a masked store, which is slow on some machines.
#[inline(always)]
fn replace<L: Lanes>(l: L, mask: L::M, new: L::F, place: &mut L::F) -> L::I {
    let old = l.bits(*place);
    let change = l.select_i(mask, l.bits(new) - old, l.splat_i(0));
    *place = l.float_of(old + change);
    change
}
