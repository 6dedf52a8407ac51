//! Errors of joining the parts of a verification.

use std::path::PathBuf;

use crate::parts::file::VERSION;
use gguf_core::Hint;
use gguf_core::output::OutputError;
use gguf_core::text::escape;
use gguf_format::listed;

/// Reasons why parts of a verification cannot be read, written or joined.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum PartError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}: offset 0: no part of a verification", path.display())]
    Magic { path: PathBuf },
    #[error("{}: offset 8: version {found} of the format, {VERSION} expected", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("{}: {found} bytes, its header declares {expected}", path.display())]
    Length { path: PathBuf, expected: u128, found: u64 },
    #[error("{}: damaged: the checksum at offset 16 is not that of what follows", path.display())]
    Checksum { path: PathBuf },
    #[error("{}: offset {offset}: {}", path.display(), escape(reason))]
    Facts { path: PathBuf, offset: u64, reason: String },
    #[error("no part is given")]
    Nothing,
    #[error("{}: a part of another verification than {}: another {what}", path.display(), other.display())]
    OtherPlan { path: PathBuf, other: PathBuf, what: &'static str },
    #[error("{}: a part of {count}, but {} is one of {other_count}", path.display(), other.display())]
    OtherCount { path: PathBuf, other: PathBuf, count: usize, other_count: usize },
    #[error("part {number} is given twice: {} and {}", path.display(), other.display())]
    Twice { path: PathBuf, other: PathBuf, number: usize },
    #[error("of {count} parts {} missing: {}", if numbers.len() == 1 { "one is" } else { "some are" }, listed(numbers, *count))]
    Missing { numbers: Vec<usize>, count: usize },
    #[error("{}: the checks of the model found something else than in {}: {}", path.display(), other.display(), escape(what))]
    OtherFindings { path: PathBuf, other: PathBuf, what: String },
}

impl Hint for PartError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Magic { .. } => "parts are written by `gguf-verify MODEL --part I/N -o FILE`",
            Self::Length { found, expected, .. } if u128::from(*found) < *expected => {
                "it was cut off, or is still being copied: copy it again, or run this part again"
            }
            Self::Length { .. } | Self::Checksum { .. } | Self::Facts { .. } => {
                "copy it again, or run this part again"
            }
            Self::Version { .. } => "run all parts with the same version of the program",
            Self::OtherPlan { .. } | Self::OtherCount { .. } => {
                "all parts have the same model, baseline, prompts and options, and the same N of `--part I/N`"
            }
            Self::Missing { .. } => "run them, with the model, prompts and options of the others",
            Self::OtherFindings { .. } => {
                "the machines do not have the same files: compare the copies (`gguf-inspect hash FILE`), and run the part again"
            }
            Self::Output(error) => return error.hints(),
            Self::Io(error) => return gguf_core::output::io_hints(error),
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}
