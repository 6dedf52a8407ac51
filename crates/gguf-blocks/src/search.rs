//! Scale searches shared by the block types; scalar, the specification of `search_lanes`.
//!
//! Four procedures of ggml-quants.c: a signed scale ([`signed`]), its refinement level by level ([`signed_refined`]), a
//! scale with a minimum ([`with_min`]), and a non-negative scale of scales ([`unsigned`]). All sums run in index order
//! in f32.

use gguf_core::numeric::{c_max, nearest_int};

/// Largest magnitude below which a group counts as zero: ggml's `GROUP_MAX_EPS`.
pub(super) const GROUP_MAX_EPS: f32 = 1e-15;

/// Returns the first value of largest magnitude, and that magnitude; zero for an all-zero group.
#[inline(always)]
pub(super) fn signed_max(x: &[f32]) -> (f32, f32) {
    let (mut max, mut amax) = (0f32, 0f32);
    for &value in x {
        if value.abs() > amax {
            amax = value.abs();
            max = value;
        }
    }
    (max, amax)
}

/// Returns the largest magnitude as C's `MAX(amax, fabsf(v))` finds it.
#[inline(always)]
pub(super) fn abs_max(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |amax, value| c_max(amax, value.abs()))
}

#[inline(always)]
pub(super) fn sum_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, value| sum + value * value)
}

#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, value| sum + value)
}

/// Returns importance-scaled weights: `importance * sqrt(sigma2 + x^2)`.
#[inline(always)]
pub(super) fn importance_weights<const N: usize>(
    x: &[f32; N],
    importance: &[f32; N],
    sigma2: f32,
) -> [f32; N] {
    let mut weights = [0.0; N];
    for i in 0..N {
        weights[i] = importance[i] * (sigma2 + x[i] * x[i]).sqrt();
    }
    weights
}

/// Maximum number of rounds of [`signed_refined`].
pub(super) const REFINE_ROUNDS: usize = 5;

/// Finds scale and levels `0..2 * n_max` (stored with offset `n_max`) of a group around zero.
///
/// The first value of largest magnitude maps to `-n_max`, then 18 neighbouring scales compete by weighted
/// least squares. A group below [`GROUP_MAX_EPS`] has scale 0 and stored levels 0, not `n_max`.
///
/// # Exactness
/// `make_qx_quants` with `rmse_type` 1.
pub(super) fn signed<const N: usize>(
    n_max: i32,
    x: &[f32; N],
    weights: &[f32; N],
    levels: &mut [u8; N],
) -> f32 {
    let (max, amax) = signed_max(x);
    if amax < GROUP_MAX_EPS {
        *levels = [0; N];
        return 0.0;
    }
    let level = |iscale: f32, value: f32| nearest_int(iscale * value).clamp(-n_max, n_max - 1);
    let sums = |iscale: f32| {
        let (mut sum_lx, mut sum_l2) = (0f32, 0f32);
        for i in 0..N {
            let l = level(iscale, x[i]) as f32;
            sum_lx += weights[i] * x[i] * l;
            sum_l2 += weights[i] * l * l;
        }
        (sum_lx, sum_l2)
    };
    let mut best_iscale = -n_max as f32 / max;
    let (sum_lx, sum_l2) = sums(best_iscale);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for step in (-9..=9).filter(|step| *step != 0) {
        let iscale = -(n_max as f32 + 0.1 * step as f32) / max;
        let (sum_lx, sum_l2) = sums(iscale);
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            best_iscale = iscale;
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    for i in 0..N {
        levels[i] = (n_max + level(best_iscale, x[i])) as u8;
    }
    scale
}

/// Finds scale and levels `0..2 * n_max` (stored with offset `n_max`), refined one level at a time.
///
/// Weights are squares; up to 5 rounds move single levels while the fit improves. A group below
/// [`GROUP_MAX_EPS`] has scale 0 and stored levels 0.
///
/// # Exactness
/// `make_q3_quants` with `do_rmse`.
pub(super) fn signed_refined<const N: usize>(n_max: i32, x: &[f32; N], levels: &mut [u8; N]) -> f32 {
    let (max, amax) = signed_max(x);
    if amax < GROUP_MAX_EPS {
        *levels = [0; N];
        return 0.0;
    }
    let iscale = -n_max as f32 / max;
    let mut ls = [0; N];
    let (mut sum_lx, mut sum_l2) = (0f32, 0f32);
    for i in 0..N {
        ls[i] = nearest_int(iscale * x[i]).clamp(-n_max, n_max - 1);
        let (w, l) = (x[i] * x[i], ls[i] as f32);
        sum_lx += w * x[i] * l;
        sum_l2 += w * l * l;
    }
    for _ in 0..REFINE_ROUNDS {
        let mut changed = false;
        for i in 0..N {
            let (w, l) = (x[i] * x[i], ls[i] as f32);
            let mut s_lx = sum_lx - w * x[i] * l;
            if s_lx > 0.0 {
                let mut s_l2 = sum_l2 - w * l * l;
                let new = nearest_int(x[i] * s_l2 / s_lx).clamp(-n_max, n_max - 1);
                if new != ls[i] {
                    let l = new as f32;
                    s_lx += w * x[i] * l;
                    s_l2 += w * l * l;
                    if s_l2 > 0.0 && s_lx * s_lx * sum_l2 > sum_lx * sum_lx * s_l2 {
                        ls[i] = new;
                        sum_lx = s_lx;
                        sum_l2 = s_l2;
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    for i in 0..N {
        levels[i] = (ls[i] + n_max) as u8;
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

/// Parameters of [`with_min`].
#[derive(Clone, Copy, Debug)]
pub(super) struct MinSearch {
    /// Largest level.
    pub(crate) n_max: i32,
    /// First step, in levels.
    pub(crate) r_min: f32,
    /// Distance of steps, in levels.
    pub(crate) r_delta: f32,
    pub(crate) n_step: i32,
}

impl MinSearch {
    /// Returns the number of levels to spread over the range in this step.
    #[inline(always)]
    pub(super) fn range(&self, step: i32) -> f32 {
        self.r_min + self.r_delta * step as f32 + self.n_max as f32
    }
}

/// Finds scale, offset (minus the minimum, never below -0.0) and levels `0..=n_max` of a group with a minimum.
///
/// Every step divides the range into a few levels more or less and fits scale and minimum by weighted least
/// squares. `ABS_ERROR` ranks the fits by absolute instead of squared error.
///
/// # Exactness
/// `make_qkx2_quants` and `make_qkx3_quants`, which differ for NaN only. An accepted minimum shifts all later steps
/// while the maximum stays; this is kept.
pub(super) fn with_min<const N: usize, const ABS_ERROR: bool>(
    search: &MinSearch,
    x: &[f32; N],
    weights: &[f32; N],
    levels: &mut [u8; N],
) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for i in 1..N {
        if x[i] < min {
            min = x[i];
        }
        if x[i] > max {
            max = x[i];
        }
        sum_w += weights[i];
        sum_x += weights[i] * x[i];
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        *levels = [0; N];
        return (0.0, -min);
    }
    let level =
        |iscale: f32, min: f32, value: f32| nearest_int(iscale * (value - min)).clamp(0, search.n_max);
    let error = |scale: f32, min: f32, levels: &[u8; N]| {
        let mut error = 0f32;
        for i in 0..N {
            let diff = scale * levels[i] as f32 + min - x[i];
            error += weights[i] * if ABS_ERROR { diff.abs() } else { diff * diff };
        }
        error
    };
    let iscale = search.n_max as f32 / (max - min);
    let mut scale = 1.0 / iscale;
    for i in 0..N {
        levels[i] = level(iscale, min, x[i]) as u8;
    }
    let mut best_error = error(scale, min, levels);
    for step in 0..=search.n_step {
        let iscale = search.range(step) / (max - min);
        let mut trial = [0; N];
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0f32, 0f32, 0f32);
        for i in 0..N {
            trial[i] = level(iscale, min, x[i]) as u8;
            let l = trial[i] as f32;
            sum_l += weights[i] * l;
            sum_l2 += weights[i] * l * l;
            sum_xl += weights[i] * l * x[i];
        }
        let det = sum_w * sum_l2 - sum_l * sum_l;
        if det > 0.0 {
            let mut trial_scale = (sum_w * sum_xl - sum_x * sum_l) / det;
            let mut trial_min = (sum_l2 * sum_x - sum_l * sum_xl) / det;
            if trial_min > 0.0 {
                trial_min = 0.0;
                trial_scale = sum_xl / sum_l2;
            }
            let trial_error = error(trial_scale, trial_min, &trial);
            if trial_error < best_error {
                *levels = trial;
                best_error = trial_error;
                scale = trial_scale;
                min = trial_min;
            }
        }
    }
    (scale, -min)
}

/// Finds scale and levels of non-negative values: super-blocks quantize the scales of their parts with it.
///
/// # Exactness
/// `make_qp_quants`. Levels are stored in bytes while the sums use the number before narrowing: a negative level wraps,
/// and later rounds use the wrapped byte.
pub(super) fn unsigned<const N: usize>(
    n_max: i32,
    x: &[f32; N],
    weights: &[f32; N],
    levels: &mut [u8; N],
) -> f32 {
    let max = x.iter().fold(0.0, |max, value| c_max(max, *value));
    if max < GROUP_MAX_EPS {
        *levels = [0; N];
        return 0.0;
    }
    let mut iscale = n_max as f32 / max;
    let scale = 1.0 / iscale;
    let mut best_error = 0f32;
    for i in 0..N {
        // ref: not clamped here, but narrowed
        let diff = x[i] - scale * (nearest_int(iscale * x[i]) as u8) as f32;
        best_error += weights[i] * diff * diff;
    }
    for step in (-4..=4).filter(|step| *step != 0) {
        let trial_iscale = (0.1 * step as f32 + n_max as f32) / max;
        let trial_scale = 1.0 / trial_iscale;
        let mut error = 0f32;
        for i in 0..N {
            let l = nearest_int(trial_iscale * x[i]).min(n_max);
            let diff = x[i] - trial_scale * l as f32;
            error += weights[i] * diff * diff;
        }
        if error < best_error {
            best_error = error;
            iscale = trial_iscale;
        }
    }
    let (mut sum_lx, mut sum_l2) = (0f32, 0f32);
    for i in 0..N {
        let l = nearest_int(iscale * x[i]).min(n_max);
        levels[i] = l as u8;
        sum_lx += weights[i] * x[i] * l as f32;
        sum_l2 += weights[i] * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let (w, l) = (weights[i], levels[i] as f32);
            let mut s_lx = sum_lx - w * x[i] * l;
            let mut s_l2 = sum_l2 - w * l * l;
            if s_lx > 0.0 && s_l2 > 0.0 {
                let new = nearest_int(x[i] * s_l2 / s_lx).min(n_max);
                if new != i32::from(levels[i]) {
                    let l = new as f32;
                    s_lx += w * x[i] * l;
                    s_l2 += w * l * l;
                    if s_lx * s_lx * sum_l2 > sum_lx * sum_lx * s_l2 {
                        levels[i] = new as u8;
                        sum_lx = s_lx;
                        sum_l2 = s_l2;
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_of_magnitudes_goes_to_the_first() {
        assert_eq!(signed_max(&[1.0, -2.0, 2.0]), (-2.0, 2.0));
        assert_eq!(signed_max(&[0.0, -0.0]), (0.0, 0.0));
    }

    #[test]
    fn values_on_the_grid_are_found_exactly() {
        let x: [f32; 16] = std::array::from_fn(|i| (i as f32 - 8.0) * 0.25);
        let mut levels = [0; 16];
        let scale = signed(8, &x, &[1.0; 16], &mut levels);
        assert_eq!(scale, 0.25);
        assert_eq!(levels, std::array::from_fn(|i| i as u8));
        let mut levels = [0; 16];
        let search = MinSearch { n_max: 15, r_min: -1.0, r_delta: 0.1, n_step: 20 };
        let (scale, offset) = with_min::<16, false>(&search, &x, &[1.0; 16], &mut levels);
        assert_eq!((scale, offset), (0.25, 2.0));
        assert_eq!(levels, std::array::from_fn(|i| i as u8));
    }

    #[test]
    fn groups_of_nothing_have_no_scale() {
        let mut levels = [9; 16];
        assert_eq!(signed(32, &[1e-16; 16], &[1.0; 16], &mut levels), 0.0);
        assert_eq!(levels, [0; 16]);
        let mut levels = [9; 16];
        assert_eq!(signed_refined(4, &[0.0; 16], &mut levels), 0.0);
        assert_eq!(levels, [0; 16]);
        let mut levels = [9; 16];
        assert_eq!(unsigned(63, &[0.0; 16], &[1.0; 16], &mut levels), 0.0);
        assert_eq!(levels, [0; 16]);
    }
}
