//! What a calibration reads and keeps beside its text: the text that it is judged by.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::calibrate::{CalibrateError, CalibrationText, TextSource};
use crate::cli::UsageError;
use crate::cli::guard::Guard;
use crate::core::output::same_file;
use crate::verify::{Model, PromptForm};

/// Options of calibration that name files beside its text. Flatten it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Calibration options")]
pub(crate) struct KeepArgs {
    /// Judge the result by this text, a file or a folder, and hold nothing back of the others; repeatable
    #[arg(long, value_name = "PATH", requires = "calibrate")]
    pub check_text: Vec<PathBuf>,
}

impl KeepArgs {
    /// Holds what is read against what is written.
    pub(crate) fn guard(&self, guard: &mut Guard<'_>) -> anyhow::Result<()> {
        guard.read_all("the text of the check", self.check_text.iter().filter(|path| !path.is_dir()))
    }

    /// Reads the texts of the check.
    ///
    /// # Errors
    /// A text that is calibrated with, too: the result would be judged by what it was made for.
    pub(crate) fn check_sources<'p>(
        &self,
        calibrate: impl Iterator<Item = &'p PathBuf> + Clone,
    ) -> anyhow::Result<Vec<TextSource>> {
        for check in &self.check_text {
            if let Some(path) = calibrate.clone().find(|path| overlap(check, path)) {
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

    /// Adds the texts of the check, as many tokens as are calibrated with at most.
    pub(crate) fn add_check(
        &self,
        model: &Model<'_>,
        text: &mut CalibrationText,
        sources: &[TextSource],
        n_tokens: usize,
    ) -> anyhow::Result<()> {
        if !sources.is_empty() {
            text.add_check(model, sources, n_tokens)?;
        }
        Ok(())
    }
}

/// Whether one of two paths leads to the other, or to a folder that the other lies in.
fn overlap(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
    let lies_in = whole(a).zip(whole(b)).is_some_and(|(a, b)| a.starts_with(&b) || b.starts_with(&a));
    lies_in || same_file(a, b)
}
