//! Calibration of a job: rounding based on the model's own activations.

mod facts;
mod forecast;
mod run;
mod sized;

use std::path::PathBuf;

use crate::calibrate::{CalibrateError, CalibrationText, Solver, TextOptions, TextSource, WorkFolder};
use crate::core::output::GuardError;
use crate::core::platform::held_bytes;
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::engine::{EngineError, EngineOptions};
use crate::job::{Contradiction, Guard, Result};
use crate::verify::{Fingerprint, Model, PromptForm};

pub use facts::{CalibrationPlan, CalibrationReport, HeldOutFacts, KindFacts, TextFacts};

/// Fixed seed: a model writes the same text in every run.
pub(crate) const SELF_SEED: u64 = 1;

/// Calibration of a quantization.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Texts to calibrate with. A file or a folder is one kind of text.
    pub texts: Vec<PathBuf>,
    /// Text that the model writes.
    pub own_text: OwnText,
    /// Method that chooses codes and scales.
    pub solver: Solver,
    /// Number of tokens of calibration text.
    pub n_tokens: usize,
    /// Separate held-out texts; if there are any, nothing of the others is held out.
    pub held_out_texts: Vec<PathBuf>,
    /// Folder that keeps the work of an interrupted run.
    pub work_dir: Option<PathBuf>,
    /// Threads, memory and vector instructions.
    pub engine: EngineOptions,
}

/// Text that the model itself writes, in addition to given texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnText {
    /// The model writes half of the text if it can. This is the default because given texts represent other kinds of
    /// text poorly.
    #[default]
    Added,
    /// The model must write its part.
    Asked,
    /// The model writes nothing.
    Omitted,
}

/// Texts that are read.
pub(crate) struct CalibrationSources {
    /// Texts to calibrate with, without the one that the model writes.
    pub(crate) given: Vec<TextSource>,
    /// Separate held-out texts.
    pub(crate) held_out: Vec<TextSource>,
}

impl Calibration {
    /// Registers the files that are read.
    pub(super) fn guard(&self, guard: &mut Guard<'_>) -> Result<(), GuardError> {
        let files =
            |paths: &[PathBuf]| paths.iter().filter(|path| !path.is_dir()).cloned().collect::<Vec<_>>();
        guard.read_all("the calibration text", files(&self.texts))?;
        guard.read_all("the text of the check", files(&self.held_out_texts))
    }

    /// Identifies what decides the result besides the model and the types.
    pub(super) fn identity(&self) -> Result<String> {
        let CalibrationSources { given, held_out } = self.read_texts()?;
        let mut digest = Fingerprint::default();
        let own_text = match self.own_text {
            OwnText::Added => 0,
            OwnText::Asked => 1,
            OwnText::Omitted => 2,
        };
        digest.number(own_text);
        digest.number(self.n_tokens as u64);
        digest.bytes(self.solver.name().as_bytes());
        digest.number(self.solver.tuning_steps() as u64);
        for text in given.iter().chain(&held_out) {
            digest.bytes(text.name.as_bytes());
            digest.value(&text.prompts)?;
        }
        digest.number(given.len() as u64);
        Ok(digest.hex())
    }

    /// Returns the resources with what the program holds by now.
    pub(super) fn engine(&self) -> EngineOptions {
        EngineOptions { held_bytes: held_bytes(), ..self.engine }
    }

    pub(crate) fn read_texts(&self) -> Result<CalibrationSources> {
        let read = |paths: &[PathBuf]| {
            let sources = paths.iter().map(|path| TextSource::read(path, PromptForm::Detected));
            sources.collect::<Result<Vec<_>, CalibrateError>>()
        };
        let (given, held_out) = (read(&self.texts)?, read(&self.held_out_texts)?);
        let given_texts = || self.texts.iter().zip(&given);
        for (at, (second, text)) in given_texts().enumerate() {
            if let Some((first, _)) = given_texts().take(at).find(|(_, other)| other.prompts == text.prompts)
            {
                let (first, second) = (first.clone(), second.clone());
                return Err(Contradiction::TextTwice { first, second }.into());
            }
        }
        for (held_out, text) in self.held_out_texts.iter().zip(&held_out) {
            let has_all = |other: &TextSource| text.prompts.iter().all(|own| other.prompts.contains(own));
            if let Some((calibrate, _)) = given_texts().find(|(_, other)| has_all(other)) {
                let (held_out, calibrate) = (held_out.clone(), calibrate.clone());
                return Err(Contradiction::SameText { held_out, calibrate }.into());
            }
        }
        Ok(CalibrationSources { given, held_out })
    }

    /// Returns the calibration text: the given one, one that the model writes, or half of each.
    pub(crate) fn text(
        &self,
        progress: &dyn Progress,
        sources: &[TextSource],
        model: &Model<'_>,
        work: Option<&WorkFolder>,
    ) -> Result<CalibrationText, CalibrateError> {
        let options = self.text_options();
        let own = || {
            let engine = self.engine();
            CalibrationText::with_self(model, sources, &options, SELF_SEED, engine, work, progress)
        };
        let text = match self.own_text {
            OwnText::Omitted => CalibrationText::new(model, sources, &options)?,
            OwnText::Asked => own()?,
            OwnText::Added => match own() {
                Err(CalibrateError::Engine(error @ EngineError::NotContinued { .. })) => {
                    progress.warn(&format!("{error}: the model writes no text of its own"));
                    CalibrationText::new(model, sources, &options)?
                }
                text => text?,
            },
        };
        for note in &text.notes {
            progress.warn(note);
        }
        if let ([only], false) = (text.kinds.as_slice(), self.own_text == OwnText::Asked) {
            progress.warn(&format!(
                "`{}` is the only kind of text: on other kinds the gain may be small; `--calibrate` is repeatable",
                escape(&only.name)
            ));
        }
        Ok(text)
    }

    fn text_options(&self) -> TextOptions {
        TextOptions {
            n_tokens: self.n_tokens,
            holds_out: self.held_out_texts.is_empty(),
            ..TextOptions::default()
        }
    }
}
