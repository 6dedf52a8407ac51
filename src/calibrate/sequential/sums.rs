//! What the solver asks of the two streams before a matrix.

use rayon::prelude::*;

use crate::engine::{Gram, add_cross};
use crate::solve::{SecondMoments, SolveError};

/// Rows whose scaled copies are alive at once; a multiple of the blocks that sums are made of.
const ROWS: usize = 4096;

/// Rows of both streams before matrices that share them.
pub(super) struct Inputs<'x> {
    /// Of the unquantized stream, `[n_rows, n_cols]`.
    pub(super) x: &'x [f32],
    /// Of the quantized stream.
    pub(super) quantized: &'x [f32],
    pub(super) n_cols: usize,
    /// Weight of each row; their sum is 1.
    pub(super) weights: &'x [f32],
}

/// What the unquantized residual stream has and the quantized one lacks, in units of the matrix's product.
pub(super) struct Lack<'x> {
    /// Of the unquantized stream, `[n_rows, width]`.
    pub(super) x: &'x [f32],
    /// Of the quantized stream.
    pub(super) quantized: &'x [f32],
    pub(super) width: usize,
    /// Factor of the product before it is added.
    pub(super) factor: f32,
}

/// Means over rows.
pub(super) struct Sums {
    /// `Ĥ = X̂ᵀX̂ / N`.
    pub(super) moments: SecondMoments,
    /// `C = (X - X̂)ᵀX̂ / N`, `[n_cols, n_cols]`; `None` if the streams are the same.
    pub(super) cross: Option<Vec<f32>>,
    /// `ΔᵀX̂ / N`, `[width, n_cols]`.
    pub(super) residual: Option<Vec<f32>>,
}

impl Sums {
    /// Adds up rows in their order, in blocks of a fixed size: the same bits for every number of threads.
    pub(super) fn of(inputs: &Inputs<'_>, lack: Option<&Lack<'_>>) -> Result<Self, SolveError> {
        let Inputs { x, quantized, n_cols, weights } = *inputs;
        let is_same = x == quantized && lack.is_none_or(|lack| lack.x == lack.quantized);
        let lack = lack.filter(|_| !is_same);
        let mut gram = Gram::zero(n_cols);
        let mut cross = if is_same { Vec::new() } else { vec![0.0; n_cols * n_cols] };
        let mut residual = lack.map(|lack| vec![0.0; lack.width * n_cols]);
        let (mut scaled, mut others, mut lacks) = (Vec::new(), Vec::new(), Vec::new());
        for first in (0..weights.len()).step_by(ROWS) {
            let rows = first..weights.len().min(first + ROWS);
            let weights = &weights[rows.clone()];
            let part = rows.start * n_cols..rows.end * n_cols;
            weighed(&mut scaled, n_cols, weights, &quantized[part.clone()], None, 1.0);
            gram.add_rows(&scaled);
            if is_same {
                continue;
            }
            weighed(&mut others, n_cols, weights, &x[part.clone()], Some(&quantized[part]), 1.0);
            add_cross(&mut cross, (&others, n_cols), (&scaled, n_cols));
            if let (Some(lack), Some(sums)) = (lack, &mut residual) {
                let part = rows.start * lack.width..rows.end * lack.width;
                let (own, less) = (&lack.x[part.clone()], &lack.quantized[part]);
                weighed(&mut lacks, lack.width, weights, own, Some(less), 1.0 / lack.factor);
                add_cross(sums, (&lacks, lack.width), (&scaled, n_cols));
            }
        }
        let moments = SecondMoments::new(n_cols, weights.len() as u64, lower(&gram))?;
        Ok(Self { moments, cross: (!is_same).then_some(cross), residual })
    }
}

/// The sums with their triangle below the diagonal.
fn lower(gram: &Gram) -> Vec<f32> {
    let n = gram.n_cols();
    let mut values = vec![0.0; n * n];
    for row in 0..n {
        for (at, sum) in gram.row(row).iter().enumerate() {
            values[(row + at) * n + row] = *sum;
        }
    }
    values
}

/// Rows of `x - less` times `factor` and the root of their weight.
fn weighed(out: &mut Vec<f32>, n_cols: usize, weights: &[f32], x: &[f32], less: Option<&[f32]>, factor: f32) {
    out.resize(x.len(), 0.0);
    let rows = out.par_chunks_mut(n_cols.max(1)).zip(x.par_chunks(n_cols.max(1))).zip(weights).enumerate();
    rows.for_each(|(row, ((out, x), weight))| {
        let factor = factor * weight.sqrt();
        match less {
            None => out.iter_mut().zip(x).for_each(|(out, x)| *out = factor * x),
            Some(less) => {
                let less = &less[row * n_cols..];
                let pairs = x.iter().zip(less);
                out.iter_mut().zip(pairs).for_each(|(out, (x, less))| *out = factor * (x - less));
            }
        }
    });
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
        let inputs = Inputs { x: &x, quantized: &quantized, n_cols, weights: &weights };
        let lack = Lack { x: &stream, quantized: &less, width, factor: 0.5 };
        let sums = Sums::of(&inputs, Some(&lack)).unwrap();
        let (cross, residual) = (sums.cross.unwrap(), sums.residual.unwrap());
        let mean = |left: &dyn Fn(usize) -> f32, j: usize| -> f32 {
            let terms = (0..n).map(|row| f64::from(weights[row] * left(row) * quantized[row * n_cols + j]));
            terms.sum::<f64>() as f32
        };
        for j in 0..n_cols {
            for i in 0..n_cols {
                let h = mean(&|row| quantized[row * n_cols + i], j);
                let c = mean(&|row| x[row * n_cols + i] - quantized[row * n_cols + i], j);
                assert!((sums.moments.values()[i * n_cols + j] - h).abs() < 1e-5);
                assert!((cross[i * n_cols + j] - c).abs() < 1e-5);
            }
            for i in 0..width {
                let d = mean(&|row| (stream[row * width + i] - less[row * width + i]) / 0.5, j);
                assert!((residual[i * n_cols + j] - d).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn equal_streams_need_no_correction() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let inputs = Inputs { x: &x, quantized: &x, n_cols: 2, weights: &[0.25, 0.25] };
        let lack = Lack { x: &x, quantized: &x, width: 2, factor: 1.0 };
        let sums = Sums::of(&inputs, Some(&lack)).unwrap();
        assert!(sums.cross.is_none() && sums.residual.is_none());
        assert_eq!(sums.moments.values(), [2.5, 3.5, 3.5, 5.0]);
        let other = Lack { quantized: &[0.0; 4], ..lack };
        let sums = Sums::of(&inputs, Some(&other)).unwrap();
        assert_eq!(sums.cross.unwrap(), [0.0; 4]);
        assert_eq!(sums.residual.unwrap(), [2.5, 3.5, 3.5, 5.0]);
    }
}
