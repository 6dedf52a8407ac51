//! Solver that rounds the matrices of a layer as soon as its moments are known.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::matrices::{MatrixJob, MatrixSolver, SolveFailure, SolveTarget};
use crate::{CalibrateError, LayerMoments, MeanMoments, SharedInput};
use gguf_solve::{Metric, SecondMoments, SolveError, SolveOptions};

/// Strength of the shrinkage of moments towards their diagonal, and options of the solver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SolverOptions {
    /// Fraction of each diagonal entry that is added to it.
    pub shrinkage: f32,
    /// Pull of corrected weights towards the original ones, for solvers that correct weights.
    pub lambda: f32,
    /// Options for each row.
    pub solve: SolveOptions,
}

/// Matrix that is left to the importance matrix, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotSolved {
    /// Name of the tensor.
    pub tensor: String,
    /// Index of the matrix in a stack.
    pub matrix: u64,
    /// Reason why it was not solved.
    pub reason: String,
}

/// Solver that receives the moments of one layer after the other.
pub(super) struct LayerSolver<'a> {
    pub(super) matrices: MatrixSolver<'a>,
    pub(super) shrinkage: f32,
    /// Tensors to solve, by name.
    pub(super) targets: &'a BTreeMap<String, SolveTarget>,
    /// Weight of each kind of text.
    pub(super) weights: Vec<f64>,
    pub(super) left: Vec<NotSolved>,
}

/// Matrices of one tensor that share a metric.
struct SolveJob<'m> {
    name: &'m str,
    target: SolveTarget,
    matrices: Vec<u64>,
}

impl LayerSolver<'_> {
    /// Solves all matrices of the layer.
    pub(super) fn take(&mut self, layer: &LayerMoments) -> Result<(), CalibrateError> {
        let mut shared: BTreeMap<&str, Option<MeanMoments>> = BTreeMap::new();
        for input in &layer.inputs {
            let jobs = self.jobs(input);
            if jobs.is_empty() || self.meet_all(&jobs) {
                continue;
            }
            let Some(mean) = layer.mean(input, &self.weights) else { continue };
            let own = moments(mean);
            // Experts see few tokens. An input that several matrices of a stack read alike belongs to no single expert.
            let is_expert =
                jobs.iter().all(|job| job.matrices.len() == 1 && self.matrices.n_matrices(job.target) > 1);
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

    /// Returns true, and marks the matrices as reached, if an earlier run made all of them.
    fn meet_all(&self, jobs: &[SolveJob<'_>]) -> bool {
        let blocks = self.matrices.blocks;
        let mut all = jobs.iter().flat_map(|job| job.matrices.iter().map(|&matrix| (job.name, matrix)));
        let are_found = !jobs.is_empty() && all.clone().all(|(name, matrix)| blocks.is_found(name, matrix));
        are_found && all.all(|(name, matrix)| blocks.meet(name, matrix))
    }

    /// Solves experts that no token chose with the moments of all experts of the layer.
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
            let input = |matrix: u64| layer.input(name, usize::try_from(matrix).ok());
            let is_unseen = |matrix: &u64| input(*matrix).is_none_or(|input| !self.is_seen(layer, input));
            let is_new = |matrix: &u64| !self.matrices.blocks.meet(name, *matrix);
            let matrices = (0..self.matrices.n_matrices(target)).filter(is_unseen).filter(is_new);
            let matrices: Vec<u64> = matrices.collect();
            if matrices.is_empty() {
                continue;
            }
            let mean = shared.remove(name).unwrap_or_else(|| layer.mean_of_stack(name, &self.weights));
            if let Some(mean) = mean {
                self.solve(&[SolveJob { name, target, matrices }], moments(mean))?;
            }
        }
        Ok(())
    }

    /// Returns true if a kind of text with a weight has rows for this input.
    fn is_seen(&self, layer: &LayerMoments, input: &SharedInput) -> bool {
        let counts = |(kind, &weight): (usize, &f64)| {
            weight > 0.0 && layer.moments(input, kind).is_some_and(|own| own.n_rows() > 0)
        };
        self.weights.iter().enumerate().any(counts)
    }

    /// Matrices to solve with the moments of an input.
    fn jobs<'m>(&self, input: &'m SharedInput) -> Vec<SolveJob<'m>> {
        let mut jobs: Vec<SolveJob<'m>> = Vec::new();
        for matrix in &input.matrices {
            let Some(&target) = self.targets.get(&matrix.tensor) else { continue };
            let at = matrix.expert.unwrap_or(0) as u64;
            match jobs.last_mut().filter(|job| job.name == matrix.tensor) {
                Some(job) => job.matrices.push(at),
                None => jobs.push(SolveJob { name: &matrix.tensor, target, matrices: vec![at] }),
            }
        }
        jobs
    }

    /// Solves matrices with the same moments. If these cannot be used, the matrices are left to the importance matrix.
    fn solve(
        &mut self,
        jobs: &[SolveJob<'_>],
        moments: Result<SecondMoments, SolveError>,
    ) -> Result<(), CalibrateError> {
        let importance = moments.as_ref().map(SecondMoments::diagonal).unwrap_or_default();
        let metric = moments.and_then(|moments| Metric::new(&moments, self.shrinkage));
        for job in jobs {
            for &matrix in &job.matrices {
                if self.matrices.blocks.meet(job.name, matrix) {
                    continue;
                }
                let solved = match &metric {
                    Ok(metric) => {
                        let job = MatrixJob { name: job.name, target: job.target, matrix };
                        self.matrices.solve(job, metric, &importance, None)
                    }
                    Err(error) => Err(SolveFailure::Solve(*error)),
                };
                match solved {
                    Ok(()) => {}
                    Err(SolveFailure::Solve(reason)) => {
                        let tensor = job.name.to_owned();
                        self.left.push(NotSolved { tensor, matrix, reason: reason.to_string() });
                    }
                    Err(SolveFailure::Run(error)) => return Err(*error),
                }
            }
        }
        Ok(())
    }
}

/// Converts moments to the solver's form.
fn moments(mean: MeanMoments) -> Result<SecondMoments, SolveError> {
    SecondMoments::new(mean.n_cols, mean.n_rows, mean.h)
}
