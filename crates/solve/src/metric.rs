//! Second moments made ready to solve with: regularized, ordered, factored.

use std::ops::Range;

use gguf_matmul::MatrixView;
use rayon::prelude::*;

use crate::cholesky::Cholesky;
use crate::moments::check_option;
use crate::{SecondMoments, SolveError};

/// Shrinkage for text of several kinds; 1 suits text of one kind.
pub const SHRINKAGE: f32 = 0.6;

/// Shrinkage for moments of a quantized stream, with corrected targets.
pub const SHRINKAGE_OF_STREAM: f32 = 0.5;

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
}

impl Metric {
    /// Regularizes and factors moments. Takes `n_cols³ / 3` operations in F64, on the threads of the current pool, and
    /// `16 n_cols²` bytes, of which half are kept.
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
        drop(factor);
        if let Some(at) = gguf_quant::first_non_finite(&feedback) {
            return Err(SolveError::NotPositive { column: order[at / n] });
        }
        Ok(Self { n_cols: n, moments, order, feedback })
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
