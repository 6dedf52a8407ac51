//! Sums of products of the columns of two inputs, `AᵀB`.

use rayon::prelude::*;

use crate::exec::gram::BLOCK_ROWS;
use crate::exec::matmul::{TileGrid, multiply_transposed_add};
use crate::exec::panel::cuts;
use crate::exec::strips::{STRIP, Strips};
use crate::exec::workers::Tasks;

/// Adds `AᵀB` to `sums`, on the threads of the current rayon pool.
///
/// # Shapes
/// `a` is `[n_rows, n_left]`, `b` is `[n_rows, n_right]`, `sums` is `[n_left, n_right]`.
///
/// # Exactness
/// See [`Gram::add_rows`](crate::Gram::add_rows).
///
/// # Panics
/// If the sizes do not fit together.
pub fn add_cross(sums: &mut [f32], a: &Strips, b: &Strips) {
    assert_eq!(sums.len(), a.n_cols() * b.n_cols(), "sums of all pairs of columns");
    assert_eq!(a.n_rows(), b.n_rows(), "rows of both inputs");
    let n_across = b.n_strips();
    let grid = TileGrid::new(sums, b.n_cols(), cuts(a.n_cols(), STRIP), cuts(b.n_cols(), STRIP));
    (0..a.n_strips() * n_across).into_par_iter().run(&|task| {
        let (down, across) = (task / n_across, task % n_across);
        let mut out = grid.take(down, across);
        let (left, right) = (a.strip(down), b.strip(across));
        for start in (0..a.n_rows()).step_by(BLOCK_ROWS) {
            let rows = start..a.n_rows().min(start + BLOCK_ROWS);
            multiply_transposed_add(&mut out, left.rows(rows.clone()), right.rows(rows));
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
            add_cross(&mut sums, &Strips::of(&a, n_left), &Strips::of(&b, n_right));
            for i in 0..n_left {
                for j in 0..n_right {
                    let sum: f32 = (0..n_rows).map(|row| a[row * n_left + i] * b[row * n_right + j]).sum();
                    assert_eq!(sums[i * n_right + j], 1.0 + sum, "{n_rows} rows, {i}, {j}");
                }
            }
        }
    }
}
