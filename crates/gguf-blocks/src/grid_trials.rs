//! Grid points of all groups at all steps of a search.
//!
//! From step to step most groups keep their nearest levels. Such a run of steps has one neighbour list, and
//! [`LineTables`] determine the nearest of its points: by evaluating both ends, and the scale at which one point
//! replaces the other. Runs for which that is not enough are placed step by step.

use super::codebook::{CodeBook, LIST_TILE, ListRef, Neighbours};
use super::grid_lines::{LineTables, ScaleRun, doubt, first_bits};
use super::grid_neighbours::best_odd_neighbour;
use super::grid_runs::{PointSpans, RunList, StepRun};
use super::grid_search::{OffGrid, PartMagnitudes, STEPS, nearest};
use super::grid_steps::{GROUPS, Steps, TOGETHER};
use super::lanes::Lanes;
use gguf_core::simd::VectorLoop;

/// Context for placing the groups of a part on the grid.
pub(super) struct GridPlacer<'a, L, const D: usize, const G: usize> {
    /// Vector lanes.
    pub l: L,
    /// Code book of the type.
    pub book: &'a CodeBook<D>,
    /// Part to place.
    pub part: &'a PartMagnitudes<D, G>,
    /// Largest magnitude of the part.
    pub(crate) x_max: f32,
}

/// Grid points of all groups at all steps.
pub(super) struct StepPoints {
    /// Packed points, [`STEPS`] for each group; values past the last step are arbitrary.
    pub points: [u16; (GROUPS + 1) * STEPS],
    /// One bit for each step at which distances were compared because of a doubt.
    doubted: [u32; GROUPS],
}

/// Line tables of all groups, with their doubts.
struct GroupLines {
    tables: [LineTables; GROUPS],
    doubts: [f32; GROUPS],
}

/// Buffers that a search writes before it reads them; reused from part to part, so that they need no clearing.
pub(super) struct SearchScratch {
    /// Steps of the part.
    pub steps: Steps,
    /// Trials of the part.
    pub trials: StepPoints,
    lines: GroupLines,
    spans: PointSpans,
    /// Runs off the grid, by [`ListRef::class`].
    by_class: [RunList; ListRef::CLASSES - 1],
    /// Runs with different points at the first and last step.
    turning: RunList,
    /// Runs whose steps must be evaluated one by one.
    unsettled: RunList,
}

impl SearchScratch {
    /// The initial value.
    pub(super) const EMPTY: Self = Self {
        steps: Steps::NONE,
        trials: StepPoints { points: [0; (GROUPS + 1) * STEPS], doubted: [0; GROUPS] },
        lines: GroupLines { tables: [LineTables::EMPTY; GROUPS], doubts: [0.0; GROUPS] },
        spans: PointSpans::NONE,
        by_class: [const { RunList::EMPTY }; ListRef::CLASSES - 1],
        turning: RunList::EMPTY,
        unsettled: RunList::EMPTY,
    };
}

/// Result of evaluating the ends of a run.
#[derive(Clone, Copy)]
struct RunEnds {
    /// True if there is no doubt at either end.
    is_sure: bool,
    /// True if the ends have different points.
    is_turning: bool,
}

impl RunEnds {
    const DOUBT: Self = Self { is_sure: false, is_turning: false };
}

impl<L: Lanes, const D: usize, const G: usize> GridPlacer<'_, L, D, G> {
    /// Places all groups at all steps.
    #[inline(always)]
    pub(super) fn place_all(&self, scratch: &mut SearchScratch) -> Result<(), OffGrid> {
        let SearchScratch { steps, trials, lines, spans, by_class, turning, unsettled } = scratch;
        // The first step has the largest scale.
        let doubt = doubt::<D>(steps.scales[steps.count - 1], steps.scales[0], self.x_max);
        for k in 0..G {
            lines.tables[k].set(self.l, &self.part.x[k], &self.part.roots[k]);
            lines.doubts[k] = lines.tables[k].doubt(doubt);
        }
        trials.doubted = [0; GROUPS];
        spans.set::<D, G>(self.book, steps, by_class);
        let (mut n_turning, mut n_unsettled) = (0, 0);
        for (class, list) in by_class.iter().enumerate() {
            for run in list.runs() {
                let ends = match class {
                    0 => self.evaluate_ends::<1>(lines, steps, *run, spans),
                    1 => self.evaluate_ends::<2>(lines, steps, *run, spans),
                    _ => self.evaluate_ends_of_many(lines, steps, *run, spans),
                };
                turning.push_if(&mut n_turning, ends.is_sure & ends.is_turning, *run);
                unsettled.push_if(&mut n_unsettled, !ends.is_sure, *run);
            }
        }
        turning.set_count(n_turning);
        for run in turning.runs() {
            let is_settled = self.turn(lines, steps, *run, spans);
            unsettled.push_if(&mut n_unsettled, !is_settled, *run);
        }
        unsettled.set_count(n_unsettled);
        spans.write(&mut trials.points);
        for run in unsettled.runs() {
            self.l.call(PlaceRun { placer: self, lines, steps, run: *run, trials })?;
        }
        Ok(())
    }

    /// Finds the points of a run with `T` tiles of neighbours at both ends.
    #[expect(clippy::needless_bitwise_bool, reason = "branches would be hard to foresee")]
    #[inline(always)]
    fn evaluate_ends<const T: usize>(
        &self,
        lines: &GroupLines,
        steps: &Steps,
        run: StepRun,
        spans: &mut PointSpans,
    ) -> RunEnds {
        let k = run.group();
        let Some(tiles) = self.book.tiles_of::<T>(run.list()) else { return RunEnds::DOUBT };
        let scales = [steps.scales[run.first()], steps.scales[run.last()]];
        let doubt = lines.doubts[k];
        let [first, last] = lines.tables[k].bits_of_tiles::<L, D, 2, T>(self.l, tiles, &scales, doubt);
        // In one number, because the compiler moves two to vectors and back.
        let listed = u64::from(first_bits(run.list().n_points()));
        let both = (u64::from(first) | u64::from(last) << 32) & (listed | listed << 32);
        let (first, last) = (both as u32, (both >> 32) as u32);
        let places = [first.trailing_zeros() as usize, last.trailing_zeros() as usize];
        let points = tiles.as_flattened();
        spans.place(run, [points[places[0] % (T * LIST_TILE)], points[places[1] % (T * LIST_TILE)]]);
        // One bit in each half. Without a bound the lines are meaningless, even that of the only point in a list.
        let is_one_each = (first != 0) & (last != 0) & (both & both.wrapping_sub(1 << 32 | 1) == 0);
        let is_sure = is_one_each & (doubt < f32::INFINITY);
        RunEnds { is_sure, is_turning: first != last }
    }

    /// Runs [`GridPlacer::evaluate_ends`] for any number of neighbours.
    #[inline(always)]
    fn evaluate_ends_of_many(
        &self,
        lines: &GroupLines,
        steps: &Steps,
        run: StepRun,
        spans: &mut PointSpans,
    ) -> RunEnds {
        let k = run.group();
        let neighbours = self.book.neighbours_of(run.list());
        let scales = [steps.scales[run.first()], steps.scales[run.last()]];
        let [first, last] = lines.tables[k].nearest::<L, D, 2>(self.l, neighbours, &scales, lines.doubts[k]);
        match (neighbours.at(first.position()), neighbours.at(last.position())) {
            (Some(first), Some(last)) => {
                spans.place(run, [first, last]);
                RunEnds { is_sure: true, is_turning: first != last }
            }
            _ => RunEnds::DOUBT,
        }
    }

    /// Finds the step at which one of a run's points replaces the other; false if a third point or a doubt interferes.
    #[inline(always)]
    fn turn(&self, lines: &GroupLines, steps: &Steps, run: StepRun, spans: &mut PointSpans) -> bool {
        let k = run.group();
        let (first, last) = (run.first(), run.last());
        let scale_run = ScaleRun { scales: &steps.scales, first, last, points: spans.points(run) };
        let neighbours = self.book.neighbours_of(run.list());
        match lines.tables[k].turn::<L, D>(self.l, neighbours, &scale_run, lines.doubts[k]) {
            Some(step) => {
                spans.set_turn(run, step);
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn place_run(
        &self,
        lines: &GroupLines,
        steps: &Steps,
        run: StepRun,
        trials: &mut StepPoints,
    ) -> Result<(), OffGrid> {
        let k = run.group();
        let neighbours = self.book.neighbours_of(run.list());
        let (mut at, end) = (run.first(), run.last() + 1);
        while at < end {
            let Some(scales) = steps.scales[at..].first_chunk::<TOGETHER>() else { return Err(OffGrid) };
            let nearest =
                lines.tables[k].nearest::<L, D, TOGETHER>(self.l, neighbours, scales, lines.doubts[k]);
            for i in 0..TOGETHER.min(end - at) {
                let step = at + i;
                trials.points[k * STEPS + step] = match neighbours.at(nearest[i].position()) {
                    Some(point) => point,
                    None => {
                        trials.doubted[k] |= 1 << step;
                        self.compare(k, neighbours, steps.scales[step])?
                    }
                };
            }
            at += TOGETHER;
        }
        Ok(())
    }

    /// Returns the nearest neighbour by distances. A separate function, since it is seldom needed.
    #[inline(always)]
    fn compare(&self, k: usize, neighbours: Neighbours<'_>, scale: f32) -> Result<u16, OffGrid> {
        let (x, roots) = (&self.part.x[k], &self.part.roots[k]);
        self.l.call(CompareDistances { l: self.l, neighbours, x, roots, scale })
    }

    /// Returns the points of the `wanted` groups at one scale.
    ///
    /// If a group has the same levels at two steps, it also has them in between. If the same neighbour is the nearest
    /// beyond doubt at both, it is also the nearest in between.
    #[inline(always)]
    pub(super) fn place_at(
        &self,
        scratch: &SearchScratch,
        scale: f32,
        points: &mut [u16; G],
        wanted: &[bool; G],
    ) -> Result<(), OffGrid> {
        let SearchScratch { steps, trials, lines, .. } = scratch;
        let around = steps.around(self.l, scale, 1.0 / scale);
        for k in 0..G {
            if !wanted[k] {
                continue;
            }
            // Between these two steps the levels are known.
            let known = around.filter(|step| steps.ends[k] >> step & 1 == 0);
            if let Some(step) = known
                && (trials.doubted[k] >> step).trailing_zeros() >= 2
                && trials.points[k * STEPS + step] == trials.points[k * STEPS + step + 1]
            {
                points[k] = trials.points[k * STEPS + step];
                continue;
            }
            let packed = match known {
                Some(step) => steps.levels(k * STEPS + step),
                None => nearest(&self.part.x[k], 1.0 / scale),
            };
            if self.book.is_on_grid(packed) {
                points[k] = packed;
                continue;
            }
            let neighbours = self.book.neighbours(packed);
            // The bound also holds between the steps.
            let doubt = if around.is_some() { lines.doubts[k] } else { f32::INFINITY };
            let [nearest] = lines.tables[k].nearest::<L, D, 1>(self.l, neighbours, &[scale], doubt);
            points[k] = match neighbours.at(nearest.position()) {
                Some(point) => point,
                None => self.compare(k, neighbours, scale)?,
            };
        }
        Ok(())
    }
}

/// Runs [`GridPlacer::place_run`] as a separate function, since it is seldom needed.
struct PlaceRun<'a, 'p, L, const D: usize, const G: usize> {
    placer: &'a GridPlacer<'p, L, D, G>,
    lines: &'a GroupLines,
    steps: &'a Steps,
    run: StepRun,
    trials: &'a mut StepPoints,
}

impl<L: Lanes, const D: usize, const G: usize> VectorLoop for PlaceRun<'_, '_, L, D, G> {
    type Output = Result<(), OffGrid>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        self.placer.place_run(self.lines, self.steps, self.run, self.trials)
    }
}

/// Runs [`best_odd_neighbour`] as a separate function.
struct CompareDistances<'a, L, const D: usize> {
    l: L,
    neighbours: Neighbours<'a>,
    x: &'a [f32; D],
    roots: &'a [f32; D],
    scale: f32,
}

impl<L: Lanes, const D: usize> VectorLoop for CompareDistances<'_, L, D> {
    type Output = Result<u16, OffGrid>;

    #[inline(always)]
    fn run(self) -> Self::Output {
        best_odd_neighbour(self.l, self.neighbours, self.x, self.roots, self.scale)
    }
}
