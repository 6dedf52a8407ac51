//! Lane side of `superblock`: searches in all parts of a batch, and scales of scales across its super-blocks.

use super::batch::{BATCH, BlockBatch, gather, sums_of_squares};
use super::codec::SourceRows;
use super::lanes::{Lanes, MAX_WIDTH, Twice};
use super::search::MinSearch;
use super::search_lanes::{min_levels, unsigned, with_min};
use super::superblock::{SUPER, SuperScales};

pub(super) const BATCH_SUPERS: usize = BATCH / SUPER;

/// Weights of a part when there is no importance.
pub(super) trait Weigh {
    /// Computes weights from the values alone.
    fn weights<L: Lanes, const N: usize>(l: L, x: &[L::F; N]) -> [L::F; N];
}

impl BlockBatch {
    /// Sets the weights to `importance * sqrt(sigma2 + x^2)`, where `sigma2` is `factor` times the mean square of the
    /// super-block.
    #[inline(always)]
    pub(super) fn weigh_supers<L: Lanes>(
        &mut self,
        l: L,
        factor: f32,
        rows: &SourceRows<'_>,
        importance: &[f32],
    ) {
        let mut sigma2 = [0.0; BATCH_SUPERS];
        for at in (0..BATCH_SUPERS).step_by(L::WIDTH) {
            let sums = sums_of_squares(l, &self.x[at * SUPER..], SUPER, SUPER);
            l.store(l.splat(factor) * sums / l.splat(SUPER as f32), &mut sigma2[at..]);
        }
        self.weigh::<L, SUPER>(l, rows, importance, |index| sigma2[index]);
    }
}

/// Results of the searches with a minimum, for each super-block and part of a batch.
pub(super) struct MinFits<const P: usize> {
    /// Scales.
    pub scales: [[f32; P]; BATCH_SUPERS],
    /// Offsets (minus the minimum).
    pub mins: [[f32; P]; BATCH_SUPERS],
    weight_sums: [[f32; P]; BATCH_SUPERS],
    /// Inverse scales used for the levels.
    iscales: [[f32; P]; BATCH_SUPERS],
    /// Minima used for the levels.
    level_mins: [[f32; P]; BATCH_SUPERS],
    pub(crate) super_scales: [SuperScales<P>; BATCH_SUPERS],
}

impl<const P: usize> MinFits<P> {
    /// Value without results.
    pub(super) const ZERO: Self = Self {
        scales: [[0.0; P]; BATCH_SUPERS],
        mins: [[0.0; P]; BATCH_SUPERS],
        weight_sums: [[0.0; P]; BATCH_SUPERS],
        iscales: [[0.0; P]; BATCH_SUPERS],
        level_mins: [[0.0; P]; BATCH_SUPERS],
        super_scales: [SuperScales { d: 0.0, d_min: 0.0, scales: [0; P], mins: [0; P] }; BATCH_SUPERS],
    };

    /// Searches all parts of `N` elements under the batch's weights.
    #[inline(always)]
    pub(super) fn search<L: Lanes, const N: usize>(&mut self, l: L, search: &MinSearch, batch: &BlockBatch) {
        let wide = Twice(l);
        let zero = wide.splat(0.0);
        let (mut x, mut weights) = ([zero; N], [zero; N]);
        for at in (0..batch.n_elems / N).step_by(2 * L::WIDTH) {
            wide.columns(&batch.x[at * N..], N, &mut x);
            wide.columns(&batch.weights[at * N..], N, &mut weights);
            let mut weight_sum = zero;
            for &weight in &weights {
                weight_sum = weight_sum + weight;
            }
            wide.store(weight_sum, &mut self.weight_sums.as_flattened_mut()[at..]);
            self.search_at::<_, N, false>(wide, search, at, &x, &weights);
        }
    }

    /// Searches all parts of `N` elements under weights computed from the values.
    #[inline(always)]
    pub(super) fn search_plain<L: Lanes, W: Weigh, const N: usize, const ABS_ERROR: bool>(
        &mut self,
        l: L,
        search: &MinSearch,
        batch: &BlockBatch,
    ) {
        let wide = Twice(l);
        let mut x = [wide.splat(0.0); N];
        for at in (0..batch.n_elems / N).step_by(2 * L::WIDTH) {
            wide.columns(&batch.x[at * N..], N, &mut x);
            let weights = W::weights(wide, &x);
            self.search_at::<_, N, ABS_ERROR>(wide, search, at, &x, &weights);
        }
    }

    #[inline(always)]
    fn search_at<L: Lanes, const N: usize, const ABS_ERROR: bool>(
        &mut self,
        l: L,
        search: &MinSearch,
        at: usize,
        x: &[L::F; N],
        weights: &[L::F; N],
    ) {
        let fit = with_min::<L, N, ABS_ERROR>(l, search, x, weights);
        l.store(fit.scale, &mut self.scales.as_flattened_mut()[at..]);
        l.store(fit.iscale, &mut self.iscales.as_flattened_mut()[at..]);
        l.store(fit.level_min, &mut self.level_mins.as_flattened_mut()[at..]);
        let mins = &mut self.mins.as_flattened_mut()[at..at + L::WIDTH];
        l.store(fit.min, mins);
        for min in mins {
            *min = -*min;
        }
    }

    /// Runs `superblock::scales_with_importance`: the low lanes hold one super-block's scales each, the high ones its
    /// offsets.
    #[inline(always)]
    pub(super) fn scales_with_importance<L: Lanes>(&mut self, l: L, n_max: i32, n_supers: usize) {
        let wide = Twice(l);
        for at in (0..n_supers).step_by(L::WIDTH) {
            let zero = wide.splat(0.0);
            let (mut x, mut weights) = ([zero; P], [zero; P]);
            for j in 0..P {
                let values = |lane: usize| {
                    if lane < L::WIDTH {
                        self.scales[at + lane][j]
                    } else {
                        self.mins[at + lane - L::WIDTH][j]
                    }
                };
                x[j] = gather(wide, values);
                weights[j] = gather(wide, |lane| self.weight_sums[at + lane % L::WIDTH][j]);
            }
            let (d, levels) = unsigned(wide, n_max, &x, &weights);
            let mut ds = [0.0; MAX_WIDTH];
            wide.store(d, &mut ds);
            let out = &mut self.super_scales[at..at + L::WIDTH];
            for (lane, out) in out.iter_mut().enumerate() {
                (out.d, out.d_min) = (ds[lane], ds[L::WIDTH + lane]);
            }
            let mut bytes = [0; MAX_WIDTH];
            for (j, level) in levels.into_iter().enumerate() {
                wide.store_low_bytes(level, &mut bytes);
                for (lane, out) in out.iter_mut().enumerate() {
                    (out.scales[j], out.mins[j]) = (bytes[lane], bytes[L::WIDTH + lane]);
                }
            }
        }
    }

    /// Returns the levels from the search, for a part whose stored scale is zero.
    pub(super) fn kept<const N: usize>(&self, n_max: i32, b: usize, j: usize, x: &[f32; N]) -> [u8; N] {
        min_levels(n_max, self.iscales[b][j], self.level_mins[b][j], x)
    }
}

/// Runs `superblock::relevel_min` for all `P` parts of `N` elements; `kept` gives the levels where the scale is zero.
#[inline(always)]
pub(super) fn relevel_min<L: Lanes, const N: usize, const P: usize>(
    l: L,
    n_max: i32,
    x: &[f32; SUPER],
    ds: &[f32; P],
    offsets: &[f32; P],
    kept: impl Fn(usize, &[f32; N]) -> [u8; N],
) -> [u8; SUPER] {
    let mut levels = [0; SUPER];
    let parts = x.as_chunks::<N>().0.iter().zip(levels.as_chunks_mut::<N>().0);
    for (j, (x, levels)) in parts.enumerate() {
        if ds[j] == 0.0 {
            *levels = kept(j, x);
            continue;
        }
        let (d, offset) = (l.splat(ds[j]), l.splat(offsets[j]));
        for at in (0..N).step_by(L::WIDTH) {
            let level = l.nearest_int((l.load(&x[at..]) + offset) / d);
            let level = l.min_i(l.max_i(level, l.splat_i(0)), l.splat_i(n_max));
            l.store_low_bytes(level, &mut levels[at..]);
        }
    }
    levels
}

/// Runs `superblock::relevel_signed` for all `P` parts of `N` elements; `kept` gives the levels where the scale is
/// zero.
#[inline(always)]
pub(super) fn relevel_signed<L: Lanes, const N: usize, const P: usize>(
    l: L,
    n_max: i32,
    x: &[f32; SUPER],
    ds: &[f32; P],
    kept: impl Fn(usize, &[f32; N]) -> [u8; N],
) -> [u8; SUPER] {
    let mut levels = [0; SUPER];
    let parts = x.as_chunks::<N>().0.iter().zip(levels.as_chunks_mut::<N>().0);
    for (j, (x, levels)) in parts.enumerate() {
        if ds[j] == 0.0 {
            *levels = kept(j, x);
            continue;
        }
        let d = l.splat(ds[j]);
        for at in (0..N).step_by(L::WIDTH) {
            let level = l.nearest_int(l.load(&x[at..]) / d);
            let level = l.min_i(l.max_i(level, l.splat_i(-n_max)), l.splat_i(n_max - 1));
            l.store_low_bytes(level + l.splat_i(n_max), &mut levels[at..]);
        }
    }
    levels
}
