//! Errors of planning and running a job.

use std::io;
use std::path::PathBuf;

use crate::calibrate::CalibrateError;
use crate::convert::ConvertError;
use crate::core::Hint;
use crate::core::output::{GuardError, OutputError, OutputKind};
use crate::engine::EngineError;
use crate::gguf::{GgufError, ImatrixError, Value, WriteError};
use crate::job::beside_text;
use crate::job::input::OpenedInput;
use crate::job::ladder::FolderError;
use crate::job::recipe::RecipeError;
use crate::job::{NameTaken, NativeFloats, NothingAlike, RefusedOverrides};
use crate::quantize::{AllocateError, FileType, OptionError, QuantizeError};

pub(crate) type Result<T, E = JobError> = std::result::Result<T, E>;

/// Errors that prevent a plan or stop a job.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum JobError {
    #[error(transparent)]
    Options(#[from] Contradiction),
    #[error(transparent)]
    Types(#[from] OptionError),
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("{}: this is {kind}, not a model", path.display())]
    NotAModel { path: PathBuf, kind: OutputKind },
    #[error("{}: this is {what}, not a language model", path.display())]
    NotALanguageModel { path: PathBuf, what: &'static str },
    #[error("{error}")]
    Dropped { pattern: String, error: Box<ConvertError> },
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error(transparent)]
    NameTaken(#[from] NameTaken),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
    #[error(transparent)]
    Overrides(#[from] RefusedOverrides),
    #[error(transparent)]
    Like(#[from] NothingAlike),
    #[error(transparent)]
    NativeFloats(#[from] NativeFloats),
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    Show(#[from] io::Error),
}

impl Hint for JobError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Options(_) | Self::Show(_) => Vec::new(),
            Self::Types(error) => error.hints(),
            Self::Convert(error) => error.hints(),
            Self::Gguf(error) => error.hints(),
            Self::NotAModel { kind: OutputKind::Recipe, .. } => {
                vec!["`gguf-quantize rebuild RECIPE --source SOURCE -o FILE` makes the file".to_owned()]
            }
            Self::NotAModel { .. } => {
                vec!["`--imatrix FILE` gives it to a quantization of its model".to_owned()]
            }
            Self::NotALanguageModel { what, .. } => beside_text::hint(what),
            Self::Dropped { pattern, .. } => vec![format!(
                "`--drop {pattern}` leaves it out, and the model needs it: give a pattern of other names, as in '^prefix\\.'"
            )],
            Self::Guard(error) => error.hints(),
            Self::NameTaken(error) => error.hints(),
            Self::Folder(error) => error.hints(),
            Self::Output(error) => error.hints(),
            Self::Imatrix(error) => error.hints(),
            Self::Overrides(error) => error.hints(),
            Self::Like(error) => error.hints(),
            Self::NativeFloats(error) => error.hints(),
            Self::Allocate(error) => error.hints(),
            Self::Quantize(error) => error.hints(),
            Self::Calibrate(error) => error.hints(),
            Self::Engine(error) => error.hints(),
            Self::Write(error) => error.hints(),
            Self::Recipe(error) => error.hints(),
        }
    }
}

/// Options that contradict one another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Contradiction {
    #[error(
        "a GGUF file is quantized to a mixture or for a size: the types of a conversion go with checkpoints"
    )]
    NotConverted,
    #[error(
        "`native` keeps the integers of language models: an image or video model has the types of `auto`"
    )]
    NativeImageModel,
    #[error("--calibrate runs language models: {what} is quantized without")]
    CalibratedOther { what: &'static str },
    #[error("--calibrate: {file_type} rounds in one way, whatever the text: there is nothing to solve")]
    NothingToSolve { file_type: FileType },
    #[error("--dry-run cannot be used with `{option}` with a text: costs are measured on it")]
    PlanOfMeasuredTypes { option: &'static str },
    #[error("{option}: a size above 0 expected")]
    NoSize { option: &'static str },
    #[error("{option}: a divergence above 0 expected")]
    NoKld { option: &'static str },
    #[error("a limit of the divergence is measured on a text: `--calibrate TEXT` gives one")]
    KldWithoutText,
    #[error(
        "--check-text {}: that is what `--calibrate {}` gives to the solver; another text expected",
        held_out.display(),
        calibrate.display()
    )]
    SameText { held_out: PathBuf, calibrate: PathBuf },
    #[error("--calibrate {}: the same text as `--calibrate {}`; each text once", second.display(), first.display())]
    TextTwice { first: PathBuf, second: PathBuf },
}

impl Contradiction {
    pub(super) const CALIBRATED_IMAGES: Self = Self::CalibratedOther { what: "an image or video model" };

    /// Refuses a calibration of a model through which no text is run.
    pub(super) fn of_calibrated(opened: &OpenedInput) -> Result<(), Self> {
        let arch = opened.metadata().get("general.architecture").and_then(Value::as_str);
        let what = match arch {
            _ if opened.image_rules().is_some() => return Err(Self::CALIBRATED_IMAGES),
            Some("clip") => "a vision or audio tower",
            _ if opened.source().tensors().is_empty() => "a vocabulary without weights",
            _ => return Ok(()),
        };
        Err(Self::CalibratedOther { what })
    }
}
