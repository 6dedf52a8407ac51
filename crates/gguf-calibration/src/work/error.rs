//! Errors of kept work.

use std::path::PathBuf;

use gguf_core::Hint;
use gguf_core::output::{OutputError, io_hints};
use gguf_core::text::escape;

/// Errors that prevent work from being kept or resumed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum WorkError {
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{}: no folder; expected one for the work of a run", path.display())]
    NoFolder { path: PathBuf },
    #[error("{}: `{}` in it is no work of a run; expected a new or empty folder", path.display(), escape(name))]
    Foreign { path: PathBuf, name: String },
    #[error("{}: the work of a run without its `work.json`", path.display())]
    NoManifest { path: PathBuf },
    #[error("{}: {}", file.display(), escape(reason))]
    Manifest { file: PathBuf, reason: String },
    #[error("{}: format version {found}; expected {expected}", file.display())]
    Version { file: PathBuf, found: u64, expected: u64 },
    #[error("{}: another run is working in this folder", path.display())]
    Busy { path: PathBuf },
    #[error(
        "{}: the work of another run: {what} was {}, is {} now",
        path.display(), escape(found), escape(expected)
    )]
    OtherRun { path: PathBuf, what: String, found: String, expected: String },
}

impl Hint for WorkError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Output(error) => error.hints(),
            Self::Io(error) => io_hints(error),
            Self::Busy { .. } => vec!["wait for it, or give this run a folder of its own".to_owned()],
            Self::OtherRun { what, .. } if what == "vector instructions" => vec![
                "choose the same with `--simd`".to_owned(),
                "to begin anew, name another folder, or remove this one".to_owned(),
            ],
            _ => vec!["to begin anew, name another folder, or remove this one".to_owned()],
        }
    }
}
