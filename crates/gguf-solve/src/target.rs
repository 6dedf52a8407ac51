//! Correction of weights for changed inputs: earlier tensors are quantized already.

use rayon::prelude::*;

use gguf_matmul::{MatrixTile, MatrixView, ordered_multiply};

use crate::cholesky::Cholesky;
use crate::moments::{check_matrix, check_option};
use crate::panel::LANES;
use crate::{SecondMoments, SolveError};

/// Fraction of λ, in units of the mean square, that is added to every column.
const DAMPING: f32 = 1e-3;

/// Corrects weights for changed inputs: `W* = W + L A⁻¹`, `L = (W (X - X̂)ᵀ + Δᵀ) X̂ / N`, which minimizes
/// `‖(residual + X Wᵀ) - (residual^ + X̂ W*ᵀ)‖² + λ · (pull to W)`. `Δ` is the F32 stream minus the quantized one,
/// before the layer's product is added. It is zero for layers whose product is not added.
pub struct Correction {
    n_cols: usize,
    /// `A = Ĥ + λ · diag(Ĥ) + 1e-3 λ · mean(diag Ĥ) · I`.
    factor: Cholesky,
}

impl Correction {
    /// Factors the moments `Ĥ` of the quantized stream's inputs `X̂`. λ is the pull towards the present weights, in
    /// units of the moments' diagonal. Takes `8 n_cols²` bytes.
    ///
    /// # Errors
    /// [`SolveError`]: λ that is negative or not finite, moments that cannot be factored (all zero, or with λ = 0 fewer
    /// tokens than columns).
    pub fn new(moments: &SecondMoments, lambda: f32) -> Result<Self, SolveError> {
        check_option("lambda", lambda)?;
        let matrix = moments.regularized(lambda, DAMPING * lambda);
        let matrix = matrix.iter().map(|value| f64::from(*value)).collect();
        let n_cols = moments.n_cols();
        let factor = Cholesky::new(n_cols, matrix).map_err(|column| SolveError::NotPositive { column })?;
        Ok(Self { n_cols, factor })
    }

    /// Computes the correction of layers that share their inputs and have no `Δ`: their weights are multiplied with
    /// `C A⁻¹`.
    ///
    /// # Shapes
    /// `cross` is `C = (X - X̂)ᵀX̂ / N`, `[n_cols, n_cols]`: row `i` belongs to column `i` of the difference.
    ///
    /// # Errors
    /// [`SolveError`]: lengths that do not fit, values that are not finite.
    pub fn of_inputs(&self, mut cross: Vec<f32>) -> Result<InputCorrection, SolveError> {
        let n = self.n_cols;
        check_matrix("cross moments", n, n, cross.len())?;
        check_finite("cross moments", n, &cross)?;
        cross.par_chunks_mut(LANES * n).for_each(|rows| self.solve_panel(rows));
        Ok(InputCorrection { n_cols: n, change: cross })
    }

    /// Replaces weights, `[n_rows, n_cols]`, by their corrected targets; `lost` is `L`, of the same shape.
    ///
    /// # Exactness
    /// As for [`crate::solve_rows`]; solved in F64.
    ///
    /// # Errors
    /// [`SolveError`]: lengths that do not fit, values that are not finite, before or after.
    pub fn apply(&self, w: &mut [f32], lost: &[f32]) -> Result<(), SolveError> {
        let n = self.n_cols;
        check_matrix("weights of whole rows", w.len() / n, n, w.len())?;
        check_finite("weights", n, w)?;
        check_matrix("what outputs lost", w.len() / n, n, lost.len())?;
        check_finite("what outputs lost", n, lost)?;
        w.par_chunks_mut(LANES * n).zip(lost.par_chunks(LANES * n)).for_each(|(w, lost)| {
            let mut change = lost.to_vec();
            self.solve_panel(&mut change);
            w.iter_mut().zip(change).for_each(|(w, change)| *w += change);
        });
        check_finite("corrected weights", n, w)
    }

    /// Computes `X = B A⁻¹` in place, for up to [`LANES`] rows.
    fn solve_panel(&self, rows: &mut [f32]) {
        let n = self.n_cols;
        // A row is a lane; unused lanes keep the products the same for every number of rows.
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

/// Form of [`Correction`] for layers that share their inputs.
pub struct InputCorrection {
    n_cols: usize,
    /// Matrix `C A⁻¹`.
    change: Vec<f32>,
}

impl InputCorrection {
    /// Replaces weights, `[n_rows, n_cols]`, by their corrected targets.
    pub fn apply(&self, w: &mut [f32]) -> Result<(), SolveError> {
        let n = self.n_cols;
        check_matrix("weights of whole rows", w.len() / n, n, w.len())?;
        check_finite("weights", n, w)?;
        let change = MatrixView::new(&self.change, n, n, n);
        w.par_chunks_mut(LANES * n).for_each(|w| {
            let n_rows = w.len() / n;
            let mut changes = vec![0.0; w.len()];
            let rows = MatrixView::new(w, n_rows, n, n);
            ordered_multiply(&mut MatrixTile::whole(&mut changes, n_rows, n), rows, change, 1.0);
            w.iter_mut().zip(changes).for_each(|(w, change)| *w += change);
        });
        check_finite("corrected weights", n, w)
    }
}

fn check_finite(what: &'static str, n_cols: usize, values: &[f32]) -> Result<(), SolveError> {
    match gguf_blocks::first_non_finite(values) {
        Some(at) => Err(SolveError::NotFinite { what, row: at / n_cols, column: at % n_cols }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::samples::{correlated, invert};

    #[test]
    fn targets_are_those_of_the_formula_in_both_ways() {
        let (n, n_rows) = (150, LANES + 2);
        let moments = SecondMoments::new(n, 500, correlated(n, 500, 1)).unwrap();
        let mut noise = Noise::new(2);
        let mut random =
            |len: usize, size: f32| -> Vec<f32> { (0..len).map(|_| size * noise.normal()).collect() };
        let (w, cross, outputs) = (random(n_rows * n, 0.02), random(n * n, 0.05), random(n_rows * n, 0.01));
        let lambda = 0.7;
        let mut inverse: Vec<f64> =
            moments.regularized(lambda, 1e-3 * lambda).iter().map(|value| f64::from(*value)).collect();
        invert(n, &mut inverse);
        let correction = Correction::new(&moments, lambda).unwrap();
        let by_inputs = correction.of_inputs(cross.clone()).unwrap();
        for is_output in [false, true] {
            let mut found = w.clone();
            if is_output {
                correction.apply(&mut found, &outputs).unwrap();
            } else {
                by_inputs.apply(&mut found).unwrap();
            }
            for row in [0, 1, LANES - 1, LANES, n_rows - 1] {
                let product = |column: usize| -> f64 {
                    (0..n).map(|k| f64::from(w[row * n + k]) * f64::from(cross[k * n + column])).sum()
                };
                let output = |column: usize| f64::from(outputs[row * n + column]);
                let lost: Vec<f64> =
                    (0..n).map(|column| if is_output { output(column) } else { product(column) }).collect();
                for column in 0..n {
                    let change: f64 = (0..n).map(|k| lost[k] * inverse[k * n + column]).sum();
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
        let correction = Correction::new(&moments, 1.0).unwrap();
        let w: Vec<f32> = (0..3 * n).map(|i| i as f32).collect();
        let mut found = w.clone();
        correction.apply(&mut found, &vec![0.0; 3 * n]).unwrap();
        correction.of_inputs(vec![0.0; n * n]).unwrap().apply(&mut found).unwrap();
        assert_eq!(found, w);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let n = 64;
        let moments = SecondMoments::new(n, 200, correlated(n, 200, 1)).unwrap();
        assert!(matches!(Correction::new(&moments, -1.0), Err(SolveError::Option { .. })));
        let correction = Correction::new(&moments, 1.0).unwrap();
        let mut cross = vec![0.0; n * n];
        assert!(correction.of_inputs(cross[1..].to_vec()).is_err());
        let by_inputs = correction.of_inputs(cross.clone()).unwrap();
        assert!(by_inputs.apply(&mut vec![0.0; n + 1]).is_err());
        assert!(correction.apply(&mut vec![0.0; n], &[0.0; 3]).is_err());
        let error = by_inputs.apply(&mut vec![f32::NAN; n]).unwrap_err();
        assert_eq!(error, SolveError::NotFinite { what: "weights", row: 0, column: 0 });
        cross[n + 5] = f32::INFINITY;
        let error = correction.of_inputs(cross).err();
        assert_eq!(error, Some(SolveError::NotFinite { what: "cross moments", row: 1, column: 5 }));
        let mut lost = vec![0.0; 2 * n];
        lost[n] = f32::NAN;
        let error = correction.apply(&mut vec![0.0; 2 * n], &lost).unwrap_err();
        assert_eq!(error, SolveError::NotFinite { what: "what outputs lost", row: 1, column: 0 });
        let nothing = SecondMoments::new(2, 0, vec![0.0; 4]).unwrap();
        assert!(matches!(Correction::new(&nothing, 1.0).err(), Some(SolveError::NotPositive { .. })));
    }
}
