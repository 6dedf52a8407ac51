//! Tuning after `sequential`: codes and block floats move by the gradient of the model's divergence from the original,
//! on the calibration text and more text that the model writes. Groups keep their scales, tensors their types.
//!
//! A part of the calibration text, which no step learns from, chooses among the states, of which the start is one. The
//! text held back for the check is not read.
//!
//! The order of sequences is drawn by a fixed seed; sums over tokens have a fixed order; elements move on their own. So
//! the bytes are the same for any number of threads.

mod model;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use crate::attempts::Attempts;
use crate::figures::HeldOutFigures;
use crate::options::FidelityOptions;
use crate::sequential::Quiet;
use crate::solved::SolvedBlocks;
use crate::tuned::model::{GradientSums, HeldModel, MovingModel};
use crate::tuned::text::{Batches, TuningText};
use crate::{CalibrateError, CalibrationText, Result};
use gguf_blocks::states::form;
use gguf_core::progress::Progress;
use gguf_core::text::{escape, plural};
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_engine::{Engine, EngineOptions, GraphPlan, Hidden, Reference, TokenChunk};
use gguf_format::Imatrix;
use gguf_quantization::{QuantizePlan, SolvedRows};
use gguf_solve::{MOVING_BYTES, MovingStep};
use gguf_verification::Model;

/// Smallest number of tokens of a step.
pub(super) const STEP_TOKENS: usize = 1024;
/// Number of steps after which the state is judged.
pub(super) const STEPS_PER_TRIAL: usize = 20;
/// Seed of the order of sequences.
const SEED: u64 = 1;

/// Number of stages that a progress report counts, without own text.
const N_STAGES: usize = 3;
/// Rates of the first step; those of later ones fall to 0 in a line.
const CODE_RATE: f32 = 0.025;
const FLOAT_RATE: f32 = 0.001;

/// Checks of a tuning before anything runs.
pub(super) struct TuningOutlook {
    /// What the user should know: a model without a gradient, types that stay.
    pub(super) notes: Vec<String>,
    /// Bytes in addition to the weights; `None` if nothing can be tuned.
    pub(super) needed_bytes: Option<u64>,
    pub(super) n_weights: u64,
}

impl TuningOutlook {
    /// Finds what stands in the way of a tuning of these tensors, and counts its memory.
    pub(super) fn of<'t>(
        engine: &Engine<'_>,
        text: &CalibrationText,
        targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)> + Clone,
    ) -> Self {
        let mut notes = Vec::new();
        if let Err(error) = engine.plan().check_gradient() {
            notes.push(format!("{error}: the file is that of `--solver sequential`"));
            return Self { notes, needed_bytes: None, n_weights: 0 };
        }
        let is_moving = |(_, ty): &(&TensorMeta, GgmlType)| form(*ty).is_some();
        let mut staying = targets.clone().filter(|target| !is_moving(target));
        if let Some((meta, ty)) = staying.next() {
            let n = 1 + staying.count() as u64;
            notes.push(format!(
                "not tuned, since the type has no code for each element: {}, `{}` ({ty}), for example",
                plural(n, "tensor"),
                escape(&meta.name)
            ));
        }
        let n_weights = targets.clone().filter(is_moving).map(|(meta, _)| meta.shape.n_elems()).sum();
        let needed_bytes = (n_weights > 0).then(|| needed_bytes(engine, text, targets));
        Self { notes, needed_bytes, n_weights }
    }

    /// Checks the memory budget.
    pub(super) fn check(&self, options: &EngineOptions) -> Result<()> {
        let (budget_bytes, weights) = (options.memory_bytes, self.n_weights);
        match self.needed_bytes.filter(|&needed| needed > budget_bytes) {
            Some(needed_bytes) => Err(CalibrateError::TuneMemory { budget_bytes, needed_bytes, weights }),
            None => Ok(()),
        }
    }
}

impl Attempts<'_> {
    /// Checks that the solved tensors can be tuned.
    pub(super) fn tuning_outlook(&self) -> Result<TuningOutlook> {
        let engine = Engine::new(self.model.plan()?, self.model.source, self.options.engine)?;
        let tensors = self.input.source.tensors();
        let targets = self.targets.values().map(|target| (&tensors[target.tensor], target.ty));
        Ok(TuningOutlook::of(&engine, self.text, targets))
    }

    /// Tunes the blocks of a solver, and measures the file; `None` if it does not diverge less than before.
    pub(super) fn tune(
        &self,
        imatrix: &Imatrix,
        blocks: &SolvedBlocks,
        before: &HeldOutFigures,
    ) -> Result<Option<(SolvedBlocks, HeldOutFigures)>> {
        let FidelityOptions { solver, quantize, engine, dir, .. } = *self.options;
        let plan = QuantizePlan::new(self.input, quantize, Some(imatrix))?.with_solved(blocks);
        let tuning = Tuning {
            model: self.model,
            plan: &plan,
            text: self.text,
            n_steps: solver.tuning_steps(),
            engine,
            dir,
            progress: self.progress,
        };
        self.progress.steps(N_STAGES);
        let tuned = tuning.run(blocks)?;
        if let Some(tuned) = tuned {
            let plan = QuantizePlan::new(self.input, quantize, Some(imatrix))?.with_solved(&tuned);
            let figures = self.measure(&plan, "measuring the tuned file")?;
            drop(plan);
            if figures.mean_kld < before.mean_kld {
                return Ok(Some((tuned, figures)));
            }
        }
        self.progress.warn(
            "tuning did not lower the divergence on the text that was held back: the file is that of `--solver sequential`",
        );
        Ok(None)
    }
}

/// Inputs of a tuning.
struct Tuning<'a> {
    /// Unquantized model.
    model: &'a Model<'a>,
    /// File of the solver before.
    plan: &'a QuantizePlan<'a>,
    text: &'a CalibrationText,
    n_steps: usize,
    engine: EngineOptions,
    /// Folder for the blocks.
    dir: &'a Path,
    progress: &'a dyn Progress,
}

/// State and its divergence on the text that chooses.
struct State<'a> {
    held: HeldModel<'a>,
    divergence: f64,
}

/// Unquantized model, its final states for all sequences, and the graph of both models.
struct Goal<'a> {
    engine: Engine<'a>,
    /// Graph of the quantized model, whose tensors may have another order.
    graph: GraphPlan,
    text: TuningText,
    learned: Vec<Hidden>,
    choosing: Hidden,
}

impl<'a> Tuning<'a> {
    /// Moves all blocks that can move; `None` if no state was better than the start. `before` has the blocks of the
    /// start.
    fn run(&self, before: &SolvedBlocks) -> Result<Option<SolvedBlocks>> {
        let source = self.model.source.tensors();
        let types: BTreeMap<&str, GgmlType> =
            source.iter().map(|meta| (meta.name.as_str(), meta.ty)).collect();
        let is_changed = |meta: &TensorMeta| {
            meta.ty.is_quantized() && types.get(meta.name.as_str()).is_some_and(|&ty| ty != meta.ty)
        };
        let text = TuningText::new(self.text, self.model, self.engine, self.progress)?;
        let held = HeldModel::read(self.plan, is_changed)?;
        let goal = self.goal(text)?;
        let start = self.judge(&held, &goal)?;
        let mut best = State { held, divergence: start };
        self.step_all(&goal, &mut best)?;
        if best.divergence < start { self.written(&best.held, before).map(Some) } else { Ok(None) }
    }

    /// Runs the unquantized model over all sequences.
    fn goal(&self, text: TuningText) -> Result<Goal<'a>> {
        let engine = Engine::new(self.model.plan()?, self.model.source, self.engine)?;
        let n_embd = engine.plan().n_embd;
        let chunks: Vec<TokenChunk> = text.learned.iter().chain(&text.choosing).cloned().collect();
        let work = engine.work_bytes(&chunks).saturating_sub(engine.head_bytes());
        self.progress.begin("running the model to tune by", work);
        let hidden = engine.forward(&chunks, self.progress, None)?;
        self.progress.end();
        let mut rest = hidden.states();
        let mut take = |n_rows: usize| {
            let (own, later) = rest.split_at(n_rows * n_embd);
            rest = later;
            Hidden::new(own.to_vec(), n_embd)
        };
        let learned = text.learned.iter().map(|chunk| take(chunk.rows.len())).collect();
        let choosing = take(text.choosing.iter().map(|chunk| chunk.rows.len()).sum());
        let quantized = Model {
            source: self.plan,
            metadata: self.plan.metadata(),
            file: None,
            recall: None,
            ..*self.model
        };
        let graph = quantized.plan()?;
        Ok(Goal { engine, graph, text, learned, choosing })
    }

    /// Engine of the model with other weights.
    fn engine<'s>(&self, goal: &Goal<'_>, source: &'s dyn TensorSource) -> Result<Engine<'s>> {
        Ok(Engine::new(goal.graph.clone(), source, self.engine)?)
    }

    /// Mean divergence on the text that chooses.
    fn judge(&self, held: &HeldModel<'_>, goal: &Goal<'_>) -> Result<f64> {
        let (engine, quiet) = (self.engine(goal, held)?, Quiet(self.progress));
        let hidden = engine.forward(&goal.text.choosing, &quiet, None)?;
        let targets = vec![0; hidden.n_rows()];
        let found = goal.engine.divergences(&goal.choosing, &engine, &hidden, &targets, &quiet)?;
        Ok(found.iter().map(|at| at.kld).sum::<f64>() / found.len().max(1) as f64)
    }

    /// Goes through all steps from the best state, which becomes the best of those on the way.
    fn step_all(&self, goal: &Goal<'_>, best: &mut State<'a>) -> Result<()> {
        let lengths = goal.text.learned.iter().map(|chunk| chunk.tokens.len()).collect();
        let mut batches = Batches::new(lengths, goal.text.order.clone(), SEED);
        let mut moving = MovingModel::new(&best.held)?;
        let mut sums = moving.sums();
        self.progress.begin("tuning codes and scales", self.n_steps as u64);
        self.progress.units("step", self.n_steps as u64);
        for number in 1..=self.n_steps {
            self.add_gradients(&batches.next(STEP_TOKENS), &moving, goal, &mut sums)?;
            let left = (self.n_steps + 1 - number) as f32 / self.n_steps as f32;
            let step = MovingStep { number, code_rate: CODE_RATE * left, float_rate: FLOAT_RATE * left };
            goal.engine.install(|| moving.step(step, &mut sums));
            if number % STEPS_PER_TRIAL == 0 || number == self.n_steps {
                let held = goal.engine.install(|| moving.packed())?;
                let divergence = self.judge(&held, goal)?;
                if divergence < best.divergence {
                    *best = State { held, divergence };
                }
                self.progress.figures(&format!("mean KLD {:.6}", best.divergence));
            }
            self.progress.advance(1);
        }
        self.progress.end();
        Ok(())
    }

    /// Adds the gradients of the divergence on some sequences.
    fn add_gradients(
        &self,
        chosen: &[usize],
        moving: &MovingModel<'_>,
        goal: &Goal<'_>,
        sums: &mut GradientSums,
    ) -> Result<()> {
        let chunks: Vec<TokenChunk> = chosen.iter().map(|&at| goal.text.learned[at].clone()).collect();
        let states: Vec<f32> = chosen.iter().flat_map(|&at| goal.learned[at].states()).copied().collect();
        let hidden = Hidden::new(states, goal.engine.plan().n_embd);
        let reference = Reference { engine: &goal.engine, hidden: &hidden };
        let engine = self.engine(goal, moving)?;
        engine.gradients(&chunks, reference, sums, &Quiet(self.progress))?;
        Ok(())
    }

    /// Writes the blocks of a state for all matrices that were solved, and for those that have moved.
    fn written(&self, held: &HeldModel<'_>, before: &SolvedBlocks) -> Result<SolvedBlocks> {
        let tensors = self.plan.tensors().iter().enumerate().filter_map(|(at, meta)| {
            let blocks = held.blocks(at)?;
            (form(meta.ty).is_some() || before.has(&meta.name, 0)).then_some((meta, blocks))
        });
        let tensors: Vec<(&TensorMeta, &[u8])> = tensors.collect();
        let written = SolvedBlocks::new(self.dir, tensors.iter().map(|(meta, _)| (*meta, meta.ty)))?;
        for (meta, blocks) in tensors {
            written.put(&meta.name, 0, blocks)?;
            for matrix in 0..written.n_matrices(&meta.name) {
                written.finish(&meta.name, matrix)?;
            }
        }
        Ok(written)
    }
}

/// Bytes of a tuning in addition to the weights.
fn needed_bytes<'t>(
    engine: &Engine<'_>,
    text: &CalibrationText,
    targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)>,
) -> u64 {
    let of_target = |(meta, ty): (&TensorMeta, GgmlType)| {
        let n_elems = meta.shape.n_elems();
        let blocks = ty.row_bytes(meta.shape.n_cols()).unwrap_or(0).saturating_mul(meta.shape.n_rows());
        let moving = if form(ty).is_some() { n_elems.saturating_mul(MOVING_BYTES) } else { 0 };
        // Start, best and present state.
        moving.saturating_add(blocks.saturating_mul(3))
    };
    let weights = targets.map(of_target).fold(0u64, u64::saturating_add);
    let states = (4 * engine.plan().n_embd * TuningText::n_tokens(text)) as u64;
    let longest = text.longest();
    // All states once more while they are divided among the sequences.
    let run = engine.gradient_bytes(STEP_TOKENS + longest, longest);
    weights.saturating_add(states.saturating_mul(2)).saturating_add(run)
}
