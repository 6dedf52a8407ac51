//! Head: logits are computed block by block over the vocabulary and reduced at once, so that nothing of the size of
//! tokens times vocabulary is stored.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use rayon::prelude::*;

use crate::exec::buffers::{Buffer, BufferPool};
use crate::exec::carried::Carried;
use crate::exec::context::Context;
use crate::exec::hidden::Hidden;
use crate::exec::matmul::{MatrixTile, MatrixView};
use crate::exec::observer::Observer;
use crate::exec::panel::{Panel, SLICE_TOKENS, cuts};
use crate::exec::product::Product;
use crate::exec::rope::RopeTables;
use crate::exec::timings::WorkKind;
use crate::exec::workers::{Tasks, lend};
use crate::layers::forward::Engine;
use crate::outputs::fold::{LogitFold, TokenDivergence, TokenScore};
use crate::outputs::pair;
use crate::{EngineError, Result};
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;

/// Number of logits in memory at a time.
pub(crate) const BLOCK_LOGITS: usize = 8 << 20;
/// Number of vocabulary rows of a block: a multiple of a panel's, so that blocks end where panels end.
const BLOCK_ROWS: usize = 768;

impl Engine<'_> {
    /// Returns the context of a run of the head alone.
    pub(crate) fn head_run<'r>(
        &'r self,
        progress: &'r dyn Progress,
        observer: Option<&'r dyn Observer>,
    ) -> Context<'r> {
        Context {
            n_embd: self.plan.n_embd,
            weights: self.weights(),
            workers: &self.workers,
            progress,
            observer,
            clock: &self.clock,
            ropes: RopeTables::default(),
            memory: Buffer::default(),
            layer: AtomicUsize::new(self.plan.layers.len()),
            buffers: BufferPool::default(),
            carried: Carried::default(),
            past: None,
            count: None,
        }
    }

    /// Iterates over blocks of vocabulary rows for `n_rows` hidden states.
    pub(crate) fn blocks(&self, n_rows: usize) -> impl Iterator<Item = Range<usize>> {
        let fitting = (BLOCK_LOGITS / n_rows.max(1)) / BLOCK_ROWS * BLOCK_ROWS;
        let step = fitting.max(BLOCK_ROWS);
        let n_vocab = self.plan.n_vocab;
        (0..n_vocab).step_by(step).map(move |first| first..(first + step).min(n_vocab))
    }

    /// Computes the scaled and capped logits of a block of vocabulary rows, `[n_rows, vocabulary.len()]`.
    pub(crate) fn logits_block(
        &self,
        run: &Context<'_>,
        hidden: &Hidden,
        vocabulary: &Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let matrix = self.plan.head.rows(vocabulary.start, vocabulary.len());
        run.products(&hidden.states, hidden.n_rows, vec![Product::plain(&matrix, out)])?;
        let level = self.options.level;
        let n = vocabulary.len().max(1);
        self.workers.install(|| {
            out.par_chunks_mut(n).run(&|row| self.plan.finish_logits(level, row, n, vocabulary.start));
        });
        Ok(())
    }

    /// Returns all logits of the rows, `[n_rows, n_vocab]`; for few rows, or as many as memory is there for.
    pub fn logits(&self, hidden: &Hidden, progress: &dyn Progress) -> Result<Vec<f32>> {
        let mut logits = vec![0.0; hidden.n_rows * self.plan.n_vocab];
        self.logits_block(&self.head_run(progress, None), hidden, &(0..self.plan.n_vocab), &mut logits)?;
        Ok(logits)
    }

    /// Returns the scores of `targets`, one per row.
    pub fn scores(
        &self,
        hidden: &Hidden,
        targets: &[u32],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Vec<TokenScore>> {
        let run = self.head_run(progress, observer);
        let (head, n_embd) = (&self.plan.head, self.plan.head.n_cols);
        if hidden.n_rows == 0 {
            return Ok(Vec::new());
        }
        run.observe(std::iter::once(head), &hidden.states);
        let affix = run.affix(head)?;
        let panels: Vec<Panel<'_>> = Panel::of(head, None).collect();
        let slices = cuts(hidden.n_rows, SLICE_TOKENS);
        let mut folds = vec![LogitFold::START; hidden.n_rows];
        run.each_block(&panels, |block, _, decoded| {
            // Logits are folded where they are computed, panel by panel; the folds are then merged in the panels'
            // order.
            let parts: Vec<Mutex<Vec<LogitFold>>> =
                (0..block.len() * (slices.len() - 1)).map(|_| Mutex::default()).collect();
            self.workers.each(parts.len(), |scratch, task| {
                if progress.is_cancelled() {
                    return Err(EngineError::Cancelled);
                }
                let (slice, panel) = (task / block.len(), task % block.len());
                let (rows, panel, weights) =
                    (slices[slice]..slices[slice + 1], &block[panel], decoded[panel].weight);
                let logits = lend(&mut scratch.tile, rows.len() * panel.n);
                let mut tile = MatrixTile::whole(logits, rows.len(), panel.n);
                let x = MatrixView::new(&hidden.states[rows.start * n_embd..], rows.len(), n_embd, n_embd);
                run.clock.time(WorkKind::Product, || affix.multiply(&mut tile, x, weights, panel));
                let part = run.clock.time(WorkKind::Fold, || {
                    self.fold(logits, panel.n, panel.first, &targets[rows.start.min(targets.len())..])
                });
                *parts[task].lock().unpoisoned() = part;
                Ok(())
            })?;
            self.workers.install(|| {
                folds.par_chunks_mut(SLICE_TOKENS).enumerate().run(&|(slice, folds)| {
                    for part in &parts[slice * block.len()..(slice + 1) * block.len()] {
                        let part = part.lock().unpoisoned();
                        folds.iter_mut().zip(&*part).for_each(|(fold, part)| fold.merge(part));
                    }
                });
            });
            Ok(())
        })?;
        Ok(folds.iter().map(LogitFold::score).collect())
    }

    /// Folds a tile of logits for vocabulary rows `first .. first + n`.
    fn fold(&self, logits: &mut [f32], n: usize, first: usize, targets: &[u32]) -> Vec<LogitFold> {
        let level = self.options.level;
        self.plan.finish_logits(level, logits, n, first);
        let fold = |(logits, &target): (&mut [f32], &u32)| {
            let mut fold = LogitFold::START;
            fold.add(level, logits, first, target);
            fold
        };
        logits.chunks_mut(n).zip(targets).map(fold).collect()
    }

    /// Returns the scores and divergences of two models' rows; `self` is the reference. The rows must belong to the
    /// same tokens.
    ///
    /// # Errors
    /// [`EngineError::Vocabulary`] if the heads differ in size; also if weights cannot be read or the run is cancelled.
    pub fn divergences(
        &self,
        hidden: &Hidden,
        model: &Engine<'_>,
        model_hidden: &Hidden,
        targets: &[u32],
        progress: &dyn Progress,
    ) -> Result<Vec<TokenDivergence>> {
        if self.plan.n_vocab != model.plan.n_vocab || hidden.n_rows != model_hidden.n_rows {
            let (model, baseline) = (model.plan.n_vocab, self.plan.n_vocab);
            return Err(EngineError::Vocabulary { model, baseline });
        }
        let folds = if self.plan.head.n_cols == model.plan.head.n_cols {
            pair::folds(self, hidden, model, model_hidden, targets, progress)?
        } else {
            self.fold_blocks(hidden, model, model_hidden, targets, progress)?
        };
        Ok(folds.iter().map(|(reference, model)| reference.divergence(model)).collect())
    }

    /// Returns the scores and divergences of this model's rows as [`Engine::divergences`] does, from the reference's logits,
    /// row by row. They are the same if both heads have the same width.
    pub fn divergences_from_logits(
        &self,
        reference: &[&[f32]],
        hidden: &Hidden,
        targets: &[u32],
        progress: &dyn Progress,
    ) -> Result<Vec<TokenDivergence>> {
        let model = self.plan.n_vocab;
        let other = reference.iter().map(|row| row.len()).find(|&n| n != model);
        if other.is_some() || reference.len() != hidden.n_rows {
            return Err(EngineError::Vocabulary { model, baseline: other.unwrap_or(model) });
        }
        let folds = pair::folds_from(reference, self, hidden, targets, progress)?;
        Ok(folds.iter().map(|(reference, model)| reference.divergence(model)).collect())
    }

    /// Folds both models' rows, block by block of the vocabulary, for heads of different width, whose panels differ.
    fn fold_blocks(
        &self,
        hidden: &Hidden,
        model: &Engine<'_>,
        model_hidden: &Hidden,
        targets: &[u32],
        progress: &dyn Progress,
    ) -> Result<Vec<(LogitFold, LogitFold)>> {
        let level = self.options.level;
        let (run, model_run) = (self.head_run(progress, None), model.head_run(progress, None));
        let mut folds = vec![(LogitFold::START, LogitFold::START); hidden.n_rows];
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for vocabulary in self.blocks(hidden.n_rows * 2) {
            let n = vocabulary.len();
            a.resize(hidden.n_rows * n, 0.0);
            b.resize(hidden.n_rows * n, 0.0);
            self.logits_block(&run, hidden, &vocabulary, &mut a)?;
            model.logits_block(&model_run, model_hidden, &vocabulary, &mut b)?;
            self.workers.install(|| {
                let rows = folds.par_iter_mut().zip(a.par_chunks(n)).zip(b.par_chunks(n)).zip(targets);
                rows.for_each(|((((fold_a, fold_b), a), b), &target)| {
                    let (part_a, part_b) = LogitFold::pair(level, a, b, vocabulary.start, target);
                    fold_a.merge(&part_a);
                    fold_b.merge(&part_b);
                });
            });
        }
        Ok(folds)
    }
}
