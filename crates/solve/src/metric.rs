//! Second moments made ready to solve with: regularized, ordered, factored.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::OnceLock;

use gguf_matmul::MatrixView;
use rayon::prelude::*;

use crate::cholesky::Cholesky;
use crate::grid::{UNIT, UnitMetric};
use crate::moments::check_option;
use crate::{SecondMoments, SolveError};

/// Shrinkage for text of several kinds; 1 suits text of one kind.
pub const SHRINKAGE: f32 = 0.6;

/// Shrinkage for moments of a quantized stream, with corrected targets. On text like the calibration less would do as well;
/// on other text this leaves clearly less of the divergence.
pub const SHRINKAGE_OF_STREAM: f32 = 0.8;

/// Share of the mean square of all columns that every column is given.
const DAMPING: f32 = 1e-4;

/// What the errors of a row are measured by: `e H_r eᵀ`, with how an error in one column is made good in those that are
/// rounded after it.
///
/// `H_r = H + s · diag(H) + 1e-4 · mean(diag H) · I`. Columns are rounded in the order of falling `diag(H)`. With that order
/// `H_r = M D Mᵀ`, `M` upper triangular with ones on the diagonal; an error `e_j` then asks for `e_j M_jk` more in a later
/// column `k`. These are the coefficients that GPTQ finds in the Cholesky factor of the inverse, without inverting.
pub struct Metric {
    n_cols: usize,
    moments: Vec<f32>,
    order: Vec<usize>,
    /// `[n_cols, n_cols]` by places in the order: row `k` holds `M_jk` for every `j` before `k`.
    feedback: Vec<f32>,
    /// The same by units, for types that need it.
    of_units: OnceLock<Result<UnitFactor, SolveError>>,
}

/// The factor of `H_r = M D Mᵀ` for whole units of columns in the order of falling sums of `diag(H_r)`.
pub(crate) struct UnitFactor {
    /// Columns by place: those of a unit one after the other.
    pub order: Vec<usize>,
    /// As [`Metric`]'s.
    feedback: Vec<f32>,
    /// The diagonal of `D`, by place.
    pivots: Vec<f32>,
}

impl UnitFactor {
    /// Rows of coefficients, by places in the order.
    pub(crate) fn feedback(&self, places: Range<usize>) -> MatrixView<'_> {
        let n = self.order.len();
        MatrixView::new(&self.feedback, n, n, n).rows(places)
    }

    /// `M_gg D_g M_ggᵀ`: what the unit at a place is measured by while those after it are still to be chosen.
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
    /// `16 n_cols²` bytes, of which half are kept. The first rows of a type on a code book cost as many operations again, and
    /// `12 n_cols²` bytes, of which a third is kept.
    ///
    /// # Errors
    /// [`SolveError::NotPositive`] where the moments say nothing (all zero) or are no moments; the importance matrix is
    /// then what is left. [`SolveError::Option`] for a shrinkage that is negative or not finite.
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

    /// Columns of the layer.
    #[must_use]
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The columns in the order in which they are rounded.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The factor by units, made when it is first asked for. The columns are whole units.
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

    /// Rows of `H_r`.
    pub(crate) fn rows(&self, range: Range<usize>) -> MatrixView<'_> {
        MatrixView::new(&self.moments, self.n_cols, self.n_cols, self.n_cols).rows(range)
    }

    /// Part of a row of `H_r`.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, columns: Range<usize>) -> &[f32] {
        &self.moments[row * self.n_cols..][columns]
    }

    /// Rows of coefficients, by places in the order.
    pub(crate) fn feedback(&self, places: Range<usize>) -> MatrixView<'_> {
        MatrixView::new(&self.feedback, self.n_cols, self.n_cols, self.n_cols).rows(places)
    }
}

/// `M` by rows of places, and `D`.
fn factored(moments: &[f32], order: &[usize]) -> Result<(Vec<f32>, Vec<f32>), SolveError> {
    let n = order.len();
    // The last column first: the factor of this order, read backwards, is `M`.
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
    if let Some(at) = gguf_quant::first_non_finite(&feedback) {
        return Err(SolveError::NotPositive { column: order[at / n] });
    }
    let pivots = (0..n).rev().map(|row| factor.at(row, row).powi(2) as f32).collect();
    Ok((feedback, pivots))
}

/// `M_jk = R_jk / R_kk` for `R`, the lower factor of the order backwards, itself read backwards.
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
