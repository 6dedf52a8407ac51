//! Random data for tests, and what is made of it.

use gguf_blocks::quantize_rows;
use gguf_core::GgmlType;
use gguf_core::simd::SimdLevel;

use crate::noise::Noise;
use crate::{Metric, SecondMoments, SolveError, SolveOptions, Start, solve_rows};

/// Returns second moments of `n_tokens` inputs that share a few directions, with columns of different magnitudes.
pub(crate) fn correlated(n: usize, n_tokens: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    let n_shared = (n / 8).max(1);
    let mix: Vec<f32> = (0..n * n_shared).map(|_| noise.normal()).collect();
    let size: Vec<f32> = (0..n).map(|_| (0.7 * noise.normal()).exp()).collect();
    let mut sums = vec![0f64; n * n];
    for _ in 0..n_tokens {
        let shared: Vec<f32> = (0..n_shared).map(|_| noise.normal()).collect();
        let x: Vec<f64> = (0..n)
            .map(|i| {
                let common: f32 =
                    mix[i * n_shared..][..n_shared].iter().zip(&shared).map(|(a, b)| a * b).sum();
                f64::from(size[i] * (common / (n_shared as f32).sqrt() + 0.5 * noise.normal()))
            })
            .collect();
        for (row, out) in sums.chunks_mut(n).enumerate() {
            for (out, other) in out.iter_mut().zip(&x) {
                *out += x[row] * other;
            }
        }
    }
    sums.iter().map(|sum| (sum / n_tokens as f64) as f32).collect()
}

pub(crate) fn moments(n: usize, seed: u64) -> SecondMoments {
    SecondMoments::new(n, 300, correlated(n, 300, seed)).unwrap()
}

pub(crate) fn weights(n_rows: usize, n_cols: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    (0..n_rows * n_cols).map(|_| 0.02 * noise.normal()).collect()
}

/// Returns the blocks of the quantizer.
pub(crate) fn start(ty: GgmlType, n_cols: usize, w: &[f32], importance: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; w.len() / ty.block_elems() * ty.block_bytes()];
    quantize_rows(ty, SimdLevel::detect(), n_cols, w, Some(importance), &mut blocks).unwrap();
    blocks
}

pub(crate) fn solve(
    ty: GgmlType,
    level: SimdLevel,
    w: &[f32],
    start: Start<'_>,
    metric: &Metric,
    passes: usize,
) -> Result<Vec<u8>, SolveError> {
    let mut out = vec![0xa5; w.len() / ty.block_elems() * ty.block_bytes()];
    solve_rows(ty, level, w, start, metric, SolveOptions { passes }, &mut out)?;
    Ok(out)
}

/// Inverts by elimination.
pub(crate) fn invert(n: usize, matrix: &mut [f64]) {
    let mut inverse: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    for pivot in 0..n {
        let scale = 1.0 / matrix[pivot * n + pivot];
        for column in 0..n {
            matrix[pivot * n + column] *= scale;
            inverse[pivot * n + column] *= scale;
        }
        for row in (0..n).filter(|row| *row != pivot) {
            let factor = matrix[row * n + pivot];
            for column in 0..n {
                matrix[row * n + column] -= factor * matrix[pivot * n + column];
                inverse[row * n + column] -= factor * inverse[pivot * n + column];
            }
        }
    }
    matrix.copy_from_slice(&inverse);
}
