//! Rounds the matrices of a layer as soon as its moments are known.

use std::collections::{BTreeMap, BTreeSet};

use crate::calibrate::solved::SolvedBlocks;
use crate::calibrate::{CalibrateError, LayerMoments, MeanMoments, SharedInput};
use crate::core::progress::Progress;
use crate::core::simd::SimdLevel;
use crate::core::{GgmlType, TensorSource};
use crate::engine::{EngineError, WeightReader};
use crate::solve::{Metric, SecondMoments, SolveError, SolveOptions, Start, solve_rows};

/// Floats of weights that are solved together; at least [`crate::solve::PANEL_ROWS`] rows for each thread.
const CHUNK_ELEMS: usize = 16 << 20;

/// How strongly moments are drawn towards their diagonal, and what is done with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SolverOptions {
    /// Share of its own size that is added to the diagonal.
    pub shrinkage: f32,
    /// What is done for each row.
    pub solve: SolveOptions,
}

/// A tensor that stays with the importance matrix, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct NotSolved {
    /// Its name.
    pub tensor: String,
    /// Which matrix of a stack.
    pub matrix: u64,
    /// Why.
    pub reason: SolveError,
}

/// A tensor to solve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Its index in the source.
    pub(super) tensor: usize,
    /// The type that it is to have.
    pub(super) ty: GgmlType,
}

/// Takes the moments of one layer after the other.
pub(super) struct LayerSolver<'a> {
    pub(super) source: &'a dyn TensorSource,
    pub(super) level: SimdLevel,
    pub(super) options: SolverOptions,
    /// By name.
    pub(super) targets: &'a BTreeMap<String, Target>,
    /// One per kind of text.
    pub(super) weights: Vec<f64>,
    pub(super) blocks: SolvedBlocks,
    pub(super) left: Vec<NotSolved>,
    pub(super) progress: &'a dyn Progress,
}

/// The matrices of one tensor that share a metric.
struct Job<'m> {
    name: &'m str,
    target: Target,
    matrices: Vec<u64>,
}

impl LayerSolver<'_> {
    /// Solves all matrices of the layer.
    pub(super) fn take(&mut self, layer: &LayerMoments) -> Result<(), CalibrateError> {
        let mut shared: BTreeMap<&str, Option<MeanMoments>> = BTreeMap::new();
        for input in &layer.inputs {
            let jobs = self.jobs(input);
            let Some(mean) = layer.mean(input, &self.weights).filter(|_| !jobs.is_empty()) else { continue };
            let own = moments(mean);
            // Experts see few of the tokens; what is read by several matrices of a stack alike is no expert's own.
            let is_expert = jobs.iter().all(|job| job.matrices.len() == 1 && self.is_stack(job.target));
            let drawn = match jobs.first().filter(|_| is_expert) {
                None => own,
                Some(job) => {
                    let stack = shared
                        .entry(job.name)
                        .or_insert_with(|| layer.mean_of_stack(job.name, &self.weights));
                    match stack {
                        Some(stack) => own.and_then(|own| own.drawn_towards(&moments(stack.clone())?)),
                        None => own,
                    }
                }
            };
            self.solve(&jobs, drawn)?;
        }
        self.unseen(layer, shared)
    }

    /// Experts that no token chose take what all experts of the layer saw.
    fn unseen(
        &mut self,
        layer: &LayerMoments,
        mut shared: BTreeMap<&str, Option<MeanMoments>>,
    ) -> Result<(), CalibrateError> {
        let stacks: BTreeSet<&str> = layer
            .inputs
            .iter()
            .flat_map(|input| &input.matrices)
            .filter(|matrix| matrix.expert.is_some())
            .map(|matrix| matrix.tensor.as_str())
            .collect();
        for name in stacks {
            let Some(&target) = self.targets.get(name) else { continue };
            let is_unseen = |matrix: &u64| layer.input(name, usize::try_from(*matrix).ok()).is_none();
            let matrices: Vec<u64> = (0..self.n_matrices(target)).filter(is_unseen).collect();
            if matrices.is_empty() {
                continue;
            }
            let mean = shared.remove(name).unwrap_or_else(|| layer.mean_of_stack(name, &self.weights));
            if let Some(mean) = mean {
                self.solve(&[Job { name, target, matrices }], moments(mean))?;
            }
        }
        Ok(())
    }

    fn n_matrices(&self, target: Target) -> u64 {
        let dims = self.source.tensors()[target.tensor].shape.dims();
        dims[..dims.len().saturating_sub(2)].iter().product()
    }

    fn is_stack(&self, target: Target) -> bool {
        self.n_matrices(target) > 1
    }

    /// What is to be solved with the moments of an input.
    fn jobs<'m>(&self, input: &'m SharedInput) -> Vec<Job<'m>> {
        let mut jobs: Vec<Job<'m>> = Vec::new();
        for matrix in &input.matrices {
            let Some(&target) = self.targets.get(&matrix.tensor) else { continue };
            let at = matrix.expert.unwrap_or(0) as u64;
            match jobs.last_mut().filter(|job| job.name == matrix.tensor) {
                Some(job) => job.matrices.push(at),
                None => jobs.push(Job { name: &matrix.tensor, target, matrices: vec![at] }),
            }
        }
        jobs
    }

    /// Solves matrices with the same moments. Where these cannot be used the importance matrix is left to do it.
    fn solve(
        &mut self,
        jobs: &[Job<'_>],
        moments: Result<SecondMoments, SolveError>,
    ) -> Result<(), CalibrateError> {
        let importance = moments.as_ref().map(SecondMoments::diagonal).unwrap_or_default();
        let metric = moments.and_then(|moments| Metric::new(&moments, self.options.shrinkage));
        for job in jobs {
            for &matrix in &job.matrices {
                let solved = match &metric {
                    Ok(metric) => self.matrix(job, matrix, metric, &importance),
                    Err(error) => Err(Failed::Solve(*error)),
                };
                match solved {
                    Ok(()) => self.blocks.finish(job.name, matrix),
                    Err(Failed::Solve(reason)) => {
                        let tensor = job.name.to_owned();
                        self.left.push(NotSolved { tensor, matrix, reason });
                    }
                    Err(Failed::Run(error)) => return Err(*error),
                }
            }
        }
        Ok(())
    }

    fn matrix(&self, job: &Job<'_>, matrix: u64, metric: &Metric, importance: &[f32]) -> Result<(), Failed> {
        let reader = WeightReader { source: self.source, level: self.level };
        let meta = &self.source.tensors()[job.target.tensor];
        let n_cols = metric.n_cols();
        let n_rows = usize::try_from(meta.shape.n_rows() / self.n_matrices(job.target).max(1)).unwrap_or(0);
        let row_bytes = job.target.ty.row_bytes(n_cols as u64).and_then(|n| usize::try_from(n).ok());
        let row_bytes = row_bytes.ok_or(SolveError::Columns { ty: job.target.ty, n_cols })?;
        let step = (CHUNK_ELEMS / n_cols.max(1)).max(crate::solve::PANEL_ROWS);
        let step = step.next_multiple_of(crate::solve::PANEL_ROWS);
        let (mut bytes, mut floats, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for first in (0..n_rows).step_by(step) {
            if self.progress.is_cancelled() {
                return Err(CalibrateError::from(EngineError::Cancelled).into());
            }
            let n = step.min(n_rows - first);
            let row = usize::try_from(matrix).unwrap_or(0) * n_rows + first;
            floats.resize(n * n_cols, 0.0);
            blocks.resize(n * row_bytes, 0);
            reader.rows(job.target.tensor, row, n, &mut bytes, &mut floats).map_err(CalibrateError::from)?;
            let start = Start::Importance(importance);
            solve_rows(job.target.ty, self.level, &floats, start, metric, self.options.solve, &mut blocks)?;
            self.blocks.put(job.name, row as u64, &blocks).map_err(CalibrateError::from)?;
        }
        Ok(())
    }
}

/// Moments as the solver takes them.
fn moments(mean: MeanMoments) -> Result<SecondMoments, SolveError> {
    SecondMoments::new(mean.n_cols, mean.n_rows, mean.h)
}

/// Why a matrix was not solved.
enum Failed {
    /// The importance matrix has to do.
    Solve(SolveError),
    /// Nothing can be done.
    Run(Box<CalibrateError>),
}

impl From<SolveError> for Failed {
    fn from(error: SolveError) -> Self {
        Self::Solve(error)
    }
}

impl From<CalibrateError> for Failed {
    fn from(error: CalibrateError) -> Self {
        Self::Run(Box::new(error))
    }
}
