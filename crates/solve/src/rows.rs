//! Rows to blocks.

use gguf_core::GgmlType;
use gguf_core::simd::SimdLevel;
use gguf_matmul::MatrixView;
use gguf_quant::states::{StateForm, form};
use gguf_quant::{first_non_finite, quantize_rows, validate_blocks};
use rayon::prelude::*;

use crate::descent::{Descent, GroupSums};
use crate::gptq::Feedback;
use crate::moments::check_matrix;
use crate::panel::{LANES, Panel, ZERO, product};
use crate::{Metric, SecondMoments, SolveError};

/// Rows that are solved together. Whoever hands rows over in parts wastes nothing with multiples of it; the bytes of a
/// row do not depend on the rows beside it.
pub const PANEL_ROWS: usize = LANES;

/// Where the scales come from that codes are chosen for.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Blocks of the rows; their codes are not looked at.
    Blocks(&'a [u8]),
    /// Importance of each column (`diag(H)`): the rows are quantized with it first.
    Importance(&'a [f32]),
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SolveOptions {
    /// Passes of coordinate descent after the rounding with error feedback. More than two bring next to nothing.
    pub passes: usize,
}

impl Default for SolveOptions {
    fn default() -> Self {
        Self { passes: 2 }
    }
}

/// True if rows can be solved for the type.
#[must_use]
pub fn can_solve(ty: GgmlType) -> bool {
    form(ty).is_some()
}

/// Chooses scales, minima and codes of rows so that `tr(E H_r Eᵀ)` is small, where `E` is what the blocks miss: error
/// feedback with the scales of `start`, then coordinate descent.
///
/// Panels of [`PANEL_ROWS`] rows run on the threads of the current pool; a thread needs about `1.6 kB` for each column.
///
/// # Shapes
/// `w` is `[n_rows, metric.n_cols()]`, `out` and the blocks of `start` are `n_rows * ty.row_bytes(n_cols)` bytes.
///
/// # Exactness
/// The bytes of a row depend on the row, the start and the metric alone: not on threads, not on the rows beside it, not
/// on `level`. Sums of products are fused multiply-adds in a fixed order, so machines that have them agree; one without
/// differs in last bits, and so in some codes.
///
/// # Errors
/// [`SolveError`]: no solver for the type, lengths that do not fit together, weights or scales that are not finite, what
/// the quantizer says of rows and importance.
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
    let rows = Rows::new(ty, n_cols, w)?;
    let n_rows = w.len() / n_cols;
    let n_bytes = n_rows.checked_mul(rows.bytes).ok_or(SolveError::TooLarge { n_rows, n_cols })?;
    check_length("bytes of the blocks", n_bytes, out.len())?;
    if let Start::Blocks(blocks) = start {
        check_length("bytes of the start", out.len(), blocks.len())?;
    }
    if let Some(at) = first_non_finite(w) {
        return Err(SolveError::NotFinite { what: "weights", row: at / n_cols, column: at % n_cols });
    }
    let sums = GroupSums::new(rows.form, metric);
    let solver = || Solver {
        panel: Panel::new(rows.form, n_cols),
        feedback: Feedback::new(n_cols),
        descent: Descent::new(rows.form),
    };
    let panel_bytes = LANES * rows.bytes;
    w.par_chunks(LANES * n_cols).zip(out.par_chunks_mut(panel_bytes)).enumerate().try_for_each_init(
        solver,
        |solver, (index, (w, out))| {
            let first_row = index * LANES;
            match start {
                Start::Blocks(blocks) => out.copy_from_slice(&blocks[index * panel_bytes..][..out.len()]),
                Start::Importance(weights) => quantize_rows(ty, level, n_cols, w, Some(weights), out)
                    .map_err(|error| error.from_row(first_row))?,
            }
            rows.check_scales(first_row, out)?;
            solver.panel.load(rows.form, w, out)?;
            solver.feedback.round(rows.form, level, metric, &mut solver.panel);
            for _ in 0..options.passes {
                solver.descent.pass(rows.form, level, metric, &sums, &mut solver.panel);
            }
            solver.panel.store(rows.form, out)
        },
    )
}

/// What a thread works with.
struct Solver {
    panel: Panel,
    feedback: Feedback,
    descent: Descent,
}

/// Rows of checked lengths.
struct Rows {
    form: &'static StateForm,
    /// Bytes of a row.
    bytes: usize,
}

impl Rows {
    fn new(ty: GgmlType, n_cols: usize, w: &[f32]) -> Result<Self, SolveError> {
        let form = form(ty).ok_or(SolveError::NoSolver { ty })?;
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
        Ok(Self { form, bytes: n_cols / form.n_elems() * ty.block_bytes() })
    }

    fn check_scales(&self, first_row: usize, blocks: &[u8]) -> Result<(), SolveError> {
        for (row, blocks) in blocks.chunks(self.bytes).enumerate() {
            validate_blocks(self.form.ty, blocks)
                .map_err(|error| SolveError::Start { row: first_row + row, error })?;
        }
        Ok(())
    }
}

fn check_length(what: &'static str, expected: usize, found: usize) -> Result<(), SolveError> {
    if expected == found { Ok(()) } else { Err(SolveError::Length { what, expected, found }) }
}

/// `tr(E H Eᵀ)`: what the blocks of rows miss, measured by the moments as they are.
///
/// # Shapes
/// `w` is `[n_rows, n_cols]`, `blocks` are `n_rows * ty.row_bytes(n_cols)` bytes.
///
/// # Errors
/// [`SolveError`] for any type that does not decode and lengths that do not fit together.
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
    gguf_quant::dequantize(ty, level, blocks, &mut errors)?;
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
