//! The search shared by the IQ2 and IQ3 types: magnitudes of a part on a code book, under one scale.
//!
//! Scalar, the specification; `grid_lanes` is its vector twin. All sums run in index order in f32.

use super::codebook::{CodeBook, GridPosition, Neighbours};
use super::search::{sum_squares, unsigned};
use super::superblock::SUPER;
use gguf_core::numeric::{c_max, nearest_int};

/// Error: no grid point is at a finite distance. The reference stops the program there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffGrid;

/// Maximum number of steps of a search, in whole vectors.
pub(super) const STEPS: usize = 32;

/// Parameters of [`search`].
#[derive(Clone, Copy, Debug)]
pub(super) struct GridSearch {
    n_steps: usize,
    /// Inverse scale of each step, in units of the largest magnitude.
    iscales: [f32; STEPS],
    /// Groups that the last fit places again.
    pub(crate) refit: Refit,
}

impl GridSearch {
    /// Creates a search with `n_step` steps to either side of the start, `r_delta` apart, in odd levels of a grid of
    /// `D` dimensions.
    pub(super) const fn new<const D: usize>(n_step: usize, r_delta: f32, refit: Refit) -> Self {
        let n_steps = 2 * n_step + 1;
        let top = (2 * CodeBook::<D>::LEVELS - 1) as f32;
        let mut iscales = [top; STEPS];
        let mut step = 0;
        while step < n_steps {
            iscales[step] = top + (step as f32 - n_step as f32) * r_delta;
            step += 1;
        }
        Self { n_steps, iscales, refit }
    }

    #[inline(always)]
    pub(super) const fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// Returns the inverse scale of each step, in units of the largest magnitude; values past the last step are
    /// arbitrary.
    #[inline(always)]
    pub(super) const fn iscales(&self) -> &[f32; STEPS] {
        &self.iscales
    }
}

/// Groups that the last fit places on the grid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refit {
    /// Groups that were off the grid, if any.
    OffGrid,
    /// All groups, if any was off the grid.
    AllIfAny,
    /// All groups.
    All,
}

/// Scale and grid points of one part: `G` groups of `D` magnitudes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GridFit<const G: usize> {
    /// Scale of the odd levels; may be negative.
    pub scale: f32,
    /// Packed grid points.
    pub points: [u16; G],
}

impl<const G: usize> GridFit<G> {
    /// Makes a negative scale positive by flipping all signs.
    #[inline(always)]
    pub(super) fn with_signs<const S: usize>(self, signs: [u8; S]) -> SignedFit<G, S> {
        let Self { scale, points } = self;
        if scale < 0.0 {
            SignedFit { scale: -scale, points, signs: signs.map(|signs| !signs) }
        } else {
            SignedFit { scale, points, signs }
        }
    }
}

/// Fit of one part whose scale is not negative, with `S` sign bytes.
pub(super) struct SignedFit<const G: usize, const S: usize> {
    /// Scale of the odd levels.
    pub scale: f32,
    /// Packed grid points.
    pub points: [u16; G],
    /// One bit per value; set for a negative one.
    pub signs: [u8; S],
}

/// Magnitudes of one part, with weights.
#[derive(Clone, Copy)]
pub(super) struct PartMagnitudes<const D: usize, const G: usize> {
    /// Values; their signs are stored separately.
    pub x: [[f32; D]; G],
    /// Weights of the fit.
    pub weights: [[f32; D]; G],
    /// Square roots of the weights, for distances between points.
    pub roots: [[f32; D]; G],
}

#[derive(Clone, Copy)]
pub(super) struct PartSearch<'a, const D: usize, const G: usize> {
    /// Code book of the type.
    pub book: &'a CodeBook<D>,
    /// Parameters of the type.
    pub how: &'a GridSearch,
    /// Magnitudes to fit.
    pub part: &'a PartMagnitudes<D, G>,
    /// The largest magnitude or its substitute.
    pub range: f32,
    /// Fit to keep if no step finds one.
    pub start: GridFit<G>,
}

/// Returns the packed levels nearest to `x` at `1 / scale`.
#[inline(always)]
pub(super) fn nearest<const D: usize>(x: &[f32; D], iscale: f32) -> u16 {
    let max = CodeBook::<D>::LEVELS as i32 - 1;
    CodeBook::<D>::pack(x.map(|value| nearest_int(0.5 * (iscale * value - 1.0)).clamp(0, max)))
}

/// Returns the packed grid point that is nearest under weights; of equal ones the first in the list.
#[inline(always)]
pub(super) fn best_neighbour<const D: usize>(
    neighbours: Neighbours<'_>,
    x: &[f32; D],
    roots: &[f32; D],
    scale: f32,
) -> Result<u16, OffGrid> {
    let mut best_distance = f32::MAX;
    let mut best = Err(OffGrid);
    for point in neighbours.points() {
        let levels = CodeBook::<D>::unpack(*point);
        let mut distance = 0f32;
        for i in 0..D {
            let diff = scale * (2 * levels[i] + 1) as f32 - x[i];
            distance += roots[i] * diff * diff;
        }
        if distance < best_distance {
            best_distance = distance;
            best = Ok(*point);
        }
    }
    best
}

/// Returns the grid point of one group, and true if its nearest levels are off the grid.
#[inline(always)]
fn place<const D: usize>(
    book: &CodeBook<D>,
    x: &[f32; D],
    roots: &[f32; D],
    scale: f32,
    iscale: f32,
) -> Result<(u16, bool), OffGrid> {
    let packed = nearest(x, iscale);
    match book.position(packed) {
        GridPosition::On(_) => Ok((packed, false)),
        GridPosition::Near(neighbours) => Ok((best_neighbour(neighbours, x, roots, scale)?, true)),
    }
}

impl<const D: usize, const G: usize> PartMagnitudes<D, G> {
    /// Computes the sums of weighted least squares: `x * q` and `q * q` for odd levels `q`.
    #[inline(always)]
    pub(super) fn sums(&self, points: &[u16; G]) -> (f32, f32) {
        let (mut sum_qx, mut sum_q2) = (0f32, 0f32);
        for k in 0..G {
            let levels = CodeBook::<D>::unpack(points[k]);
            for i in 0..D {
                let (w, q) = (self.weights[k][i], (2 * levels[i] + 1) as f32);
                sum_qx += w * self.x[k][i] * q;
                sum_q2 += w * q * q;
            }
        }
        (sum_qx, sum_q2)
    }
}

/// Searches of a super-block, scalar or in lanes.
pub(super) trait Search: Copy {
    /// Fits scale and grid points of one part; see [`search`].
    fn search<const D: usize, const G: usize>(
        self,
        part: PartSearch<'_, D, G>,
    ) -> Result<GridFit<G>, OffGrid>;

    /// Returns the packed grid point nearest to `x` under weights, where a level means `scale * shifted[level]`.
    fn shifted_neighbour(
        self,
        neighbours: Neighbours<'_>,
        x: &[f32; 8],
        weights: &[f32; 8],
        scale: f32,
        shifted: &[f32; 3],
    ) -> Result<u16, OffGrid>;

    /// Computes the scales of parts by the search for non-negative levels `0..=n_max`.
    fn unsigned_scales(self, n_max: i32, x: &[[f32; 32]; 8], weights: &[[f32; 32]; 8]) -> [f32; 8];
}

/// The scalar searches of this module.
#[derive(Clone, Copy)]
pub(super) struct ScalarSearch;

impl Search for ScalarSearch {
    fn search<const D: usize, const G: usize>(
        self,
        part: PartSearch<'_, D, G>,
    ) -> Result<GridFit<G>, OffGrid> {
        search(part)
    }

    fn shifted_neighbour(
        self,
        neighbours: Neighbours<'_>,
        x: &[f32; 8],
        weights: &[f32; 8],
        scale: f32,
        shifted: &[f32; 3],
    ) -> Result<u16, OffGrid> {
        let mut best_distance = f32::MAX;
        let mut best = Err(OffGrid);
        for point in neighbours.points() {
            let levels = CodeBook::<8>::unpack(*point);
            let mut distance = 0f32;
            for i in 0..8 {
                let diff = scale * shifted[levels[i] as usize] - x[i];
                distance += weights[i] * diff * diff;
            }
            if distance < best_distance {
                best_distance = distance;
                best = Ok(*point);
            }
        }
        best
    }

    fn unsigned_scales(self, n_max: i32, x: &[[f32; 32]; 8], weights: &[[f32; 32]; 8]) -> [f32; 8] {
        std::array::from_fn(|j| unsigned(n_max, &x[j], &weights[j], &mut [0; 32]))
    }
}

/// Fits scale and grid points of one part.
///
/// # Exactness
/// The common core of `quantize_row_iq2_xxs_impl`, `_iq2_xs_`, `_iq2_s_`, `_iq3_xxs_` and `_iq3_s_impl`.
pub(super) fn search<const D: usize, const G: usize>(
    PartSearch { book, how, part, range, start }: PartSearch<'_, D, G>,
) -> Result<GridFit<G>, OffGrid> {
    let GridFit { mut scale, mut points } = start;
    let mut best = 0f32;
    // ref: IQ3_S starts with "between", the others with "on the grid"; they differ in their use of it
    let mut between = [how.refit == Refit::AllIfAny; G];
    for iscale in &how.iscales[..how.n_steps] {
        let iscale = iscale / range;
        let trial_scale = 1.0 / iscale;
        let (mut trial, mut trial_between) = ([0; G], [false; G]);
        for k in 0..G {
            (trial[k], trial_between[k]) = place(book, &part.x[k], &part.roots[k], trial_scale, iscale)?;
        }
        let (sum_qx, sum_q2) = part.sums(&trial);
        if sum_q2 > 0.0 && sum_qx * sum_qx > best * sum_q2 {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
            points = trial;
            between = trial_between;
        }
    }
    let refit = how.refit == Refit::All || between.contains(&true);
    if refit && scale > 0.0 {
        let iscale = 1.0 / scale;
        for k in 0..G {
            if between[k] || how.refit != Refit::OffGrid {
                (points[k], _) = place(book, &part.x[k], &part.roots[k], scale, iscale)?;
            }
        }
        let (sum_qx, sum_q2) = part.sums(&points);
        if sum_q2 > 0.0 {
            scale = sum_qx / sum_q2;
        }
    }
    // A scale that is not a number stops the reference, and so does a start off the grid.
    if scale.is_nan() || points.iter().any(|point| book.index(*point).is_none()) {
        return Err(OffGrid);
    }
    Ok(GridFit { scale, points })
}

/// Returns importance or squares as the weights of a part.
///
/// `plain` is the weight of a value without importance.
#[inline(always)]
pub(super) fn weights<const D: usize, const G: usize>(
    x: &[[f32; D]; G],
    importance: Option<&[[f32; D]; G]>,
    sigma2: f32,
    plain: impl Fn(f32) -> f32,
) -> [[f32; D]; G] {
    match importance {
        Some(importance) => {
            let mut weights = [[0.0; D]; G];
            for k in 0..G {
                for i in 0..D {
                    weights[k][i] = importance[k][i] * (sigma2 + x[k][i] * x[k][i]).sqrt();
                }
            }
            weights
        }
        None => x.map(|group| group.map(&plain)),
    }
}

/// Splits off the signs: returns magnitudes and one bit per negative value; -0.0 and NaN are treated as by C's
/// `x >= 0`.
#[inline(always)]
pub(super) fn split_signs(x: &[f32; 8]) -> ([f32; 8], u8) {
    let (mut magnitudes, mut signs) = (*x, 0);
    for i in 0..8 {
        #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN counts as negative")]
        if !(x[i] >= 0.0) {
            magnitudes[i] = -x[i];
            signs |= 1 << i;
        }
    }
    (magnitudes, signs)
}

/// Runs [`split_signs`] with an even number of signs: if it is odd, flips the value that matters least.
///
/// Of equal ones the first. The magnitude of a flipped value becomes negative. Without branches, since every second
/// number is odd.
#[inline(always)]
pub(super) fn split_even_signs(x: &[f32; 8], weights: &[f32; 8]) -> ([f32; 8], u8) {
    let (mut magnitudes, signs) = split_signs(x);
    let mut least = 0;
    let mut min = weights[0] * x[0] * x[0];
    for i in 1..8 {
        let weighted = weights[i] * x[i] * x[i];
        least = if weighted < min { i as u32 } else { least };
        min = if weighted < min { weighted } else { min };
    }
    let flipped = (signs.count_ones() & 1) << least;
    for i in 0..8 {
        let sign = (flipped >> i & 1) << 31;
        magnitudes[i] = f32::from_bits(magnitudes[i].to_bits() ^ sign);
    }
    (magnitudes, signs ^ flipped as u8)
}

/// Returns the largest value as C's `MAX(max, v)` finds it from the first on.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    x[1..].iter().fold(x[0], |max, value| c_max(max, *value))
}

#[inline(always)]
pub(super) fn mean_square(x: &[f32; SUPER]) -> f32 {
    sum_squares(x) / SUPER as f32
}

/// Returns the stored level of a part's scale: odd multiples, `0..=max`.
#[inline(always)]
pub(super) fn scale_level(iscale: f32, scale: f32, max: i32) -> u8 {
    nearest_int(0.5 * (iscale * scale - 1.0)).clamp(0, max) as u8
}

#[cfg(test)]
mod tests {
    use super::super::codebook;
    use super::*;

    #[test]
    fn points_of_the_grid_are_found_exactly() {
        let book = codebook::iq2_xs();
        let points = [book.points[7], book.points[300]];
        let x = points.map(|point| CodeBook::<8>::unpack(point).map(|level| 0.25 * (2 * level + 1) as f32));
        let part = PartMagnitudes { x, weights: [[1.0; 8]; 2], roots: [[1.0; 8]; 2] };
        let how = GridSearch::new::<8>(9, 0.1, Refit::OffGrid);
        let range = largest(x.as_flattened());
        let start = GridFit { scale: 1.0, points: [0; 2] };
        let fit = search(PartSearch { book, how: &how, part: &part, range, start }).unwrap();
        assert_eq!(fit, GridFit { scale: 0.25, points });
    }

    #[test]
    fn a_flip_takes_the_first_of_the_least() {
        let x = [1.0, -2.0, 0.5, 0.5, 3.0, 3.0, 3.0, 3.0];
        let (magnitudes, signs) = split_even_signs(&x, &[1.0; 8]);
        assert_eq!(signs, 0b110);
        assert_eq!(magnitudes, [1.0, 2.0, -0.5, 0.5, 3.0, 3.0, 3.0, 3.0]);
        assert_eq!(split_signs(&[-0.0; 8]).1, 0);
        assert_eq!(split_signs(&[f32::NAN; 8]).1, 255);
    }

    #[test]
    fn nothing_is_near_infinity() {
        let book = codebook::iq3_s();
        let x = [[f32::INFINITY; 4]];
        let part = PartMagnitudes { x, weights: x, roots: x };
        let how = GridSearch::new::<4>(9, 0.2, Refit::AllIfAny);
        let start = GridFit { scale: f32::NAN, points: [0] };
        let part = PartSearch { book, how: &how, part: &part, range: f32::INFINITY, start };
        assert_eq!(search(part), Err(OffGrid));
    }
}
