//! DecodedPanel weights: rows of a matrix become panels of f32 that lie as the product's kernels read them, columns
//! outermost, so that nothing is rearranged when a panel meets the next tokens.
//!
//! Panels are decoded in blocks that all threads share: decoding is spread over strips of rows, multiplying over
//! panels and slices of tokens. How a matrix is cut depends on its shape only, so results do not depend on threads.

use crate::engine::exec::matmul::MatrixView;
use crate::engine::exec::weights::Matrix;

/// Rows of a panel at most: a multiple of every kernel's height, and small enough for a core's second-level cache.
const PANEL_ROWS: usize = 192;
/// Bytes of a panel at most, unless even a strip is larger.
const PANEL_BYTES: usize = 512 << 10;
/// Rows that one task decodes: the kernel's height.
pub(crate) const STRIP_ROWS: usize = 64;
/// Bytes of the panels that are decoded together, unless even one is larger.
pub(crate) const BLOCK_BYTES: usize = 8 << 20;
/// Tokens that a panel is multiplied with at a time.
pub(crate) const SLICE_TOKENS: usize = 512;

/// Some rows of a matrix, and the same rows of another that is used with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) weight: &'a Matrix,
    pub(crate) gate: Option<&'a Matrix>,
    /// First row, counted from the first row of the matrix.
    pub(crate) first: usize,
    pub(crate) n: usize,
}

/// A panel's decoded weights, `[n_cols, n]` each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodedPanel<'a> {
    pub(crate) weight: MatrixView<'a>,
    pub(crate) gate: Option<MatrixView<'a>>,
}

/// Ascending multiples of `step` below `n`, and `n`.
pub(crate) fn cuts(n: usize, step: usize) -> Vec<usize> {
    (0..n).step_by(step).chain(std::iter::once(n)).collect()
}

/// Rows of the panels of a matrix of this width.
pub(crate) fn panel_rows(n_cols: usize) -> usize {
    (PANEL_BYTES / (4 * n_cols.max(1)) / STRIP_ROWS * STRIP_ROWS).clamp(STRIP_ROWS, PANEL_ROWS)
}

/// Bytes of buffers that a run with matrices of at most this width needs: shared ones, and those of each thread.
pub(crate) fn buffer_bytes(n_cols: usize) -> (usize, usize) {
    let pair = 2 * 4 * panel_rows(n_cols) * n_cols;
    // A strip decoded, or a second tile of results; a strip encoded in a type of at most four bytes; a tile of results.
    let tile = 4 * SLICE_TOKENS * PANEL_ROWS;
    let strip = 4 * STRIP_ROWS * n_cols;
    let thread = strip.max(tile) + strip + tile;
    (BLOCK_BYTES.max(pair), thread)
}

impl<'a> Panel<'a> {
    /// The panels of a matrix.
    pub(crate) fn of(weight: &'a Matrix, gate: Option<&'a Matrix>) -> impl Iterator<Item = Self> {
        let step = panel_rows(weight.n_cols);
        let n_rows = weight.n_rows;
        (0..n_rows).step_by(step).map(move |first| Self { weight, gate, first, n: step.min(n_rows - first) })
    }

    pub(crate) fn sides(&self) -> impl Iterator<Item = &'a Matrix> {
        std::iter::once(self.weight).chain(self.gate)
    }

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
