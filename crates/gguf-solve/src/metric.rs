//! Second moments prepared for the solver: regularized, ordered, factored.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::OnceLock;

use gguf_matmul::MatrixView;
use rayon::prelude::*;

use crate::cholesky::Cholesky;
use crate::moments::check_option;
use crate::unit::{UNIT, UnitMetric};
use crate::{SecondMoments, SolveError};

/// Shrinkage for text of several kinds; 1 suits text of one kind.
pub const SHRINKAGE: f32 = 0.6;

/// Shrinkage for moments of a quantized stream, with corrected targets. On text like the calibration text less would
/// work as well; on other text this value gives clearly less divergence.
pub const SHRINKAGE_OF_STREAM: f32 = 0.8;

/// Fraction of the mean square of all columns that is added to every column.
const DAMPING: f32 = 1e-4;

/// Measure of the errors of a row: `e H_r eᵀ`. Also holds the coefficients by which later columns compensate for an
/// error in an earlier one.
///
/// `H_r = H + s · diag(H) + 1e-4 · mean(diag H) · I`. Columns are rounded in the order of decreasing `diag(H)`. In that
/// order `H_r = M D Mᵀ`, with `M` upper triangular and ones on its diagonal. An error `e_j` then adds `e_j M_jk` to the
/// target of a later column `k`. These are the coefficients that GPTQ takes from the Cholesky factor of the inverse,
/// without inverting.
pub struct Metric {
    n_cols: usize,
    moments: Vec<f32>,
    order: Vec<usize>,
    /// Coefficients `[n_cols, n_cols]` by positions in the order: row `k` holds `M_jk` for every `j` before `k`.
    feedback: Vec<f32>,
    /// Coefficients by units, for types that need them.
    of_units: OnceLock<Result<UnitFactor, SolveError>>,
}

/// Factor of `H_r = M D Mᵀ` for whole units of columns, in the order of decreasing sums of `diag(H_r)`.
pub(crate) struct UnitFactor {
    /// Column of each position; the columns of a unit are consecutive.
    pub order: Vec<usize>,
    /// Coefficients, stored as in [`Metric`].
    feedback: Vec<f32>,
    /// Diagonal of `D`, by position.
    pivots: Vec<f32>,
}

impl UnitFactor {
    /// Returns rows of coefficients, by positions in the order.
    pub(crate) fn feedback(&self, places: Range<usize>) -> MatrixView<'_> {
        let n = self.order.len();
        MatrixView::new(&self.feedback, n, n, n).rows(places)
    }

    /// Returns `M_gg D_g M_ggᵀ`: the metric of the unit at a position while later units are still to be chosen.
    pub(crate) fn conditional(&self, first: usize) -> UnitMetric {
        let feedback = self.feedback(first..first + UNIT).columns(first..first + UNIT);
        // M_jk, which is stored by its column.
        let factor = |j: usize, k: usize| match j.cmp(&k) {
            Ordering::Less => feedback.row(k)[j],
            Ordering::Equal => 1.0,
            Ordering::Greater => 0.0,
        };
        let mut metric = [[0.0; UNIT]; UNIT];
        for (k, pivot) in self.pivots[first..first + UNIT].iter().enumerate() {
            for i in 0..=k {
                for j in 0..=k {
                    metric[i][j] += factor(i, k) * pivot * factor(j, k);
                }
            }
        }
        metric
    }
}

impl Metric {
    /// Regularizes and factors moments. Takes `n_cols³ / 3` operations in F64, on the threads of the current pool, and
    /// `16 n_cols²` bytes, of which half are kept. The first rows of a type on a code book cost as many operations
    /// again, and `12 n_cols²` bytes, of which a third is kept.
    ///
    /// # Errors
    /// [`SolveError::NotPositive`] if the moments are all zero or invalid; then only the importance matrix can be used.
    /// [`SolveError::Option`] for a shrinkage that is negative or not finite.
    pub fn new(moments: &SecondMoments, shrinkage: f32) -> Result<Self, SolveError> {
        check_option("shrinkage", shrinkage)?;
        let n = moments.n_cols();
        let diagonal = moments.diagonal();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|a, b| diagonal[*b].total_cmp(&diagonal[*a]));
        let moments = moments.regularized(shrinkage, DAMPING);
        let (feedback, _) = factored(&moments, &order)?;
        Ok(Self { n_cols: n, moments, order, feedback, of_units: OnceLock::new() })
    }

    /// Returns the number of columns of the layer.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns the columns in the order in which they are rounded.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns the factor by units, which is computed on the first call. The columns must be whole units.
    pub(crate) fn of_units(&self) -> Result<&UnitFactor, SolveError> {
        let made = self.of_units.get_or_init(|| {
            let size = |unit: usize| -> f32 {
                let columns = unit * UNIT..(unit + 1) * UNIT;
                columns.map(|column| self.moments[column * self.n_cols + column]).sum()
            };
            let mut units: Vec<usize> = (0..self.n_cols / UNIT).collect();
            units.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
            let order: Vec<usize> = units.iter().flat_map(|unit| unit * UNIT..(unit + 1) * UNIT).collect();
            let (feedback, pivots) = factored(&self.moments, &order)?;
            Ok(UnitFactor { order, feedback, pivots })
        });
        made.as_ref().map_err(|error| *error)
    }

    pub(crate) fn rows(&self, range: Range<usize>) -> MatrixView<'_> {
        MatrixView::new(&self.moments, self.n_cols, self.n_cols, self.n_cols).rows(range)
    }

    /// Returns a part of a row of `H_r`.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, columns: Range<usize>) -> &[f32] {
        &self.moments[row * self.n_cols..][columns]
    }

    /// Returns rows of coefficients, by positions in the order.
    pub(crate) fn feedback(&self, places: Range<usize>) -> MatrixView<'_> {
        MatrixView::new(&self.feedback, self.n_cols, self.n_cols, self.n_cols).rows(places)
    }
}

/// Computes `M` by rows of positions, and `D`.
fn factored(moments: &[f32], order: &[usize]) -> Result<(Vec<f32>, Vec<f32>), SolveError> {
    let n = order.len();
    // Starts with the last column: the factor of this order, read backwards, is `M`.
    let backwards: Vec<usize> = order.iter().rev().copied().collect();
    let mut lower = vec![0.0; n * n];
    lower.par_chunks_mut(n).enumerate().for_each(|(row, out)| {
        let source = &moments[backwards[row] * n..][..n];
        for (out, column) in out[..=row].iter_mut().zip(&backwards) {
            *out = f64::from(source[*column]);
        }
    });
    let not_positive = |row: usize| SolveError::NotPositive { column: backwards[row] };
    let factor = Cholesky::new(n, lower).map_err(not_positive)?;
    let feedback = feedback(n, &factor);
    if let Some(at) = gguf_blocks::first_non_finite(&feedback) {
        return Err(SolveError::NotPositive { column: order[at / n] });
    }
    let pivots = (0..n).rev().map(|row| factor.at(row, row).powi(2) as f32).collect();
    Ok((feedback, pivots))
}

/// Computes `M_jk = R_jk / R_kk`, where `R` is the lower factor of the reversed order, read backwards.
fn feedback(n: usize, factor: &Cholesky) -> Vec<f32> {
    let mut feedback = vec![0.0; n * n];
    feedback.par_chunks_mut(n).enumerate().for_each(|(place, out)| {
        let column = n - 1 - place;
        let pivot = factor.at(column, column);
        for (j, out) in out[..place].iter_mut().enumerate() {
            // The factor is mirrored: a column of it is a row.
            *out = (factor.at(column, n - 1 - j) / pivot) as f32;
        }
    });
    feedback
}
