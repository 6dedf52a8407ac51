//! Sums of products of the columns of two inputs, `AᵀB`.

use rayon::prelude::*;

use crate::engine::ops::gram::{BLOCK_ROWS, TILE};
use crate::engine::ops::matmul::{MatrixView, TileGrid, multiply_transposed_add};
use crate::engine::run::panel::cuts;

/// Adds `AᵀB` to `sums`, on the threads of the current rayon pool.
///
/// # Shapes
/// `a` is `[n_rows, n_left]`, `b` is `[n_rows, n_right]`, `sums` is `[n_left, n_right]`.
///
/// # Exactness
/// As that of [`Gram::add_rows`](crate::engine::Gram::add_rows).
///
/// # Panics
/// If the lengths do not fit together.
pub fn add_cross(sums: &mut [f32], (a, n_left): (&[f32], usize), (b, n_right): (&[f32], usize)) {
    assert_eq!(sums.len(), n_left * n_right, "sums of all pairs of columns");
    if sums.is_empty() {
        return;
    }
    let n_rows = a.len() / n_left;
    assert_eq!(n_rows, b.len() / n_right, "rows of both inputs");
    let (downs, acrosses) = (cuts(n_left, TILE), cuts(n_right, TILE));
    let n_across = acrosses.len() - 1;
    let n_tasks = (downs.len() - 1) * n_across;
    let grid = TileGrid::new(sums, n_right, downs.clone(), acrosses.clone());
    (0..n_tasks).into_par_iter().for_each(|task| {
        let (down, across) = (task / n_across, task % n_across);
        let mut out = grid.take(down, across);
        for start in (0..n_rows).step_by(BLOCK_ROWS) {
            let n = BLOCK_ROWS.min(n_rows - start);
            let left = MatrixView::new(&a[start * n_left..], n, n_left, n_left);
            let right = MatrixView::new(&b[start * n_right..], n, n_right, n_right);
            let left = left.columns(downs[down]..downs[down + 1]);
            multiply_transposed_add(&mut out, left, right.columns(acrosses[across]..acrosses[across + 1]));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_columns_is_summed_over_all_rows() {
        for (n_rows, n_left, n_right) in [(1, 1, 1), (300, 200, 3), (513, 5, 400), (0, 4, 4)] {
            let value = |i: usize| ((i * 7919) % 13) as f32 - 6.0;
            let a: Vec<f32> = (0..n_rows * n_left).map(value).collect();
            let b: Vec<f32> = (0..n_rows * n_right).map(|i| value(i + 5)).collect();
            let mut sums = vec![1.0; n_left * n_right];
            add_cross(&mut sums, (&a, n_left), (&b, n_right));
            for i in 0..n_left {
                for j in 0..n_right {
                    let sum: f32 = (0..n_rows).map(|row| a[row * n_left + i] * b[row * n_right + j]).sum();
                    assert_eq!(sums[i * n_right + j], 1.0 + sum, "{n_rows} rows, {i}, {j}");
                }
            }
        }
    }
}
