//! Solver of the types whose vectors of 4 or 8 elements are points of a grid: the same steps, eight columns at a time.
//!
//! A point is chosen for a unit of columns (`unit`), or for half of one, by comparing all points of the grid under the
//! metric of those columns; so are the signs.

mod book;
mod choice;
mod descent;
mod feedback;
mod panel;
#[cfg(test)]
mod tests;

use gguf_core::simd::SimdLevel;

use crate::grid::descent::GridDescent;
use crate::grid::feedback::GridFeedback;
use crate::grid::panel::GridPanel;
use crate::{Metric, SolveError};

pub(crate) use crate::grid::choice::Grid;

/// Working state of one thread.
pub(crate) struct GridSolver<'a> {
    grid: &'a Grid,
    panel: GridPanel,
    feedback: GridFeedback,
    descent: GridDescent,
}

impl<'a> GridSolver<'a> {
    pub(crate) fn new(grid: &'a Grid, n_cols: usize) -> Self {
        Self {
            grid,
            panel: GridPanel::new(grid.form, n_cols),
            feedback: GridFeedback::new(n_cols),
            descent: GridDescent::new(),
        }
    }

    /// Solves the rows of a panel for the scales of `blocks`, and replaces the blocks.
    pub(crate) fn solve(
        &mut self,
        level: SimdLevel,
        metric: &Metric,
        passes: usize,
        w: &[f32],
        blocks: &mut [u8],
    ) -> Result<(), SolveError> {
        self.panel.load(self.grid, w, blocks)?;
        self.feedback.round(self.grid, level, metric, &mut self.panel)?;
        for _ in 0..passes {
            self.descent.pass(self.grid, level, metric, &mut self.panel);
        }
        self.panel.store(self.grid.form, blocks)
    }
}
