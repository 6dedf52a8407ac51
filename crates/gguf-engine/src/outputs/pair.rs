//! Heads of two models together: both models' logits of a tile are compared while they are in the cache.

use std::ops::Range;
use std::sync::Mutex;

use crate::EngineError;
use crate::exec::context::Context;
use crate::exec::hidden::Hidden;
use crate::exec::matmul::{MatrixTile, MatrixView};
use crate::exec::panel::{Panel, SLICE_TOKENS, cuts};
use crate::exec::product::Affix;
use crate::exec::timings::WorkKind;
use crate::exec::workers::{WorkerBuffers, lend};
use crate::layers::forward::Engine;
use crate::outputs::fold::LogitFold;
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
    fn new(
        engine: &'a Engine<'a>,
        hidden: &'a Hidden,
        progress: &'a dyn Progress,
    ) -> Result<Self, EngineError> {
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

/// Returns the folds of both models' rows, for heads of the same shape. The order of the sums depends on the shape
/// only.
pub(crate) fn folds(
    reference: &Engine<'_>,
    hidden: &Hidden,
    model: &Engine<'_>,
    model_hidden: &Hidden,
    targets: &[u32],
    progress: &dyn Progress,
) -> Result<Vec<(LogitFold, LogitFold)>, EngineError> {
    let mut folds = vec![(LogitFold::START, LogitFold::START); hidden.n_rows];
    if hidden.n_rows == 0 {
        return Ok(folds);
    }
    let a = PairedModel::new(reference, hidden, progress)?;
    let b = PairedModel::new(model, model_hidden, progress)?;
    let (a_panels, b_panels) = (a.panels(), b.panels());
    let slices = cuts(hidden.n_rows, SLICE_TOKENS);
    let level = reference.options.level;
    a.run.each_block(&a_panels, |block, first, a_weights| {
        // The same panels of the other model have the same size, so they are also one block.
        b.run.each_block(&b_panels[first..first + block.len()], |block, skipped, b_weights| {
            let a_weights = &a_weights[skipped..];
            let parts: Vec<Mutex<Vec<(LogitFold, LogitFold)>>> =
                (0..block.len() * (slices.len() - 1)).map(|_| Mutex::default()).collect();
            reference.workers.each(parts.len(), |WorkerBuffers { tile, rows: other, .. }, task| {
                if progress.is_cancelled() {
                    return Err(EngineError::Cancelled);
                }
                let (slice, at) = (task / block.len(), task % block.len());
                let (rows, panel) = (slices[slice]..slices[slice + 1], &block[at]);
                let a_logits = a.logits(&rows, panel, a_weights[at].weight, tile);
                let b_logits = b.logits(&rows, panel, b_weights[at].weight, other);
                let part = a.run.clock.time(WorkKind::Fold, || {
                    let pairs = a_logits.chunks(panel.n).zip(b_logits.chunks(panel.n));
                    let of_row = |((a, b), &target): ((&[f32], &[f32]), &u32)| {
                        LogitFold::pair(level, a, b, panel.first, target)
                    };
                    pairs.zip(&targets[rows.start.min(targets.len())..]).map(of_row).collect()
                });
                *parts[task].lock().unpoisoned() = part;
                Ok(())
            })?;
            for (slice, folds) in folds.chunks_mut(SLICE_TOKENS).enumerate() {
                for part in &parts[slice * block.len()..(slice + 1) * block.len()] {
                    let part = part.lock().unpoisoned();
                    for ((a, b), (a_part, b_part)) in folds.iter_mut().zip(&*part) {
                        a.merge(a_part);
                        b.merge(b_part);
                    }
                }
            }
            Ok(())
        })
    })?;
    Ok(folds)
}
