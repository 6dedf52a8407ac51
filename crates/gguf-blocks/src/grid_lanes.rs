//! The searches of `grid_search` in lanes.
//!
//! Each step of a part's search uses one lane. Where a step's levels are off the grid, each neighbour uses one lane
//! (`grid_trials`).

use std::cell::RefCell;

use super::codebook::{CodeBook, Neighbours};
use super::grid_neighbours::{best_neighbour, odd_table};
use super::grid_search::{
    GridFit, GridSearch, OffGrid, PartMagnitudes, PartSearch, Refit, STEPS, Search, search,
};
use super::grid_steps::GROUPS;
use super::grid_trials::{GridPlacer, SearchScratch};
use super::lanes::{Lanes, MAX_WIDTH};
use super::search_lanes;
use gguf_core::simd::VectorLoop;

/// Implementation of [`Search`] in lanes.
#[derive(Clone, Copy)]
pub(super) struct LaneSearch<'a, L> {
    l: L,
    scratch: &'a RefCell<SearchScratch>,
}

impl<'a, L> LaneSearch<'a, L> {
    /// Creates searches that write to `scratch`, one at a time.
    pub(super) fn new(l: L, scratch: &'a RefCell<SearchScratch>) -> Self {
        Self { l, scratch }
    }
}

#[inline(always)]
fn step_sums<L: Lanes, const D: usize, const G: usize>(
    l: L,
    how: &GridSearch,
    part: &PartMagnitudes<D, G>,
    points: &[u16; (GROUPS + 1) * STEPS],
    sums: &mut [[f32; STEPS]; 2],
) {
    let odd = odd_table::<L, D>(l);
    let mut products = part.weights;
    for k in 0..G {
        for i in 0..D {
            products[k][i] *= part.x[k][i];
        }
    }
    for at in (0..how.n_steps()).step_by(L::WIDTH) {
        let (mut sum_qx, mut sum_q2) = (l.splat(0.0), l.splat(0.0));
        for k in 0..G {
            let points = l.load_u16(&points[k * STEPS + at..]);
            for i in 0..D {
                let q = l.lookup(odd, l.shr(points, CodeBook::<D>::BITS * i as u32));
                sum_qx = sum_qx + l.splat(products[k][i]) * q;
                sum_q2 = sum_q2 + l.splat(part.weights[k][i]) * q * q;
            }
        }
        l.store(sum_qx, &mut sums[0][at..]);
        l.store(sum_q2, &mut sums[1][at..]);
    }
}

/// Returns the largest magnitude; NaN if there is a NaN.
#[inline(always)]
fn largest_magnitude<const D: usize, const G: usize>(part: &PartMagnitudes<D, G>) -> f32 {
    // Without the sign, the bits of floats have the order of their values, and NaN is above all others.
    let bits = part.x.as_flattened().iter().fold(0, |bits: u32, x| bits.max(x.to_bits() & 0x7fff_ffff));
    f32::from_bits(bits)
}

/// Returns true if levels stay far from where rounding wraps.
fn is_tame(x_max: f32, range: f32) -> bool {
    x_max <= range * 1e4 && (1e-30..1e30).contains(&range)
}

/// Runs [`search_tame`], compiled once for all types with the same parts.
struct SearchTame<'a, L: Lanes, const D: usize, const G: usize> {
    l: L,
    part: PartSearch<'a, D, G>,
    scratch: &'a mut SearchScratch,
}

impl<L: Lanes, const D: usize, const G: usize> VectorLoop for SearchTame<'_, L, D, G> {
    type Output = Result<GridFit<G>, OffGrid>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        search_tame(self.l, self.part, self.scratch)
    }
}

#[inline(always)]
fn search_tame<L: Lanes, const D: usize, const G: usize>(
    l: L,
    PartSearch { book, how, part, range, start }: PartSearch<'_, D, G>,
    scratch: &mut SearchScratch,
) -> Result<GridFit<G>, OffGrid> {
    scratch.steps.set(l, how, part, range);
    let placer = GridPlacer { l, book, part, x_max: largest_magnitude(part) };
    placer.place_all(scratch)?;
    let SearchScratch { steps, trials, .. } = scratch;
    let mut sums = [[0.0; STEPS]; 2];
    step_sums(l, how, part, &trials.points, &mut sums);
    let mut scale = start.scale;
    let mut best = 0f32;
    let mut best_step = None;
    for step in 0..how.n_steps() {
        let (sum_qx, sum_q2) = (sums[0][step], sums[1][step]);
        if sum_q2 > 0.0 && sum_qx * sum_qx > best * sum_q2 {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
            best_step = Some(step);
        }
    }
    let (mut points, mut between) = (start.points, [how.refit == Refit::AllIfAny; G]);
    if let Some(step) = best_step {
        for k in 0..G {
            points[k] = trials.points[k * STEPS + step];
            between[k] = !book.is_on_grid(steps.levels(k * STEPS + step));
        }
    }
    let refit = how.refit == Refit::All || between.contains(&true);
    if refit && scale > 0.0 {
        let wanted = if how.refit == Refit::OffGrid { between } else { [true; G] };
        placer.place_at(scratch, scale, &mut points, &wanted)?;
        let (sum_qx, sum_q2) = part.sums(&points);
        if sum_q2 > 0.0 {
            scale = sum_qx / sum_q2;
        }
    }
    if scale.is_nan() || points.iter().any(|point| !book.is_on_grid(*point)) {
        return Err(OffGrid);
    }
    Ok(GridFit { scale, points })
}

impl<L: Lanes> Search for LaneSearch<'_, L> {
    #[inline(always)]
    fn search<const D: usize, const G: usize>(
        self,
        part: PartSearch<'_, D, G>,
    ) -> Result<GridFit<G>, OffGrid> {
        if is_tame(largest_magnitude(part.part), part.range) {
            self.l.call(SearchTame { l: self.l, part, scratch: &mut self.scratch.borrow_mut() })
        } else {
            search(part)
        }
    }

    #[inline(always)]
    fn shifted_neighbour(
        self,
        neighbours: Neighbours<'_>,
        x: &[f32; 8],
        weights: &[f32; 8],
        scale: f32,
        shifted: &[f32; 3],
    ) -> Result<u16, OffGrid> {
        let l = self.l;
        let [a, b, c] = *shifted;
        // The fourth bit pattern does not occur.
        let scaled = l.splat_table(scale) * l.table(&[a, b, c, c, a, b, c, c]);
        best_neighbour(l, neighbours, x, weights, scaled)
    }

    #[inline(always)]
    fn unsigned_scales(self, n_max: i32, x: &[[f32; 32]; 8], weights: &[[f32; 32]; 8]) -> [f32; 8] {
        let l = self.l;
        let mut rows = [[[0.0; 32]; MAX_WIDTH]; 2];
        rows[0][..8].copy_from_slice(x);
        rows[1][..8].copy_from_slice(weights);
        let mut scales = [0.0; MAX_WIDTH];
        for at in (0..8).step_by(L::WIDTH) {
            let (mut x, mut weights) = ([l.splat(0.0); 32], [l.splat(0.0); 32]);
            l.columns(rows[0][at..].as_flattened(), 32, &mut x);
            l.columns(rows[1][at..].as_flattened(), 32, &mut weights);
            let (scale, _) = search_lanes::unsigned(l, n_max, &x, &weights);
            l.store(scale, &mut scales[at..]);
        }
        std::array::from_fn(|j| scales[j])
    }
}
