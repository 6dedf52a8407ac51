//! IQ1_S and IQ1_M with one part per lane: sorting, and the search for the best split into three levels.

use std::cell::RefCell;

use super::batch::{BATCH, BlockBatch};
use super::codec::SourceRows;
use super::grid_lanes::LaneSearch;
use super::grid_search::OffGrid;
use super::grid_trials::SearchScratch;
use super::iq1_search::{
    DELTA, DOWN, EPS_M, EPS_S, LevelSplit, M_BYTES, PartCode, S_BYTES, UP, code_m, code_s, down_m, down_s,
    groups, on_grid, points_of, scalar_m, scalar_s, square_steps, store_m, store_s,
};
use super::kernel::RowsKernel;
use super::lanes::{Lanes, MAX_WIDTH};
use super::superblock::SUPER;
use super::superblock_lanes::BATCH_SUPERS;

/// Sorted values with their weights.
struct SortedPart<L: Lanes, const N: usize> {
    x: [L::F; N],
    weights: [L::F; N],
    /// Original index of each value, as a float.
    order: [L::F; N],
}

/// Sorts ascending and keeps the order of equal values: Batcher's odd-even merge sort on (value, index).
#[inline(always)]
fn sort<L: Lanes, const N: usize>(l: L, x: [L::F; N], weights: [L::F; N]) -> SortedPart<L, N> {
    let mut order = [l.splat(0.0); N];
    for (i, place) in order.iter_mut().enumerate() {
        *place = l.splat(i as f32);
    }
    let mut sorted = SortedPart::<L, N> { x, weights, order };
    let mut run = 1;
    while run < N {
        let mut apart = run;
        while apart >= 1 {
            for base in (apart % run..N - apart).step_by(2 * apart) {
                for i in base..(base + apart).min(N - apart) {
                    if i / (2 * run) == (i + apart) / (2 * run) {
                        sorted.order_pair(l, i, i + apart);
                    }
                }
            }
            apart /= 2;
        }
        run *= 2;
    }
    sorted
}

impl<L: Lanes, const N: usize> SortedPart<L, N> {
    #[inline(always)]
    fn order_pair(&mut self, l: L, i: usize, j: usize) {
        let tie = l.eq(self.x[i], self.x[j]) & l.gt(self.order[i], self.order[j]);
        let swap = l.gt(self.x[i], self.x[j]) | tie;
        for values in [&mut self.x, &mut self.weights, &mut self.order] {
            let (a, b) = (values[i], values[j]);
            values[i] = l.select(swap, b, a);
            values[j] = l.select(swap, a, b);
        }
    }
}

/// The best trial so far in each lane.
struct BestSplits<L: Lanes> {
    score: L::F,
    scale: L::F,
    /// Split and trial, packed by [`BestSplits::offer`]; negative for none.
    split: L::I,
}

#[derive(Clone, Copy)]
struct TrialSums<L: Lanes> {
    sum_qx: L::F,
    sum_q2: L::F,
}

impl<L: Lanes> BestSplits<L> {
    #[inline(always)]
    fn none(l: L) -> Self {
        Self { score: l.splat(-f32::MAX), scale: l.splat(0.0), split: l.splat_i(-1) }
    }

    /// Offers all trials of a split, in their order.
    #[inline(always)]
    fn offer<const T: usize>(&mut self, l: L, trials: [TrialSums<L>; T], first: usize, second: usize) {
        // The sign of `sum_q2` seldom matters: it is checked only for trials that may be better.
        let mut any = l.gt(trials[0].sum_qx * trials[0].sum_qx, self.score * trials[0].sum_q2);
        for TrialSums { sum_qx, sum_q2 } in &trials[1..] {
            any = any | l.gt(*sum_qx * *sum_qx, self.score * *sum_q2);
        }
        if !l.any(any) {
            return;
        }
        for (number, TrialSums { sum_qx, sum_q2 }) in trials.into_iter().enumerate() {
            let better = l.gt(sum_q2, l.splat(0.0)) & l.gt(sum_qx * sum_qx, self.score * sum_q2);
            let scale = sum_qx / sum_q2;
            self.score = l.select(better, scale * sum_qx, self.score);
            self.scale = l.select(better, scale, self.scale);
            let split = l.splat_i((first << 16 | second << 8 | number) as i32);
            self.split = l.select_i(better, split, self.split);
        }
    }

    /// Returns the result of each lane.
    #[inline(always)]
    fn splits(&self, l: L) -> [Option<LevelSplit>; MAX_WIDTH] {
        let (mut scales, mut packed) = ([0.0; MAX_WIDTH], [0; MAX_WIDTH]);
        l.store(self.scale, &mut scales);
        l.store_i(self.split, &mut packed);
        std::array::from_fn(|lane| {
            let split = usize::try_from(packed[lane]).ok()?;
            let (first, second, trial) = (split >> 16, split >> 8 & 255, split & 255);
            Some(LevelSplit { scale: scales[lane], first, second, trial })
        })
    }
}

#[inline(always)]
fn split_s<L: Lanes>(l: L, sorted: &SortedPart<L, 32>) -> [Option<LevelSplit>; MAX_WIDTH] {
    let zero = l.splat(0.0);
    let (mut sum_x, mut sum_w) = ([zero; 33], [zero; 33]);
    for j in 0..32 {
        sum_x[j + 1] = sum_x[j] + sorted.weights[j] * sorted.x[j];
        sum_w[j + 1] = sum_w[j] + sorted.weights[j];
    }
    let (up_0, up_2) = (l.splat(UP[0]), l.splat(UP[2]));
    let (down_0, down_2) = (l.splat(DOWN[0]), l.splat(DOWN[2]));
    // Contribution of the values above a split, for both shifts.
    let (mut above_x, mut above_w) = ([[zero; 2]; 33], [[zero; 2]; 33]);
    for second in 0..33 {
        let (x, w) = (sum_x[32] - sum_x[second], sum_w[32] - sum_w[second]);
        above_x[second] = [x * up_2, x * down_2];
        above_w[second] = [w * up_2 * up_2, w * down_2 * down_2];
    }
    let delta = l.splat(DELTA);
    let mut best = BestSplits::none(l);
    for first in 0..=32 {
        let (x, w) = (sum_x[first] - sum_x[0], sum_w[first] - sum_w[0]);
        let below_x = [x * up_0, x * down_0];
        let below_w = [w * up_0 * up_0, w * down_0 * down_0];
        for second in first..=32 {
            // The middle level is plus or minus delta: the product differs only in sign, and the square is equal.
            let x = (sum_x[second] - sum_x[first]) * delta;
            let w = (sum_w[second] - sum_w[first]) * delta * delta;
            let (above_x, above_w) = (&above_x[second], &above_w[second]);
            let up = TrialSums { sum_qx: below_x[0] + x + above_x[0], sum_q2: below_w[0] + w + above_w[0] };
            let down = TrialSums { sum_qx: below_x[1] - x + above_x[1], sum_q2: below_w[1] + w + above_w[1] };
            best.offer(l, [up, down], first, second);
        }
    }
    best.splits(l)
}

#[inline(always)]
fn split_m<L: Lanes>(l: L, sorted: &SortedPart<L, 16>) -> [Option<LevelSplit>; MAX_WIDTH] {
    let zero = l.splat(0.0);
    let (mut sum_x, mut sum_w) = ([[zero; 17]; 2], [[zero; 17]; 2]);
    let last_of_first = l.splat(7.5);
    for j in 0..16 {
        let in_second = l.gt(sorted.order[j], last_of_first);
        for half in 0..2 {
            let mine = if half == 0 { !in_second } else { in_second };
            let (x, w) = (sum_x[half][j], sum_w[half][j]);
            sum_x[half][j + 1] = l.select(mine, x + sorted.weights[j] * sorted.x[j], x);
            sum_w[half][j + 1] = l.select(mine, w + sorted.weights[j], w);
        }
    }
    // Per half and shift.
    let (mut total_x, mut total_w) = ([[zero; 2]; 2], [[zero; 2]; 2]);
    let mut second_w = [[[zero; 2]; 2]; 17];
    for half in 0..2 {
        for (shift, q) in [UP, DOWN].into_iter().enumerate() {
            let top = l.splat(q[2]);
            total_x[half][shift] = sum_x[half][16] * top;
            total_w[half][shift] = sum_w[half][16] * top * top;
            for second in 0..17 {
                second_w[second][half][shift] = sum_w[half][second] * l.splat(square_steps(q).1);
            }
        }
    }
    let mut best = BestSplits::none(l);
    for first in 0..=16 {
        let mut first_w = total_w;
        for half in 0..2 {
            for (shift, q) in [UP, DOWN].into_iter().enumerate() {
                let step = sum_w[half][first] * l.splat(square_steps(q).0);
                first_w[half][shift] = total_w[half][shift] + step;
            }
        }
        for second in first..=16 {
            let (mut qx, mut q2) = ([[zero; 2]; 2], [[zero; 2]; 2]);
            for half in 0..2 {
                let below = sum_x[half][first] + sum_x[half][second];
                for shift in 0..2 {
                    qx[half][shift] = total_x[half][shift] - below;
                    q2[half][shift] = first_w[half][shift] + second_w[second][half][shift];
                }
            }
            let mut trials = [TrialSums { sum_qx: zero, sum_q2: zero }; 4];
            for (number, trial) in trials.iter_mut().enumerate() {
                let (a, b) = (number >> 1, number & 1);
                *trial = TrialSums { sum_qx: qx[0][a] + qx[1][b], sum_q2: q2[0][a] + q2[1][b] };
            }
            best.offer(l, trials, first, second);
        }
    }
    best.splits(l)
}

/// Returns one bit per lane for the parts of a vector that are zero, and for those with a NaN, which cannot be sorted.
#[inline(always)]
fn odd_parts<L: Lanes, const N: usize>(l: L, x: &[L::F; N], eps: f32) -> (u64, u64) {
    let mut max = l.abs(x[0]);
    let mut ordered = l.eq(x[0], x[0]);
    for value in &x[1..] {
        max = l.c_max(max, l.abs(*value));
        ordered = ordered & l.eq(*value, *value);
    }
    (l.mask_bits(l.gt(l.splat(eps), max)), l.mask_bits(!ordered))
}

/// Writes the original indices of the sorted values of each lane.
#[inline(always)]
fn orders<L: Lanes, const N: usize>(l: L, order: &[L::F; N], out: &mut [[i32; MAX_WIDTH]; N]) {
    for (order, out) in order.iter().zip(out) {
        l.store_i(l.trunc(*order), out);
    }
}

/// Loads a batch and its weights.
#[inline(always)]
fn load<L: Lanes>(l: L, batch: &mut BlockBatch, rows: &SourceRows<'_>, first: usize) {
    batch.load(rows, first);
    if let Some(importance) = rows.imatrix {
        batch.weigh_supers(l, 2.0, rows, importance);
    } else {
        for (weight, x) in batch.weights.iter_mut().zip(&batch.x) {
            *weight = x * x;
        }
    }
}

/// Kernel of all IQ1_S super-blocks, one part per lane.
pub(super) struct QuantizeIq1S;

/// Kernel of all IQ1_M super-blocks, one part per lane.
pub(super) struct QuantizeIq1M;

macro_rules! kernel {
    ($kernel:ident, $part:literal, $bytes:ident, $eps:ident, $split:ident, $down:ident, $code:ident, $scalar:ident, $store:expr) => {
        impl RowsKernel for $kernel {
            fn scalar(rows: &SourceRows<'_>, dst: &mut [u8]) {
                $scalar(rows, dst);
            }

            #[inline(always)]
            fn lanes<L: Lanes>(l: L, rows: &SourceRows<'_>, dst: &mut [u8]) {
                const PARTS: usize = SUPER / $part;
                const GROUPS: usize = $part / 8;
                let mut batch = BlockBatch::EMPTY;
                let mut codes: [[PartCode<GROUPS>; PARTS]; BATCH_SUPERS] = [[Ok(None); PARTS]; BATCH_SUPERS];
                let mut order = [[0; MAX_WIDTH]; $part];
                let scratch = RefCell::new(SearchScratch::EMPTY);
                let zero = l.splat(0.0);
                for (index, out) in dst.as_chunks_mut::<$bytes>().0.chunks_mut(BATCH_SUPERS).enumerate() {
                    load(l, &mut batch, rows, index * BATCH);
                    let n_parts = batch.n_elems / $part;
                    for at in (0..n_parts).step_by(L::WIDTH) {
                        let (mut x, mut weights) = ([zero; $part], [zero; $part]);
                        l.columns(&batch.x[at * $part..], $part, &mut x);
                        l.columns(&batch.weights[at * $part..], $part, &mut weights);
                        let (zeros, unordered) = odd_parts(l, &x, $eps);
                        let sorted = sort(l, x, weights);
                        let splits = $split(l, &sorted);
                        orders(l, &sorted.order, &mut order);
                        for part in at..(at + L::WIDTH).min(n_parts) {
                            let lane = part - at;
                            let x = &batch.x.as_chunks::<$part>().0[part];
                            let weights = &batch.weights.as_chunks::<$part>().0[part];
                            let code = &mut codes.as_flattened_mut()[part];
                            if unordered >> lane & 1 == 1 {
                                *code = $code(x, weights);
                                continue;
                            }
                            let zero = zeros >> lane & 1 == 1;
                            let Some(split) = splits[lane].filter(|_| !zero) else {
                                *code = Ok(None);
                                continue;
                            };
                            let points = points_of(&split, order.iter().map(|places| places[lane] as usize));
                            let (x, weights) = (groups(x), groups(weights));
                            let scale = split.scale.abs();
                            *code = on_grid(
                                LaneSearch::new(l, &scratch),
                                &x,
                                &weights,
                                points,
                                scale,
                                $down(&split),
                            )
                            .map(Some);
                        }
                    }
                    for (b, out) in out.iter_mut().enumerate() {
                        let result: Result<(), OffGrid> = $store(&batch, b, &codes[b], out);
                        if result.is_err() {
                            return rows.refused.set(Some(index * BATCH_SUPERS + b));
                        }
                    }
                }
            }
        }
    };
}

kernel!(
    QuantizeIq1S,
    32,
    S_BYTES,
    EPS_S,
    split_s,
    down_s,
    code_s,
    scalar_s,
    |_: &BlockBatch, _, codes, out| store_s(codes, out)
);
kernel!(
    QuantizeIq1M,
    16,
    M_BYTES,
    EPS_M,
    split_m,
    down_m,
    code_m,
    scalar_m,
    |batch: &BlockBatch, b: usize, codes, out| {
        store_m(&batch.x.as_chunks().0[b], &batch.weights.as_chunks().0[b], codes, out)
    }
);
