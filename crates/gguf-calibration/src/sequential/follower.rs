//! Observer of the quantized run: solves every matrix just before it is used.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};

use rayon::prelude::*;

use crate::matrices::{Corrected, MatrixJob, MatrixSolver, SolveFailure, SolveTarget};
use crate::sequential::lockstep::{FollowerEnd, LockstepEvent};
use crate::sequential::stream::QuantizedStream;
use crate::sequential::sums::{Compensation, ResidualGap, SolverSums, StreamInputs};
use crate::{CalibrateError, NotSolved, Result, SolverOptions};
use gguf_blocks::first_non_finite;
use gguf_core::TensorSource;
use gguf_core::sync::Unpoisoned;
use gguf_engine::{Buffer, BufferPool, Engine, EngineError, Matrix, Observer};
use gguf_quantization::SolvedRows;
use gguf_solve::{Correction, InputCorrection, Metric, SecondMoments, SolveError};

/// Residual streams of both runs before a branch.
struct Branch {
    /// Matrix whose product is added to the stream.
    matrix: (usize, Option<usize>),
    factor: f32,
    width: usize,
    x: Buffer,
    quantized: Buffer,
}

/// Sums over all experts of a stack that were met so far.
struct StackSums {
    /// All stacks that were met with these rows.
    tensors: Vec<usize>,
    n_rows: u64,
    /// Sums, not means.
    values: Vec<f32>,
}

#[derive(Default)]
pub(super) struct FollowerState {
    /// Number of events passed so far.
    n_events: usize,
    branch: Option<Branch>,
    /// Experts of the layer that is being run, by the first tensor of their group.
    shared: BTreeMap<usize, StackSums>,
    left: Vec<NotSolved>,
    failed: Option<CalibrateError>,
}

/// Correction of weights for matrices that are solved together.
enum PreparedCorrection {
    Nothing,
    Inputs(InputCorrection),
    Outputs(Correction, Vec<f32>),
}

/// Observer of the quantized run.
pub(super) struct Follower<'a> {
    /// Dropped at the end of the run, so that the other run stops waiting.
    pub(super) link: Mutex<Option<FollowerEnd>>,
    pub(super) engine: &'a Engine<'a>,
    /// Buffers for rows that are handed over.
    pub(super) buffers: &'a BufferPool,
    pub(super) stream: &'a QuantizedStream<'a>,
    pub(super) matrices: MatrixSolver<'a>,
    pub(super) options: SolverOptions,
    /// Tensors to solve, by their index in the stream.
    pub(super) targets: &'a BTreeMap<usize, (String, SolveTarget)>,
    /// Weight of each token of the text; their sum is 1.
    pub(super) weights: &'a [f32],
    pub(super) n_layers: usize,
    pub(super) state: Mutex<FollowerState>,
}

impl Follower<'_> {
    fn state(&self) -> MutexGuard<'_, FollowerState> {
        self.state.lock().unpoisoned()
    }

    /// Matrices that were not solved.
    pub(super) fn into_left(self) -> Vec<NotSolved> {
        self.state.into_inner().unpoisoned().left
    }

    /// Error that stopped the run, unless the other run stopped it.
    pub(super) fn take_failure(&self) -> Option<CalibrateError> {
        self.state().failed.take()
    }

    /// Ends the link to the other run.
    pub(super) fn part(&self) {
        *self.link.lock().unpoisoned() = None;
    }

    /// Next event of the unquantized run.
    fn event(&self) -> Option<LockstepEvent> {
        let mut state = self.state();
        if state.failed.is_some() {
            return None;
        }
        let is_first = state.n_events == 0;
        state.n_events += 1;
        drop(state);
        let link = self.link.lock().unpoisoned();
        let event = link.as_ref().and_then(|link| link.next(is_first));
        drop(link);
        if event.is_none() {
            // The other run reports the cause.
            self.state().failed.get_or_insert(EngineError::Stopped.into());
        }
        event
    }

    /// Matrices to solve now, whose blocks do not exist yet. The second list has those whose blocks an earlier run made
    /// and which this run reaches now.
    fn jobs(&self, matrices: &[&Matrix]) -> (Vec<MatrixJob<'_>>, Vec<MatrixJob<'_>>) {
        let job = |matrix: &&Matrix| {
            let (name, target) = self.targets.get(&matrix.tensor)?;
            Some(MatrixJob { name, target: *target, matrix: matrix.expert.unwrap_or(0) as u64 })
        };
        let blocks = self.matrices.blocks;
        let is_new = |job: &MatrixJob<'_>| !blocks.has(job.name, job.matrix);
        let is_unsolved = |job: &MatrixJob<'_>| !blocks.meet(job.name, job.matrix);
        matrices.iter().filter_map(job).filter(is_new).partition(is_unsolved)
    }

    /// Returns true if matrices of an earlier run must still add their rows to the moments of a stack, because later
    /// experts are drawn towards these.
    fn is_shared(&self, met: &[MatrixJob<'_>]) -> bool {
        let is_needed = |job: &MatrixJob<'_>| {
            self.matrices.n_matrices(job.target) > 1 && !self.matrices.blocks.has_all(job.name)
        };
        met.iter().any(is_needed)
    }

    /// Solves matrices that share their inputs.
    fn solve(&self, matrices: &[&Matrix], x: &[f32], quantized: &[f32]) -> Result<()> {
        let Some(first) = matrices.first() else { return Ok(()) };
        let n_cols = first.n_cols;
        let n_rows = quantized.len() / n_cols.max(1);
        if n_rows == 0 {
            return Ok(());
        }
        let (jobs, met) = self.jobs(matrices);
        let unsolved: Vec<&&Matrix> = matrices
            .iter()
            .filter(|matrix| {
                !self.targets.contains_key(&matrix.tensor) && self.stream.is_changed(matrix.tensor)
            })
            .collect();
        if jobs.is_empty() && unsolved.is_empty() && !self.is_shared(&met) {
            return Ok(());
        }
        if has_non_finite(quantized) || has_non_finite(x) {
            let tensor = self.stream.tensors()[first.tensor].name.clone();
            return Err(CalibrateError::NonFinite { tensor });
        }
        // If rows do not correspond to tokens (those of an expert), all have the same weight.
        let alike;
        let weights = if n_rows == self.weights.len() {
            self.weights
        } else {
            alike = vec![1.0 / n_rows as f32; n_rows];
            &alike
        };
        let branch = self.take_branch(matrices, n_rows);
        let matrix = match (&branch, jobs.as_slice()) {
            (Some(_), [job]) => self.matrices.weights(job.target, job.matrix, n_cols)?,
            _ => Vec::new(),
        };
        let gap = branch.as_ref().filter(|_| !matrix.is_empty()).map(|branch| ResidualGap {
            x: &branch.x,
            quantized: &branch.quantized,
            width: branch.width,
            factor: branch.factor,
            matrix: &matrix,
        });
        // Without weights to correct, only the moments are needed.
        let x = if jobs.is_empty() { quantized } else { x };
        let sums = SolverSums::of(&StreamInputs { x, quantized, n_cols, weights }, gap.as_ref());
        drop(matrix);
        if let Some(branch) = branch {
            self.buffers.give([branch.x, branch.quantized]);
        }
        let sums = match sums {
            Ok(SolverSums { moments, compensation }) => {
                let mut all = jobs.iter().chain(&met);
                let moments = if all.all(|job| self.matrices.n_matrices(job.target) > 1) {
                    self.drawn(matrices, moments)
                } else {
                    Ok(moments)
                };
                moments.map(|moments| SolverSums { moments, compensation })
            }
            Err(error) => Err(error),
        };
        if let Ok(sums) = &sums {
            for matrix in unsolved {
                self.stream.tell(matrix.tensor, matrix.expert.unwrap_or(0) as u64, sums.moments.diagonal());
            }
        }
        self.round(&jobs, sums)
    }

    /// Streams before the branch that ends with these matrices.
    fn take_branch(&self, matrices: &[&Matrix], n_rows: usize) -> Option<Branch> {
        let [only] = matrices else { return None };
        let mut state = self.state();
        let branch = state.branch.take_if(|branch| branch.matrix == (only.tensor, only.expert))?;
        (branch.x.len() == n_rows * branch.width && branch.quantized.len() == branch.x.len())
            .then_some(branch)
    }

    /// Moments of an expert, drawn towards those of all experts of its layer that were met so far, including itself.
    fn drawn(&self, matrices: &[&Matrix], own: SecondMoments) -> Result<SecondMoments, SolveError> {
        let Some(tensor) = matrices.first().map(|matrix| matrix.tensor) else { return Ok(own) };
        let mut state = self.state();
        let n_tokens = own.n_tokens();
        let shared = state.shared.entry(tensor);
        let shared = shared.or_insert_with(|| StackSums {
            tensors: matrices.iter().map(|matrix| matrix.tensor).collect(),
            n_rows: 0,
            values: vec![0.0; own.values().len()],
        });
        shared.n_rows += n_tokens;
        shared.values.iter_mut().zip(own.values()).for_each(|(sum, x)| *sum += n_tokens as f32 * x);
        let shared = shared_moments(own.n_cols(), shared)?;
        own.drawn_towards(&shared)
    }

    /// Rounds matrices with these sums. If the sums cannot be used, the matrices are left to the importance matrix.
    fn round(&self, jobs: &[MatrixJob<'_>], sums: Result<SolverSums, SolveError>) -> Result<()> {
        let left = |name: &str, matrix, reason| {
            let (tensor, reason) = (name.to_owned(), SolveError::to_string(&reason));
            self.state().left.push(NotSolved { tensor, matrix, reason });
        };
        let ready = sums.and_then(|sums| {
            let metric = Metric::new(&sums.moments, self.options.shrinkage)?;
            Ok((sums, metric))
        });
        let (sums, metric) = match ready {
            Ok(ready) => ready,
            Err(reason) => {
                for job in jobs {
                    left(job.name, job.matrix, reason);
                }
                return Ok(());
            }
        };
        let SolverSums { moments, compensation } = sums;
        let importance = moments.diagonal();
        let correction = match &compensation {
            Compensation::Nothing => Ok(None),
            _ => Correction::new(&moments, self.options.lambda).map(Some),
        };
        let prepared = correction.and_then(|correction| match (correction, compensation) {
            (Some(correction), Compensation::Inputs(cross)) => {
                Ok(PreparedCorrection::Inputs(correction.of_inputs(cross)?))
            }
            (Some(correction), Compensation::Outputs(outputs)) => {
                Ok(PreparedCorrection::Outputs(correction, outputs))
            }
            (_, Compensation::Nothing) | (None, _) => Ok(PreparedCorrection::Nothing),
        });
        for &job in jobs {
            let solved =
                prepared.as_ref().map_err(|error| SolveFailure::Solve(*error)).and_then(|prepared| {
                    let corrected = match prepared {
                        PreparedCorrection::Nothing => None,
                        PreparedCorrection::Inputs(correction) => Some(Corrected::Inputs(correction)),
                        PreparedCorrection::Outputs(correction, outputs) => {
                            Some(Corrected::Outputs(correction, outputs))
                        }
                    };
                    self.matrices.solve(job, &metric, &importance, corrected)
                });
            match solved {
                Ok(()) => {}
                Err(SolveFailure::Solve(reason)) => left(job.name, job.matrix, reason),
                Err(SolveFailure::Run(error)) => return Err(*error),
            }
        }
        Ok(())
    }

    /// Solves experts that no token chose with the moments of all experts of the layer.
    fn unseen(&self) -> Result<()> {
        let shared = std::mem::take(&mut self.state().shared);
        for shared in shared.values() {
            let unseen = |&tensor: &usize| {
                let (name, target) = self.targets.get(&tensor)?;
                let blocks = self.matrices.blocks;
                let is_unseen = |matrix: &u64| !blocks.has(name, *matrix) && !blocks.meet(name, *matrix);
                let matrices = (0..self.matrices.n_matrices(*target)).filter(is_unseen);
                Some(matrices.map(|matrix| MatrixJob { name, target: *target, matrix }).collect::<Vec<_>>())
            };
            let jobs: Vec<_> = shared.tensors.iter().filter_map(unseen).flatten().collect();
            let Some(&tensor) = shared.tensors.first().filter(|_| !jobs.is_empty()) else { continue };
            let n_cols = usize::try_from(self.stream.tensors()[tensor].shape.n_cols()).unwrap_or(0);
            let moments = shared_moments(n_cols, shared);
            self.round(
                &jobs,
                moments.map(|moments| SolverSums { moments, compensation: Compensation::Nothing }),
            )?;
        }
        Ok(())
    }

    fn keep(&self, result: Result<()>) {
        if let Err(error) = result {
            self.state().failed.get_or_insert(error);
        }
    }

    /// Solves the head with the final states of both runs.
    pub(super) fn head(&self, head: &Matrix, x: &[f32], quantized: &[f32]) -> Result<()> {
        self.engine.install(|| self.solve(&[head], x, quantized))
    }
}

fn has_non_finite(x: &[f32]) -> bool {
    x.par_chunks(1 << 16).any(|part| first_non_finite(part).is_some())
}

fn shared_moments(n_cols: usize, shared: &StackSums) -> Result<SecondMoments, SolveError> {
    let share = 1.0 / (shared.n_rows.max(1) as f32);
    SecondMoments::new(n_cols, shared.n_rows, shared.values.iter().map(|sum| share * sum).collect())
}

impl Observer for Follower<'_> {
    fn inputs(&self, _: &dyn TensorSource, matrices: &[&Matrix], x: &[f32]) {
        if let Some(LockstepEvent::Inputs(unquantized)) = self.event() {
            let solved = self.engine.install(|| self.solve(matrices, &unquantized, x));
            self.buffers.give([unquantized]);
            self.keep(solved.and_then(|()| Ok(self.buffers.check()?)));
        }
    }

    fn routes(&self, routes: &mut [Vec<(usize, f32)>]) {
        if let Some(LockstepEvent::Routes(chosen)) = self.event() {
            // Experts get the tokens that the unquantized model routes to them; otherwise their rows have no
            // counterpart.
            routes.iter_mut().zip(chosen).for_each(|(route, chosen)| *route = chosen);
        }
    }

    fn branch(&self, matrix: &Matrix, factor: f32, stream: &[f32]) {
        if let Some(LockstepEvent::Branch(x)) = self.event() {
            let copy = || if x.is_empty() { Buffer::default() } else { self.buffers.copy(stream) };
            let quantized = self.engine.install(copy);
            let branch =
                Branch { matrix: (matrix.tensor, matrix.expert), factor, width: matrix.n_rows, x, quantized };
            self.state().branch = Some(branch);
        }
    }

    fn leave(&self, layer: usize) -> ControlFlow<()> {
        self.state().branch = None;
        let unseen = self.engine.install(|| self.unseen());
        self.keep(unseen);
        self.matrices.progress.figures(&format!("layer {} of {}", layer + 1, self.n_layers));
        if self.state().failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
