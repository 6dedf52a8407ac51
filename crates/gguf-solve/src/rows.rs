//! Solver entry points, from rows to blocks.

use gguf_blocks::grid_states::{GRID_ELEMS, GridForm, grid_form};
use gguf_blocks::states::{StateForm, form};
use gguf_blocks::{first_non_finite, quantize_rows, validate_blocks};
use gguf_core::GgmlType;
use gguf_core::simd::SimdLevel;
use gguf_matmul::MatrixView;
use rayon::prelude::*;

use crate::descent::{Descent, GroupSums};
use crate::gptq::Feedback;
use crate::grid::{Grid, GridSolver};
use crate::moments::check_matrix;
use crate::panel::{LANES, Panel, ZERO, product};
use crate::{Metric, SecondMoments, SolveError};

/// Number of rows that are solved together. Callers that pass rows in parts should use multiples of it; the bytes of a
/// row do not depend on the other rows.
pub const PANEL_ROWS: usize = LANES;

/// Source of the scales for which codes are chosen.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Blocks of the rows; their codes are ignored.
    Blocks(&'a [u8]),
    /// Importance of each column (`diag(H)`): the rows are quantized with it first.
    Importance(&'a [f32]),
}

/// Options of the solver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SolveOptions {
    /// Number of passes of coordinate descent after the rounding with error feedback. More than two bring next to
    /// nothing.
    pub passes: usize,
}

impl Default for SolveOptions {
    fn default() -> Self {
        Self { passes: 2 }
    }
}

/// Returns true if rows can be solved for the type.
pub fn can_solve(ty: GgmlType) -> bool {
    BlockForm::of(ty).is_some()
}

/// Chooses scales, minima and codes of rows so that `tr(E H_r Eᵀ)` is small, where `E` is the error of the blocks:
/// first error feedback with the scales of `start`, then coordinate descent.
///
/// Panels of [`PANEL_ROWS`] rows run on the threads of the current pool; a thread needs about `2 kB` for each column.
///
/// # Shapes
/// `w` is `[n_rows, metric.n_cols()]`, `out` and the blocks of `start` are `n_rows * ty.row_bytes(n_cols)` bytes.
///
/// # Exactness
/// The bytes of a row depend only on the row, the start and the metric: not on threads, other rows or `level`. Sums of
/// products are fused multiply-adds in a fixed order, so all machines with that instruction agree. A machine without it
/// differs in the last bits, and so in some codes.
///
/// # Errors
/// [`SolveError`]: no solver for the type, lengths that do not fit together, weights or scales that are not finite,
/// errors of the quantizer for rows and importance.
pub fn solve_rows(
    ty: GgmlType,
    level: SimdLevel,
    w: &[f32],
    start: Start<'_>,
    metric: &Metric,
    options: SolveOptions,
    out: &mut [u8],
) -> Result<(), SolveError> {
    let n_cols = metric.n_cols();
    let rows = RowLayout::new(ty, n_cols, w)?;
    let n_rows = w.len() / n_cols;
    let n_bytes = n_rows.checked_mul(rows.bytes).ok_or(SolveError::TooLarge { n_rows, n_cols })?;
    check_length("bytes of the blocks", n_bytes, out.len())?;
    if let Start::Blocks(blocks) = start {
        check_length("bytes of the start", out.len(), blocks.len())?;
    }
    if let Some(at) = first_non_finite(w) {
        return Err(SolveError::NotFinite { what: "weights", row: at / n_cols, column: at % n_cols });
    }
    let panels = ParallelPanels { rows: &rows, level, w, start };
    match rows.form {
        BlockForm::Scalar(form) => {
            let sums = GroupSums::new(form, metric);
            let new = || (Panel::new(form, n_cols), Feedback::new(n_cols), Descent::new(form));
            panels.run(out, new, |(panel, feedback, descent), w, out| {
                panel.load(form, w, out)?;
                feedback.round(form, level, metric, panel);
                for _ in 0..options.passes {
                    descent.pass(form, level, metric, &sums, panel);
                }
                panel.store(form, out)
            })
        }
        BlockForm::Grid(form) => {
            // Computed once here, and not by several threads that wait for one another.
            metric.of_units()?;
            let grid = Grid::new(form);
            let new = || GridSolver::new(&grid, n_cols);
            panels.run(out, new, |solver, w, out| solver.solve(level, metric, options.passes, w, out))
        }
    }
}

/// Panels of rows on the threads of the current pool.
struct ParallelPanels<'a> {
    rows: &'a RowLayout,
    level: SimdLevel,
    w: &'a [f32],
    start: Start<'a>,
}

impl ParallelPanels<'_> {
    /// Calls `solve` with the weights of each panel and its initial blocks, which become the result.
    fn run<S>(
        &self,
        out: &mut [u8],
        new: impl Fn() -> S + Send + Sync,
        solve: impl Fn(&mut S, &[f32], &mut [u8]) -> Result<(), SolveError> + Send + Sync,
    ) -> Result<(), SolveError> {
        let RowLayout { form, n_cols, bytes } = *self.rows;
        let panel_bytes = LANES * bytes;
        let panels = self.w.par_chunks(LANES * n_cols).zip(out.par_chunks_mut(panel_bytes));
        panels.enumerate().try_for_each_init(new, |solver, (index, (w, out))| {
            let first_row = index * LANES;
            match self.start {
                Start::Blocks(blocks) => out.copy_from_slice(&blocks[index * panel_bytes..][..out.len()]),
                Start::Importance(weights) => {
                    quantize_rows(form.ty(), self.level, n_cols, w, Some(weights), out)
                        .map_err(|error| error.from_row(first_row))?;
                }
            }
            self.rows.check_scales(first_row, out)?;
            solve(solver, w, out)
        })
    }
}

/// Form of a type's blocks.
#[derive(Clone, Copy)]
enum BlockForm {
    /// A code for each element.
    Scalar(&'static StateForm),
    /// Points of a grid.
    Grid(&'static GridForm),
}

impl BlockForm {
    fn of(ty: GgmlType) -> Option<Self> {
        form(ty).map(Self::Scalar).or_else(|| grid_form(ty).map(Self::Grid))
    }

    fn ty(self) -> GgmlType {
        match self {
            Self::Scalar(form) => form.ty,
            Self::Grid(form) => form.ty,
        }
    }

    fn n_elems(self) -> usize {
        match self {
            Self::Scalar(form) => form.n_elems(),
            Self::Grid(_) => GRID_ELEMS,
        }
    }
}

/// Layout of rows of checked lengths.
struct RowLayout {
    form: BlockForm,
    n_cols: usize,
    bytes: usize,
}

impl RowLayout {
    fn new(ty: GgmlType, n_cols: usize, w: &[f32]) -> Result<Self, SolveError> {
        let form = BlockForm::of(ty).ok_or(SolveError::NoSolver { ty })?;
        if n_cols == 0 || !n_cols.is_multiple_of(form.n_elems()) {
            return Err(SolveError::Columns { ty, n_cols });
        }
        if !w.len().is_multiple_of(n_cols) {
            return Err(SolveError::Length {
                what: "weights of whole rows",
                expected: w.len() / n_cols * n_cols,
                found: w.len(),
            });
        }
        Ok(Self { form, n_cols, bytes: n_cols / form.n_elems() * ty.block_bytes() })
    }

    fn check_scales(&self, first_row: usize, blocks: &[u8]) -> Result<(), SolveError> {
        for (row, blocks) in blocks.chunks(self.bytes).enumerate() {
            validate_blocks(self.form.ty(), blocks)
                .map_err(|error| SolveError::Start { row: first_row + row, error })?;
        }
        Ok(())
    }
}

fn check_length(what: &'static str, expected: usize, found: usize) -> Result<(), SolveError> {
    if expected == found { Ok(()) } else { Err(SolveError::Length { what, expected, found }) }
}

/// Computes `tr(E H Eᵀ)`: the error of the blocks of rows under the moments without regularization.
///
/// # Shapes
/// `w` is `[n_rows, n_cols]`, `blocks` are `n_rows * ty.row_bytes(n_cols)` bytes.
///
/// # Errors
/// [`SolveError`] for a type that cannot be decoded and lengths that do not fit together.
pub fn objective(
    ty: GgmlType,
    level: SimdLevel,
    w: &[f32],
    blocks: &[u8],
    moments: &SecondMoments,
) -> Result<f64, SolveError> {
    let n = moments.n_cols();
    check_matrix("weights of whole rows", w.len() / n, n, w.len())?;
    let mut errors = vec![0.0; w.len()];
    gguf_blocks::dequantize(ty, level, blocks, &mut errors)?;
    for (error, w) in errors.iter_mut().zip(w) {
        *error = w - *error;
    }
    let matrix = MatrixView::new(moments.values(), n, n, n);
    let panels: Vec<f64> = errors
        .par_chunks(LANES * n)
        .map(|rows| {
            let mut lanes = vec![ZERO; n];
            for (row, values) in rows.chunks(n).enumerate() {
                for (lane, value) in lanes.iter_mut().zip(values) {
                    lane[row] = *value;
                }
            }
            let mut products = vec![ZERO; n];
            product(&mut products, matrix, &lanes);
            let pairs = lanes.as_flattened().iter().zip(products.as_flattened());
            pairs.map(|(error, product)| f64::from(*error) * f64::from(*product)).sum()
        })
        .collect();
    Ok(panels.iter().sum())
}
