//! Attempts at a model, one after the other: each is solved or resumed from an interrupted run, then measured.

use std::collections::BTreeMap;

use crate::figures::{HeldOutFigures, WORTH_IT};
use crate::importance::importance;
use crate::matrices::SolveTarget;
use crate::options::{FidelityOptions, Solver};
use crate::program::program;
use crate::sequential::{Followed, Task};
use crate::solved::SolvedBlocks;
use crate::work::{FinishedAttempt, Resumed, WorkFacts, identity};
use crate::{CalibrateError, CalibrationText, NotSolved, Result, SolverOptions};
use gguf_core::GgmlType;
use gguf_core::progress::{Progress, Titled};
use gguf_engine::EngineOptions;
use gguf_format::{Imatrix, ImatrixSums};
use gguf_quantization::{Input, QuantizeError, QuantizePlan};
use gguf_verification::{Divergence, Fingerprint, Model, Window, divergence_on};

/// Inputs that all attempts share.
pub(super) struct Attempts<'a> {
    pub(super) model: &'a Model<'a>,
    pub(super) input: &'a Input<'a>,
    pub(super) text: &'a CalibrationText,
    pub(super) options: &'a FidelityOptions<'a>,
    pub(super) targets: &'a BTreeMap<String, SolveTarget>,
    /// Quantized tensors whose type has no solver.
    pub(super) others: &'a [(String, GgmlType)],
    pub(super) held_out: &'a [Window],
    pub(super) progress: &'a dyn Progress,
}

pub(super) struct AttemptResult {
    pub(super) imatrix: Imatrix,
    pub(super) blocks: SolvedBlocks,
    pub(super) left: Vec<NotSolved>,
    /// Matrices that an earlier run has solved.
    pub(super) n_found: usize,
}

impl Attempts<'_> {
    /// Begins to keep the work of this run, or resumes from the work that is kept.
    pub(super) fn begin(&self) -> Result<()> {
        let Some(work) = self.options.work else { return Ok(()) };
        Ok(work.begin(self.facts()?)?)
    }

    /// Solves all matrices that are not solved yet.
    pub(super) fn attempt(&self, number: usize, solver: SolverOptions) -> Result<AttemptResult> {
        let tensors = self.input.source.tensors();
        let places = self.targets.values().map(|target| (&tensors[target.tensor], target.ty));
        let Some(work) = self.options.work else {
            let blocks = SolvedBlocks::new(self.options.dir, places)?;
            let (sums, left) = self.solve(&blocks, solver)?;
            return Ok(AttemptResult { imatrix: imatrix(&sums)?, blocks, left, n_found: 0 });
        };
        let finished = work.finished(number);
        if let Some(FinishedAttempt { importance, left }) =
            finished.as_ref().filter(|_| self.is_given_up(number))
        {
            let blocks = SolvedBlocks::new(self.options.dir, std::iter::empty())?;
            let imatrix = imatrix(importance)?;
            return Ok(AttemptResult { imatrix, blocks, left: left.clone(), n_found: 0 });
        }
        let Resumed { blocks, n_found, n_damaged } = work.blocks(number, places, self.progress)?;
        if n_found + n_damaged > 0 {
            let damaged = match n_damaged {
                0 => String::new(),
                n => format!("; the saved results of {n} others are damaged, they are made again"),
            };
            let text = format!("resuming: {n_found} of {} matrices are there{damaged}", blocks.n_all());
            self.progress.warn(&text);
        }
        if let Some(FinishedAttempt { importance, left }) = finished.filter(|_| n_damaged == 0) {
            blocks.meet_all();
            let imatrix = imatrix(&importance)?;
            return Ok(AttemptResult { imatrix, blocks, left, n_found });
        }
        let (sums, left) = self.solve(&blocks, solver)?;
        blocks.meet_all();
        work.finish(number, &sums, &left)?;
        Ok(AttemptResult { imatrix: imatrix(&sums)?, blocks, left, n_found })
    }

    /// Returns true if an earlier run measured this attempt, found it not worth it, and went on to the next one.
    fn is_given_up(&self, number: usize) -> bool {
        let judged = |attempt| self.options.work.and_then(|work| work.judged(attempt));
        judged(None).zip(judged(Some(number))).is_some_and(|(plain, own)| own.ratio(&plain) > WORTH_IT)
    }

    fn solve(&self, blocks: &SolvedBlocks, solver: SolverOptions) -> Result<(ImatrixSums, Vec<NotSolved>)> {
        if self.options.solver == Solver::Reference {
            let (engine, dir) = (self.options.engine, self.options.dir);
            return Ok((importance(self.model, self.text, engine, dir, self.progress)?, Vec::new()));
        }
        let solved = self.targets.iter().map(|(name, target)| (name.clone(), target.ty));
        let task = Task {
            model: self.model,
            source: self.input.source,
            text: self.text,
            engine: self.options.engine,
            targets: self.targets,
            types: &solved.chain(self.others.iter().cloned()).collect(),
            options: solver,
            blocks,
            dir: self.options.dir,
            progress: self.progress,
        };
        let Followed { importance, left } = task.run()?;
        Ok((importance, left))
    }

    /// Measures the file of a plan, under a title.
    pub(super) fn measure(&self, plan: &QuantizePlan<'_>, title: &str) -> Result<HeldOutFigures> {
        let progress = Titled { title, progress: self.progress };
        let found = divergence_of(plan, self.model, self.held_out, self.options.engine, &progress)?;
        Ok(HeldOutFigures::of(&found))
    }

    /// Measures the file of a plan unless it was measured before; `None` is the importance matrix alone.
    pub(super) fn judge(&self, attempt: Option<usize>, plan: &QuantizePlan<'_>) -> Result<HeldOutFigures> {
        let work = self.options.work;
        let title = match attempt {
            None => "measuring the file of the importance matrix alone",
            Some(_) => "measuring the calibrated file",
        };
        if let Some(judged) = work.and_then(|work| work.judged(attempt)) {
            // It still counts as a step of the run.
            self.progress.begin(title, 0);
            self.progress.end();
            return Ok(judged);
        }
        let judged = self.measure(plan, title)?;
        if let Some(work) = work {
            work.judge(attempt, &judged)?;
        }
        Ok(judged)
    }

    /// Drops the kept blocks of an attempt that was not worth it.
    pub(super) fn give_up(&self, number: usize) {
        if let Some(work) = self.options.work {
            work.drop_blocks(number);
        }
    }

    /// Everything that decides the result; threads and memory do not.
    pub(super) fn facts(&self) -> Result<WorkFacts> {
        let (model, tokenizer) = identity(self.model)?;
        let mut facts = WorkFacts::default();
        facts.add("program", program());
        // Sums of products have the same bits only with the same instructions.
        facts.add("vector instructions", self.options.engine.level.name());
        facts.add("model", model);
        facts.add("tokenizer", tokenizer);
        facts.add("solver", self.options.solver.name());
        if self.options.solver.tuning_steps() > 0 {
            facts.add("steps of the tuning", self.options.solver.tuning_steps().to_string());
        }
        let mut text = Fingerprint::default();
        for kind in &self.text.kinds {
            text.bytes(kind.name.as_bytes());
            text.number(kind.weight.into());
            text.number(kind.windows.len() as u64);
            text.windows(&kind.windows);
        }
        facts.add("calibration text", format!("{}, digest {}", self.text.description(), text.hex()));
        let mut held_out = Fingerprint::default();
        held_out.windows(self.held_out);
        for window in self.held_out {
            held_out.number(window.scored.start as u64);
            held_out.number(window.scored.end as u64);
        }
        facts.add("text of the check", held_out.hex());
        let mut types = Fingerprint::default();
        let targets = self.targets.iter().map(|(name, target)| (name, target.ty));
        for (name, ty) in targets.chain(self.others.iter().map(|(name, ty)| (name, *ty))) {
            types.bytes(name.as_bytes());
            types.bytes(ty.name().as_bytes());
        }
        let quantize = self.options.quantize;
        facts.add("type", quantize.file_type.to_string());
        facts.add("types of the tensors", types.hex());
        let mut options = Fingerprint::default();
        options.value(&quantize.identity())?;
        facts.add("options of the quantization", options.hex());
        Ok(facts)
    }
}

/// Divergence of a plan's file from the model, without writing it.
pub(super) fn divergence_of(
    plan: &QuantizePlan<'_>,
    model: &Model<'_>,
    windows: &[Window],
    engine: EngineOptions,
    progress: &dyn Progress,
) -> Result<Divergence> {
    let own = Model { source: plan, metadata: plan.metadata(), file: None, recall: None, ..*model };
    divergence_on(&own, model, windows, engine, progress)?.ok_or(CalibrateError::NoText)
}

fn imatrix(sums: &ImatrixSums) -> Result<Imatrix> {
    Ok(Imatrix::of_sums(sums).map_err(QuantizeError::from)?)
}
