//! Weights for inputs that are no longer what they were: earlier tensors are quantized already.

use rayon::prelude::*;

use gguf_matmul::{MatrixTile, MatrixView, ordered_multiply};

use crate::cholesky::Cholesky;
use crate::moments::{check_matrix, check_option};
use crate::panel::LANES;
use crate::{SecondMoments, SolveError};

/// How strongly corrected targets are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetOptions {
    /// Pull towards the weights as they are, in units of the second moments' diagonal.
    pub lambda: f32,
    /// Share of the residual's error that is made good.
    pub rho: f32,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self { lambda: 1.0, rho: 1.0 }
    }
}

/// Share of λ, in units of the mean square, that every column is given.
const DAMPING: f32 = 1e-3;

/// Corrects the weights of layers that share their inputs: `W* = W + (W C + ρ ΔᵀX̂ / N) A⁻¹`, which minimizes
/// `‖(residual + X Wᵀ) - (residual^ + X̂ W*ᵀ)‖² + λ · (pull to W)`.
pub struct Correction<'a> {
    n_cols: usize,
    /// `A = Ĥ + λ · diag(Ĥ) + 1e-3 λ · mean(diag Ĥ) · I`.
    factor: Cholesky,
    cross: &'a [f32],
    rho: f32,
}

impl<'a> Correction<'a> {
    /// Factors the moments `Ĥ` of the quantized stream's inputs `X̂`. Takes `8 n_cols²` bytes.
    ///
    /// # Shapes
    /// `cross` is `C = (X - X̂)ᵀX̂ / N`, `[n_cols, n_cols]`: row `i` belongs to column `i` of the difference.
    ///
    /// # Errors
    /// [`SolveError`]: lengths that do not fit, values that are not finite, moments that cannot be factored (all zero, or
    /// with λ = 0 fewer tokens than columns).
    pub fn new(
        moments: &SecondMoments,
        cross: &'a [f32],
        options: TargetOptions,
    ) -> Result<Self, SolveError> {
        check_option("lambda", options.lambda)?;
        check_option("rho", options.rho)?;
        let n = moments.n_cols();
        check_matrix("cross moments", n, n, cross.len())?;
        check_finite("cross moments", n, cross)?;
        let matrix = moments.regularized(options.lambda, DAMPING * options.lambda);
        let matrix = matrix.iter().map(|value| f64::from(*value)).collect();
        let factor = Cholesky::new(n, matrix).map_err(|column| SolveError::NotPositive { column })?;
        Ok(Self { n_cols: n, factor, cross, rho: options.rho })
    }

    /// Replaces weights by their corrected targets.
    ///
    /// # Shapes
    /// `w` is `[n_rows, n_cols]`; so is `residual`, `ΔᵀX̂ / N`, given where the layer's output is added to the residual
    /// stream: `Δ` is what the F32 stream has and the quantized one lacks, `[N, n_rows]`.
    ///
    /// # Exactness
    /// As that of [`crate::solve_rows`]; solved in F64.
    ///
    /// # Errors
    /// [`SolveError`]: lengths that do not fit, values that are not finite, before or after.
    pub fn apply(&self, w: &mut [f32], residual: Option<&[f32]>) -> Result<(), SolveError> {
        let n = self.n_cols;
        check_matrix("weights of whole rows", w.len() / n, n, w.len())?;
        check_finite("weights", n, w)?;
        if let Some(residual) = residual {
            check_matrix("residual's moments", w.len() / n, n, residual.len())?;
            check_finite("residual's moments", n, residual)?;
        }
        w.par_chunks_mut(LANES * n).enumerate().for_each(|(index, w)| {
            let residual = residual.map(|residual| &residual[index * LANES * n..][..w.len()]);
            self.apply_panel(w, residual);
        });
        check_finite("corrected weights", n, w)
    }

    fn apply_panel(&self, w: &mut [f32], residual: Option<&[f32]>) {
        let (n, n_rows) = (self.n_cols, w.len() / self.n_cols);
        let mut wanted = vec![0.0; w.len()];
        let (left, right) = (MatrixView::new(w, n_rows, n, n), MatrixView::new(self.cross, n, n, n));
        ordered_multiply(&mut MatrixTile::whole(&mut wanted, n_rows, n), left, right, 1.0);
        // A row is a lane; lanes without a row keep the products the same for every number of rows.
        let mut lanes = vec![0.0f64; n * LANES];
        for (row, values) in wanted.chunks(n).enumerate() {
            for (column, value) in values.iter().enumerate() {
                let more = residual.map_or(0.0, |residual| f64::from(residual[row * n + column]));
                lanes[column * LANES + row] = f64::from(*value) + f64::from(self.rho) * more;
            }
        }
        self.factor.solve(LANES, &mut lanes);
        for (row, w) in w.chunks_mut(n).enumerate() {
            for (w, lanes) in w.iter_mut().zip(lanes.chunks(LANES)) {
                *w = (f64::from(*w) + lanes[row]) as f32;
            }
        }
    }
}

fn check_finite(what: &'static str, n_cols: usize, values: &[f32]) -> Result<(), SolveError> {
    match gguf_quant::first_non_finite(values) {
        Some(at) => Err(SolveError::NotFinite { what, row: at / n_cols, column: at % n_cols }),
        None => Ok(()),
    }
}
