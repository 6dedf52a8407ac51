//! Steps of a search: scales, and the nearest levels of all groups at each of them.

use super::codebook::CodeBook;
use super::grid_search::{GridSearch, PartMagnitudes, STEPS};
use super::lanes::Lanes;
use gguf_core::numeric::c_max;

pub(super) const GROUPS: usize = 8;

/// Number of steps that are evaluated together.
pub(super) const TOGETHER: usize = 4;

/// Scales and nearest levels of all steps of a part's search.
pub(super) struct Steps {
    /// Number of steps.
    pub count: usize,
    /// Inverse scales, in ascending order.
    iscales: [f32; STEPS],
    /// Scales, in descending order.
    pub scales: [f32; STEPS + TOGETHER],
    /// Packed levels before they are placed on the grid.
    packed: [[i32; STEPS]; GROUPS],
    /// Packed levels as floats: whole numbers up to 65535.
    numbers: [[f32; STEPS + 1]; GROUPS],
    /// One bit for each step whose levels differ from those of the next one, and for the last.
    pub ends: [u32; GROUPS],
}

/// Returns the weight of dimension `i` in packed levels.
#[inline(always)]
fn unit<const D: usize>(i: usize) -> f32 {
    (1u32 << (CodeBook::<D>::BITS * i as u32)) as f32
}

impl Steps {
    pub(super) const NONE: Self = Self {
        count: 0,
        iscales: [0.0; STEPS],
        scales: [0.0; STEPS + TOGETHER],
        packed: [[0; STEPS]; GROUPS],
        numbers: [[0.0; STEPS + 1]; GROUPS],
        ends: [0; GROUPS],
    };

    #[inline(always)]
    pub(super) fn set<L: Lanes, const D: usize, const G: usize>(
        &mut self,
        l: L,
        how: &GridSearch,
        part: &PartMagnitudes<D, G>,
        range: f32,
    ) {
        self.count = how.n_steps();
        let (half, one) = (l.splat(0.5), l.splat(1.0));
        for at in (0..self.count).step_by(L::WIDTH) {
            let iscale = l.load(&how.iscales()[at..]) / l.splat(range);
            l.store(iscale, &mut self.iscales[at..]);
            l.store(one / iscale, &mut self.scales[at..]);
        }
        let last = 1 << (self.count - 1);
        for k in 0..G {
            // Negative values have level 0, like zero. Levels and their roundings are scaled to their packed position.
            let mut x = part.x[k];
            for i in 0..D {
                x[i] = c_max(x[i], 0.0) * unit::<D>(i);
            }
            for at in (0..self.count).step_by(L::WIDTH) {
                // `0.5 * (iscale * x - 1)` with the same roundings: halves are exact, and where the product is too
                // small for that it does not change the sum.
                let half_iscale = half * l.load(&self.iscales[at..]);
                // Levels times powers of two add up exactly.
                let mut sum = l.splat(0.0);
                for i in 0..D {
                    let value = half_iscale * l.splat(x[i]) - l.splat(0.5 * unit::<D>(i));
                    sum = sum + l.nearest_multiple(unit::<D>(i), CodeBook::<D>::LEVELS as i32 - 1, value);
                }
                l.store(sum, &mut self.numbers[k][at..]);
                l.store_i(l.trunc(sum), &mut self.packed[k][at..]);
            }
        }
        // In a second loop: what was just stored cannot be loaded one position further on.
        for k in 0..G {
            let mut changes = 0;
            for at in (0..self.count).step_by(L::WIDTH) {
                let same = l.eq(l.load(&self.numbers[k][at..]), l.load(&self.numbers[k][at + 1..]));
                changes |= (l.mask_bits(!same) as u32) << at;
            }
            self.ends[k] = changes & (last - 1) | last;
        }
    }

    /// Returns the packed levels at `at`: group number times [`STEPS`] plus the step.
    #[inline(always)]
    pub(super) fn levels(&self, at: usize) -> u16 {
        self.packed.as_flattened()[at % (GROUPS * STEPS)] as u16
    }

    /// Returns the step such that a scale is between it and the next one, also by its inverse.
    #[inline(always)]
    pub(super) fn around<L: Lanes>(&self, l: L, scale: f32, iscale: f32) -> Option<usize> {
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
