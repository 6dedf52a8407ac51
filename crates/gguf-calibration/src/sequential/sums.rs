//! Sums over both streams that the solver needs for a matrix.

use rayon::prelude::*;

use gguf_engine::{Gram, Strips, add_cross};
use gguf_solve::{SecondMoments, SolveError};

/// Number of rows whose scaled copies exist at once; a multiple of the blocks that sums are made of.
pub(super) const ROWS: usize = 4096;

/// Rows of both streams that matrices share as their input.
pub(crate) struct StreamInputs<'x> {
    /// Rows of the unquantized stream, `[n_rows, n_cols]`.
    pub(crate) x: &'x [f32],
    /// Rows of the quantized stream, `[n_rows, n_cols]`.
    pub(crate) quantized: &'x [f32],
    pub(crate) n_cols: usize,
    /// Weight of each row; their sum is 1.
    pub(crate) weights: &'x [f32],
}

/// Residual streams of both runs where a matrix's product is added; the quantized one lacks their difference.
pub(crate) struct ResidualGap<'x> {
    /// Rows of the unquantized stream, `[n_rows, width]`.
    pub(crate) x: &'x [f32],
    /// Rows of the quantized stream, `[n_rows, width]`.
    pub(crate) quantized: &'x [f32],
    pub(crate) width: usize,
    /// Factor of the product before it is added.
    pub(crate) factor: f32,
    /// Matrix, `[width, n_cols]`.
    pub(crate) matrix: &'x [f32],
}

/// Error of the earlier quantization that the weights must compensate.
pub(crate) enum Compensation {
    /// No error: both streams are equal.
    Nothing,
    /// `C = (X - X̂)ᵀX̂ / N`, `[n_cols, n_cols]`.
    Inputs(Vec<f32>),
    /// `(W (X - X̂)ᵀ + Δᵀ) X̂ / N`, `[width, n_cols]`, of a matrix whose product is added to the residual stream.
    ///
    /// Computed from the matrix's outputs, this takes `4 · width · n_cols` operations per token. `W C + ΔᵀX̂ / N` would
    /// take `2 n_cols² + 2 · width · n_cols`.
    Outputs(Vec<f32>),
}

/// Means over rows.
pub(crate) struct SolverSums {
    /// `Ĥ = X̂ᵀX̂ / N`.
    pub(crate) moments: SecondMoments,
    pub(crate) compensation: Compensation,
}

impl SolverSums {
    /// Sums up rows in order, in blocks of a fixed size, which gives the same bits for every number of threads.
    pub(crate) fn of(inputs: &StreamInputs<'_>, gap: Option<&ResidualGap<'_>>) -> Result<Self, SolveError> {
        let StreamInputs { x, quantized, n_cols, weights } = *inputs;
        let is_same = x == quantized && gap.is_none_or(|gap| gap.x == gap.quantized);
        let height = gap.map_or(n_cols, |gap| gap.width);
        let mut compensation = if is_same { Vec::new() } else { vec![0.0; height * n_cols] };
        let gap = gap.filter(|_| !is_same).map(|gap| (gap, transposed(gap, n_cols)));
        let mut gram = Gram::zero(n_cols);
        let (mut scaled, mut others, mut gaps) = <(Strips, Strips, Strips)>::default();
        for first in (0..weights.len()).step_by(ROWS) {
            let n_rows = ROWS.min(weights.len() - first);
            let weight = |row: usize| weights[first + row].sqrt();
            scaled.fill(n_rows, n_cols, |row, columns, out| {
                let x = &quantized[(first + row) * n_cols..][columns];
                out.iter_mut().zip(x).for_each(|(out, x)| *out = weight(row) * x);
            });
            gram.add_strips(&scaled);
            if is_same {
                continue;
            }
            others.fill(n_rows, n_cols, |row, columns, out| {
                let start = (first + row) * n_cols;
                differ(out, weight(row), &x[start..][columns.clone()], &quantized[start..][columns]);
            });
            let Some((gap, matrix)) = &gap else {
                add_cross(&mut compensation, &others, &scaled);
                continue;
            };
            gaps.fill(n_rows, gap.width, |row, columns, out| {
                let start = (first + row) * gap.width;
                let (own, less) = (&gap.x[start..][columns.clone()], &gap.quantized[start..][columns]);
                differ(out, weight(row) / gap.factor, own, less);
            });
            gaps.add_product(&others, matrix);
            add_cross(&mut compensation, &gaps, &scaled);
        }
        let moments = SecondMoments::new(n_cols, weights.len() as u64, lower(&gram, n_cols))?;
        let compensation = match (is_same, gap) {
            (true, _) => Compensation::Nothing,
            (false, None) => Compensation::Inputs(compensation),
            (false, Some(_)) => Compensation::Outputs(compensation),
        };
        Ok(Self { moments, compensation })
    }
}

fn differ(out: &mut [f32], factor: f32, own: &[f32], less: &[f32]) {
    for (out, (own, less)) in out.iter_mut().zip(own.iter().zip(less)) {
        *out = factor * (own - less);
    }
}

/// Transpose of a matrix, `[n_cols, width]`.
fn transposed(gap: &ResidualGap<'_>, n_cols: usize) -> Strips {
    let mut strips = Strips::default();
    strips.fill(n_cols, gap.width, |column, rows, out| {
        for (out, row) in out.iter_mut().zip(rows) {
            *out = gap.matrix[row * n_cols + column];
        }
    });
    strips
}

/// Square matrix with the lower triangle filled from the sums.
fn lower(gram: &Gram, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n * n];
    values.par_chunks_mut(n.max(1)).enumerate().for_each(|(row, values)| {
        for (column, value) in values[..=row].iter_mut().enumerate() {
            *value = gram.row(column)[row - column];
        }
    });
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_means_of_the_formulas() {
        let (n, n_cols, width) = (ROWS + 3, 5, 3);
        let value = |i: usize, seed: usize| ((i * 7919 + seed * 104_729) % 17) as f32 / 8.0 - 1.0;
        let make = |len: usize, seed| (0..len).map(|i| value(i, seed)).collect::<Vec<f32>>();
        let (x, quantized) = (make(n * n_cols, 1), make(n * n_cols, 2));
        let (stream, less) = (make(n * width, 3), make(n * width, 4));
        let weights: Vec<f32> =
            (0..n).map(|row| if row < 100 { 0.005 } else { 0.5 / (n - 100) as f32 }).collect();
        let inputs = StreamInputs { x: &x, quantized: &quantized, n_cols, weights: &weights };
        let matrix = make(width * n_cols, 5);
        let gap = ResidualGap { x: &stream, quantized: &less, width, factor: 0.5, matrix: &matrix };
        let sums = [SolverSums::of(&inputs, None).unwrap(), SolverSums::of(&inputs, Some(&gap)).unwrap()];
        let [Compensation::Inputs(cross), Compensation::Outputs(compensation)] =
            [&sums[0].compensation, &sums[1].compensation]
        else {
            panic!("streams that differ lose something")
        };
        assert_eq!(sums[0].moments.values(), sums[1].moments.values());
        let mean = |left: &dyn Fn(usize) -> f32, j: usize| -> f32 {
            let terms = (0..n).map(|row| f64::from(weights[row] * left(row) * quantized[row * n_cols + j]));
            terms.sum::<f64>() as f32
        };
        let differ = |row: usize, i: usize| x[row * n_cols + i] - quantized[row * n_cols + i];
        for j in 0..n_cols {
            for i in 0..n_cols {
                let h = mean(&|row| quantized[row * n_cols + i], j);
                let c = mean(&|row| differ(row, i), j);
                assert!((sums[0].moments.values()[i * n_cols + j] - h).abs() < 1e-5);
                assert!((cross[i * n_cols + j] - c).abs() < 1e-5);
            }
            for i in 0..width {
                let output = |row: usize| -> f32 {
                    (0..n_cols).map(|k| matrix[i * n_cols + k] * differ(row, k)).sum()
                };
                let gap = |row: usize| (stream[row * width + i] - less[row * width + i]) / 0.5;
                let wanted = mean(&|row| output(row) + gap(row), j);
                assert!((compensation[i * n_cols + j] - wanted).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn equal_streams_need_no_correction() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let inputs = StreamInputs { x: &x, quantized: &x, n_cols: 2, weights: &[0.25, 0.25] };
        let gap = ResidualGap { x: &x, quantized: &x, width: 2, factor: 1.0, matrix: &[1.0; 4] };
        let sums = SolverSums::of(&inputs, Some(&gap)).unwrap();
        assert!(matches!(sums.compensation, Compensation::Nothing));
        assert_eq!(sums.moments.values(), [2.5, 3.5, 3.5, 5.0]);
        let other = ResidualGap { quantized: &[0.0; 4], ..gap };
        let Compensation::Outputs(compensation) = SolverSums::of(&inputs, Some(&other)).unwrap().compensation
        else {
            panic!("the residual streams differ")
        };
        assert_eq!(compensation, [2.5, 3.5, 3.5, 5.0]);
    }
}
