//! Heads of two models together: both models' logits of a tile are compared while they are in the cache.

use std::ops::Range;
use std::sync::Mutex;

use crate::exec::context::Context;
use crate::exec::hidden::Hidden;
use crate::exec::matmul::{MatrixTile, MatrixView};
use crate::exec::panel::{Panel, SLICE_TOKENS, cuts};
use crate::exec::product::Affix;
use crate::exec::timings::WorkKind;
use crate::exec::workers::{WorkerBuffers, lend};
use crate::layers::forward::Engine;
use crate::outputs::fold::LogitFold;
use crate::{EngineError, Result};
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;

/// One of the two models, with its head's context.
struct PairedModel<'a> {
    engine: &'a Engine<'a>,
    run: Context<'a>,
    affix: Affix,
    hidden: &'a Hidden,
}

impl<'a> PairedModel<'a> {
    fn new(engine: &'a Engine<'a>, hidden: &'a Hidden, progress: &'a dyn Progress) -> Result<Self> {
        let run = engine.head_run(progress, None);
        let affix = run.affix(&engine.plan.head)?;
        Ok(Self { engine, run, affix, hidden })
    }

    fn panels(&self) -> Vec<Panel<'_>> {
        Panel::of(&self.engine.plan.head, None).collect()
    }

    /// Computes the logits of some rows for the vocabulary rows of a panel.
    fn logits<'o>(
        &self,
        rows: &Range<usize>,
        panel: &Panel<'_>,
        weights: MatrixView<'_>,
        out: &'o mut Vec<f32>,
    ) -> &'o [f32] {
        let plan = &self.engine.plan;
        let n_cols = plan.head.n_cols;
        let x = MatrixView::new(&self.hidden.states[rows.start * n_cols..], rows.len(), n_cols, n_cols);
        let out = lend(out, rows.len() * panel.n);
        let mut tile = MatrixTile::whole(out, rows.len(), panel.n);
        self.run.clock.time(WorkKind::Product, || self.affix.multiply(&mut tile, x, weights, panel));
        plan.finish_logits(self.run.weights.level, out, panel.n, panel.first);
        out
    }
}

/// Folds of both models' rows, filled block by block.
struct PairFolds<'a> {
    folds: Vec<(LogitFold, LogitFold)>,
    slices: Vec<usize>,
    targets: &'a [u32],
    model: &'a Engine<'a>,
    progress: &'a dyn Progress,
}

impl<'a> PairFolds<'a> {
    fn new(n_rows: usize, model: &'a Engine<'a>, targets: &'a [u32], progress: &'a dyn Progress) -> Self {
        let folds = vec![(LogitFold::START, LogitFold::START); n_rows];
        Self { folds, slices: cuts(n_rows, SLICE_TOKENS), targets, model, progress }
    }

    /// Folds the logits of some rows for a panel: those of the reference, then those of the model.
    fn part<'l>(
        &self,
        rows: &Range<usize>,
        panel: &Panel<'_>,
        logits: impl Iterator<Item = (&'l [f32], &'l [f32])>,
    ) -> Vec<(LogitFold, LogitFold)> {
        let level = self.model.options.level;
        let of_row =
            |((a, b), &target): ((&[f32], &[f32]), &u32)| LogitFold::pair(level, a, b, panel.first, target);
        let targets = &self.targets[rows.start.min(self.targets.len())..];
        self.model.clock.time(WorkKind::Fold, || logits.zip(targets).map(of_row).collect())
    }

    /// Adds a block of panels. `part` gives the folds of some rows for the panel of this number.
    fn add(
        &mut self,
        n_panels: usize,
        part: impl Fn(&Self, &mut WorkerBuffers, &Range<usize>, usize) -> Vec<(LogitFold, LogitFold)> + Sync,
    ) -> Result<()> {
        let parts: Vec<Mutex<Vec<(LogitFold, LogitFold)>>> =
            (0..n_panels * (self.slices.len() - 1)).map(|_| Mutex::default()).collect();
        self.model.workers.each(parts.len(), |buffers, task| {
            if self.progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let (slice, at) = (task / n_panels, task % n_panels);
            let rows = self.slices[slice]..self.slices[slice + 1];
            *parts[task].lock().unpoisoned() = part(self, buffers, &rows, at);
            Ok(())
        })?;
        for (slice, folds) in self.folds.chunks_mut(SLICE_TOKENS).enumerate() {
            for part in &parts[slice * n_panels..(slice + 1) * n_panels] {
                let part = part.lock().unpoisoned();
                for ((a, b), (a_part, b_part)) in folds.iter_mut().zip(&*part) {
                    a.merge(a_part);
                    b.merge(b_part);
                }
            }
        }
        Ok(())
    }
}

/// Returns the folds of both models' rows, for heads of the same shape. The order of the sums depends on the shape
/// only.
pub(crate) fn folds(
    reference: &Engine<'_>,
    hidden: &Hidden,
    model: &Engine<'_>,
    model_hidden: &Hidden,
    targets: &[u32],
    progress: &dyn Progress,
) -> Result<Vec<(LogitFold, LogitFold)>> {
    let mut folds = PairFolds::new(hidden.n_rows, model, targets, progress);
    let a = PairedModel::new(reference, hidden, progress)?;
    let b = PairedModel::new(model, model_hidden, progress)?;
    let (a_panels, b_panels) = (a.panels(), b.panels());
    a.run.each_block(&a_panels, |block, first, a_weights| {
        // The same panels of the other model have the same size, so they are also one block.
        b.run.each_block(&b_panels[first..first + block.len()], |block, skipped, b_weights| {
            let a_weights = &a_weights[skipped..];
            folds.add(block.len(), |folds, WorkerBuffers { tile, rows: other, .. }, rows, at| {
                let panel = &block[at];
                let a_logits = a.logits(rows, panel, a_weights[at].weight, tile);
                let b_logits = b.logits(rows, panel, b_weights[at].weight, other);
                folds.part(rows, panel, a_logits.chunks(panel.n).zip(b_logits.chunks(panel.n)))
            })
        })
    })?;
    Ok(folds.folds)
}

/// Returns the folds as [`folds`], with the reference's logits already known, row by row.
pub(crate) fn folds_from(
    known: &[&[f32]],
    model: &Engine<'_>,
    model_hidden: &Hidden,
    targets: &[u32],
    progress: &dyn Progress,
) -> Result<Vec<(LogitFold, LogitFold)>> {
    let mut folds = PairFolds::new(known.len(), model, targets, progress);
    let b = PairedModel::new(model, model_hidden, progress)?;
    b.run.each_block(&b.panels(), |block, _, weights| {
        folds.add(block.len(), |folds, WorkerBuffers { tile, .. }, rows, at| {
            let panel = &block[at];
            let a_logits = known[rows.clone()].iter().map(|row| &row[panel.first..panel.first + panel.n]);
            let b_logits = b.logits(rows, panel, weights[at].weight, tile);
            folds.part(rows, panel, a_logits.zip(b_logits.chunks(panel.n)))
        })
    })?;
    Ok(folds.folds)
}
