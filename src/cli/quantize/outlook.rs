//! `--dry-run` with `--calibrate`: resources that a run would take. The text is read, nothing is run.

use std::io::Write;

use serde_json::json;

use crate::calibrate::{
    CalibrateError, CalibrationText, FidelityOptions, Keep, Outlook, SelfText, Solver, TextKind, TextSource,
};
use crate::cli::quantize::calibrate::{CalibrateArgs, Job, SELF_SEED};
use crate::cli::quantize::report;
use crate::cli::render::{count, plural};
use crate::cli::verify::engine_options;
use crate::cli::verify::model::ModelParts;
use crate::cli::{Session, UsageError};
use crate::core::progress::Progress;
use crate::core::text::{bytes, escape};
use crate::engine::EngineError;
use crate::quantize::{Allocation, QuantizePlan};
use crate::verify::Model;

/// Forecast of a calibration, for a plan.
pub(crate) struct Forecast {
    outlook: Outlook,
    text: CalibrationText,
    solver: Solver,
    /// Bytes of memory needed to write text, if the model is to write some.
    self_bytes: Option<u64>,
}

impl CalibrateArgs {
    /// Prints the plan and the resources that it would take, instead of running it.
    ///
    /// # Errors
    /// Errors of a run that can be found without it.
    pub(crate) fn preview(
        &self,
        session: &Session,
        job: &Job<'_>,
        allocation: Option<&Allocation>,
    ) -> anyhow::Result<()> {
        if job.types.target().is_some() {
            let option = job.types.option();
            let text =
                format!("--dry-run cannot be used with `{option}` beside a text: costs are measured on it");
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
    fn forecast(&self, session: &Session, job: &Job<'_>) -> anyhow::Result<Forecast> {
        let statistics = self.keep.statistics(self.solver)?;
        let (sources, check) = self.sources(job)?;
        let parts = ModelParts::of(job.input.metadata);
        parts.with((job.input.source, job.input.metadata), job.file, |model| {
            let (mut text, self_bytes) = match &statistics {
                Some(statistics) => (self.keep.kept_text(statistics, model)?, None),
                None => self.text_to_come(session, &sources, model)?,
            };
            text.add_check(model, &check, self.calibrate_tokens)?;
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
        let Some((n_tokens, is_added)) = share else {
            return Ok((CalibrationText::new(model, sources, &options)?, None));
        };
        let own = SelfText { n_tokens, n_ctx: options.n_ctx, seed: SELF_SEED, ..SelfText::default() };
        let self_bytes = match own.needed_bytes(model, engine_options(&session.common)) {
            Err(CalibrateError::Engine(error @ EngineError::NotContinued { .. })) if is_added => {
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

impl Forecast {
    /// Prints the lines below the plan.
    pub(crate) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Outlook { n_tensors, n_matrices, without_solver, needs, budget_bytes, .. } = &self.outlook;
        writeln!(
            out,
            "calibration by `{}`: {} of {} to solve",
            self.solver.name(),
            if *n_matrices == 1 { "1 matrix".to_owned() } else { format!("{n_matrices} matrices") },
            plural(*n_tensors as u64, "tensor"),
        )?;
        if let Some((tensor, ty)) = without_solver.first() {
            let n = plural(without_solver.len() as u64, "tensor");
            writeln!(out, "without a solver for their type: {n}: `{}` ({ty}), for example", escape(tensor))?;
        }
        let kind = |kind: &TextKind| {
            let to_come =
                if kind.n_run == 0 && kind.seed.is_some() { ", to be written by the model" } else { "" };
            format!("{} ({} tokens{to_come})", escape(&kind.name), count(kind.n_tokens() as u64))
        };
        let kinds: Vec<String> = self.text.kinds.iter().map(kind).collect();
        let is_spilling = self.outlook.is_spilling();
        let n_check = count(self.text.n_check_tokens() as u64);
        writeln!(out, "text: {}; {n_check} other tokens to judge the result by", kinds.join(", "))?;
        writeln!(
            out,
            "memory beside the weights: {}{} of {} allowed{}; {} of disk until the output is written",
            bytes(if is_spilling { needs.least_bytes } else { needs.all_bytes }),
            self.self_bytes.map_or_else(String::new, |n| format!(", {} to write the text,", bytes(n))),
            bytes(*budget_bytes),
            if is_spilling {
                format!(", hidden states on disk ({} would hold them)", bytes(needs.all_bytes))
            } else {
                String::new()
            },
            bytes(self.outlook.disk_bytes()),
        )
    }

    /// Returns the content for `--json`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let kind = |kind: &TextKind| {
            json!({
                "name": kind.name,
                "tokens": kind.n_tokens(),
                "check_tokens": kind.n_check_tokens(),
                "seed": kind.seed,
            })
        };
        let check = self.text.check.iter();
        let check = check.map(|check| json!({ "name": check.name, "tokens": check.n_tokens() }));
        let names = self.outlook.without_solver.iter().map(|(name, _)| name);
        json!({
            "solver": self.solver.name(),
            "kinds": self.text.kinds.iter().map(kind).collect::<Vec<_>>(),
            "check": check.collect::<Vec<_>>(),
            "tensors": self.outlook.n_tensors,
            "matrices": self.outlook.n_matrices,
            "without_solver": names.collect::<Vec<_>>(),
            "needed_bytes": self.outlook.needs.least_bytes,
            "in_memory_bytes": self.outlook.needs.all_bytes,
            "is_spilling": self.outlook.is_spilling(),
            "self_text_bytes": self.self_bytes,
            "budget_bytes": self.outlook.budget_bytes,
            "disk_bytes": self.outlook.disk_bytes(),
        })
    }
}
