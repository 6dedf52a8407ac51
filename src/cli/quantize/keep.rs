//! Files of a calibration in addition to its text: the text for the check, statistics of the model, work that can be
//! resumed.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::calibrate::{CalibrateError, CalibrationText, Statistics, TextSource, WorkFolder};
use crate::cli::guard::Guard;
use crate::cli::quantize::solver::SolverName;
use crate::cli::{Session, UsageError};
use crate::core::output::{NewDirectory, same_file};
use crate::core::progress::Progress;
use crate::verify::{Model, PromptForm};

/// Options of calibration that name files other than its text. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Calibration options")]
pub(crate) struct KeepArgs {
    /// Check the result with this text, a file or a folder, and hold back nothing of the other texts; repeatable
    #[arg(long, value_name = "PATH", requires = "calibration")]
    pub check_text: Vec<PathBuf>,
    /// Keep the work in this folder, new or empty: the same command resumes from it after an interrupt
    #[arg(long, value_name = "DIR", requires = "calibration")]
    pub work_dir: Option<PathBuf>,
    /// Keep the moments of every matrix and of each kind of text in this folder, new or empty, for `--stats` (`--solver
    /// gptq`). The same moments of a run that was stopped later on may be there already
    #[arg(long, value_name = "DIR", requires = "calibrate")]
    pub save_stats: Option<PathBuf>,
    /// Solve with the moments that `--save-stats` has kept, instead of running the model on a text (`--solver gptq`)
    #[arg(long, value_name = "DIR", group = "calibration", conflicts_with_all = ["calibrate", "imatrix", "include_weights", "exclude_weights", "prune_layers"])]
    pub stats: Option<PathBuf>,
    /// Names of the kinds of text in `--stats` to use
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "stats")]
    pub kinds: Vec<String>,
}

impl KeepArgs {
    /// Registers the files that are read.
    pub(crate) fn guard(&self, guard: &mut Guard<'_>) -> anyhow::Result<()> {
        guard.read_all("the text of the check", self.check_text.iter().filter(|path| !path.is_dir()))?;
        guard.read_all("the statistics", &self.stats)
    }

    /// Reads the texts of the check.
    ///
    /// # Errors
    /// A text that is also calibrated with: the result would be judged by its own training data.
    pub(crate) fn check_sources(&self, calibrate: &[&PathBuf]) -> anyhow::Result<Vec<TextSource>> {
        for check in &self.check_text {
            if let Some(path) = calibrate.iter().find(|path| overlap(check, path)) {
                let text = format!(
                    "--check-text {}: that is what `--calibrate {}` gives to the solver; another text expected",
                    check.display(),
                    path.display()
                );
                return Err(UsageError(text).into());
            }
        }
        let sources = self.check_text.iter().map(|path| TextSource::read(path, PromptForm::Detected));
        Ok(sources.collect::<Result<_, CalibrateError>>()?)
    }
}

impl KeepArgs {
    /// Opens the given statistics, if any, and checks the folder in which new ones would be kept.
    ///
    /// # Errors
    /// A solver that does not use them; a folder that holds no statistics.
    pub(crate) fn statistics(&self, solver: SolverName) -> anyhow::Result<Option<Statistics>> {
        let option = if self.stats.is_some() { "--stats" } else { "--save-stats" };
        if (self.stats.is_some() || self.save_stats.is_some()) && solver == SolverName::Sequential {
            let text = format!(
                "{option}: the solver `sequential` follows the quantized model, of which nothing is known beforehand; \
                 choose `--solver gptq`"
            );
            return Err(UsageError(text).into());
        }
        if let Some(path) = &self.save_stats {
            // Statistics that this very run has kept before are compared once its text is known.
            if Statistics::open(path).is_err() {
                NewDirectory::of(path)?;
            }
        }
        let found = self.stats.as_deref().map(Statistics::open).transpose();
        Ok(found.map_err(CalibrateError::from)?)
    }

    /// Checks existing statistics in the folder for new ones: those of another model are refused.
    ///
    /// # Errors
    /// The statistics are not of this model; a model that cannot be read.
    pub(crate) fn check_saved(&self, model: &Model<'_>) -> anyhow::Result<()> {
        let Some(path) = &self.save_stats else { return Ok(()) };
        if let Ok(found) = Statistics::open(path)
            && found.check(model).is_err()
        {
            NewDirectory::of(path)?;
        }
        Ok(())
    }

    /// Returns the text of the given statistics. Its held-back part is used unless there is a text for the check.
    ///
    /// # Errors
    /// Statistics of another model; kinds of text that they do not have.
    pub(crate) fn kept_text(
        &self,
        statistics: &Statistics,
        model: &Model<'_>,
    ) -> anyhow::Result<CalibrationText> {
        statistics.check(model).map_err(CalibrateError::from)?;
        let mut text = CalibrationText::of_statistics(statistics, &self.kinds)?;
        if !self.check_text.is_empty() {
            for kind in &mut text.kinds {
                kind.check.clear();
            }
        }
        Ok(text)
    }

    /// Opens the working folder, if one is given.
    pub(crate) fn open_work(&self, session: &Session) -> anyhow::Result<Option<WorkFolder>> {
        let Some(path) = &self.work_dir else { return Ok(None) };
        let work = WorkFolder::open(path, !session.common.no_sync).map_err(CalibrateError::from)?;
        Ok(Some(work))
    }
}

/// Notes what is kept of a failed run, or clears what is no longer needed.
pub(crate) fn end_work<T>(
    session: &Session,
    work: Option<WorkFolder>,
    done: anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(work) = work else { return done };
    match &done {
        Err(_) if work.is_begun() => session.note(&format!(
            "the work is kept in {}: the same command resumes from it",
            work.path().display()
        )),
        Err(_) => {}
        Ok(_) => {
            let path = work.path().to_owned();
            if let Err(error) = work.clear() {
                session
                    .progress
                    .warn(&format!("{}: the work is not needed any more: {error}", path.display()));
            }
        }
    }
    done
}

/// Returns true if the paths are the same file, or if one contains the other.
fn overlap(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
    let is_nested = whole(a).zip(whole(b)).is_some_and(|(a, b)| a.starts_with(&b) || b.starts_with(&a));
    is_nested || same_file(a, b)
}
