//! Plan of a calibration: the resources that a run would take. The text is read, nothing is run.

use crate::calibrate::{
    CalibrateError, CalibrationText, FidelityOptions, Forecast as Times, Outlook, SelfText, TextOptions,
    TextSource,
};
use crate::core::progress::{Progress, Silent};
use crate::engine::EngineError;
use crate::job::calibration::facts::TextFacts;
use crate::job::calibration::run::with_model_of;
use crate::job::calibration::{Calibration, CalibrationPlan, CalibrationSources, OwnText, SELF_SEED};
use crate::job::plan::QuantizationPlan;
use crate::job::quantize::CheckedQuantization;
use crate::job::size::{PromiseReport, TargetReport};
use crate::job::{Result, calibration::sized};
use crate::quantize::{Allocation, FileType, QuantizePlan};
use crate::verify::Model;

/// Resources of a run, with the types that it is expected to choose for a divergence.
type Forecast = (CalibrationPlan, Option<(Allocation, PromiseReport)>);

impl Calibration {
    /// Plans a run and the resources that it would take.
    pub(in crate::job) fn plan(&self, quantization: &CheckedQuantization<'_>) -> Result<QuantizationPlan> {
        let (forecast, expected) = self.forecast(quantization)?;
        let (allocation, promise) = expected.unzip();
        let options = allocation.as_ref().map_or(&quantization.options, |found| &found.options);
        let plan = QuantizePlan::draft_to_come(&quantization.input, options)?;
        quantization.remark(&plan);
        quantization.warn_of_obstacles(&plan);
        quantization.run.free_bytes(&quantization.target);
        quantization.write_types(&plan)?;
        let described = quantization.described(&plan, allocation.as_ref());
        let target = described.target.map(|target| TargetReport { promise, ..target });
        Ok(QuantizationPlan { calibration: Some(forecast), target, ..described })
    }

    /// Reads and encodes the text, and estimates the resources of a run.
    fn forecast(&self, quantization: &CheckedQuantization<'_>) -> Result<Forecast> {
        let texts = self.sources(quantization)?;
        with_model_of(quantization, |model| {
            let progress = quantization.run.progress();
            let (mut text, self_bytes) = self.text_to_come(progress, &texts.given, model)?;
            text.add_held_out(model, &texts.held_out, self.n_tokens)?;
            for note in &text.notes {
                progress.warn(note);
            }
            let expected = sized::expect(quantization, self, &text)?;
            let options = FidelityOptions {
                solver: self.solver,
                engine: self.engine(),
                quantize: expected.as_ref().map_or(&quantization.options, |(found, _)| &found.options),
                dir: &quantization.target,
                work: None,
            };
            let outlook = Outlook::of(model, &quantization.input, &text, &options)?;
            for note in &outlook.notes {
                progress.warn(note);
            }
            let needed_bytes = outlook.needs.least_bytes.max(self_bytes.unwrap_or(0));
            let budget_bytes = outlook.budget_bytes;
            if needed_bytes > budget_bytes {
                let tokens = text.n_tokens();
                quantization.run.stops_here(&CalibrateError::Memory { budget_bytes, needed_bytes, tokens });
            }
            if let Some(error) = outlook.tuning_error() {
                quantization.run.stops_here(&error);
            }
            let is_tuned = outlook.tuning_bytes.is_some();
            let times = Times::of(model, &quantization.input, &text, &options, is_tuned).ok();
            let plan = CalibrationPlan::of(outlook, TextFacts::of(&text), self.solver, self_bytes, times);
            Ok((plan, expected))
        })
    }

    /// Refuses a budget that is too small for tuning, before the model writes text for it. Where the types are chosen later,
    /// the smallest are assumed.
    pub(super) fn check_tuning(
        &self,
        quantization: &CheckedQuantization<'_>,
        texts: &CalibrationSources,
        model: &Model<'_>,
    ) -> Result<()> {
        if self.solver.tuning_steps() == 0 {
            return Ok(());
        }
        let (text, _) = self.text_to_come(&Silent, &texts.given, model)?;
        let mut quantize = quantization.options.clone();
        if quantization.size.is_some() {
            quantize.file_type = FileType::Q2KS;
        }
        let options = FidelityOptions {
            solver: self.solver,
            engine: self.engine(),
            quantize: &quantize,
            dir: &quantization.target,
            work: None,
        };
        let outlook = Outlook::of(model, &quantization.input, &text, &options)?;
        match outlook.tuning_error() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Returns the text, with placeholder sequences for those that the model would write, and the memory needed to
    /// write them.
    pub(crate) fn text_to_come(
        &self,
        progress: &dyn Progress,
        sources: &[TextSource],
        model: &Model<'_>,
    ) -> Result<(CalibrationText, Option<u64>), CalibrateError> {
        let options = self.text_options();
        if self.own_text == OwnText::Omitted {
            return Ok((CalibrationText::new(model, sources, &options)?, None));
        }
        let n_given = if sources.is_empty() { 0 } else { self.n_tokens / 2 };
        let n_tokens = self.n_tokens - n_given;
        let own = SelfText { n_tokens, n_ctx: options.n_ctx, seed: SELF_SEED, ..SelfText::default() };
        let self_bytes = match own.needed_bytes(model, self.engine()) {
            Err(CalibrateError::Engine(error @ EngineError::NotContinued { .. }))
                if self.own_text == OwnText::Added =>
            {
                progress.warn(&format!("{error}: the model writes no text of its own"));
                return Ok((CalibrationText::new(model, sources, &options)?, None));
            }
            needed => needed?,
        };
        let mut text = match sources {
            [] => CalibrationText::empty(options.n_ctx),
            _ => {
                let n_tokens = n_given;
                CalibrationText::new(model, sources, &TextOptions { n_tokens, ..options })?
            }
        };
        text.add_stand_in(&own, options.holds_out);
        Ok((text, Some(self_bytes)))
    }
}
