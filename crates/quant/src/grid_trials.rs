//! The grid points of all groups at all steps of a search.
//!
//! From step to step most groups keep their nearest levels. Such a run of steps has one neighbour list, and [`LineTables`]
//! tell at once which of its points are the nearest.

use super::codebook::{CodeBook, Neighbours};
use super::grid_lanes::best_odd_neighbour;
use super::grid_lines::{LineTables, Nearest, doubt};
use super::grid_search::{GridSearch, OffGrid, Part, nearest};
use super::lanes::Lanes;
use gguf_core::simd::VectorLoop;

/// Most steps of a search, in whole vectors.
pub(super) const STEPS: usize = 32;

/// Steps that are looked at together.
const TOGETHER: usize = 4;

/// Scales and nearest levels of all steps of a part's search.
pub(super) struct Steps<const G: usize> {
    count: usize,
    /// Inverse scales, ascending.
    iscales: [f32; STEPS],
    scales: [f32; STEPS + TOGETHER],
    /// Packed levels before they are put on the grid, as floats: whole numbers up to 65535.
    packed: [[f32; STEPS + 1]; G],
    /// One bit for each step that has other levels than the next one, and for the last.
    ends: [u32; G],
}

impl<const G: usize> Steps<G> {
    /// No steps.
    pub(super) const NONE: Self = Self {
        count: 0,
        iscales: [0.0; STEPS],
        scales: [0.0; STEPS + TOGETHER],
        packed: [[0.0; STEPS + 1]; G],
        ends: [0; G],
    };

    /// Sets all steps of a search.
    #[inline(always)]
    pub(super) fn set<L: Lanes, const D: usize>(
        &mut self,
        l: L,
        how: &GridSearch,
        part: &Part<D, G>,
        range: f32,
    ) {
        self.count = how.n_steps();
        let top = (2 * CodeBook::<D>::LEVELS - 1) as f32;
        let mut starts = [top; STEPS];
        for (start, step) in starts.iter_mut().zip(-how.n_step..=how.n_step) {
            *start = top + step as f32 * how.r_delta;
        }
        let (half, one) = (l.splat(0.5), l.splat(1.0));
        let base = l.splat((1 << CodeBook::<D>::BITS) as f32);
        for at in (0..self.count).step_by(L::WIDTH) {
            let iscale = l.load(&starts[at..]) / l.splat(range);
            l.store(iscale, &mut self.iscales[at..]);
            l.store(one / iscale, &mut self.scales[at..]);
            for k in 0..G {
                // Levels times powers of two add up exactly.
                let mut sum = l.splat(0.0);
                for i in (0..D).rev() {
                    let value = half * (iscale * l.splat(part.x[k][i]) - one);
                    sum = sum * base + l.small_nearest_level(0, CodeBook::<D>::LEVELS as i32 - 1, value);
                }
                l.store(sum, &mut self.packed[k][at..]);
            }
        }
        let last = 1 << (self.count - 1);
        for (packed, ends) in self.packed.iter().zip(&mut self.ends) {
            let mut changes = 0;
            for at in (0..self.count).step_by(L::WIDTH) {
                let same = l.eq(l.load(&packed[at..]), l.load(&packed[at + 1..]));
                changes |= (l.mask_bits(!same) as u32) << at;
            }
            *ends = changes & (last - 1) | last;
        }
    }

    /// The packed levels of a group at a step.
    #[inline(always)]
    pub(super) fn levels(&self, k: usize, step: usize) -> u16 {
        self.packed[k][step] as u16
    }

    /// The step from which to the next one a scale lies, also in its inverse.
    #[inline(always)]
    fn around<L: Lanes>(&self, l: L, scale: f32, iscale: f32) -> Option<usize> {
        let mut above = 0u32;
        for at in (0..self.count).step_by(L::WIDTH) {
            above |= (l.mask_bits(!l.gt(l.splat(scale), l.load(&self.scales[at..]))) as u32) << at;
        }
        let next = (above & (u32::MAX >> (STEPS - self.count))).count_ones() as usize;
        let step = next.checked_sub(1)?;
        let is_around = next < self.count
            && (self.iscales[step]..=self.iscales[next]).contains(&iscale)
            && (self.scales[next]..=self.scales[step]).contains(&scale);
        is_around.then_some(step)
    }
}

/// What the groups of a part are placed on the grid with.
pub(super) struct Placing<'a, L, const D: usize, const G: usize> {
    /// The lanes.
    pub l: L,
    /// The grid.
    pub book: &'a CodeBook<D>,
    /// The part.
    pub part: &'a Part<D, G>,
    /// Largest magnitude of the part.
    pub x_max: f32,
}

/// The grid points of all groups at all steps.
pub(super) struct Trials<const G: usize> {
    /// Packed; past the last step they are anything.
    pub points: [[u16; 2 * STEPS]; G],
    /// One bit for each step at which distances were compared, because there was doubt.
    doubted: [u32; G],
}

impl<const G: usize> Trials<G> {
    /// No trials.
    pub(super) const NONE: Self = Self { points: [[0; 2 * STEPS]; G], doubted: [0; G] };
}

/// Consecutive steps of a group, between grid points, with the same nearest levels.
struct Run<'a> {
    group: usize,
    first: usize,
    last: usize,
    neighbours: Neighbours<'a>,
    doubt: f32,
}

impl<L: Lanes, const D: usize, const G: usize> Placing<'_, L, D, G> {
    /// Places all groups at all steps.
    #[inline(always)]
    pub(super) fn place_all(&self, steps: &Steps<G>, trials: &mut Trials<G>) -> Result<(), OffGrid> {
        // The first step has the largest scale.
        let doubt = doubt::<D>(steps.scales[steps.count - 1], steps.scales[0], self.x_max);
        let mut tables = LineTables::EMPTY;
        for k in 0..G {
            tables.set(self.l, &self.part.x[k], &self.part.roots[k]);
            let doubt = tables.doubt(doubt);
            let mut ends = steps.ends[k];
            let mut first = 0;
            while ends != 0 {
                let last = ends.trailing_zeros() as usize;
                ends &= ends - 1;
                let packed = steps.levels(k, first);
                if self.book.is_on_grid(packed) {
                    set_from(&mut trials.points[k], first, packed);
                } else {
                    let neighbours = self.book.neighbours(packed);
                    self.place_run(
                        &tables,
                        steps,
                        &Run { group: k, first, last, neighbours, doubt },
                        trials,
                    )?;
                }
                first = last + 1;
            }
        }
        Ok(())
    }

    /// Places a run.
    #[inline(always)]
    fn place_run(
        &self,
        tables: &LineTables,
        steps: &Steps<G>,
        run: &Run<'_>,
        trials: &mut Trials<G>,
    ) -> Result<(), OffGrid> {
        let &Run { group: k, first, last, neighbours, doubt } = run;
        let ends = [steps.scales[first], steps.scales[last]];
        let [at_first, at_last] = tables.nearest::<L, D, 2>(self.l, neighbours, &ends, doubt);
        if let Some(point) = neighbours.at(at_first.common_place(at_last)) {
            set_from(&mut trials.points[k], first, point);
            return Ok(());
        }
        self.place_step(steps, run, first, at_first, trials)?;
        self.place_step(steps, run, last, at_last, trials)?;
        let mut at = first + 1;
        while at < last {
            let Some(scales) = steps.scales[at..].first_chunk::<TOGETHER>() else { return Err(OffGrid) };
            let nearest = tables.nearest::<L, D, TOGETHER>(self.l, neighbours, scales, doubt);
            for i in 0..TOGETHER.min(last - at) {
                self.place_step(steps, run, at + i, nearest[i], trials)?;
            }
            at += TOGETHER;
        }
        Ok(())
    }

    /// Places one step of a run; where there is doubt, by distances.
    #[inline(always)]
    fn place_step(
        &self,
        steps: &Steps<G>,
        run: &Run<'_>,
        step: usize,
        nearest: Nearest,
        trials: &mut Trials<G>,
    ) -> Result<(), OffGrid> {
        let k = run.group;
        trials.points[k][step] = match run.neighbours.at(nearest.place()) {
            Some(point) => point,
            None => {
                trials.doubted[k] |= 1 << step;
                self.compare(k, run.neighbours, steps.scales[step])?
            }
        };
        Ok(())
    }

    /// The nearest neighbour by distances, in a function of its own: it is seldom needed.
    #[inline(always)]
    fn compare(&self, k: usize, neighbours: Neighbours<'_>, scale: f32) -> Result<u16, OffGrid> {
        let (x, roots) = (&self.part.x[k], &self.part.roots[k]);
        self.l.call(Compare { l: self.l, neighbours, x, roots, scale })
    }

    /// Places one group at one scale, by distances.
    #[inline(always)]
    fn place(&self, k: usize, scale: f32) -> Result<u16, OffGrid> {
        let packed = nearest(&self.part.x[k], 1.0 / scale);
        if self.book.is_on_grid(packed) {
            return Ok(packed);
        }
        self.compare(k, self.book.neighbours(packed), scale)
    }

    /// The points of the `wanted` groups at one scale.
    ///
    /// Between two steps at which a group has the same levels it has these, too; and if the same neighbour is the nearest
    /// beyond doubt at both, it is so between.
    #[inline(always)]
    pub(super) fn place_at(
        &self,
        steps: &Steps<G>,
        trials: &Trials<G>,
        scale: f32,
        points: &mut [u16; G],
        wanted: &[bool; G],
    ) -> Result<(), OffGrid> {
        let around = steps.around(self.l, scale, 1.0 / scale);
        for k in 0..G {
            if !wanted[k] {
                continue;
            }
            points[k] = match around {
                Some(step)
                    if steps.ends[k] >> step & 1 == 0
                        && (trials.doubted[k] >> step).trailing_zeros() >= 2
                        && trials.points[k][step] == trials.points[k][step + 1] =>
                {
                    trials.points[k][step]
                }
                _ => self.place(k, scale)?,
            };
        }
        Ok(())
    }
}

/// Sets the points of a group from a step on; later runs overwrite what is theirs.
#[inline(always)]
fn set_from(points: &mut [u16; 2 * STEPS], step: usize, point: u16) {
    if let Some(points) = points[step..].first_chunk_mut() {
        *points = [point; STEPS];
    }
}

/// [`best_odd_neighbour`].
struct Compare<'a, L, const D: usize> {
    l: L,
    neighbours: Neighbours<'a>,
    x: &'a [f32; D],
    roots: &'a [f32; D],
    scale: f32,
}

impl<L: Lanes, const D: usize> VectorLoop for Compare<'_, L, D> {
    type Output = Result<u16, OffGrid>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        best_odd_neighbour(self.l, self.neighbours, self.x, self.roots, self.scale)
    }
}
