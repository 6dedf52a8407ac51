//! Solver of one matrix after the other, in chunks of rows, that writes out the blocks.

use crate::CalibrateError;
use crate::solved::SolvedBlocks;
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, TensorSource};
use gguf_engine::{EngineError, WeightReader};
use gguf_solve::{
    Correction, InputCorrection, Metric, PANEL_ROWS, SolveError, SolveOptions, Start, solve_rows,
};

/// Number of weights that are solved together; at least [`PANEL_ROWS`] rows for each thread.
const CHUNK_ELEMS: usize = 16 << 20;

/// A tensor to solve.
#[derive(Clone, Copy, Debug)]
pub(super) struct SolveTarget {
    pub(super) tensor: usize,
    pub(super) ty: GgmlType,
}

/// Matrix of a tensor to solve.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixJob<'a> {
    pub(super) name: &'a str,
    pub(super) target: SolveTarget,
    pub(super) matrix: u64,
}

/// Source of the weights, and target of their blocks.
pub(super) struct MatrixSolver<'a> {
    pub(super) source: &'a dyn TensorSource,
    pub(super) level: SimdLevel,
    pub(super) options: SolveOptions,
    pub(super) blocks: &'a SolvedBlocks,
    pub(super) progress: &'a dyn Progress,
}

/// Correction of weights before they are rounded.
#[derive(Clone, Copy)]
pub(super) enum Corrected<'a> {
    /// Correction that all matrices of the same inputs share.
    Inputs(&'a InputCorrection),
    /// Correction of one matrix, with the sums that it must compensate, `[n_rows, n_cols]`.
    Outputs(&'a Correction, &'a [f32]),
}

/// Number of weight rows that are solved together.
fn chunk_rows(n_cols: usize) -> usize {
    (CHUNK_ELEMS / n_cols.max(1)).max(PANEL_ROWS).next_multiple_of(PANEL_ROWS)
}

impl MatrixSolver<'_> {
    /// Number of matrices of a tensor: more than one for a stack of experts.
    pub(super) fn n_matrices(&self, target: SolveTarget) -> u64 {
        let dims = self.source.tensors()[target.tensor].shape.dims();
        dims[..dims.len().saturating_sub(2)].iter().product()
    }

    pub(super) fn n_rows(&self, target: SolveTarget) -> usize {
        let n_rows = self.source.tensors()[target.tensor].shape.n_rows();
        usize::try_from(n_rows / self.n_matrices(target).max(1)).unwrap_or(0)
    }

    /// Unquantized weights of a matrix, `[n_rows, n_cols]`.
    pub(super) fn weights(
        &self,
        target: SolveTarget,
        matrix: u64,
        n_cols: usize,
    ) -> Result<Vec<f32>, EngineError> {
        let reader = WeightReader::new(self.source, self.level);
        let n_rows = self.n_rows(target);
        let mut floats = vec![0.0; n_rows * n_cols];
        let first = usize::try_from(matrix).unwrap_or(0) * n_rows;
        reader.rows(target.tensor, first, n_rows, &mut Vec::new(), &mut floats)?;
        Ok(floats)
    }

    pub(super) fn solve(
        &self,
        job: MatrixJob<'_>,
        metric: &Metric,
        importance: &[f32],
        corrected: Option<Corrected<'_>>,
    ) -> Result<(), SolveFailure> {
        let MatrixJob { name, target, matrix } = job;
        let reader = WeightReader::new(self.source, self.level);
        let n_cols = metric.n_cols();
        let n_rows = self.n_rows(target);
        let row_bytes = target.ty.row_bytes(n_cols as u64).and_then(|n| usize::try_from(n).ok());
        let row_bytes = row_bytes.ok_or(SolveError::Columns { ty: target.ty, n_cols })?;
        let step = chunk_rows(n_cols);
        let (mut bytes, mut floats, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for first in (0..n_rows).step_by(step) {
            if self.progress.is_cancelled() {
                return Err(CalibrateError::from(EngineError::Cancelled).into());
            }
            let n = step.min(n_rows - first);
            let row = usize::try_from(matrix).unwrap_or(0) * n_rows + first;
            floats.resize(n * n_cols, 0.0);
            blocks.resize(n * row_bytes, 0);
            reader.rows(target.tensor, row, n, &mut bytes, &mut floats).map_err(CalibrateError::from)?;
            match corrected {
                None => {}
                Some(Corrected::Inputs(correction)) => correction.apply(&mut floats)?,
                Some(Corrected::Outputs(correction, lost)) => {
                    correction.apply(&mut floats, &lost[first * n_cols..(first + n) * n_cols])?;
                }
            }
            let start = Start::Importance(importance);
            solve_rows(target.ty, self.level, &floats, start, metric, self.options, &mut blocks)?;
            self.blocks.put(name, row as u64, &blocks).map_err(CalibrateError::from)?;
        }
        self.blocks.finish(name, matrix).map_err(CalibrateError::from)?;
        Ok(())
    }
}

/// Reason that a matrix was not solved.
pub(super) enum SolveFailure {
    /// The matrix cannot be solved; the importance matrix is used instead.
    Solve(SolveError),
    /// The whole run fails.
    Run(Box<CalibrateError>),
}

impl From<SolveError> for SolveFailure {
    fn from(error: SolveError) -> Self {
        Self::Solve(error)
    }
}

impl From<CalibrateError> for SolveFailure {
    fn from(error: CalibrateError) -> Self {
        Self::Run(Box::new(error))
    }
}
