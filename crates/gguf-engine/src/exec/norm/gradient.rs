//! Gradients of norms: with `n` the normalized row and `r` the factor, `dx = r (w dy - mean(w dy) - n mean(w dy n))`,
//! without the first mean for RMS norm, and `dw = dy n`, `db = dy`.

use rayon::prelude::*;

use crate::Result;
use crate::exec::context::Context;
use crate::exec::gradient::Gradients;
use crate::exec::weights::{LoadedNorm, Norm, NormFormula};
use crate::exec::workers::ROWS_PER_TASK;

/// Sums over rows of the gradients of weight and bias.
#[derive(Clone)]
struct NormSums {
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl LoadedNorm {
    /// Replaces the gradient `d` of a normed row by that of the row `x`.
    fn row_gradient(&self, x: &[f32], d: &mut [f32], sums: &mut NormSums) {
        let n = x.len() as f64;
        let mean_of = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(f).sum::<f64>() / n;
        let mean = match self.formula {
            NormFormula::Rms => 0.0,
            NormFormula::Layer => mean_of(&|i| f64::from(x[i])),
        };
        let variance = mean_of(&|i| (f64::from(x[i]) - mean).powi(2));
        let factor = 1.0 / (variance + f64::from(self.eps)).sqrt();
        let normed = |i: usize| (f64::from(x[i]) - mean) * factor;
        let weighted: Vec<f64> = (0..x.len())
            .map(|i| {
                let dy = f64::from(d[i]);
                sums.weight[i] += dy * normed(i);
                sums.bias[i] += dy;
                dy * self.weight.as_ref().map_or(1.0, |weight| f64::from(weight[i]))
            })
            .collect();
        let along = mean_of(&|i| weighted[i] * normed(i));
        let shift = match self.formula {
            NormFormula::Rms => 0.0,
            NormFormula::Layer => mean_of(&|i| weighted[i]),
        };
        for (i, d) in d.iter_mut().enumerate() {
            *d = (factor * (weighted[i] - shift - normed(i) * along)) as f32;
        }
    }
}

impl Context<'_> {
    /// Replaces the gradient `d` of the normed rows by that of the rows `x`, and hands out those of weight and bias.
    pub(crate) fn norm_gradient(
        &self,
        to: &mut dyn Gradients,
        norm: &Norm,
        x: &[f32],
        d: &mut [f32],
        n_cols: usize,
    ) -> Result<()> {
        let loaded = self.weights.norm(norm)?;
        let none = NormSums { weight: vec![0.0; n_cols], bias: vec![0.0; n_cols] };
        let len = ROWS_PER_TASK * n_cols;
        let parts: Vec<NormSums> = self.workers.install(|| {
            let tasks = x.par_chunks(len).zip(d.par_chunks_mut(len));
            let sums = tasks.map(|(x, d)| {
                let mut sums = none.clone();
                x.chunks(n_cols)
                    .zip(d.chunks_mut(n_cols))
                    .for_each(|(x, d)| loaded.row_gradient(x, d, &mut sums));
                sums
            });
            sums.collect()
        });
        // In the order of the rows, so that threads do not matter.
        let total = |of: fn(&NormSums) -> &[f64]| -> Vec<f32> {
            (0..n_cols).map(|at| parts.iter().map(|part| of(part)[at]).sum::<f64>() as f32).collect()
        };
        if let Some(weight) = &norm.weight {
            to.vector(weight, &total(|sums| &sums.weight));
        }
        if let Some(bias) = &norm.bias {
            to.vector(bias, &total(|sums| &sums.bias));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::gradient::differences;
    use crate::testkit::noise::Noise;

    #[test]
    fn gradients_equal_central_differences() {
        const N: usize = 9;
        let [x, w, b, dy] = [1, 2, 3, 4].map(|seed| Noise::new(seed).floats(N));
        for formula in [NormFormula::Rms, NormFormula::Layer] {
            let loss = |at: &[f64]| {
                let (x, rest) = at.split_at(N);
                let (w, b) = rest.split_at(N);
                let mean = if formula == NormFormula::Layer { x.iter().sum::<f64>() / N as f64 } else { 0.0 };
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / N as f64;
                let normed = |i: usize| (x[i] - mean) / (variance + f64::from(1e-3f32)).sqrt() * w[i] + b[i];
                (0..N).map(|i| normed(i) * f64::from(dy[i])).sum()
            };
            let all: Vec<f64> = [&x[..], &w, &b].concat().into_iter().map(f64::from).collect();
            let expected = differences(&all, loss);
            let norm = LoadedNorm { formula, weight: Some(w.clone()), bias: Some(b.clone()), eps: 1e-3 };
            let (mut d, mut sums) = (dy.clone(), NormSums { weight: vec![0.0; N], bias: vec![0.0; N] });
            norm.row_gradient(&x, &mut d, &mut sums);
            let found = d.iter().copied().map(f64::from).chain(sums.weight).chain(sums.bias);
            for (at, (found, expected)) in found.zip(expected).enumerate() {
                assert!((found - expected).abs() < 1e-5, "{formula:?} {at}: {found}, {expected}");
            }
        }
    }
}
