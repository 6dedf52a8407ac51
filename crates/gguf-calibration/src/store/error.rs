//! Errors of statistics.

use std::path::PathBuf;

use gguf_checkpoint::safetensors::HeaderError;
use gguf_core::Hint;
use gguf_core::output::{OutputError, io_hints};
use gguf_core::text::escape;

/// Errors that prevent statistics from being written or read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum StatisticsError {
    /// The directory cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// I/O, with the path.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{}: {}", file.display(), escape(reason))]
    Plan { file: PathBuf, reason: String },
    #[error("{}: no `statistics.json` in it; expected a directory that `gguf-quantize stats` or `--save-stats` wrote", path.display())]
    NotStatistics { path: PathBuf },
    #[error("{}: {}", file.display(), escape(reason))]
    Manifest { file: PathBuf, reason: String },
    #[error("{}: format version {found}; expected {expected}", file.display())]
    Version { file: PathBuf, found: u64, expected: u64 },
    #[error("{}: statistics of another {what}: digest {}; expected {expected}", path.display(), escape(found))]
    OtherModel { path: PathBuf, what: &'static str, found: String, expected: String },
    #[error("{}: tensor `{}`: inputs of {found}; expected {expected}", file.display(), escape(tensor))]
    Matrix { file: PathBuf, tensor: String, found: String, expected: String },
    #[error("{}: {source}", file.display())]
    Header { file: PathBuf, source: HeaderError },
    #[error("{}: tensor `{}` is missing", file.display(), escape(tensor))]
    Missing { file: PathBuf, tensor: String },
    #[error("{}: tensor `{}` is not in `statistics.json`", file.display(), escape(tensor))]
    Unlisted { file: PathBuf, tensor: String },
    #[error("{}: tensor `{}`: found {found}; expected {expected}", file.display(), escape(tensor))]
    Shape { file: PathBuf, tensor: String, found: String, expected: String },
    #[error("{}: tensor `{}`: found {value} at {place}; expected {expected}", file.display(), escape(tensor))]
    Value { file: PathBuf, tensor: String, place: String, value: f64, expected: &'static str },
}

impl Hint for StatisticsError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Output(error) => error.hints(),
            Self::Io(error) => io_hints(error),
            Self::OtherModel { .. } | Self::Matrix { .. } => {
                vec!["collect them of this model: `--calibrate TEXT --save-stats DIR`".to_owned()]
            }
            Self::Version { .. } => vec!["collect them again with this program".to_owned()],
            _ => Vec::new(),
        }
    }
}
