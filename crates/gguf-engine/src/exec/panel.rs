//! Panels of decoded weights: rows of a matrix become panels of f32, in the order in which the product's
//! kernels read them. Nothing is rearranged when a panel is multiplied with the next tokens.
//!
//! Panels are decoded in blocks that all threads share. Threads decode strips of rows, and multiply panels with slices
//! of tokens. The cuts of a matrix depend on its shape only, so results do not depend on the number of threads.

use crate::exec::matmul::MatrixView;
use crate::exec::weights::Matrix;

/// Largest number of rows of a panel: a multiple of every kernel's height, and small enough for a core's L2 cache.
const PANEL_ROWS: usize = 192;
/// Largest number of bytes of a panel, unless one strip is larger.
const PANEL_BYTES: usize = 512 << 10;
/// Number of rows that one task decodes: the kernel's height.
pub(crate) const STRIP_ROWS: usize = 64;
/// Largest number of bytes of the panels that are decoded together, unless one panel is larger.
pub(crate) const BLOCK_BYTES: usize = 8 << 20;
/// Number of tokens that a panel is multiplied with at a time.
pub(crate) const SLICE_TOKENS: usize = 512;

/// Some rows of a matrix, and the same rows of the gate projection that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) weight: &'a Matrix,
    pub(crate) gate: Option<&'a Matrix>,
    /// First row, counted from the first row of the matrix.
    pub(crate) first: usize,
    pub(crate) n: usize,
}

/// Decoded weights of a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodedPanel<'a> {
    /// Rows of the matrix, `[n_cols, n]`.
    pub(crate) weight: MatrixView<'a>,
    pub(crate) gate: Option<MatrixView<'a>>,
}

/// Returns the ascending multiples of `step` below `n`, followed by `n`.
pub(crate) fn cuts(n: usize, step: usize) -> Vec<usize> {
    (0..n).step_by(step).chain(std::iter::once(n)).collect()
}

/// Returns the number of rows of the panels of a matrix with `n_cols` columns.
pub(crate) fn panel_rows(n_cols: usize) -> usize {
    (PANEL_BYTES / (4 * n_cols.max(1)) / STRIP_ROWS * STRIP_ROWS).clamp(STRIP_ROWS, PANEL_ROWS)
}

/// Returns the bytes of buffers for matrices of at most `n_cols` columns: shared ones, and those of each thread.
pub(crate) fn buffer_bytes(n_cols: usize) -> (usize, usize) {
    let pair = 2 * 4 * panel_rows(n_cols) * n_cols;
    // A decoded strip, or a second tile of results; a strip encoded in a type of at most four bytes; a tile of results.
    let tile = 4 * SLICE_TOKENS * PANEL_ROWS;
    let strip = 4 * STRIP_ROWS * n_cols;
    let thread = strip.max(tile) + strip + tile;
    (BLOCK_BYTES.max(pair), thread)
}

impl<'a> Panel<'a> {
    /// Iterates over the panels of a matrix.
    pub(crate) fn of(weight: &'a Matrix, gate: Option<&'a Matrix>) -> impl Iterator<Item = Self> {
        let step = panel_rows(weight.n_cols);
        let n_rows = weight.n_rows;
        (0..n_rows).step_by(step).map(move |first| Self { weight, gate, first, n: step.min(n_rows - first) })
    }

    /// Iterates over the matrices of the panel: the weight, then the gate if there is one.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &'a Matrix> {
        std::iter::once(self.weight).chain(self.gate)
    }

    /// Returns the number of decoded floats of all sides.
    pub(crate) fn len(&self) -> usize {
        self.n * self.weight.n_cols * self.sides().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_cover_a_matrix_and_stay_in_their_size() {
        let matrix = |n_rows, n_cols| Matrix {
            tensor: 0,
            first_row: 0,
            n_rows,
            n_cols,
            bias: None,
            scale: None,
            expert: None,
        };
        for (n_rows, n_cols) in [(576, 576), (1000, 1536), (7, 64), (300, 28672)] {
            let matrix = matrix(n_rows, n_cols);
            let mut next = 0;
            for panel in Panel::of(&matrix, None) {
                assert_eq!(panel.first, next);
                assert!(panel.n <= STRIP_ROWS || 4 * panel.n * n_cols <= PANEL_BYTES);
                next += panel.n;
            }
            assert_eq!(next, n_rows);
        }
        assert_eq!(cuts(5, 2), [0, 2, 4, 5]);
        assert_eq!(cuts(4, 2), [0, 2, 4]);
    }
}
