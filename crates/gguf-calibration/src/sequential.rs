//! Solver that follows the quantized model. Two streams of hidden states go through the layers in parallel: one of the
//! unquantized model, one of the model whose earlier tensors are already quantized. Every matrix is solved just before
//! it is used, for the inputs that it will get, and compensates for the error of the matrices before it.

mod follower;
mod lockstep;
mod stream;
mod sums;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use crate::matrices::{MatrixJob, MatrixSolver, SolveFailure, SolveTarget};
use crate::memory::Needs;
use crate::sequential::follower::Follower;
use crate::sequential::lockstep::{Leader, link};
use crate::sequential::stream::QuantizedStream;
pub(super) use crate::sequential::sums::{SolverSums, StreamInputs};
use crate::solved::SolvedBlocks;
use crate::{CalibrateError, CalibrationText, NotSolved, Result, SolverOptions, TextKind};
use gguf_core::progress::Progress;
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_engine::{Engine, EngineError, EngineOptions, Hidden, TokenChunk};
use gguf_format::ImatrixSums;
use gguf_solve::{Metric, SHRINKAGE};
use gguf_verification::{Model, SumCollector};

/// Approximate number of tokens that a tied head is solved with; more for wide models.
const HEAD_TOKENS: usize = 4096;

/// Targets and options of a run.
pub(super) struct Task<'a> {
    pub(super) model: &'a Model<'a>,
    /// Source of the weights to solve; targets hold indices of its tensors.
    pub(super) source: &'a dyn TensorSource,
    pub(super) text: &'a CalibrationText,
    pub(super) engine: EngineOptions,
    pub(super) targets: &'a BTreeMap<String, SolveTarget>,
    /// All types that change, by tensor name.
    pub(super) types: &'a BTreeMap<String, GgmlType>,
    pub(super) options: SolverOptions,
    pub(super) blocks: &'a SolvedBlocks,
    /// Folder for hidden states that do not fit in the memory budget.
    pub(super) dir: &'a Path,
    pub(super) progress: &'a dyn Progress,
}

/// Results of a run in addition to the blocks.
pub(super) struct Followed {
    pub(super) importance: ImatrixSums,
    pub(super) left: Vec<NotSolved>,
}

/// Progress that only forwards cancellation.
pub(super) struct Quiet<'a>(pub(super) &'a dyn Progress);

impl Progress for Quiet<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Task<'_> {
    /// Runs both streams and solves the matrices as they are reached.
    pub(super) fn run(&self) -> Result<Followed> {
        let plan = self.model.plan()?;
        let stream = QuantizedStream::new(self.model.source, self.types, self.engine.level, self.blocks);
        let mut leader = Engine::new(self.model.plan()?, self.model.source, self.engine)?;
        let mut follower = Engine::new(self.model.plan()?, &stream, self.engine)?;
        let needs = needs(&leader, self.text.lengths());
        let is_spilling = needs.spills(&self.engine, self.text.n_tokens())?;
        if is_spilling {
            (leader, follower) = (leader.spilling(self.dir), follower.spilling(self.dir));
        }
        let buffers = leader.buffers();
        let targets = self.by_index();
        let mut left = Vec::new();
        let head = targets.get(&plan.head.tensor);
        let windows = self.text.kinds.iter().flat_map(|kind| &kind.windows);
        // Final states are needed only to solve a head.
        let chunk = |chunk: &TokenChunk| if head.is_some() { whole(chunk) } else { no_rows(chunk) };
        let chunks: Vec<TokenChunk> = windows.map(|window| chunk(&window.chunk)).collect();
        if let Some((name, target)) = head.filter(|_| plan.head.tensor == plan.embedding.tensor) {
            left.extend(self.tied_head(&leader, &chunks, name, *target)?);
        }
        let (leading, following) = link();
        let is_changed = |tensor: usize| stream.is_changed(tensor);
        let weights = self.weights();
        let watch = Leader {
            link: leading,
            engine: &leader,
            buffers: &buffers,
            sums: SumCollector::new(self.engine.level),
            is_target: &is_changed,
            is_stopped: AtomicBool::new(false),
        };
        let solver = Follower {
            link: Mutex::new(Some(following)),
            engine: &follower,
            buffers: &buffers,
            stream: &stream,
            matrices: self.matrices(),
            options: self.options,
            targets: &targets,
            weights: &weights,
            n_layers: plan.all_layers().count(),
            state: Mutex::default(),
        };
        let work = follower.work_bytes_in(1).saturating_sub(follower.head_bytes());
        let title = if is_spilling {
            "solving layer by layer, hidden states on disk"
        } else {
            "solving layer by layer"
        };
        self.progress.begin(title, work);
        self.progress.units("token", chunks.iter().map(|chunk| chunk.tokens.len() as u64).sum());
        let (unquantized, quantized, sums) = self.lockstep(&chunks, watch, &solver)?;
        if targets.contains_key(&plan.head.tensor) {
            solver.head(&plan.head, unquantized.states(), quantized.states())?;
        }
        self.progress.end();
        left.extend(solver.into_left());
        let importance = self.text.importance(sums.into_sums());
        Ok(Followed { importance, left })
    }

    /// Runs both streams to their end.
    fn lockstep(
        &self,
        chunks: &[TokenChunk],
        leader: Leader<'_>,
        follower: &Follower<'_>,
    ) -> Result<(Hidden, Hidden, SumCollector)> {
        let counts = [chunks.len()];
        let quiet = Quiet(self.progress);
        let (unquantized, quantized, sums) = std::thread::scope(|scope| {
            let lead = || {
                // The observer is dropped when this run ends, so that the other run stops waiting.
                let leader = leader;
                let states = leader.engine.forward_in(&counts, chunks, &quiet, Some(&leader));
                (states, leader.sums)
            };
            let lead =
                std::thread::Builder::new().name("unquantized".to_owned()).spawn_scoped(scope, lead)?;
            let quantized = follower.engine.forward_in(&counts, chunks, self.progress, Some(follower));
            follower.part();
            let (unquantized, sums) = lead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok::<_, std::io::Error>((unquantized, quantized, sums))
        })?;
        let is_own = |error: &CalibrateError| !matches!(error, CalibrateError::Engine(EngineError::Stopped));
        if let Some(error) = follower.take_failure().filter(is_own) {
            return Err(error);
        }
        // A run that reports `Stopped` was stopped by the other one.
        match (unquantized, quantized) {
            (Ok(unquantized), Ok(quantized)) => Ok((unquantized, quantized, sums)),
            (Err(EngineError::Stopped) | Ok(_), Err(error)) | (Err(error), _) => Err(error.into()),
        }
    }

    fn matrices(&self) -> MatrixSolver<'_> {
        MatrixSolver {
            source: self.source,
            level: self.engine.level,
            options: self.options.solve,
            blocks: self.blocks,
            progress: self.progress,
        }
    }

    /// Targets by their index in the model that is run.
    fn by_index(&self) -> BTreeMap<usize, (String, SolveTarget)> {
        let tensors = self.model.source.tensors().iter().enumerate();
        let target = |(at, meta): (usize, &TensorMeta)| {
            self.targets.get(&meta.name).map(|target| (at, (meta.name.clone(), *target)))
        };
        tensors.filter_map(target).collect()
    }

    /// Weight of each token: kinds are weighted as wholes, whatever their lengths.
    fn weights(&self) -> Vec<f32> {
        let total: f64 = self.text.kinds.iter().map(|kind| f64::from(kind.weight)).sum();
        let weigh = |kind: &TextKind| {
            let n = kind.n_tokens();
            std::iter::repeat_n((f64::from(kind.weight) / (total * n as f64)) as f32, n)
        };
        self.text.kinds.iter().flat_map(weigh).collect()
    }

    /// Solves a head that is also the embedding before any lookup in it, with the inputs that it has in the unquantized
    /// model.
    fn tied_head(
        &self,
        leader: &Engine<'_>,
        chunks: &[TokenChunk],
        name: &str,
        target: SolveTarget,
    ) -> Result<Option<NotSolved>> {
        if self.blocks.meet(name, 0) {
            return Ok(None);
        }
        let n_tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let step = n_tokens.div_ceil(HEAD_TOKENS.max(2 * leader.plan().n_embd)).max(1);
        let some: Vec<TokenChunk> = chunks.iter().step_by(step).cloned().collect();
        self.progress.steps(1);
        self.progress.begin(
            "running the model for its head",
            leader.work_bytes_in(1).saturating_sub(leader.head_bytes()),
        );
        let hidden = leader.forward_in(&[some.len()], &some, self.progress, None)?;
        self.progress.end();
        let (n_cols, states) = (leader.plan().n_embd, hidden.states());
        let n_rows = states.len() / n_cols.max(1);
        let weights = vec![1.0 / n_rows.max(1) as f32; n_rows];
        let matrices = self.matrices();
        let solve = || -> Result<(), SolveFailure> {
            let inputs = StreamInputs { x: states, quantized: states, n_cols, weights: &weights };
            let moments = SolverSums::of(&inputs, None)?.moments;
            let metric = Metric::new(&moments, SHRINKAGE)?;
            matrices.solve(MatrixJob { name, target, matrix: 0 }, &metric, &moments.diagonal(), None)
        };
        match leader.install(solve) {
            Ok(()) => Ok(None),
            Err(SolveFailure::Solve(reason)) => {
                let (tensor, reason) = (name.to_owned(), reason.to_string());
                Ok(Some(NotSolved { tensor, matrix: 0, reason }))
            }
            Err(SolveFailure::Run(error)) => Err(*error),
        }
    }
}

/// Chunk with all hidden states requested.
fn whole(chunk: &TokenChunk) -> TokenChunk {
    let TokenChunk { tokens, n_source, .. } = chunk;
    TokenChunk { tokens: tokens.clone(), rows: *n_source..tokens.len(), n_source: *n_source }
}

fn no_rows(chunk: &TokenChunk) -> TokenChunk {
    TokenChunk { rows: 0..0, ..chunk.clone() }
}

/// Memory for sequences of these lengths: both runs, the rows they hand over, and the sums of the widest matrix with
/// their factors.
pub(super) fn needs(engine: &Engine<'_>, lengths: impl Iterator<Item = usize> + Clone) -> Needs {
    let plan = engine.plan();
    let (tokens, longest) = (lengths.clone().sum::<usize>(), lengths.max().unwrap_or(0));
    let runs = engine.run_bytes(tokens, tokens, longest).saturating_mul(2);
    let unspilled = engine.unspilled_bytes(tokens, longest).saturating_mul(2);
    let widest = engine.widest();
    // Rows of both streams, and two residual streams.
    let handed = (widest as u64 + 2 * plan.n_embd as u64).saturating_mul(4).saturating_mul(tokens as u64);
    // Sums, cross sums, two factorizations; a matrix, its transpose, and the sums that it compensates; scaled rows.
    let widths = (40 * widest as u64).saturating_add(12 * plan.n_embd as u64);
    let scaled = (8 * widest + 4 * plan.n_embd) as u64 * tokens.min(sums::ROWS) as u64;
    let sums = (widest as u64).saturating_mul(widths).saturating_add(scaled);
    Needs {
        all_bytes: runs.saturating_add(handed).saturating_add(sums),
        least_bytes: unspilled.saturating_add(sums),
        spilled_bytes: runs.saturating_sub(unspilled).saturating_add(handed),
    }
}
