//! Errors of importance matrices.

use std::path::PathBuf;

use crate::{GgufError, OtherFile, listed};
use gguf_core::text::{escape, escape_bytes};
use gguf_core::{GgmlType, Hint};

/// Reasons why an importance matrix cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum ImatrixError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Read(Box<gguf_core::SourceError>),
    #[error("{}: not an importance matrix: no key `{key}`", path.display())]
    NotAnImatrix { path: PathBuf, key: &'static str },
    #[error("{}: importance matrix without entries", path.display())]
    Empty { path: PathBuf },
    #[error("{}: tensor `{}`: sums and counts expected, one of them is missing", path.display(), escape(tensor))]
    Unpaired { path: PathBuf, tensor: String },
    #[error("{}: tensor `{}`: importance data of type F32 expected, found {found}", path.display(), escape(tensor))]
    Type { path: PathBuf, tensor: String, found: GgmlType },
    #[error(
        "{}: tensor `{}`: {n_values} importance values for {n_counts} matrices",
        path.display(),
        escape(tensor)
    )]
    Counts { path: PathBuf, tensor: String, n_values: usize, n_counts: usize },
    #[error("{}: importance matrix: offset {offset}: {what} expected", path.display())]
    Legacy { path: PathBuf, offset: u64, what: &'static str },
    #[error(
        "{}: tensor `{}`: offset {offset}: number of calls is {n_calls}: a number that is not negative expected",
        path.display(),
        escape(tensor)
    )]
    Calls { path: PathBuf, tensor: String, offset: u64, n_calls: i32 },
    #[error(
        "{}: tensor `{}`: importance value {index} is {value}",
        path.display(),
        escape(tensor)
    )]
    NonFinite { path: PathBuf, tensor: String, index: usize, value: f32 },
    #[error(
        "{}: tensor `{}`: importance value {index} is {value}: a number that is not negative expected",
        path.display(),
        escape(tensor)
    )]
    Negative { path: PathBuf, tensor: String, index: usize, value: f32 },
    #[error(
        "{}: tensor `{}`: {found} importance values, {expected} expected",
        path.display(),
        escape(tensor)
    )]
    Size { path: PathBuf, tensor: String, expected: u64, found: usize },
    #[error(
        "{}: tensor `{}`: {found} {what}, but {before} {what} in {}",
        path.display(),
        escape(tensor),
        other.display()
    )]
    Contradiction {
        path: PathBuf,
        tensor: String,
        what: &'static str,
        found: usize,
        before: usize,
        other: PathBuf,
    },
    #[error("{}: not the file of an unfinished run: there is nothing to resume", path.display())]
    Finished { path: PathBuf },
    #[error("{}: an unfinished run or a part that another version of this program has written", path.display())]
    OtherVersion { path: PathBuf },
    #[error("{}: tensor `{}`: the sums of the unfinished run are missing or damaged", path.display(), escape(tensor))]
    NotExact { path: PathBuf, tensor: String },
    #[error(
        "{}: the file of another run: its {n_done} chunks were made from another model, text or options",
        path.display()
    )]
    OtherRun { path: PathBuf, n_done: usize },
    #[error("{}: {n_done} chunks are done, this run has {n_total}", path.display())]
    BeyondRun { path: PathBuf, n_done: usize, n_total: usize },
    #[error("{}: no part of an importance matrix", path.display())]
    NoPart { path: PathBuf },
    #[error("{}: part {number} of {count} of an importance matrix, a whole one expected", path.display())]
    IsPart { path: PathBuf, number: usize, count: usize },
    #[error("no part of an importance matrix is given")]
    NoParts,
    #[error("{}: {n_done} of the {n_total} chunks of this part are done", path.display())]
    UnfinishedPart { path: PathBuf, n_done: usize, n_total: usize },
    #[error("{}: a part of another importance matrix than {}: of {what}", path.display(), other.display())]
    OtherPart { path: PathBuf, other: PathBuf, what: &'static str },
    #[error("part {number} is given twice: {} and {}", path.display(), other.display())]
    TwicePart { path: PathBuf, other: PathBuf, number: usize },
    #[error("of {count} parts {} missing: {}", if numbers.len() == 1 { "one is" } else { "some are" }, listed(numbers, *count))]
    MissingParts { numbers: Vec<usize>, count: usize },
    #[error("{}: damaged: it does not hold what its checksum is of", path.display())]
    DamagedPart { path: PathBuf },
    #[error(
        "{}: importance matrix of another model: none of its {n_entries} entries names a tensor of this one",
        path.display()
    )]
    OtherModel { path: PathBuf, n_entries: usize, example: String },
}

impl ImatrixError {
    /// Returns true if the file could not be read; false if it was read and its content is refused.
    pub fn is_unread(&self) -> bool {
        match self {
            Self::Io(_) | Self::Read(_) => true,
            Self::Gguf(error) => error.is_unread(),
            _ => false,
        }
    }
}

impl Hint for ImatrixError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::NotAnImatrix { .. }
            | Self::Empty { .. }
            | Self::Gguf(GgufError::OtherFile {
                what: OtherFile::JsonFile | OtherFile::Safetensors | OtherFile::Zip,
                ..
            }) => vec!["make one with `gguf-verify imatrix`".to_owned()],
            Self::Gguf(error) => error.hints(),
            Self::Legacy { .. } => {
                vec!["a file that does not begin with `GGUF` is read as the older `.dat` format".to_owned()]
            }
            Self::Size { .. } => {
                vec![
                    "use the importance matrix of this very model, with experts stacked in the same way"
                        .to_owned(),
                ]
            }
            Self::OtherModel { example, .. } => {
                vec![format!("it has an entry for `{}`, for example", escape_bytes(example.as_bytes()))]
            }
            Self::Contradiction { .. } => {
                vec!["only matrices of one model can be added up".to_owned()]
            }
            Self::Finished { .. } => vec![
                "without `--resume` it is measured anew; `--in-file` with `--from-chunk` adds more chunks to it"
                    .to_owned(),
            ],
            Self::OtherVersion { .. } => vec![
                "use the version that wrote it, or measure anew, without `--resume`".to_owned(),
            ],
            Self::NotExact { .. } => vec!["measure anew, without `--resume`".to_owned()],
            Self::OtherRun { .. } => vec![
                "give the model, the prompts and the options of that run, or leave `--resume` out to begin anew"
                    .to_owned(),
            ],
            Self::NoPart { .. } => vec![
                "parts are written by `gguf-verify imatrix MODEL --part I/N`; whole matrices are added up by themselves"
                    .to_owned(),
            ],
            Self::IsPart { .. } => vec!["`gguf-verify combine` puts all parts together".to_owned()],
            Self::UnfinishedPart { .. } => {
                vec!["run this part again with `--resume`: it continues where it stopped".to_owned()]
            }
            Self::OtherPart { .. } => vec![
                "all parts have the same model, prompts and options, and the same N of `--part I/N`".to_owned(),
            ],
            Self::MissingParts { .. } => {
                vec!["run them, with the model, prompts and options of the others".to_owned()]
            }
            Self::DamagedPart { .. } => vec!["copy it again, or run this part again".to_owned()],
            Self::NonFinite { .. }
            | Self::Negative { .. }
            | Self::Calls { .. }
            | Self::Unpaired { .. }
            | Self::Type { .. }
            | Self::Counts { .. } => {
                vec!["measure it again; the file is damaged or was made with a broken model".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}
