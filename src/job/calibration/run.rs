//! Run of a calibrated quantization: text, solver, check, file.

use crate::calibrate::{CalibrateError, Fidelity, FidelityOptions, Solver, WorkFolder, solve, solving_steps};
use crate::core::progress::Progress;
use crate::core::text::{escape, plural};
use crate::core::{ImatrixNeed, TensorSource};
use crate::engine::ModelKind;
use crate::job::calibration::{Calibration, CalibrationReport, CalibrationSources, sized};
use crate::job::quantize::CheckedQuantization;
use crate::job::report::QuantizationReport;
use crate::job::{Contradiction, Events, FileTarget, Result};
use crate::quantize::QuantizePlan;
use crate::verify::{Model, ModelParts, Recall};

impl Calibration {
    pub(in crate::job) fn run(&self, quantization: &CheckedQuantization<'_>) -> Result<QuantizationReport> {
        let texts = self.sources(quantization)?;
        if quantization.size.is_none() {
            let plan = QuantizePlan::draft_to_come(&quantization.input, &quantization.options)?;
            quantization.report_plan(quantization.described(&plan, None))?;
        }
        let sync = quantization.run.job.sync;
        let work = self.work_dir.as_ref().map(|path| WorkFolder::open(path, sync));
        let work = work.transpose().map_err(CalibrateError::from)?;
        let done =
            with_model_of(quantization, |model| self.solve(quantization, &texts, model, work.as_ref()));
        end_work(quantization.run.events, work, done)
    }

    pub(super) fn sources(&self, quantization: &CheckedQuantization<'_>) -> Result<CalibrationSources> {
        if quantization.size.is_none() {
            let file_type = quantization.options.file_type;
            let plan = QuantizePlan::draft_to_come(&quantization.input, &quantization.options)?;
            if plan.tensors().iter().all(|tensor| tensor.ty.info().imatrix == ImatrixNeed::Ignored) {
                return Err(Contradiction::NothingToSolve { file_type }.into());
            }
        }
        self.read_texts()
    }

    fn solve(
        &self,
        quantization: &CheckedQuantization<'_>,
        texts: &CalibrationSources,
        model: &Model<'_>,
        work: Option<&WorkFolder>,
    ) -> Result<QuantizationReport> {
        // Checked before a model writes any text.
        if model.plan()?.kind == ModelKind::Encoder {
            return Err(CalibrateError::Encoder.into());
        }
        let progress = quantization.run.progress();
        progress.steps(self.n_steps(quantization));
        let recall = Recall::of_many();
        let model = &Model { recall: Some(&recall), ..*model };
        self.check_tuning(quantization, texts, model)?;
        let mut text = self.text(progress, &texts.given, model, work)?;
        text.add_held_out(model, &texts.held_out, self.n_tokens)?;
        for note in text.leave_out_known() {
            progress.warn(&note);
        }
        let mut sized = sized::choose(quantization, self, model, &text, work)?;
        let solved = sized.as_mut().and_then(|sized| sized.fidelity.take());
        let quantize = sized.as_ref().map_or(&quantization.options, |sized| &sized.chosen.allocation.options);
        let dir = quantization.directory();
        let options = FidelityOptions { solver: self.solver, engine: self.engine(), quantize, dir, work };
        let fidelity = match solved {
            Some(fidelity) => fidelity,
            None => solve(model, &quantization.input, &text, &options, progress)?,
        };
        warn(progress, self.solver, &fidelity);
        let mut plan = QuantizePlan::new(&quantization.input, quantize, Some(&fidelity.imatrix))?;
        if let Some(blocks) = &fidelity.blocks {
            plan = plan.with_solved(blocks);
        }
        plan = plan.with_keys(&fidelity.keys);
        quantization.remark(&plan);
        let target =
            sized.as_ref().map(|sized| sized.report(quantization, self, model, &text, &plan)).transpose()?;
        let report = quantization.written(&plan, quantize.file_type)?;
        let calibration = Some(CalibrationReport::of(&fidelity, &text, self.solver));
        Ok(QuantizationReport { calibration, target, ..report })
    }

    /// Number of stages that are known beforehand: types for a size, solving, measuring, writing. The stages of candidates
    /// are added when they begin.
    fn n_steps(&self, quantization: &CheckedQuantization<'_>) -> usize {
        let of_size = if quantization.size.is_some() { 2 } else { 0 };
        let is_promise = quantization.size.is_some_and(|size| matches!(size.target, FileTarget::Kld(_)));
        let solved = if is_promise { 0 } else { solving_steps(self.solver) };
        of_size + solved + 1
    }
}

/// Warns of matrices that were not solved, and of a solution that was not used.
fn warn(progress: &dyn Progress, solver: Solver, fidelity: &Fidelity) {
    if let Some((tensor, ty)) = fidelity.without_solver.first() {
        let n = fidelity.without_solver.len() as u64;
        progress.warn(&format!(
            "{} by the importance matrix alone, there is no solver for the type: `{}` ({ty}), for example",
            plural(n, "tensor"),
            escape(tensor)
        ));
    }
    if let Some(left) = fidelity.left.first() {
        let n = fidelity.left.len() as u64;
        progress.warn(&format!(
            "{n} of the matrices by the importance matrix alone: `{}`, matrix {}: {}, for example",
            escape(&left.tensor),
            left.matrix,
            left.reason
        ));
    }
    if fidelity.blocks.is_none() && solver != Solver::Reference {
        progress.warn(
            "solving did not lower the divergence on the text that was held back: the file is that of the importance \
             matrix alone",
        );
    }
}

/// Notes what is kept of a failed run, or clears what is no longer needed.
fn end_work<T>(events: &dyn Events, work: Option<WorkFolder>, done: Result<T>) -> Result<T> {
    let Some(work) = work else { return done };
    match &done {
        Err(_) if work.is_begun() => events.note(&format!(
            "the work is kept in {}: the same command resumes from it",
            work.path().display()
        )),
        Err(_) => {}
        Ok(_) => {
            let path = work.path().to_owned();
            if let Err(error) = work.clear() {
                let text = format!("{}: the work is not needed any more: {error}", path.display());
                events.progress().warn(&text);
            }
        }
    }
    done
}

/// Calls `work` with the model that is quantized; of a checkpoint, the F32 file that its conversion would write.
pub(super) fn with_model_of<R>(
    quantization: &CheckedQuantization<'_>,
    work: impl FnOnce(&Model<'_>) -> R,
) -> R {
    let (source, metadata) = (quantization.input.source, quantization.input.metadata);
    ModelParts::of(metadata).with(source, metadata, quantization.opened.file(), work)
}
