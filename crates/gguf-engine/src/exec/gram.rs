//! Gram matrices `XᵀX`: sums of products of the columns of a matrix's inputs.

use rayon::prelude::*;

use crate::exec::matmul::{TileGrid, multiply_transposed_add};
use crate::exec::panel::cuts;
use crate::exec::strips::{STRIP, Strips};
use crate::exec::workers::Tasks;

/// Number of rows that are summed at once. Few enough to be one block of every kernel's inner dimension, so that an
/// element is a sum over each such block, and these sums are added in their order.
pub(crate) const BLOCK_ROWS: usize = 256;
/// Number of rows whose strips are in memory at once, a multiple of [`BLOCK_ROWS`].
pub(crate) const ROWS: usize = 8 * BLOCK_ROWS;

/// The upper triangle of `XᵀX`, in f32.
///
/// # Layout
/// Panels of 192 rows, each with the columns from its first row on: `[192, n - 192 p]`. Slightly more than half of a
/// full matrix. Elements below the diagonal, in the tiles that it crosses, have no meaning.
#[derive(Clone, Debug)]
pub struct Gram {
    n_cols: usize,
    sums: Vec<f32>,
}

/// Returns the first element of the panel that starts with row `first`, a multiple of [`STRIP`]. The panels before it
/// are full rectangles, each [`STRIP`] columns narrower than the one before.
fn panel_start(n_cols: usize, first: usize) -> usize {
    let n_before = first / STRIP;
    n_before * STRIP * n_cols - STRIP * STRIP * (n_before * n_before.saturating_sub(1) / 2)
}

/// Returns the number of floats of a triangle; `None` if their bytes overflow an address.
fn n_floats(n_cols: usize) -> Option<usize> {
    // No intermediate result is larger than the square.
    n_cols.checked_mul(n_cols)?.checked_mul(4)?;
    let first = n_cols / STRIP * STRIP;
    Some(panel_start(n_cols, first) + (n_cols - first) * (n_cols - first))
}

impl Gram {
    /// Returns the sums of no rows.
    ///
    /// # Panics
    /// If the sums of `n_cols` columns do not fit in memory.
    pub fn zero(n_cols: usize) -> Self {
        let n = n_floats(n_cols).expect("sums that fit into memory");
        Self { n_cols, sums: vec![0.0; n] }
    }

    /// Adds the products of rows, `x` of `[n, n_cols]`, on the threads of the current rayon pool.
    ///
    /// # Exactness
    /// Rows are summed in blocks of 256 from the first one on. The blocks are added in their order, whatever the number
    /// of threads. The kernels choose their instructions by the machine: bits are equal on machines with the same
    /// vector instructions.
    pub fn add_rows(&mut self, x: &[f32]) {
        let mut strips = Strips::default();
        for rows in x.chunks((ROWS * self.n_cols).max(1)) {
            strips.copy(rows, self.n_cols);
            self.add_strips(&strips);
        }
    }

    /// Adds the products of rows that are cut into strips already; see [`Gram::add_rows`].
    ///
    /// # Panics
    /// If the numbers of columns differ.
    pub fn add_strips(&mut self, x: &Strips) {
        let (n, n_rows) = (self.n_cols, x.n_rows());
        assert_eq!(n, x.n_cols(), "columns of rows that are added");
        let (mut grids, mut tasks) = (Vec::new(), Vec::new());
        let mut rest = &mut self.sums[..];
        for first in (0..n).step_by(STRIP) {
            let (height, width) = (STRIP.min(n - first), n - first);
            let (panel, later) = std::mem::take(&mut rest).split_at_mut(height * width);
            rest = later;
            let columns = cuts(width, STRIP);
            tasks.extend((0..columns.len() - 1).map(|tile| (grids.len(), tile)));
            grids.push(TileGrid::new(panel, width, vec![0, height], columns));
        }
        tasks.into_par_iter().run(&|(panel, tile)| {
            let mut out = grids[panel].take(0, tile);
            let (left, right) = (x.strip(panel), x.strip(panel + tile));
            for start in (0..n_rows).step_by(BLOCK_ROWS) {
                let rows = start..n_rows.min(start + BLOCK_ROWS);
                multiply_transposed_add(&mut out, left.rows(rows.clone()), right.rows(rows));
            }
        });
    }

    /// Returns row `row` from its diagonal element on: `n_cols - row` sums.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        assert!(row < self.n_cols, "row {row} of {}", self.n_cols);
        let first = row / STRIP * STRIP;
        let width = self.n_cols - first;
        let start = panel_start(self.n_cols, first) + (row - first) * width;
        &self.sums[start + (row - first)..start + width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n_rows: usize, n_cols: usize) -> Vec<f32> {
        (0..n_rows * n_cols).map(|i| ((i * 7919 + i / 13) % 1009) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn sums_equal_the_triple_loop_at_every_edge() {
        for (n_rows, n) in [(1, 1), (3, 191), (300, 192), (257, 193), (513, 400), (0, 5)] {
            let x = rows(n_rows, n);
            let mut gram = Gram::zero(n);
            gram.add_rows(&x);
            for i in 0..n {
                assert_eq!(gram.row(i).len(), n - i);
                for j in (i..n).step_by(7) {
                    let dot: f64 =
                        (0..n_rows).map(|r| f64::from(x[r * n + i]) * f64::from(x[r * n + j])).sum();
                    assert!((f64::from(gram.row(i)[j - i]) - dot).abs() < 2e-4, "{n_rows} {n}: {i} {j}");
                }
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let (n_rows, n) = (600, 390);
        let x = rows(n_rows, n);
        let run = |n_threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            pool.install(|| {
                let mut gram = Gram::zero(n);
                gram.add_rows(&x);
                gram
            })
        };
        let rows = |gram: &Gram| (0..n).map(|row| gram.row(row).to_vec()).collect::<Vec<_>>();
        let whole = rows(&run(1));
        assert!(whole == rows(&run(2)) && whole == rows(&run(7)));
        // If cut at the end of a block, the parts of one sum are the same blocks.
        let mut parts = Gram::zero(n);
        parts.add_rows(&x[..256 * n]);
        parts.add_rows(&x[256 * n..]);
        assert!(rows(&parts) == whole);
    }
}
