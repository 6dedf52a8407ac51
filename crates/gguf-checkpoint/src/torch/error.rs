//! Errors of reading a PyTorch file.

use zip::result::ZipError;

use crate::pickle::{Forbidden, PickleError};
use gguf_core::text::escape;
use gguf_core::{ElementType, Hint};

/// Errors of a PyTorch file that is broken or of an unsupported form.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum TorchError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the file is empty")]
    Empty,
    #[error("a git LFS pointer, not the file")]
    LfsPointer,
    #[error("a web page, not the file")]
    WebPage,
    #[error("a safetensors file, not a PyTorch file")]
    Safetensors,
    #[error("a tar archive of PyTorch before 0.1.10, which cannot be read")]
    Tar,
    #[error("a TorchScript archive: a program, not a dictionary of weights")]
    TorchScript,
    #[error("zip archive: {}", reason(.0))]
    Zip(#[from] ZipError),
    #[error("zip archive: offset {offset}: the directory lists {listed} records but does not end there")]
    Directory { offset: u64, listed: usize },
    #[error("zip archive without `data.pkl`: not a PyTorch file")]
    NoDataPkl,
    #[error("zip archive with `{}` and `{}`", escape(first), escape(second))]
    TwoDataPkl { first: String, second: String },
    #[error("zip archive: two records have the same name")]
    DuplicateRecord,
    #[error("zip record `{}`: {problem}", escape(name))]
    Record { name: String, problem: RecordProblem },
    #[error("zip record `byteorder`: `little` or `big` expected, found `{}`", escape(found))]
    ByteOrder { found: String },
    #[error("pickle: {0}")]
    Pickle(#[from] PickleError),
    #[error("pickle of {n_bytes} bytes, at most {limit} allowed")]
    PickleTooLong { n_bytes: u64, limit: u64 },
    #[error("offset 0: not a PyTorch file: neither a zip archive nor the number 0x1950a86a20f9469cfc6c")]
    Magic,
    #[error("offset {offset}: version 1001 of the container expected")]
    Version { offset: u64 },
    #[error("offset {offset}: {expected} expected, found {found}")]
    Part { offset: u64, expected: &'static str, found: &'static str },
    #[error("offset {offset}: storage `{}`: {expected} elements expected, {found} declared", escape(key))]
    StorageCount { offset: u64, key: String, expected: u64, found: i64 },
    #[error("{found} as a persistent id, the description of a storage expected")]
    PersistentId { found: &'static str },
    #[error("storages: {0}")]
    Storage(TensorProblem),
    #[error("storage `{}`: its elements are not described, or in two ways", escape(key))]
    StorageUnclear { key: String },
    #[error("offset {offset}: storage `{}`: {wanted} bytes expected, {present} present", escape(key))]
    StorageTruncated { offset: u64, key: String, wanted: u64, present: u64 },
    #[error("{found} at the top, a dictionary of tensors expected")]
    Top { found: &'static str },
    #[error("no dictionary of tensors in it")]
    NoTensors,
    #[error("dictionary `{}` is contained twice", escape(name))]
    Cycle { name: String },
    #[error("dictionary `{}`: nested too deeply or under too long a name", escape(name))]
    TooDeep { name: String },
    #[error("a tensor under {found}, text expected")]
    Key { found: &'static str },
    #[error("tensor `{}`: name occurs twice", escape(name))]
    Duplicate { name: String },
    #[error("more than {limit} tensors")]
    TooManyTensors { limit: u64 },
    #[error("tensor `{}`: {problem}", escape(name))]
    Tensor { name: String, problem: TensorProblem },
}

/// Errors of a record of a zip archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum RecordProblem {
    #[error("compressed records are not read; save the file again with torch.save")]
    Compressed,
    #[error("encrypted records are not read")]
    Encrypted,
    #[error("{stored} bytes stored, {declared} declared")]
    Sizes { stored: u64, declared: u64 },
    #[error("data {offset}..+{n_bytes} reaches beyond {end}, where the directory begins")]
    Outside { offset: u64, n_bytes: u64, end: u64 },
    #[error("its data overlap `{}`", escape(other))]
    Overlap { other: String },
    #[error("the checksum does not match: the data were changed")]
    Checksum,
}

/// Errors of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum TensorProblem {
    #[error("its {field} is {found}, which does not fit")]
    Field { field: &'static str, found: &'static str },
    #[error("its {field} is missing")]
    Missing { field: &'static str },
    #[error("its storage is not given as `('storage', class, key, location, number of elements)`")]
    PersistentId,
    #[error("elements of `torch.{class}` are not read")]
    StorageClass { class: &'static str },
    #[error("its element type is not read")]
    ElementType,
    #[error("storage `{}` is missing", escape(key))]
    StorageMissing { key: String },
    #[error("storage `{}`: {expected} bytes expected, {found} present", escape(key))]
    StorageSize { key: String, expected: u128, found: u64 },
    #[error("storage `{}`: view {offset}..+{n} of {n_elems} elements", escape(key))]
    StorageView { key: String, offset: i64, n: i64, n_elems: u64 },
    #[error("{field} {value} is negative")]
    Negative { field: &'static str, value: i64 },
    #[error("{sizes} sizes but {strides} strides")]
    Rank { sizes: usize, strides: usize },
    #[error("shape {sizes:?} overflows")]
    Overflow { sizes: Vec<u64> },
    #[error(
        "shape {sizes:?} with strides {strides:?} from element {offset} reaches beyond {n_elems} elements"
    )]
    Beyond { sizes: Vec<u64>, strides: Vec<u64>, offset: u64, n_elems: u64 },
    #[error("{n} elements are shown of a storage of {n_elems}: at most {limit} times as many are read")]
    Expanded { n: u64, n_elems: u64, limit: u64 },
}

impl TensorProblem {
    /// Wraps this problem in the error for the tensor `name`.
    pub(super) fn of(self, name: &str) -> TorchError {
        TorchError::Tensor { name: name.to_owned(), problem: self }
    }

    /// Returns true if the element type is not supported.
    fn is_unreadable(&self) -> bool {
        matches!(self, Self::StorageClass { .. } | Self::ElementType)
    }
}

/// Returns the zip reader's message, without the words that our own message already contains.
fn reason(error: &ZipError) -> String {
    match error {
        ZipError::InvalidArchive(text) => text.to_string(),
        other => other.to_string(),
    }
}

/// Returns the bytes per element; types narrower than a byte do not occur in PyTorch files.
pub(super) fn elem_bytes(ty: ElementType) -> usize {
    ty.bytes().unwrap_or(1)
}

impl Hint for TorchError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::LfsPointer => "run `git lfs pull`",
            Self::Empty | Self::StorageTruncated { .. } => gguf_core::input::INCOMPLETE,
            Self::WebPage => "the download failed: fetch the file again",
            Self::Safetensors => "rename it to `model.safetensors` and give the directory",
            Self::Tar => "load and save it again with a current PyTorch",
            Self::TorchScript | Self::Top { .. } | Self::NoTensors => {
                "save the weights alone: `torch.save(model.state_dict(), ...)`"
            }
            Self::Zip(_)
            | Self::Directory { .. }
            | Self::Record { problem: RecordProblem::Outside { .. } | RecordProblem::Checksum, .. }
            | Self::Pickle(PickleError::Truncated(_) | PickleError::NoStop { .. }) => {
                "the download is incomplete, or the file is damaged: fetch it again"
            }
            Self::Pickle(PickleError::Name { why: Forbidden::Subclass, .. }) => {
                "if you trust the file, load it in PyTorch and save plain tensors, best as safetensors: `.full_tensor()` of a \
                 DTensor, `.dequantize()` of a quantized one"
            }
            Self::Pickle(PickleError::Name { .. } | PickleError::Opcode { .. }) => {
                "if you trust the file, load it in PyTorch and save `model.state_dict()`, best as safetensors"
            }
            Self::Tensor { problem, .. } if problem.is_unreadable() => {
                "convert the tensor to a float type in PyTorch and save again"
            }
            Self::Magic => "the file is damaged, or the checkpoint of another program: fetch it again",
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}
