//! `--calibrate`: rounding based on the model's own activations.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use crate::calibrate::{SELF_NAME, TextOptions};
use crate::cli::quantize::solver::SolverName;
use crate::cli::verify::engine_options;
use crate::cli::{Common, UsageError};
use crate::job::{Calibration, OwnText};

/// Options of calibration. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Calibration options")]
pub(crate) struct CalibrateArgs {
    /// Calibrate the rounding with this text: the same types and size, less divergence, other bytes than
    /// llama.cpp's. A file or a folder is one kind of text; `self` is text that the model writes; repeatable
    #[arg(long, value_name = "PATH", conflicts_with_all = ["imatrix", "include_weights", "exclude_weights", "prune_layers"])]
    pub calibrate: Vec<PathBuf>,
    /// Method that chooses codes and scales
    #[arg(long, value_enum, value_name = "SOLVER", default_value_t, requires = "calibrate")]
    pub solver: SolverName,
    /// Steps of `--solver tuned`; time is proportional to them [default: 400]
    #[arg(long, value_name = "N", requires = "calibrate")]
    pub tune_steps: Option<NonZeroUsize>,
    /// Do not let the model write half of the text
    #[arg(long, requires = "calibrate")]
    pub no_self_text: bool,
    /// Tokens of calibration text, shared equally by its kinds; a seventh as much is held out to check the result
    #[arg(long, value_name = "N", default_value_t = TextOptions::default().n_tokens, requires = "calibrate")]
    pub calibrate_tokens: usize,
    /// Check the result with this text, a file or a folder, and hold out nothing of the other texts; repeatable
    #[arg(long, value_name = "PATH", requires = "calibrate")]
    pub check_text: Vec<PathBuf>,
    /// Keep the work in this folder, new or empty: the same command resumes from it after an interrupt
    #[arg(long, value_name = "DIR", requires = "calibrate")]
    pub work_dir: Option<PathBuf>,
}

impl CalibrateArgs {
    pub(crate) fn is_given(&self) -> bool {
        !self.calibrate.is_empty()
    }

    /// Returns a sentence about what is kept of a stopped run; `None` if the working folder has been noted already.
    pub(crate) fn after_interrupt(&self) -> Option<String> {
        let text = "nothing was kept: with `--work-dir DIR` a run that is stopped can be resumed";
        self.work_dir.is_none().then(|| text.to_owned())
    }

    /// Returns the calibration, if one is given.
    pub(crate) fn calibration(&self, common: &Common) -> Result<Option<Calibration>, UsageError> {
        if !self.is_given() {
            return Ok(None);
        }
        Ok(Some(Calibration {
            texts: given_texts(&self.calibrate),
            own_text: own_text(&self.calibrate, self.no_self_text)?,
            solver: self.solver.solver(self.tune_steps.map(NonZeroUsize::get))?,
            n_tokens: self.calibrate_tokens,
            held_out_texts: self.check_text.clone(),
            work_dir: self.work_dir.clone(),
            engine: engine_options(common),
        }))
    }
}

/// Returns the paths of the texts, without `self`.
pub(super) fn given_texts(calibrate: &[PathBuf]) -> Vec<PathBuf> {
    calibrate.iter().filter(|path| path.as_os_str() != SELF_NAME).cloned().collect()
}

/// Returns the text that the model writes.
pub(super) fn own_text(calibrate: &[PathBuf], no_self_text: bool) -> Result<OwnText, UsageError> {
    let is_asked = calibrate.iter().any(|path| path.as_os_str() == SELF_NAME);
    match (is_asked, no_self_text) {
        (true, true) => Err(UsageError("--no-self-text: `--calibrate self` asks for it".to_owned())),
        (true, false) => Ok(OwnText::Asked),
        (false, true) => Ok(OwnText::Omitted),
        (false, false) => Ok(OwnText::Added),
    }
}
