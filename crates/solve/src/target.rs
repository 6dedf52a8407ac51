//! Weights for inputs that are no longer what they were: earlier tensors are quantized already.

use std::sync::OnceLock;

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
    /// `C A⁻¹`, for layers without a residual: one product in place of two triangular systems.
    without_residual: OnceLock<Vec<f32>>,
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
        Ok(Self { n_cols: n, factor, cross, without_residual: OnceLock::new(), rho: options.rho })
    }

    /// Replaces weights by their corrected targets.
    ///
    /// # Shapes
    /// `w` is `[n_rows, n_cols]`; so is `residual`, `ΔᵀX̂ / N`, given where the layer's output is added to the residual
    /// stream: `Δ` is what the F32 stream has and the quantized one lacks, `[N, n_rows]`.
    ///
    /// # Exactness
    /// As that of [`crate::solve_rows`]; solved in F64. The first call without a residual takes `4 n_cols²` bytes, which
    /// later calls use.
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
        let cross = match residual {
            Some(_) => self.cross,
            None => self.without_residual.get_or_init(|| {
                let mut solved = self.cross.to_vec();
                self.solve_rows(&mut solved);
                solved
            }),
        };
        let cross = MatrixView::new(cross, n, n, n);
        w.par_chunks_mut(LANES * n).enumerate().for_each(|(index, w)| {
            let n_rows = w.len() / n;
            let mut change = vec![0.0; w.len()];
            let rows = MatrixView::new(w, n_rows, n, n);
            ordered_multiply(&mut MatrixTile::whole(&mut change, n_rows, n), rows, cross, 1.0);
            if let Some(residual) = residual {
                for (change, residual) in change.iter_mut().zip(&residual[index * LANES * n..]) {
                    *change += self.rho * residual;
                }
                self.solve_panel(&mut change);
            }
            for (w, change) in w.iter_mut().zip(change) {
                *w += change;
            }
        });
        check_finite("corrected weights", n, w)
    }

    /// `X = B A⁻¹` in place, `[n_rows, n_cols]`.
    fn solve_rows(&self, rows: &mut [f32]) {
        rows.par_chunks_mut(LANES * self.n_cols).for_each(|rows| self.solve_panel(rows));
    }

    /// The same for up to [`LANES`] rows.
    fn solve_panel(&self, rows: &mut [f32]) {
        let n = self.n_cols;
        // A row is a lane; lanes without a row keep the products the same for every number of rows.
        let mut lanes = vec![0.0f64; n * LANES];
        for (row, values) in rows.chunks(n).enumerate() {
            for (lanes, value) in lanes.chunks_mut(LANES).zip(values) {
                lanes[row] = f64::from(*value);
            }
        }
        self.factor.solve(LANES, &mut lanes);
        for (row, values) in rows.chunks_mut(n).enumerate() {
            for (value, lanes) in values.iter_mut().zip(lanes.chunks(LANES)) {
                *value = lanes[row] as f32;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Noise, correlated, invert};

    #[test]
    fn targets_are_those_of_the_formula_in_both_ways() {
        let (n, n_rows) = (150, LANES + 2);
        let moments = SecondMoments::new(n, 500, correlated(n, 500, 1)).unwrap();
        let mut noise = Noise(2);
        let mut random =
            |len: usize, size: f32| -> Vec<f32> { (0..len).map(|_| size * noise.bell()).collect() };
        let (w, cross, residual) = (random(n_rows * n, 0.02), random(n * n, 0.05), random(n_rows * n, 0.01));
        let (lambda, rho) = (0.7, 0.9);
        let mut inverse: Vec<f64> =
            moments.regularized(lambda, 1e-3 * lambda).iter().map(|value| f64::from(*value)).collect();
        invert(n, &mut inverse);
        let correction = Correction::new(&moments, &cross, TargetOptions { lambda, rho }).unwrap();
        for residual in [None, Some(&residual[..])] {
            let mut found = w.clone();
            correction.apply(&mut found, residual).unwrap();
            for row in [0, 1, LANES - 1, LANES, n_rows - 1] {
                let wanted: Vec<f64> = (0..n)
                    .map(|column| {
                        let dot: f64 = (0..n)
                            .map(|k| f64::from(w[row * n + k]) * f64::from(cross[k * n + column]))
                            .sum();
                        let more = residual.map_or(0.0, |residual| f64::from(residual[row * n + column]));
                        dot + f64::from(rho) * more
                    })
                    .collect();
                for column in 0..n {
                    let change: f64 = (0..n).map(|k| wanted[k] * inverse[k * n + column]).sum();
                    let want = f64::from(w[row * n + column]) + change;
                    let found = f64::from(found[row * n + column]);
                    assert!(
                        (found - want).abs() < 1e-5 * (1.0 + want.abs()),
                        "{row}, {column}: {found}, {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn nothing_lost_changes_nothing() {
        let n = 64;
        let moments = SecondMoments::new(n, 200, correlated(n, 200, 1)).unwrap();
        let cross = vec![0.0; n * n];
        let correction = Correction::new(&moments, &cross, TargetOptions::default()).unwrap();
        let w: Vec<f32> = (0..3 * n).map(|i| i as f32).collect();
        for residual in [None, Some(vec![0.0; 3 * n])] {
            let mut found = w.clone();
            correction.apply(&mut found, residual.as_deref()).unwrap();
            assert_eq!(found, w);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let n = 64;
        let moments = SecondMoments::new(n, 200, correlated(n, 200, 1)).unwrap();
        let mut cross = vec![0.0; n * n];
        let options = TargetOptions::default();
        assert!(Correction::new(&moments, &cross[1..], options).is_err());
        let bad = TargetOptions { lambda: -1.0, rho: 1.0 };
        assert!(matches!(Correction::new(&moments, &cross, bad), Err(SolveError::Option { .. })));
        {
            let correction = Correction::new(&moments, &cross, options).unwrap();
            assert!(correction.apply(&mut vec![0.0; n + 1], None).is_err());
            assert!(correction.apply(&mut vec![0.0; n], Some(&[0.0; 3])).is_err());
            let error = correction.apply(&mut vec![f32::NAN; n], None).unwrap_err();
            assert_eq!(error, SolveError::NotFinite { what: "weights", row: 0, column: 0 });
        }
        cross[n + 5] = f32::INFINITY;
        let error = Correction::new(&moments, &cross, options).err();
        assert_eq!(error, Some(SolveError::NotFinite { what: "cross moments", row: 1, column: 5 }));
        let nothing = SecondMoments::new(2, 0, vec![0.0; 4]).unwrap();
        let error = Correction::new(&nothing, &[0.0; 4], options).err();
        assert!(matches!(error, Some(SolveError::NotPositive { .. })));
    }
}
