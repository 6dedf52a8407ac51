//! `--calibrate`: rounding based on the model's own activations, from the option to the summary.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::calibrate::{
    CalibrateError, CalibrationText, Fidelity, FidelityOptions, Keep, SELF_NAME, SelfTextKeeper, Solver,
    StatisticsOutput, TextOptions, TextSource, solve,
};
use crate::cli::guard::Guard;
use crate::cli::quantize::about::CalibrationSummary;
use crate::cli::quantize::job::CalibrateJob;
use crate::cli::quantize::keep::{KeepArgs, end_work};
use crate::cli::quantize::solver::SolverName;
use crate::cli::quantize::{report, sized};
use crate::cli::render::plural;
use crate::cli::verify::engine_options;
use crate::cli::verify::model::ModelParts;
use crate::cli::{Session, UsageError};
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::engine::{EngineError, ModelKind};
use crate::quantize::QuantizePlan;
use crate::verify::{Model, PromptForm, Recall};

/// Fixed seed: a model writes the same text in every run.
pub(crate) const SELF_SEED: u64 = 1;

/// Options of calibration. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Calibration options")]
pub(crate) struct CalibrateArgs {
    /// Calibrate the rounding with this text: the same types and size, less divergence, other bytes than
    /// llama.cpp's. A file or a folder is one kind of text; `self` is text that the model writes; repeatable
    #[arg(long, value_name = "PATH", group = "calibration", conflicts_with_all = ["imatrix", "include_weights", "exclude_weights", "prune_layers"])]
    pub calibrate: Vec<PathBuf>,
    /// Method that chooses codes and scales
    #[arg(long, value_enum, value_name = "SOLVER", default_value_t, requires = "calibration")]
    pub solver: SolverName,
    /// Do not let the model write half of the text
    #[arg(long, requires = "calibrate")]
    pub no_self_text: bool,
    /// Tokens of calibration text, shared equally by its kinds; a seventh as much is held back to check the result
    #[arg(long, value_name = "N", default_value_t = TextOptions::default().n_tokens, requires = "calibration")]
    pub calibrate_tokens: usize,
    /// Files that are kept, and further files that are read.
    #[command(flatten)]
    pub keep: KeepArgs,
}

/// Share of the calibration text that the model writes.
#[derive(Clone, Copy)]
pub(super) struct SelfTextShare {
    pub(super) n_tokens: usize,
    /// True if the user asked for it.
    pub(super) is_asked: bool,
}

/// Texts that the user gives.
pub(super) struct CalibrationSources {
    /// Texts to calibrate with, without the one that the model writes.
    pub(super) given: Vec<TextSource>,
    /// Texts only for the check of the result.
    pub(super) check: Vec<TextSource>,
}

impl CalibrateArgs {
    pub(crate) fn is_given(&self) -> bool {
        !self.calibrate.is_empty() || self.keep.stats.is_some()
    }

    /// Returns a sentence about what is kept of a stopped run; `None` if the working folder has been noted already.
    pub(crate) fn after_interrupt(&self) -> Option<String> {
        let text = "nothing was kept: with `--work-dir DIR` a run that is stopped can be resumed";
        self.keep.work_dir.is_none().then(|| text.to_owned())
    }

    /// Returns the paths of the texts, without `self`.
    fn paths(&self) -> impl Iterator<Item = &PathBuf> + Clone {
        self.calibrate.iter().filter(|path| path.as_os_str() != SELF_NAME)
    }

    /// Registers the texts that are read.
    pub(crate) fn guard(&self, guard: &mut Guard<'_>) -> anyhow::Result<()> {
        let files = self.paths().filter(|path| !path.is_dir());
        guard.read_all("the calibration text", files)?;
        self.keep.guard(guard)
    }

    /// Calibrates, writes and reports.
    pub(crate) fn run(&self, session: &Session, job: &CalibrateJob<'_>) -> anyhow::Result<()> {
        if self.keep.stats.is_some() && job.types.target().is_some() {
            let option = job.types.option();
            return Err(UsageError(format!(
                "{option}: costs are measured on a text, and `--stats` has no text"
            ))
            .into());
        }
        let statistics = self.keep.statistics(self.solver)?;
        let texts = self.sources(job)?;
        let parts = ModelParts::of(job.input.metadata);
        let work = self.keep.open_work(session)?;
        let sync = !session.common.no_sync;
        let keep = Keep {
            work: work.as_ref(),
            save: self.keep.save_stats.as_deref().map(|path| StatisticsOutput { path, sync }),
            statistics: statistics.as_ref(),
        };
        let solve = |model: &Model<'_>| self.with_model(session, job, &texts, model, keep);
        let done = parts.with(job.input.source, job.input.metadata, job.file, solve);
        end_work(session, work, done)
    }

    /// Reads the texts of a quantization.
    ///
    /// # Errors
    /// A type that leaves nothing to solve; texts that cannot be read.
    pub(super) fn sources(&self, job: &CalibrateJob<'_>) -> anyhow::Result<CalibrationSources> {
        if !job.options.file_type.base().is_some_and(crate::core::GgmlType::is_quantized) {
            let text =
                format!("--calibrate: {} is no quantized type: there is nothing to solve", job.file_type);
            return Err(UsageError(text).into());
        }
        self.read_texts()
    }

    /// Reads the texts.
    ///
    /// # Errors
    /// Texts that cannot be read, or that are also texts for the check.
    pub(super) fn read_texts(&self) -> anyhow::Result<CalibrationSources> {
        let given = self
            .paths()
            .map(|path| TextSource::read(path, PromptForm::Detected))
            .collect::<Result<Vec<_>, CalibrateError>>()?;
        Ok(CalibrationSources { given, check: self.keep.check_sources(&self.paths().collect::<Vec<_>>())? })
    }

    fn with_model(
        &self,
        session: &Session,
        job: &CalibrateJob<'_>,
        texts: &CalibrationSources,
        model: &Model<'_>,
        keep: Keep<'_>,
    ) -> anyhow::Result<()> {
        // Checked before a model writes any text.
        if model.plan()?.kind == ModelKind::Encoder {
            return Err(CalibrateError::Encoder.into());
        }
        session.progress.steps(self.n_steps(job));
        let recall = Recall::default();
        let model = &Model { recall: Some(&recall), ..*model };
        self.keep.check_saved(model)?;
        let mut text = match keep.statistics {
            Some(statistics) => self.keep.kept_text(statistics, model)?,
            None => self.text(session, &texts.given, model, keep.work.map(SelfTextKeeper::Work))?,
        };
        text.add_check(model, &texts.check, self.calibrate_tokens)?;
        let sized = sized::choose(session, job, self.solver.into(), model, &text)?;
        let quantize = sized.as_ref().map_or(job.options, |sized| &sized.allocation.options);
        let dir = job.output.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let options = FidelityOptions {
            solver: self.solver.into(),
            engine: engine_options(&session.common),
            quantize,
            dir,
            keep,
        };
        let fidelity = solve(model, job.input, &text, &options, &session.progress)?;
        warn(session, self.solver.into(), &fidelity);
        let mut plan = QuantizePlan::new(job.input, quantize, Some(&fidelity.imatrix))?;
        if let Some(blocks) = &fidelity.blocks {
            plan = plan.with_solved(blocks);
        }
        plan = plan.with_keys(&fidelity.keys);
        let asked = job.types.target().is_none().then_some(job.file_type);
        report::warn(session, asked, job.options.coverage, &plan);
        let allocation = sized
            .as_ref()
            .map(|sized| sized::finish(session, job, model, &text, sized, &plan))
            .transpose()?;
        let written = plan.write(job.output, job.write, &session.progress)?;
        job.types.write(session, &plan)?;
        let zeros: Vec<_> = plan.all_zero().map(|tensor| tensor.name.clone()).collect();
        report::warn_all_zero(session, &zeros);
        report::warn_small_rows(session, &plan.small_rows());
        let seconds = job.start.elapsed().as_secs_f64();
        let about = CalibrationSummary { fidelity: &fidelity, text: &text, solver: self.solver.into() };
        let extra = report::SummaryExtra { calibration: Some(&about), allocation: allocation.as_ref() };
        report::print_report(session, quantize.file_type, &plan, &written, seconds, &extra)
    }
}

impl CalibrateArgs {
    /// Number of stages that are known beforehand: types for a size, solving, measuring, writing.
    fn n_steps(&self, job: &CalibrateJob<'_>) -> usize {
        let of_size = if job.types.target().is_some() { 2 } else { 0 };
        let measured = if self.solver == SolverName::Reference { 1 } else { 2 };
        of_size + 1 + measured + 1
    }

    /// Returns the calibration text: the given one, one that the model writes, or half of each.
    pub(super) fn text(
        &self,
        session: &Session,
        sources: &[TextSource],
        model: &Model<'_>,
        keeper: Option<SelfTextKeeper<'_>>,
    ) -> anyhow::Result<CalibrationText> {
        let options = self.text_options();
        let share = self.share_of_self(sources.len())?;
        let is_asked = share.is_some_and(|share| share.is_asked);
        let is_added = share.is_some_and(|share| !share.is_asked);
        let engine = engine_options(&session.common);
        let progress = &session.progress;
        let text = if share.is_some() {
            match CalibrationText::with_self(model, sources, &options, SELF_SEED, engine, keeper, progress) {
                Err(CalibrateError::Engine(error @ EngineError::NotContinued { .. })) if is_added => {
                    progress.warn(&format!("{error}: the model writes no text of its own"));
                    CalibrationText::new(model, sources, &options)?
                }
                text => text?,
            }
        } else {
            CalibrationText::new(model, sources, &options)?
        };
        for note in &text.notes {
            progress.warn(note);
        }
        if let ([only], false) = (text.kinds.as_slice(), is_asked) {
            progress.warn(&format!(
                "`{}` is the only kind of text: on other kinds the gain may be small; `--calibrate` is repeatable",
                escape(&only.name)
            ));
        }
        Ok(text)
    }
}

impl CalibrateArgs {
    /// Returns the options for the amount of text.
    pub(crate) fn text_options(&self) -> TextOptions {
        TextOptions {
            n_tokens: self.calibrate_tokens,
            held_back: self.keep.check_text.is_empty(),
            ..TextOptions::default()
        }
    }

    /// Returns the share of the text that the model writes in addition to the given texts, if any. It is the default
    /// because given texts represent other kinds of text poorly.
    ///
    /// # Errors
    /// Options that contradict one another.
    pub(super) fn share_of_self(&self, n_sources: usize) -> anyhow::Result<Option<SelfTextShare>> {
        let is_asked = self.calibrate.iter().any(|path| path.as_os_str() == SELF_NAME);
        if is_asked && self.no_self_text {
            return Err(UsageError("--no-self-text: `--calibrate self` asks for it".to_owned()).into());
        }
        if self.no_self_text {
            return Ok(None);
        }
        let given = if n_sources == 0 { 0 } else { self.calibrate_tokens / 2 };
        Ok(Some(SelfTextShare { n_tokens: self.calibrate_tokens - given, is_asked }))
    }
}

/// Warns of matrices that were not solved, and of a solution that was not used.
fn warn(session: &Session, solver: Solver, fidelity: &Fidelity) {
    if let Some((tensor, ty)) = fidelity.without_solver.first() {
        let n = fidelity.without_solver.len() as u64;
        session.progress.warn(&format!(
            "{} by the importance matrix alone, there is no solver for the type: `{}` ({ty}), for example",
            plural(n, "tensor"),
            escape(tensor)
        ));
    }
    if let Some(left) = fidelity.left.first() {
        let n = fidelity.left.len() as u64;
        session.progress.warn(&format!(
            "{n} of the matrices by the importance matrix alone: `{}`, matrix {}: {}, for example",
            escape(&left.tensor),
            left.matrix,
            left.reason
        ));
    }
    if fidelity.blocks.is_none() && solver != Solver::Reference {
        session.progress.warn(
            "solving did not lower the divergence on the text that was held back: the file is that of the importance \
             matrix alone",
        );
    }
}
