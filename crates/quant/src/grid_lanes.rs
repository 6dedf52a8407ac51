//! The searches of `grid_search` in lanes.
//!
//! The steps of a part's search are one lane each; where a step's levels lie between grid points, the neighbours
//! are one lane each. What a distance adds per dimension depends on the level alone, so it is looked up in a table
//! of the at most eight levels.

use super::codebook::{CodeBook, LIST_TILE, Neighbours, Place};
use super::grid_search::{Fit, GridSearch, OffGrid, Part, Refit, Search, nearest, search};
use super::lanes::{Lanes, MAX_WIDTH};
use super::search_lanes;
use gguf_core::simd::VectorLoop;

/// [`Search`] in lanes.
#[derive(Clone, Copy)]
pub(super) struct InLanes<L>(pub L);

/// Most steps of a search, in whole vectors.
const STEPS: usize = 32;

/// The odd numbers that levels stand for; tables of 2-bit levels hold them twice.
const fn odd_levels(n_levels: usize) -> [f32; 8] {
    let mut odd = [0.0; 8];
    let mut i = 0;
    while i < 8 {
        let level = if n_levels == 8 { i } else { i % 4 };
        odd[i] = (2 * level + 1) as f32;
        i += 1;
    }
    odd
}

static ODD_2: [f32; 8] = odd_levels(4);
static ODD_3: [f32; 8] = odd_levels(8);

#[inline(always)]
fn odd_table<L: Lanes, const D: usize>(l: L) -> L::T {
    l.table(if D == 8 { &ODD_2 } else { &ODD_3 })
}

/// `grid_search::best_neighbour` with one neighbour per lane; `scaled` is the table of scale times odd level.
#[inline(always)]
fn best_neighbour<L: Lanes, const D: usize>(
    l: L,
    neighbours: Neighbours<'_>,
    x: &[f32; D],
    roots: &[f32; D],
    scaled: L::T,
) -> Result<u16, OffGrid> {
    let mut added = [scaled; D];
    for i in 0..D {
        let diff = scaled - l.splat_table(x[i]);
        added[i] = l.splat_table(roots[i]) * diff * diff;
    }
    let most = l.splat(f32::MAX);
    let tiles = neighbours.tiles();
    if let ([tile], LIST_TILE) = (tiles, L::WIDTH) {
        let distance = distances::<L, D>(l, &added, tile);
        let distance = l.select(l.gt(most, distance), distance, most);
        let least = l.least(distance);
        let lane = l.mask_bits(l.eq(distance, l.splat(least))).trailing_zeros() as usize;
        return if least < f32::MAX { tile.get(lane).copied().ok_or(OffGrid) } else { Err(OffGrid) };
    }
    let points = tiles.as_flattened();
    let mut best = most;
    let mut best_at = l.splat_i(0);
    for at in (0..points.len()).step_by(L::WIDTH) {
        let distance = distances::<L, D>(l, &added, &points[at..]);
        let better = l.gt(best, distance);
        best = l.select(better, distance, best);
        best_at = l.select_i(better, l.splat_i(at as i32), best_at);
    }
    let least = l.least(best);
    if least >= f32::MAX {
        return Err(OffGrid);
    }
    // Of equal distances the first in the list.
    let mut lanes = l.mask_bits(l.eq(best, l.splat(least)));
    let mut starts = [0; MAX_WIDTH];
    l.store_i(best_at, &mut starts);
    let mut first = usize::MAX;
    while lanes != 0 {
        let lane = lanes.trailing_zeros() as usize;
        first = first.min(starts[lane] as usize + lane);
        lanes &= lanes - 1;
    }
    points.get(first).copied().ok_or(OffGrid)
}

/// Distances of the first `WIDTH` points.
#[inline(always)]
fn distances<L: Lanes, const D: usize>(l: L, added: &[L::T; D], points: &[u16]) -> L::F {
    let points = l.load_u16(points);
    let mut distance = l.lookup(added[0], points);
    for i in 1..D {
        distance = distance + l.lookup(added[i], l.shr(points, CodeBook::<D>::BITS * i as u32));
    }
    distance
}

/// The grid point for packed levels, and whether they lie between grid points.
#[inline(always)]
fn place<L: Lanes, const D: usize>(
    l: L,
    book: &CodeBook<D>,
    packed: u16,
    x: &[f32; D],
    roots: &[f32; D],
    scaled: L::T,
) -> Result<(u16, bool), OffGrid> {
    match book.place(packed) {
        Place::On(_) => Ok((packed, false)),
        Place::Near(neighbours) => Ok((best_neighbour(l, neighbours, x, roots, scaled)?, true)),
    }
}

/// All steps of a part's search: scales, and packed levels of each group before they are put on the grid.
#[inline(always)]
fn step_levels<L: Lanes, const D: usize, const G: usize>(
    l: L,
    how: &GridSearch,
    part: &Part<D, G>,
    range: f32,
    scales: &mut [f32; STEPS],
    packed: &mut [[i32; STEPS]; G],
) {
    let top = (2 * CodeBook::<D>::LEVELS - 1) as f32;
    let mut starts = [top; STEPS];
    for (start, step) in starts.iter_mut().zip(-how.n_step..=how.n_step) {
        *start = top + step as f32 * how.r_delta;
    }
    let (half, one) = (l.splat(0.5), l.splat(1.0));
    let base = l.splat((1 << CodeBook::<D>::BITS) as f32);
    for at in (0..how.n_steps()).step_by(L::WIDTH) {
        let iscale = l.load(&starts[at..]) / l.splat(range);
        l.store(one / iscale, &mut scales[at..]);
        for k in 0..G {
            // Levels times powers of two add up exactly.
            let mut sum = l.splat(0.0);
            for i in (0..D).rev() {
                let value = half * (iscale * l.splat(part.x[k][i]) - one);
                sum = sum * base + l.small_nearest_level(0, CodeBook::<D>::LEVELS as i32 - 1, value);
            }
            l.store_i(l.trunc(sum), &mut packed[k][at..]);
        }
    }
}

/// `Part::sums` of all steps.
#[inline(always)]
fn step_sums<L: Lanes, const D: usize, const G: usize>(
    l: L,
    how: &GridSearch,
    part: &Part<D, G>,
    points: &[[u16; STEPS]; G],
    sums: &mut [[f32; STEPS]; 2],
) {
    let odd = odd_table::<L, D>(l);
    for at in (0..how.n_steps()).step_by(L::WIDTH) {
        let (mut sum_qx, mut sum_q2) = (l.splat(0.0), l.splat(0.0));
        for k in 0..G {
            let points = l.load_u16(&points[k][at..]);
            for i in 0..D {
                let q = l.lookup(odd, l.shr(points, CodeBook::<D>::BITS * i as u32));
                let (w, x) = (part.weights[k][i], part.x[k][i]);
                sum_qx = sum_qx + l.splat(w * x) * q;
                sum_q2 = sum_q2 + l.splat(w) * q * q;
            }
        }
        l.store(sum_qx, &mut sums[0][at..]);
        l.store(sum_q2, &mut sums[1][at..]);
    }
}

/// True if levels stay far from where rounding wraps.
fn is_tame<const D: usize, const G: usize>(part: &Part<D, G>, range: f32) -> bool {
    let limit = range * 1e4;
    let near = part.x.as_flattened().iter().fold(true, |near, x| near & (x.abs() <= limit));
    near && (1e-30..1e30).contains(&range)
}

/// [`search_tame`], once for all types with the same parts.
struct SearchTame<'a, L: Lanes, const D: usize, const G: usize> {
    l: L,
    book: &'a CodeBook<D>,
    how: &'a GridSearch,
    part: &'a Part<D, G>,
    range: f32,
    start: Fit<G>,
}

impl<L: Lanes, const D: usize, const G: usize> VectorLoop for SearchTame<'_, L, D, G> {
    type Output = Result<Fit<G>, OffGrid>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        search_tame(self.l, self.book, self.how, self.part, self.range, self.start)
    }
}

#[inline(always)]
fn search_tame<L: Lanes, const D: usize, const G: usize>(
    l: L,
    book: &CodeBook<D>,
    how: &GridSearch,
    part: &Part<D, G>,
    range: f32,
    start: Fit<G>,
) -> Result<Fit<G>, OffGrid> {
    let odd = odd_table::<L, D>(l);
    let mut scales = [0.0; STEPS];
    let mut packed = [[0; STEPS]; G];
    step_levels(l, how, part, range, &mut scales, &mut packed);
    let mut trials = [[0; STEPS]; G];
    let mut trials_between = [[false; G]; STEPS];
    for step in 0..how.n_steps() {
        let scaled = l.splat_table(scales[step]) * odd;
        for k in 0..G {
            (trials[k][step], trials_between[step][k]) =
                place(l, book, packed[k][step] as u16, &part.x[k], &part.roots[k], scaled)?;
        }
    }
    let mut sums = [[0.0; STEPS]; 2];
    step_sums(l, how, part, &trials, &mut sums);
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
    let (mut points, between) = match best_step {
        Some(step) => (trials.map(|trial| trial[step]), trials_between[step]),
        None => (start.points, [how.refit == Refit::AllIfAny; G]),
    };
    let refit = how.refit == Refit::All || between.contains(&true);
    if refit && scale > 0.0 {
        let iscale = 1.0 / scale;
        let scaled = l.splat_table(scale) * odd;
        for k in 0..G {
            if between[k] || how.refit != Refit::OffGrid {
                let packed = nearest(&part.x[k], iscale);
                (points[k], _) = place(l, book, packed, &part.x[k], &part.roots[k], scaled)?;
            }
        }
        let (sum_qx, sum_q2) = part.sums(&points);
        if sum_q2 > 0.0 {
            scale = sum_qx / sum_q2;
        }
    }
    if scale.is_nan() || points.iter().any(|point| book.index(*point).is_none()) {
        return Err(OffGrid);
    }
    Ok(Fit { scale, points })
}

impl<L: Lanes> Search for InLanes<L> {
    #[inline(always)]
    fn search<const D: usize, const G: usize>(
        self,
        book: &CodeBook<D>,
        how: &GridSearch,
        part: &Part<D, G>,
        range: f32,
        start: Fit<G>,
    ) -> Result<Fit<G>, OffGrid> {
        if is_tame(part, range) {
            self.0.call(SearchTame { l: self.0, book, how, part, range, start })
        } else {
            search(book, how, part, range, start)
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
        let l = self.0;
        let [a, b, c] = *shifted;
        // The fourth pattern of bits does not occur.
        let scaled = l.splat_table(scale) * l.table(&[a, b, c, c, a, b, c, c]);
        best_neighbour(l, neighbours, x, weights, scaled)
    }

    #[inline(always)]
    fn unsigned_scales(self, n_max: i32, x: &[[f32; 32]; 8], weights: &[[f32; 32]; 8]) -> [f32; 8] {
        let l = self.0;
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
