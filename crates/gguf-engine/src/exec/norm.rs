//! Norms of rows: RMS norm and layer norm.

mod gradient;

use rayon::prelude::*;

use crate::Result;
use crate::exec::context::Context;
use crate::exec::math::{self, AffineMap};
use crate::exec::timings::WorkKind;
use crate::exec::weights::{LoadedNorm, Norm, NormFormula};
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use gguf_core::simd::SimdLevel;

impl LoadedNorm {
    /// Normalizes one row into `out`, with `weight` and `bias` of the row's width.
    ///
    /// Statistics are summed in f64 (layer norm in two passes). The factor is rounded to f32 once, and the products are
    /// evaluated in the order `(x * factor) * weight`.
    fn row_with(
        &self,
        level: SimdLevel,
        x: &[f32],
        out: &mut [f32],
        weight: Option<&[f32]>,
        bias: Option<&[f32]>,
    ) {
        let n = x.len() as f64;
        let (shift, variance) = match self.formula {
            NormFormula::Rms => (0.0, math::moments(level, x, 0.0).1 / n),
            NormFormula::Layer => {
                let mean = math::moments(level, x, 0.0).0 / n;
                (mean, math::moments(level, x, mean).1 / n)
            }
        };
        let factor = 1.0 / (variance + f64::from(self.eps)).sqrt();
        let map = AffineMap { shift: shift as f32, scale: factor as f32, weight, bias };
        math::affine(level, map, x, out);
    }

    pub(crate) fn row(&self, level: SimdLevel, x: &[f32], out: &mut [f32]) {
        self.row_with(level, x, out, self.weight.as_deref(), self.bias.as_deref());
    }

    /// Normalizes one head in place, then multiplies it by element `head` of the weight.
    pub(crate) fn scaled(&self, level: SimdLevel, x: &mut [f32], head: usize, scratch: &mut Vec<f32>) {
        scratch.clear();
        scratch.extend_from_slice(x);
        self.row_with(level, scratch, x, None, None);
        let factor = self.weight.as_ref().and_then(|weight| weight.get(head)).copied().unwrap_or(1.0);
        for x in x.iter_mut() {
            *x *= factor;
        }
    }

    /// Normalizes one head in place, with row `head` of the weight.
    pub(crate) fn head(&self, level: SimdLevel, x: &mut [f32], head: usize, scratch: &mut Vec<f32>) {
        scratch.clear();
        scratch.extend_from_slice(x);
        let part = |v: &Option<Vec<f32>>| v.as_ref().map(|v| v[head * x.len()..][..x.len()].to_vec());
        let (weight, bias) = (part(&self.weight), part(&self.bias));
        self.row_with(level, scratch, x, weight.as_deref(), bias.as_deref());
    }
}

impl Context<'_> {
    pub(crate) fn norm_rows(&self, norm: &LoadedNorm, x: &[f32], out: &mut [f32], n_cols: usize) {
        let level = self.weights.level;
        self.workers.install(|| {
            let tasks = out.par_chunks_mut(ROWS_PER_TASK * n_cols).zip(x.par_chunks(ROWS_PER_TASK * n_cols));
            tasks.run(&|(out, x)| {
                self.clock.time(WorkKind::Norm, || {
                    for (out, x) in out.chunks_mut(n_cols).zip(x.chunks(n_cols)) {
                        norm.row(level, x, out);
                    }
                });
            });
        });
    }

    pub(crate) fn restart(&self, x: &mut [f32], y: &[f32], scale: f32) {
        self.workers.install(|| {
            let tasks = x.par_chunks_mut(1 << 14).zip(y.par_chunks(1 << 14));
            tasks.run(&|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x = scale * y));
        });
    }

    /// Computes `x += scale * y`, after normalizing the rows of `y` if there is a norm.
    pub(crate) fn add_rows(
        &self,
        x: &mut [f32],
        y: &mut [f32],
        norm: Option<&LoadedNorm>,
        scale: f32,
        n_cols: usize,
    ) {
        let level = self.weights.level;
        self.workers.install(|| {
            let tasks =
                x.par_chunks_mut(ROWS_PER_TASK * n_cols).zip(y.par_chunks_mut(ROWS_PER_TASK * n_cols));
            tasks.for_each_init(
                || vec![0.0; n_cols],
                |row, (x, y)| {
                    self.clock.time(WorkKind::Norm, || {
                        for (x, y) in x.chunks_mut(n_cols).zip(y.chunks_mut(n_cols)) {
                            match norm {
                                Some(norm) => {
                                    norm.row(level, y, row);
                                    math::add_scaled(level, x, row, scale);
                                }
                                None => math::add_scaled(level, x, y, scale),
                            }
                        }
                    });
                },
            );
        });
    }

    /// Normalizes rows in place if there is a norm.
    pub(crate) fn norm_in_place(&self, norm: Option<&Norm>, x: &mut [f32], n_cols: usize) -> Result<()> {
        if let Some(norm) = norm {
            self.norm_parts(&self.weights.norm(norm)?, x, n_cols, 1);
        }
        Ok(())
    }

    /// Normalizes the rows of `x` in place; each row is split into `n_parts` that are normed separately.
    pub(crate) fn norm_parts(&self, norm: &LoadedNorm, x: &mut [f32], n_cols: usize, n_parts: usize) {
        let level = self.weights.level;
        let width = n_cols / n_parts.max(1);
        self.workers.install(|| {
            x.par_chunks_mut(ROWS_PER_TASK * n_cols).run_with_scratch(&|scratch, rows| {
                self.clock.time(WorkKind::Norm, || {
                    for row in rows.chunks_mut(n_cols) {
                        row.chunks_mut(width)
                            .enumerate()
                            .for_each(|(at, part)| norm.head(level, part, at, scratch));
                    }
                });
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_belongs_to_its_head_and_comes_after_the_norm() {
        let norm =
            LoadedNorm { formula: NormFormula::Rms, weight: Some(vec![2.0, -3.0]), bias: None, eps: 0.0 };
        for (head, factor) in [(0, 2.0), (1, -3.0)] {
            let mut x = [3.0, -4.0];
            norm.scaled(SimdLevel::detect(), &mut x, head, &mut Vec::new());
            let rms = 12.5f32.sqrt();
            assert!(
                (x[0] - 3.0 / rms * factor).abs() < 1e-6 && (x[1] + 4.0 / rms * factor).abs() < 1e-6,
                "{x:?}"
            );
        }
    }

    #[test]
    fn both_formulas_equal_the_naive_ones() {
        let x: Vec<f32> = (0..37).map(|i| ((i * 31) % 17) as f32 * 0.3 - 1.1).collect();
        let w: Vec<f32> = (0..37).map(|i| 0.5 + i as f32 / 40.0).collect();
        let b: Vec<f32> = (0..37).map(|i| i as f32 / 100.0).collect();
        for formula in [NormFormula::Rms, NormFormula::Layer] {
            let norm = LoadedNorm { formula, weight: Some(w.clone()), bias: Some(b.clone()), eps: 1e-5 };
            let mut out = vec![0.0; 37];
            norm.row(SimdLevel::detect(), &x, &mut out);
            let mean = if formula == NormFormula::Layer { x.iter().sum::<f32>() / 37.0 } else { 0.0 };
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / 37.0;
            for i in 0..37 {
                let expected = (x[i] - mean) / (variance + 1e-5).sqrt() * w[i] + b[i];
                assert!((out[i] - expected).abs() < 1e-5, "{formula:?} {i}");
            }
        }
    }
}
