//! Rows cut into strips of columns, the layout that products of columns read fastest. A strip's rows are 768 bytes
//! apart for any width of the rows; in the plain layout, rows would compete for the same cache sets.

use std::ops::Range;

use rayon::prelude::*;

use crate::exec::matmul::{MatrixView, TileGrid, multiply_add};
use crate::exec::panel::cuts;
use crate::exec::workers::Tasks;

/// Number of columns of a strip: a multiple of every kernel's height.
pub(crate) const STRIP: usize = 192;
const TASK_ROWS: usize = 512;

/// Rows cut into strips of 192 columns, strip after strip: `[n_rows, 192]` each, the last one narrower.
#[derive(Clone, Debug, Default)]
pub struct Strips {
    n_rows: usize,
    n_cols: usize,
    values: Vec<f32>,
}

impl Strips {
    /// Returns the strips of rows `[n_rows, n_cols]`.
    pub fn of(x: &[f32], n_cols: usize) -> Self {
        let mut strips = Self::default();
        strips.copy(x, n_cols);
        strips
    }

    /// Replaces all rows by those of `x`, `[n_rows, n_cols]`.
    pub fn copy(&mut self, x: &[f32], n_cols: usize) {
        self.fill(x.len() / n_cols.max(1), n_cols, |row, columns, out| {
            out.copy_from_slice(&x[row * n_cols..][columns]);
        });
    }

    /// Replaces all rows, on the threads of the current rayon pool. `write` gets the index of a row, a range of its
    /// columns, and the slice to write them to.
    pub fn fill(
        &mut self,
        n_rows: usize,
        n_cols: usize,
        write: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
    ) {
        (self.n_rows, self.n_cols) = (n_rows, n_cols);
        self.values.resize(n_rows * n_cols, 0.0);
        if self.values.is_empty() {
            return;
        }
        self.values.par_chunks_mut(n_rows * STRIP).enumerate().run(&|(strip, values)| {
            let columns = strip * STRIP..n_cols.min((strip + 1) * STRIP);
            let n = columns.len();
            values.par_chunks_mut(TASK_ROWS * n).enumerate().run(&|(task, values)| {
                for (row, out) in values.chunks_mut(n).enumerate() {
                    write(task * TASK_ROWS + row, columns.clone(), out);
                }
            });
        });
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the number of columns of all strips.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(crate) fn n_strips(&self) -> usize {
        self.n_cols.div_ceil(STRIP)
    }

    /// Returns one strip.
    ///
    /// # Panics
    /// If there is no such strip.
    pub(crate) fn strip(&self, strip: usize) -> MatrixView<'_> {
        let n = STRIP.min(self.n_cols - strip * STRIP);
        MatrixView::new(&self.values[strip * STRIP * self.n_rows..], self.n_rows, n, n)
    }

    /// Adds the product of `a`, `[n_rows, k]`, and `b`, `[k, n_cols]`, on the threads of the current rayon pool.
    ///
    /// # Exactness
    /// Products of 192 of the `k` columns are added in their order.
    ///
    /// # Panics
    /// If the sizes do not fit together.
    pub fn add_product(&mut self, a: &Self, b: &Self) {
        let (n_rows, n_cols) = (self.n_rows, self.n_cols);
        assert!(a.n_rows == n_rows && b.n_cols == n_cols && a.n_cols == b.n_rows, "sizes of a product");
        if self.values.is_empty() {
            return;
        }
        self.values.par_chunks_mut(n_rows * STRIP).enumerate().run(&|(strip, values)| {
            let n = values.len() / n_rows;
            let blocks = cuts(n_rows, TASK_ROWS);
            let grid = TileGrid::new(values, n, blocks.clone(), vec![0, n]);
            (0..blocks.len() - 1).into_par_iter().run(&|block| {
                let mut out = grid.take(block, 0);
                let mut first = 0;
                for left in 0..a.n_strips() {
                    let left = a.strip(left).rows(blocks[block]..blocks[block + 1]);
                    let inner = first..first + left.n_cols();
                    first = inner.end;
                    multiply_add(&mut out, left, b.strip(strip).rows(inner));
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n_rows: usize, n_cols: usize, seed: usize) -> Vec<f32> {
        (0..n_rows * n_cols).map(|i| (((i + seed) * 7919) % 17) as f32 / 8.0 - 1.0).collect()
    }

    #[test]
    fn strips_hold_the_rows() {
        for (n_rows, n_cols) in [(1, 1), (3, 192), (600, 193), (0, 5), (5, 0), (2, 400)] {
            let x = rows(n_rows, n_cols, 0);
            let strips = Strips::of(&x, n_cols);
            for strip in 0..strips.n_strips() {
                let view = strips.strip(strip);
                for row in 0..n_rows {
                    let columns = strip * STRIP..strip * STRIP + view.n_cols();
                    assert_eq!(view.row(row), &x[row * n_cols..][columns]);
                }
            }
        }
    }

    #[test]
    fn products_equal_the_triple_loop() {
        for (n, k, m) in [(1, 1, 1), (513, 200, 193), (3, 500, 192), (4, 0, 3), (0, 3, 4)] {
            let (a, b, start) = (rows(n, k, 1), rows(k, m, 2), rows(n, m, 3));
            let mut out = Strips::of(&start, m);
            // The number of rows of an empty matrix cannot be derived from its values.
            let mut right = Strips::of(&b, m);
            right.n_rows = k;
            let mut left = Strips::of(&a, k);
            left.n_rows = n;
            out.n_rows = n;
            out.add_product(&left, &right);
            for i in 0..n {
                for j in 0..m {
                    let dot: f32 = (0..k).map(|x| a[i * k + x] * b[x * m + j]).sum();
                    let found = out.strip(j / STRIP).row(i)[j % STRIP];
                    assert!((found - start[i * m + j] - dot).abs() < 1e-3, "{n} {k} {m}: {i}, {j}");
                }
            }
        }
    }
}
