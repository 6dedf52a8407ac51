//! `--dry-run` with `--calibrate`: resources that a run would take. The text is read, nothing is run.

use crate::calibrate::{
    CalibrateError, CalibrationText, FidelityOptions, Keep, Outlook, SelfText, TextSource,
};
use crate::cli::quantize::calibrate::{CalibrateArgs, SELF_SEED, SelfTextShare};
use crate::cli::quantize::forecast::Forecast;
use crate::cli::quantize::job::CalibrateJob;
use crate::cli::quantize::report;
use crate::cli::verify::engine_options;
use crate::cli::verify::model::ModelParts;
use crate::cli::{Session, UsageError};
use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::quantize::{Allocation, QuantizePlan};
use crate::verify::Model;

impl CalibrateArgs {
    /// Prints the plan and the resources that it would take, instead of running it.
    ///
    /// # Errors
    /// Errors of a run that can be found without it.
    pub(crate) fn preview(
        &self,
        session: &Session,
        job: &CalibrateJob<'_>,
        allocation: Option<&Allocation>,
    ) -> anyhow::Result<()> {
        if job.types.target().is_some() {
            let option = job.types.option();
            let text =
                format!("--dry-run cannot be used with `{option}` with a text: costs are measured on it");
            return Err(UsageError(text).into());
        }
        let forecast = self.forecast(session, job)?;
        let plan = QuantizePlan::draft_to_come(job.input, job.options)?;
        let asked = job.types.target().is_none().then_some(job.file_type);
        report::warn(session, asked, job.options.coverage, &plan);
        for obstacle in plan.obstacles() {
            session.progress.warn(&format!("a run would stop here: {obstacle}"));
        }
        session.destination(job.output);
        job.types.write(session, &plan)?;
        report::print_plan(session, &plan, allocation, Some(&forecast))
    }

    /// Reads and encodes the text, and estimates the resources of a run.
    ///
    /// # Errors
    /// Errors of a run that can be found without it.
    fn forecast(&self, session: &Session, job: &CalibrateJob<'_>) -> anyhow::Result<Forecast> {
        let statistics = self.keep.statistics(self.solver)?;
        let texts = self.sources(job)?;
        let parts = ModelParts::of(job.input.metadata);
        parts.with(job.input.source, job.input.metadata, job.file, |model| {
            let (mut text, self_bytes) = match &statistics {
                Some(statistics) => (self.keep.kept_text(statistics, model)?, None),
                None => self.text_to_come(session, &texts.given, model)?,
            };
            text.add_check(model, &texts.check, self.calibrate_tokens)?;
            for note in &text.notes {
                session.progress.warn(note);
            }
            let options = FidelityOptions {
                solver: self.solver.into(),
                engine: engine_options(&session.common),
                quantize: job.options,
                dir: job.output,
                keep: Keep { statistics: statistics.as_ref(), ..Keep::default() },
            };
            let outlook = Outlook::of(model, job.input, &text, &options)?;
            let needed_bytes = outlook.needs.least_bytes.max(self_bytes.unwrap_or(0));
            let budget_bytes = outlook.budget_bytes;
            if needed_bytes > budget_bytes {
                let tokens = text.n_tokens();
                let error = CalibrateError::Memory { budget_bytes, needed_bytes, tokens };
                session.progress.warn(&format!("a run would stop here: {error}"));
            }
            Ok(Forecast { outlook, text, solver: self.solver.into(), self_bytes })
        })
    }

    /// Returns the text, with placeholder sequences for those that the model would write, and the memory needed to
    /// write them.
    pub(super) fn text_to_come(
        &self,
        session: &Session,
        sources: &[TextSource],
        model: &Model<'_>,
    ) -> anyhow::Result<(CalibrationText, Option<u64>)> {
        let (options, share) = (self.text_options(), self.share_of_self(sources.len())?);
        let Some(SelfTextShare { n_tokens, is_asked }) = share else {
            return Ok((CalibrationText::new(model, sources, &options)?, None));
        };
        let own = SelfText { n_tokens, n_ctx: options.n_ctx, seed: SELF_SEED, ..SelfText::default() };
        let self_bytes = match own.needed_bytes(model, engine_options(&session.common)) {
            Err(CalibrateError::Engine(error @ EngineError::NotContinued { .. })) if !is_asked => {
                session.progress.warn(&format!("{error}: the model writes no text of its own"));
                return Ok((CalibrationText::new(model, sources, &options)?, None));
            }
            needed => needed?,
        };
        let mut text = match sources {
            [] => CalibrationText::empty(options.n_ctx),
            _ => {
                let n_tokens = options.n_tokens - n_tokens;
                CalibrationText::new(model, sources, &crate::calibrate::TextOptions { n_tokens, ..options })?
            }
        };
        text.add_stand_in(&own, options.held_back);
        Ok((text, Some(self_bytes)))
    }
}
