//! Errors of reading a PyTorch file.

use zip::result::ZipError;

use crate::pickle::PickleError;
use gguf_core::text::escape;
use gguf_core::{ElementType, Hint};

/// Errors of a PyTorch file that is broken or of an unsupported form.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum TorchError {
    /// Reading failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An empty file.
    #[error("the file is empty")]
    Empty,
    /// A git LFS pointer.
    #[error("a git LFS pointer, not the file")]
    LfsPointer,
    /// A web page.
    #[error("a web page, not the file")]
    WebPage,
    /// A safetensors file under another name.
    #[error("a safetensors file, not a PyTorch file")]
    Safetensors,
    /// The container of PyTorch before 0.1.10.
    #[error("a tar archive of PyTorch before 0.1.10, which cannot be read")]
    Tar,
    /// A TorchScript archive.
    #[error("a TorchScript archive: a program, not a dictionary of weights")]
    TorchScript,
    /// A broken zip archive.
    #[error("zip archive: {}", reason(.0))]
    Zip(#[from] ZipError),
    /// The archive's directory does not end after its last record.
    #[error("zip archive: offset {offset}: the directory lists {listed} records but does not end there")]
    Directory {
        /// End of the listed records.
        offset: u64,
        /// Number of records that the archive declares.
        listed: usize,
    },
    /// No `data.pkl`.
    #[error("zip archive without `data.pkl`: not a PyTorch file")]
    NoDataPkl,
    /// More than one `data.pkl`.
    #[error("zip archive with `{}` and `{}`", escape(first), escape(second))]
    TwoDataPkl { first: String, second: String },
    /// Two records of the same name.
    #[error("zip archive: two records have the same name")]
    DuplicateRecord,
    /// A broken record.
    #[error("zip record `{}`: {problem}", escape(name))]
    Record { name: String, problem: RecordProblem },
    /// A byte order that does not exist.
    #[error("zip record `byteorder`: `little` or `big` expected, found `{}`", escape(found))]
    ByteOrder { found: String },
    /// A broken pickle.
    #[error("pickle: {0}")]
    Pickle(#[from] PickleError),
    /// A pickle longer than the limit.
    #[error("pickle of {n_bytes} bytes, at most {limit} allowed")]
    PickleTooLong { n_bytes: u64, limit: u64 },
    /// Neither a zip archive nor PyTorch's older container.
    #[error("offset 0: not a PyTorch file: neither a zip archive nor the number 0x1950a86a20f9469cfc6c")]
    Magic,
    /// A version of the older container that does not exist.
    #[error("offset {offset}: version 1001 of the container expected")]
    Version { offset: u64 },
    /// A part of the older container of an unexpected kind.
    #[error("offset {offset}: {expected} expected, found {found}")]
    Part { offset: u64, expected: &'static str, found: &'static str },
    /// A storage of the older container with a wrong number of elements.
    #[error("offset {offset}: storage `{}`: {expected} elements expected, {found} declared", escape(key))]
    StorageCount { offset: u64, key: String, expected: u64, found: i64 },
    /// A persistent id that does not describe a storage.
    #[error("{found} as a persistent id, the description of a storage expected")]
    PersistentId { found: &'static str },
    /// A storage of the older container whose description does not fit.
    #[error("storages: {0}")]
    Storage(TensorProblem),
    /// A storage of the older container that no tensor describes, or two describe differently.
    #[error("storage `{}`: its elements are not described, or in two ways", escape(key))]
    StorageUnclear { key: String },
    /// A file that ends inside its storages.
    #[error("offset {offset}: storage `{}`: {wanted} bytes expected, {present} present", escape(key))]
    StorageTruncated {
        offset: u64,
        key: String,
        wanted: u64,
        /// Number of bytes left in the file.
        present: u64,
    },
    /// The top-level value is not a dictionary.
    #[error("{found} at the top, a dictionary of tensors expected")]
    Top { found: &'static str },
    /// A dictionary without weights.
    #[error("no dictionary of tensors in it")]
    NoTensors,
    /// A dictionary that contains itself, or is contained twice.
    #[error("dictionary `{}` is contained twice", escape(name))]
    Cycle { name: String },
    /// Dictionaries nested beyond the limit.
    #[error("dictionary `{}`: nested too deeply or under too long a name", escape(name))]
    TooDeep {
        /// The start of the name at which reading stopped.
        name: String,
    },
    /// A key that is not text.
    #[error("a tensor under {found}, text expected")]
    Key { found: &'static str },
    /// A name that occurs twice.
    #[error("tensor `{}`: name occurs twice", escape(name))]
    Duplicate { name: String },
    /// More tensors than the limit.
    #[error("more than {limit} tensors")]
    TooManyTensors { limit: u64 },
    /// A tensor that does not fit its storage, or is not supported.
    #[error("tensor `{}`: {problem}", escape(name))]
    Tensor { name: String, problem: TensorProblem },
}

/// Errors of a record of a zip archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum RecordProblem {
    /// A compressed record.
    #[error("compressed records are not read; save the file again with torch.save")]
    Compressed,
    /// An encrypted record.
    #[error("encrypted records are not read")]
    Encrypted,
    /// Two different sizes of a stored record.
    #[error("{stored} bytes stored, {declared} declared")]
    Sizes { stored: u64, declared: u64 },
    /// A range that does not end before the directory.
    #[error("data {offset}..+{n_bytes} reaches beyond {end}, where the directory begins")]
    Outside { offset: u64, n_bytes: u64, end: u64 },
    /// Records that share bytes.
    #[error("its data overlap `{}`", escape(other))]
    Overlap { other: String },
    /// Data that does not match its checksum.
    #[error("the checksum does not match: the data were changed")]
    Checksum,
}

/// Errors of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum TensorProblem {
    /// An unexpected argument of the rebuild function.
    #[error("its {field} is {found}, which does not fit")]
    Field { field: &'static str, found: &'static str },
    /// A missing argument of the rebuild function.
    #[error("its {field} is missing")]
    Missing { field: &'static str },
    /// A persistent id that is not a storage.
    #[error("its storage is not given as `('storage', class, key, location, number of elements)`")]
    PersistentId,
    /// A storage class that is not supported.
    #[error("elements of `torch.{class}` are not read")]
    StorageClass { class: &'static str },
    /// An element type that is not supported.
    #[error("its element type is not read")]
    ElementType,
    /// A missing storage.
    #[error("storage `{}` is missing", escape(key))]
    StorageMissing { key: String },
    /// A storage whose size differs from its description.
    #[error("storage `{}`: {expected} bytes expected, {found} present", escape(key))]
    StorageSize { key: String, expected: u128, found: u64 },
    /// A view of a storage that reaches beyond it.
    #[error("storage `{}`: view {offset}..+{n} of {n_elems} elements", escape(key))]
    StorageView { key: String, offset: i64, n: i64, n_elems: u64 },
    /// A negative number.
    #[error("{field} {value} is negative")]
    Negative { field: &'static str, value: i64 },
    /// Lists of sizes and strides of different lengths.
    #[error("{sizes} sizes but {strides} strides")]
    Rank { sizes: usize, strides: usize },
    /// Sizes whose product overflows.
    #[error("shape {sizes:?} overflows")]
    Overflow { sizes: Vec<u64> },
    /// Elements beyond the storage.
    #[error(
        "shape {sizes:?} with strides {strides:?} from element {offset} reaches beyond {n_elems} elements"
    )]
    Beyond { sizes: Vec<u64>, strides: Vec<u64>, offset: u64, n_elems: u64 },
    /// A view that repeats its elements too often.
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
            Self::WebPage | Self::Empty => "the download failed: fetch the file again",
            Self::Safetensors => "rename it to `model.safetensors` and give the directory",
            Self::Tar => "load and save it again with a current PyTorch",
            Self::TorchScript | Self::Top { .. } | Self::NoTensors => {
                "save the weights alone: `torch.save(model.state_dict(), ...)`"
            }
            Self::Zip(_)
            | Self::Directory { .. }
            | Self::StorageTruncated { .. }
            | Self::Record { problem: RecordProblem::Outside { .. } | RecordProblem::Checksum, .. }
            | Self::Pickle(PickleError::Truncated(_) | PickleError::NoStop { .. }) => {
                "the file is cut short or damaged: fetch it again"
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
