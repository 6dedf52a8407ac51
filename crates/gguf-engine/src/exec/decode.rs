//! Decoding of weights into panels that all threads share. Threads decode strips of rows.

use std::sync::Arc;

use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::matmul::{MatrixTile, MatrixView, TileGrid};
use crate::exec::panel::{BLOCK_BYTES, DecodedPanel, Panel, STRIP_ROWS, cuts};
use crate::exec::timings::WorkKind;
use crate::exec::weights::Matrix;
use crate::exec::workers::{WorkerBuffers, lend};
use crate::{EngineError, Result};

enum BlockWeights {
    /// Weights for this block only.
    Lent(Buffer),
    /// Weights for all steps of the run.
    Kept(Arc<Vec<f32>>),
}

/// Rows of one matrix of a panel, to be decoded strip by strip.
struct Side<'a> {
    matrix: &'a Matrix,
    /// First row of the panel.
    first: usize,
    /// Cuts between strips.
    rows: Vec<usize>,
    out: TileGrid<'a>,
}

impl Context<'_> {
    /// Decodes panels block by block and calls `work` once per block, with its panels, the index of the first of them
    /// and their weights.
    pub(crate) fn each_block(
        &self,
        panels: &[Panel<'_>],
        mut work: impl FnMut(&[Panel<'_>], usize, &[DecodedPanel<'_>]) -> Result<()>,
    ) -> Result<()> {
        let mut first = 0;
        while first < panels.len() {
            let mut end = first;
            let mut len = 0;
            while end < panels.len() && (end == first || 4 * (len + panels[end].len()) <= BLOCK_BYTES) {
                len += panels[end].len();
                end += 1;
            }
            let block = &panels[first..end];
            let weights = self.weights_of(block)?;
            let mut decoded = Vec::with_capacity(block.len());
            let mut floats = match &weights {
                BlockWeights::Lent(floats) => &floats[..],
                BlockWeights::Kept(floats) => &floats[..],
            };
            for panel in block {
                let mut side = |matrix: &Matrix| {
                    let own;
                    (own, floats) = floats.split_at(panel.n * matrix.n_cols);
                    MatrixView::new(own, matrix.n_cols, panel.n, panel.n)
                };
                let weight = side(panel.weight);
                decoded.push(DecodedPanel { weight, gate: panel.gate.map(side) });
            }
            work(block, first, &decoded)?;
            if let BlockWeights::Lent(floats) = weights {
                self.give([floats]);
            }
            first = end;
        }
        Ok(())
    }

    /// Returns the decoded weights of a block; a continued run keeps as many as its budget holds.
    fn weights_of(&self, block: &[Panel<'_>]) -> Result<BlockWeights> {
        let kept = self.past.map(|past| &past.kept);
        if let Some(weights) = kept.and_then(|kept| kept.get(block)) {
            if self.progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            for panel in block {
                for matrix in panel.sides() {
                    self.progress.advance(self.weights.row_bytes(matrix.tensor, panel.n)? as u64);
                }
            }
            return Ok(BlockWeights::Kept(weights));
        }
        let len = block.iter().map(Panel::len).sum();
        if let Some((kept, mut floats)) = kept.and_then(|kept| Some((kept, kept.reserve(len)?))) {
            self.decode(block, &mut floats)?;
            return Ok(BlockWeights::Kept(kept.keep(block, floats)));
        }
        let mut floats = self.take(len);
        self.decode(block, &mut floats)?;
        Ok(BlockWeights::Lent(floats))
    }

    /// Decodes all sides of the panels, one after another.
    fn decode(&self, panels: &[Panel<'_>], mut floats: &mut [f32]) -> Result<()> {
        let mut strips = Vec::new();
        let mut sides = Vec::new();
        for panel in panels {
            for matrix in panel.sides() {
                let own;
                (own, floats) = floats.split_at_mut(panel.n * matrix.n_cols);
                let rows = cuts(panel.n, STRIP_ROWS);
                strips.extend((0..rows.len() - 1).map(|strip| (sides.len(), strip)));
                let out = TileGrid::new(own, panel.n, vec![0, matrix.n_cols], rows.clone());
                sides.push(Side { matrix, first: panel.first, rows, out });
            }
        }
        self.workers.each(strips.len(), |WorkerBuffers { bytes, rows: decoded, .. }, at| {
            if self.progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let (side, strip) = strips[at];
            let Side { matrix, first, rows, out } = &sides[side];
            let (start, n) = (matrix.first_row + first + rows[strip], rows[strip + 1] - rows[strip]);
            self.clock.time(WorkKind::Decode, || {
                let decoded = lend(decoded, n * matrix.n_cols);
                self.weights.rows(matrix.tensor, start, n, bytes, decoded)?;
                transpose(MatrixView::new(decoded, n, matrix.n_cols, matrix.n_cols), &mut out.take(0, strip));
                self.progress.advance(self.weights.row_bytes(matrix.tensor, n)? as u64);
                Ok(())
            })
        })
    }
}

/// Writes the transpose of `rows` to `out`, whose rows may be longer.
pub(crate) fn transpose(rows: MatrixView<'_>, out: &mut MatrixTile<'_>) {
    const SIDE: usize = 16;
    let (n_rows, n_cols) = (rows.n_rows(), rows.n_cols());
    // Whole cache lines are read at once: with a power of two between rows, lines that are kept for later would evict
    // one another.
    let mut block = [[0.0f32; SIDE]; SIDE];
    for col in (0..n_cols).step_by(SIDE) {
        let width = SIDE.min(n_cols - col);
        for row in (0..n_rows).step_by(SIDE) {
            let height = SIDE.min(n_rows - row);
            for (at, line) in block.iter_mut().enumerate().take(height) {
                line[..width].copy_from_slice(&rows.row(row + at)[col..col + width]);
            }
            for at in 0..width {
                let out = &mut out.row_mut(col + at)[row..row + height];
                for (y, line) in out.iter_mut().zip(&block) {
                    *y = line[at];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_any_shape() {
        for (n_rows, n_cols) in [(1, 1), (5, 3), (16, 16), (17, 33), (64, 40)] {
            let rows: Vec<f32> = (0..n_rows * n_cols).map(|i| i as f32).collect();
            let mut out = vec![-1.0; n_rows * n_cols];
            transpose(
                MatrixView::new(&rows, n_rows, n_cols, n_cols),
                &mut MatrixTile::whole(&mut out, n_cols, n_rows),
            );
            for row in 0..n_rows {
                for col in 0..n_cols {
                    assert_eq!(out[col * n_rows + row], rows[row * n_cols + col], "{row}, {col}");
                }
            }
        }
    }
}
