//! Errors of calibration.

use std::path::PathBuf;

use crate::{PROMISE_ERRORS, WorkError};
use gguf_core::Hint;
use gguf_core::text::{bytes, escape};
use gguf_engine::EngineError;
use gguf_quantization::{AllocateError, QuantizeError};
use gguf_verification::VerifyError;

pub(crate) type Result<T, E = CalibrateError> = std::result::Result<T, E>;

/// Errors that prevent a calibration.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum CalibrateError {
    #[error(transparent)]
    Text(#[from] VerifyError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    #[error("the model makes embeddings: without predictions there is no divergence to check the result by")]
    Encoder,
    #[error("layers cannot be left out of a model that is calibrated: what it computes changes")]
    Pruned,
    #[error("{}: no file in this folder", path.display())]
    EmptyFolder { path: PathBuf },
    #[error("no calibration text")]
    NoText,
    #[error(
        "calibration text `{}`: {found} tokens in {windows} sequences; expected at least {needed} in 2",
        escape(name)
    )]
    TooShort { name: String, found: usize, windows: usize, needed: usize },
    #[error("text for the check `{}`: no sequence of which a token can be predicted", escape(name))]
    NothingToPredict { name: String },
    #[error(
        "{tokens} tokens in sequences of {n_ctx}, shared by {kinds} texts: expected at least two sequences each"
    )]
    Budget { tokens: usize, n_ctx: usize, kinds: usize },
    #[error("memory budget of {budget_bytes} bytes: {tokens} tokens of calibration text need {needed_bytes}")]
    Memory { budget_bytes: u64, needed_bytes: u64, tokens: usize },
    #[error(
        "a mean KLD of at most {most_kld} is asked for; with the largest types, a file of {}, it is {mean_kld:.6} ± {stderr:.6} on {n_tokens} held-back tokens, and two standard errors are added",
        bytes(*file_bytes)
    )]
    Unkept { most_kld: f64, mean_kld: f64, stderr: f64, file_bytes: u64, n_tokens: usize },
    #[error("memory budget of {budget_bytes} bytes: {weights} weights need {needed_bytes} to be tuned")]
    TuneMemory { budget_bytes: u64, needed_bytes: u64, weights: u64 },
    #[error("memory budget of {budget_bytes} bytes: the model needs {needed_bytes} to write text")]
    SelfMemory { budget_bytes: u64, needed_bytes: u64 },
    #[error("calibration: what `{}` is multiplied with is not finite", escape(tensor))]
    NonFinite { tensor: String },
}

impl Hint for CalibrateError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Text(error) => error.hints(),
            Self::Engine(error) => error.hints(),
            Self::Work(error) => error.hints(),
            Self::Quantize(error) => error.hints(),
            Self::Allocate(error) => error.hints(),
            Self::Encoder => vec!["`gguf-verify imatrix` collects an importance matrix for it".to_owned()],
            Self::Pruned => {
                vec![
                    "write a file without the layers first (`--type copy`), then calibrate that file"
                        .to_owned(),
                ]
            }
            Self::Io(error) => gguf_core::output::io_hints(error),
            Self::Memory { needed_bytes, .. } => {
                vec![format!(
                    "pass `--memory {}M` or more, or fewer tokens with `--calibrate-tokens`",
                    needed_bytes.div_ceil(1 << 20)
                )]
            }
            Self::TuneMemory { needed_bytes, .. } => {
                vec![format!(
                    "pass `--memory {}M` or more, or choose `--solver sequential`",
                    needed_bytes.div_ceil(1 << 20)
                )]
            }
            Self::Unkept { most_kld, mean_kld, stderr, .. } => {
                let bound = mean_kld + PROMISE_ERRORS * stderr;
                let least = format!("`--target-kld {:.6}` is within reach", (bound * 1e6).ceil() / 1e6);
                let way = if mean_kld <= most_kld {
                    "more text gives a smaller error: `--check-text`, `--calibrate-tokens`"
                } else {
                    "add larger types to `--types`"
                };
                vec![least, way.to_owned()]
            }
            Self::SelfMemory { needed_bytes, .. } => {
                vec![format!("pass `--memory {}M` or more, or give a text", needed_bytes.div_ceil(1 << 20))]
            }
            Self::Budget { n_ctx, kinds, .. } => {
                // Half of them may go to what the model writes.
                vec![format!("`--calibrate-tokens {}` is enough", 4 * kinds * n_ctx.max(&4))]
            }
            Self::TooShort { .. } => {
                vec![
                    "give a longer text, or a folder of texts: the files of a folder are one kind".to_owned(),
                ]
            }
            Self::NonFinite { .. } => {
                vec!["the weights are damaged: `gguf-verify MODEL --structure-only` looks at each".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}
