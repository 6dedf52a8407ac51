//! Gradients of a loss with respect to weights and activations. Each operation computes its own in a file `gradient.rs`
//! below its own; what it needs of the run is computed again from the layer's input.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::matmul::{MatrixView, TileGrid, multiply_add, multiply_transposed_add};
use crate::exec::panel::{BLOCK_BYTES, SLICE_TOKENS, STRIP_ROWS, cuts};
use crate::exec::strips::STRIP;
use crate::exec::weights::{Matrix, Vector};
use crate::{EngineError, Result};

/// Receives the gradients of a loss with respect to the weights. What is received of a weight in one run adds up.
pub trait Gradients {
    /// Receives the gradient of rows `first ..` of a matrix, `[_, matrix.n_cols]`.
    fn rows(&mut self, matrix: &Matrix, first: usize, gradient: &[f32]);

    /// Receives the gradient of a bias, the weight of a norm, or sinks.
    fn vector(&mut self, vector: &Vector, gradient: &[f32]);
}

impl Context<'_> {
    /// Takes a buffer of `len` zeros.
    pub(crate) fn zeros(&self, len: usize) -> Buffer {
        let mut zeros = self.take(len);
        zeros.fill(0.0);
        zeros
    }

    /// Adds the gradient of the inputs `x` of a product to `dx`, and hands out that of its weights. `dy` is the gradient
    /// of the outputs: `dx += dy W`, `dW = dyᵀ x`.
    pub(crate) fn product_gradient(
        &self,
        to: &mut dyn Gradients,
        matrix: &Matrix,
        x: &[f32],
        dy: &[f32],
        dx: &mut [f32],
    ) -> Result<()> {
        let (n_rows, n_cols) = (matrix.n_rows, matrix.n_cols);
        let n = dy.len() / n_rows.max(1);
        if let Some(bias) = &matrix.bias {
            to.vector(bias, &column_sums(dy, n_rows));
        }
        let scale = self.weights.optional(matrix.scale.as_ref())?.and_then(|scale| scale.first().copied());
        let dy = match scale {
            Some(scale) => Cow::Owned(dy.iter().map(|dy| dy * scale).collect()),
            None => Cow::Borrowed(dy),
        };
        let step = (BLOCK_BYTES / (4 * n_cols.max(1)) / STRIP_ROWS * STRIP_ROWS).max(STRIP_ROWS).min(n_rows);
        let (mut decoded, mut own) = (self.take(step * n_cols), self.take(step * n_cols));
        let x = MatrixView::new(x, n, n_cols, n_cols);
        let (tokens, across) = (cuts(n, SLICE_TOKENS), cuts(n_cols, STRIP));
        let n_across = across.len() - 1;
        for first in (0..n_rows).step_by(step) {
            let height = step.min(n_rows - first);
            self.decode_rows(matrix, first, &mut decoded[..height * n_cols])?;
            let weights = MatrixView::new(&decoded, height, n_cols, n_cols);
            let dy = MatrixView::new(&dy, n, n_rows, n_rows).columns(first..first + height);
            let grid = TileGrid::new(dx, n_cols, tokens.clone(), across.clone());
            self.each((tokens.len() - 1) * n_across, |_, task| {
                let (slice, strip) = (task / n_across, task % n_across);
                let dy = dy.rows(tokens[slice]..tokens[slice + 1]);
                let weights = weights.columns(across[strip]..across[strip + 1]);
                multiply_add(&mut grid.take(slice, strip), dy, weights);
                self.uncancelled()
            })?;
            let own = &mut own[..height * n_cols];
            own.fill(0.0);
            let down = cuts(height, STRIP);
            let grid = TileGrid::new(own, n_cols, down.clone(), across.clone());
            self.each((down.len() - 1) * n_across, |_, task| {
                let (rows, strip) = (task / n_across, task % n_across);
                let mut out = grid.take(rows, strip);
                let dy = dy.columns(down[rows]..down[rows + 1]);
                let x = x.columns(across[strip]..across[strip + 1]);
                for cut in tokens.windows(2) {
                    multiply_transposed_add(&mut out, dy.rows(cut[0]..cut[1]), x.rows(cut[0]..cut[1]));
                }
                self.uncancelled()
            })?;
            to.rows(matrix, first, own);
        }
        self.give([decoded, own]);
        Ok(())
    }

    fn uncancelled(&self) -> Result<()> {
        if self.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
    }

    /// Decodes rows `first ..` of a matrix, as they are stored.
    fn decode_rows(&self, matrix: &Matrix, first: usize, out: &mut [f32]) -> Result<()> {
        let n_cols = matrix.n_cols.max(1);
        self.workers.install(|| {
            out.par_chunks_mut(STRIP_ROWS * n_cols).enumerate().try_for_each(|(strip, out)| {
                let first = matrix.first_row + first + strip * STRIP_ROWS;
                self.weights.rows(matrix.tensor, first, out.len() / n_cols, &mut Vec::new(), out)
            })
        })
    }
}

/// Sums of the columns of `[_, n_cols]`.
fn column_sums(x: &[f32], n_cols: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; n_cols];
    for row in x.chunks(n_cols.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// Central differences of `f` at `x`, in f64.
#[cfg(test)]
pub(crate) fn differences(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut at = x.to_vec();
    let mut moved = |i: usize, by: f64| {
        at[i] = x[i] + by;
        let value = f(&at);
        at[i] = x[i];
        value
    };
    (0..x.len()).map(|i| (moved(i, STEP) - moved(i, -STEP)) / (2.0 * STEP)).collect()
}
