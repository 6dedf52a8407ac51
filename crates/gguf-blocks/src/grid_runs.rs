//! Runs of steps in which a group keeps its nearest levels, listed before any of them is evaluated.
//!
//! The evaluation of a run does not depend on that of another, so many are in flight at once. A branch between them
//! that is hard to predict would end that. So the runs are separated by the list they are put on.

use super::codebook::{CodeBook, ListRef};
use super::grid_search::STEPS;
use super::grid_steps::{GROUPS, Steps};

/// Consecutive steps of a group, off the grid, with the same nearest levels. Packed into one number, which takes a
/// single store.
///
/// From the lowest byte: group number times [`STEPS`] plus the first step; the same plus the last step; index of the
/// run; an unused byte; four bytes of the neighbour list.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepRun(u64);

impl StepRun {
    const NONE: Self = Self(0);

    #[inline(always)]
    fn new(first: usize, last: usize, index: usize, list: ListRef) -> Self {
        Self(first as u64 | (last as u64) << 8 | (index as u64) << 16 | u64::from(list.number()) << 32)
    }

    /// Returns the neighbour list of the levels.
    #[inline(always)]
    pub(super) fn list(self) -> ListRef {
        ListRef::of_number((self.0 >> 32) as u32)
    }

    #[inline(always)]
    fn index(self) -> usize {
        (self.0 >> 16) as usize % MOST
    }

    #[inline(always)]
    pub(super) fn group(self) -> usize {
        self.0 as usize % MOST / STEPS
    }

    #[inline(always)]
    pub(super) fn first(self) -> usize {
        self.0 as usize % STEPS
    }

    #[inline(always)]
    pub(super) fn last(self) -> usize {
        (self.0 >> 8) as usize % STEPS
    }
}

/// Maximum number of runs of a part.
const MOST: usize = GROUPS * STEPS;

const _: () = assert!(MOST - 1 == u8::MAX as usize, "runs and steps of all groups are numbered in bytes");

pub(super) struct RunList {
    runs: [StepRun; MOST],
    count: usize,
}

impl RunList {
    pub(super) const EMPTY: Self = Self { runs: [StepRun::NONE; MOST], count: 0 };

    /// Writes a run after the first `count` and counts it if `belongs`, without a branch.
    #[inline(always)]
    pub(super) fn push_if(&mut self, count: &mut usize, belongs: bool, run: StepRun) {
        self.runs[*count % MOST] = run;
        *count += usize::from(belongs);
    }

    #[inline(always)]
    pub(super) fn set_count(&mut self, count: usize) {
        self.count = count;
    }

    /// Returns the runs, in the order they were added.
    #[inline(always)]
    pub(super) fn runs(&self) -> &[StepRun] {
        &self.runs[..self.count.min(MOST)]
    }
}

/// The point of a group from a step on, until the next span begins.
#[derive(Clone, Copy)]
struct PointSpan {
    /// Group number times [`STEPS`] plus the step.
    from: u16,
    point: u16,
}

/// Points of all runs of a part: two spans per run, of which the second may cover the first.
pub(super) struct PointSpans {
    spans: [[PointSpan; 2]; MOST],
    count: usize,
}

impl PointSpans {
    pub(super) const NONE: Self = Self { spans: [[PointSpan { from: 0, point: 0 }; 2]; MOST], count: 0 };

    /// Lists the runs of `G` groups by group and step. All get their levels as points; runs off the grid are also
    /// listed by the number of tiles of their neighbours ([`ListRef::class`]).
    #[inline(always)]
    pub(super) fn set<const D: usize, const G: usize>(
        &mut self,
        book: &CodeBook<D>,
        steps: &Steps,
        by_class: &mut [RunList; ListRef::CLASSES - 1],
    ) {
        let mut counts = [0; ListRef::CLASSES - 1];
        let mut index = 0;
        // The ends of two groups in one number: half as many loop exits.
        for (pair, ends) in steps.ends.as_chunks::<2>().0[..G / 2].iter().enumerate() {
            let mut ends = u64::from(ends[0]) | u64::from(ends[1]) << 32;
            let base = 2 * STEPS * pair;
            let mut first = base;
            while ends != 0 {
                let last = base + ends.trailing_zeros() as usize;
                ends &= ends - 1;
                let levels = steps.levels(first);
                let list = book.list(levels);
                self.spans[index % MOST] = [PointSpan { from: first as u16, point: levels }; 2];
                let run = StepRun::new(first, last, index, list);
                for class in 1..ListRef::CLASSES {
                    by_class[class - 1].push_if(&mut counts[class - 1], list.class() == class, run);
                }
                index += 1;
                // The next group's first step follows a group's last one.
                let next_group = (last + STEPS) / STEPS * STEPS;
                first = if last + 1 == next_group - STEPS + steps.count { next_group } else { last + 1 };
            }
        }
        self.count = index;
        for (list, count) in by_class.iter_mut().zip(counts) {
            list.set_count(count);
        }
    }

    /// Places a run on one point, and from its last step on on another.
    #[inline(always)]
    pub(super) fn place(&mut self, run: StepRun, points: [u16; 2]) {
        self.spans[run.index()] = [
            PointSpan { from: (run.0 & 255) as u16, point: points[0] },
            PointSpan { from: (run.0 >> 8 & 255) as u16, point: points[1] },
        ];
    }

    #[inline(always)]
    pub(super) fn points(&self, run: StepRun) -> [u16; 2] {
        let [first, second] = self.spans[run.index()];
        [first.point, second.point]
    }

    /// Sets the step from which a run is placed on its second point.
    #[inline(always)]
    pub(super) fn set_turn(&mut self, run: StepRun, step: usize) {
        self.spans[run.index()][1].from = (run.group() * STEPS + step) as u16;
    }

    #[inline(always)]
    pub(super) fn write(&self, points: &mut [u16; (GROUPS + 1) * STEPS]) {
        for span in self.spans[..self.count.min(MOST)].as_flattened() {
            // Later spans overwrite their own part.
            if let Some(points) = points[usize::from(span.from) % MOST..].first_chunk_mut() {
                *points = [span.point; STEPS];
            }
        }
    }
}
