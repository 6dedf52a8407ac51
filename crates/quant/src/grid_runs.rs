//! Runs of steps in which a group keeps its nearest levels, listed before anything is looked at for them.
//!
//! No run's look depends on another's, so that many are under way at once; a branch between them that is hard to foresee
//! would end that. So runs are told apart by the lists that they are put on.

use super::codebook::{CodeBook, List};
use super::grid_search::STEPS;
use super::grid_steps::{GROUPS, Steps};

/// Consecutive steps of a group, off the grid, with the same nearest levels: in one number, which is stored at once.
///
/// From the lowest byte: number of the group times [`STEPS`] and the first step; the same and the last step; which of all
/// runs it is; none; four bytes of the neighbour list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run(u64);

impl Run {
    const NONE: Self = Self(0);

    #[inline(always)]
    fn new(first: usize, last: usize, place: usize, list: List) -> Self {
        Self(first as u64 | (last as u64) << 8 | (place as u64) << 16 | u64::from(list.number()) << 32)
    }

    /// Neighbours of the levels.
    #[inline(always)]
    pub(super) fn list(self) -> List {
        List::of_number((self.0 >> 32) as u32)
    }

    #[inline(always)]
    fn place(self) -> usize {
        (self.0 >> 16) as usize % MOST
    }

    /// The group.
    #[inline(always)]
    pub(super) fn group(self) -> usize {
        self.0 as usize % MOST / STEPS
    }

    /// The first step.
    #[inline(always)]
    pub(super) fn first(self) -> usize {
        self.0 as usize % STEPS
    }

    /// The last step.
    #[inline(always)]
    pub(super) fn last(self) -> usize {
        (self.0 >> 8) as usize % STEPS
    }
}

/// Most runs of a part.
const MOST: usize = GROUPS * STEPS;

const _: () = assert!(MOST - 1 == u8::MAX as usize, "runs and steps of all groups are numbered in bytes");

/// A list of runs.
pub(super) struct RunList {
    runs: [Run; MOST],
    count: usize,
}

impl RunList {
    /// No runs.
    pub(super) const EMPTY: Self = Self { runs: [Run::NONE; MOST], count: 0 };

    /// Adds a run behind the first `count`, if it belongs here: without a branch.
    #[inline(always)]
    pub(super) fn push_if(&mut self, count: &mut usize, belongs: bool, run: Run) {
        self.runs[*count % MOST] = run;
        *count += usize::from(belongs);
    }

    /// Sets how many runs there are.
    #[inline(always)]
    pub(super) fn set_count(&mut self, count: usize) {
        self.count = count;
    }

    /// The runs, in the order they were added.
    #[inline(always)]
    pub(super) fn runs(&self) -> &[Run] {
        &self.runs[..self.count.min(MOST)]
    }
}

/// A point that a group is placed on from a step on, until the next piece begins.
#[derive(Clone, Copy)]
struct Piece {
    /// Number of the group times [`STEPS`], and the step.
    from: u16,
    point: u16,
}

/// What all runs of a part are placed on: two pieces each, of which the second may cover the first.
pub(super) struct Pieces {
    pieces: [[Piece; 2]; MOST],
    count: usize,
}

impl Pieces {
    /// No pieces.
    pub(super) const NONE: Self = Self { pieces: [[Piece { from: 0, point: 0 }; 2]; MOST], count: 0 };

    /// Lists the runs of `G` groups by group and step: all with their levels as their points, and those off the grid by the
    /// number of tiles that their neighbours fill, as [`List::class`] has it.
    #[inline(always)]
    pub(super) fn set<const D: usize, const G: usize>(
        &mut self,
        book: &CodeBook<D>,
        steps: &Steps,
        by_class: &mut [RunList; List::CLASSES - 1],
    ) {
        let mut counts = [0; List::CLASSES - 1];
        let mut place = 0;
        // The ends of two groups in one number: half as many loops end.
        for (pair, ends) in steps.ends.as_chunks::<2>().0[..G / 2].iter().enumerate() {
            let mut ends = u64::from(ends[0]) | u64::from(ends[1]) << 32;
            let base = 2 * STEPS * pair;
            let mut first = base;
            while ends != 0 {
                let last = base + ends.trailing_zeros() as usize;
                ends &= ends - 1;
                let levels = steps.levels(first);
                let list = book.list(levels);
                self.pieces[place % MOST] = [Piece { from: first as u16, point: levels }; 2];
                let run = Run::new(first, last, place, list);
                for class in 1..List::CLASSES {
                    by_class[class - 1].push_if(&mut counts[class - 1], list.class() == class, run);
                }
                place += 1;
                // Behind a group's last step comes the next group's first.
                let next_group = (last + STEPS) / STEPS * STEPS;
                first = if last + 1 == next_group - STEPS + steps.count { next_group } else { last + 1 };
            }
        }
        self.count = place;
        for (list, count) in by_class.iter_mut().zip(counts) {
            list.set_count(count);
        }
    }

    /// Places a run on one point, or from the last step on on another.
    #[inline(always)]
    pub(super) fn place(&mut self, run: Run, points: [u16; 2]) {
        self.pieces[run.place()] = [
            Piece { from: (run.0 & 255) as u16, point: points[0] },
            Piece { from: (run.0 >> 8 & 255) as u16, point: points[1] },
        ];
    }

    /// The points of a run.
    #[inline(always)]
    pub(super) fn points(&self, run: Run) -> [u16; 2] {
        let [first, second] = self.pieces[run.place()];
        [first.point, second.point]
    }

    /// Sets the step from which on a run is placed on its second point.
    #[inline(always)]
    pub(super) fn set_turn(&mut self, run: Run, step: usize) {
        self.pieces[run.place()][1].from = (run.group() * STEPS + step) as u16;
    }

    /// Writes the points of all steps of all groups.
    #[inline(always)]
    pub(super) fn write(&self, points: &mut [u16; (GROUPS + 1) * STEPS]) {
        for piece in self.pieces[..self.count.min(MOST)].as_flattened() {
            // Later pieces overwrite what is theirs.
            if let Some(points) = points[usize::from(piece.from) % MOST..].first_chunk_mut() {
                *points = [piece.point; STEPS];
            }
        }
    }
}
