//! Errors of GGUF files.

use std::fmt;
use std::path::PathBuf;

use crate::foreign::{OLLAMA, foreign_type};
use crate::split_keys::SPLIT_ID;
use crate::{OtherFile, TensorLimits, ValueType};
use gguf_core::bytes::Truncated;
use gguf_core::input::INCOMPLETE;
use gguf_core::mmap::LockError;
use gguf_core::text::{escape, escape_bytes};
use gguf_core::{GgmlType, Hint};

/// Part of a header that an error refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderItem {
    /// A field of the fixed header.
    Field(&'static str),
    /// Key with this index.
    Key(u64),
    /// Value of this key.
    Value(String),
    /// Name of the tensor with this index.
    TensorName(u64),
    /// Rest of the entry of this tensor.
    Tensor(String),
}

impl fmt::Display for HeaderItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, "{name}"),
            Self::Key(index) => write!(f, "key {index}"),
            Self::Value(key) => write!(f, "key `{}`", escape(key)),
            Self::TensorName(index) => write!(f, "name of tensor {index}"),
            Self::Tensor(name) => write!(f, "tensor `{}`", escape(name)),
        }
    }
}

/// Rules of the format that the bytes of a single file can violate. Offsets are absolute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum HeaderError {
    #[error("offset {}: {item}: the file ends too early: {} bytes expected, {} left", at.offset, at.wanted, at.left)]
    Truncated { item: HeaderItem, at: Truncated },
    #[error("offset 0: magic `GGUF` expected, found `{}`", escape_bytes(found))]
    Magic { found: Vec<u8> },
    #[error("offset 0: magic `GGUF` expected, found `FUGG`: the bytes of each 32-bit word are reversed")]
    MagicSwapped,
    #[error("offset 4: version {found}{}, expected 2 or 3", if *big { " (big-endian)" } else { "" })]
    Version { found: u32, big: bool },
    #[error(
        "offset {offset}: {found} {what} declared, at most {most} possible in the {left} bytes that follow"
    )]
    Count { offset: u64, what: &'static str, found: u64, most: u64, left: u64 },
    #[error("offset {offset}: key {index} is empty")]
    KeyEmpty { offset: u64, index: u64 },
    #[error("offset {offset}: key {index} is not UTF-8: `{}`", escape_bytes(found))]
    KeyNotUtf8 { offset: u64, index: u64, found: Vec<u8> },
    #[error("offset {offset}: key `{}` appears twice", escape(key))]
    KeyTwice { offset: u64, key: String },
    #[error("offset {offset}: key `{}`: value type {found} does not exist", escape(key))]
    ValueType { offset: u64, key: String, found: i32 },
    #[error("offset {offset}: key `{}`: array element type {found} does not exist", escape(key))]
    ElementType { offset: u64, key: String, found: i32 },
    #[error(
        "offset {offset}: key `{}`: array of {n_elems} {ty} cannot fit in the {left} bytes left",
        escape(key)
    )]
    ArrayLength { offset: u64, key: String, n_elems: u64, ty: ValueType, left: u64 },
    #[error("offset {offset}: key `{}`: arrays nested more than {limit} deep", escape(key))]
    ArrayDepth { offset: u64, key: String, limit: usize },
    #[error("offset {offset}: key `{}`: bool is {found}, expected 0 or 1", escape(key))]
    Bool { offset: u64, key: String, found: u8 },
    #[error("offset {offset}: key `general.alignment`: u32 expected, found {found}")]
    AlignmentType { offset: u64, found: ValueType },
    #[error("offset {offset}: key `general.alignment` is {found}, a power of two expected")]
    Alignment { offset: u64, found: u32 },
    #[error("offset {offset}: name of tensor {index} is empty")]
    TensorNameEmpty { offset: u64, index: u64 },
    #[error("offset {offset}: name of tensor {index} has {found} bytes, at most {most} allowed")]
    TensorNameLength { offset: u64, index: u64, found: u64, most: u64 },
    #[error("offset {offset}: name of tensor {index} is not UTF-8: `{}`", escape_bytes(found))]
    TensorNameNotUtf8 { offset: u64, index: u64, found: Vec<u8> },
    #[error("offset {offset}: tensor `{}` appears twice", escape(tensor))]
    TensorTwice { offset: u64, tensor: String },
    #[error("offset {offset}: tensor `{}`: {found} dimensions, at most {most} allowed", escape(tensor))]
    Rank { offset: u64, tensor: String, found: u32, most: u32 },
    #[error("offset {offset}: tensor `{}`: dimension {dim} is 0", escape(tensor))]
    DimensionZero { offset: u64, tensor: String, dim: usize },
    #[error("offset {offset}: tensor `{}`: dimension {dim} is negative ({found})", escape(tensor))]
    DimensionNegative { offset: u64, tensor: String, dim: usize, found: i64 },
    #[error("offset {offset}: tensor `{}`: number of elements of {dims:?} overflows 63 bits", escape(tensor))]
    Elements { offset: u64, tensor: String, dims: Vec<u64> },
    #[error("offset {offset}: tensor `{}`: type {found} does not exist", escape(tensor))]
    TensorType { offset: u64, tensor: String, found: i32 },
    #[error("offset {offset}: tensor `{}`: type {found} is {}, not of llama.cpp", escape(tensor), foreign(*found))]
    ForeignType { offset: u64, tensor: String, found: u32 },
    #[error(
        "offset {offset}: tensor `{}`: type {found} (`{name}`) was removed from the format",
        escape(tensor)
    )]
    TensorTypeRemoved { offset: u64, tensor: String, found: u32, name: &'static str },
    #[error(
        "offset {offset}: tensor `{}`: rows of {n_cols} elements, expected a multiple of {} for {ty}",
        escape(tensor), ty.block_elems()
    )]
    Row { offset: u64, tensor: String, n_cols: u64, ty: GgmlType },
    #[error(
        "offset {offset}: tensor `{}`: number of bytes of {n_elems} elements of {ty} overflows 64 bits",
        escape(tensor)
    )]
    TensorBytes { offset: u64, tensor: String, n_elems: u64, ty: GgmlType },
    #[error(
        "offset {offset}: tensor `{}`: end of its data, padded to {alignment}, overflows 64 bits",
        escape(tensor)
    )]
    DataBytes { offset: u64, tensor: String, alignment: u64 },
    #[error(
        "offset {offset}: tensor `{}`: data offset {found} is not a multiple of {alignment}",
        escape(tensor)
    )]
    Unaligned { offset: u64, tensor: String, found: u64, alignment: u64 },
    #[error(
        "offset {offset}: tensor `{}`: data offset {found} overlaps the tensor before, expected {expected}",
        escape(tensor)
    )]
    Overlap { offset: u64, tensor: String, found: u64, expected: u64 },
    #[error(
        "offset {offset}: tensor `{}`: data offset {found} leaves a gap, expected {expected}",
        escape(tensor)
    )]
    Gap { offset: u64, tensor: String, found: u64, expected: u64 },
    #[error("offset {offset}: tensor data begins at {data_offset}, the file ends at {file_bytes}")]
    DataStart { offset: u64, data_offset: u64, file_bytes: u64 },
    #[error(
        "offset {offset}: tensor `{}`: {n_bytes} bytes of data end beyond the file of {file_bytes} bytes; {whole} expected",
        escape(tensor)
    )]
    DataEnd { offset: u64, tensor: String, n_bytes: u64, file_bytes: u64, whole: u64 },
}

impl HeaderError {
    /// Returns true if the file ends before what it declares.
    pub(super) const fn is_cut(&self) -> bool {
        matches!(
            self,
            Self::Truncated { .. }
                | Self::Count { .. }
                | Self::ArrayLength { .. }
                | Self::DataStart { .. }
                | Self::DataEnd { .. }
        )
    }
}

/// Formats name and program of a type that is not llama.cpp's.
fn foreign(id: u32) -> String {
    foreign_type(id)
        .map_or_else(String::new, |(name, program)| format!("{} of {program}", name.unwrap_or("a type")))
}

/// Reasons why a GGUF file, or a set of parts, is refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum GgufError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(
        "{}: {file_bytes} bytes cannot be locked in memory: the address space is limited, so the file is read piece by \
         piece",
        path.display()
    )]
    LockUnmapped { path: PathBuf, file_bytes: u64 },
    #[error("{}: not a GGUF file: {what}", path.display())]
    OtherFile { path: PathBuf, what: OtherFile },
    #[error("{}: {error}", path.display())]
    Header { path: PathBuf, error: HeaderError },
    #[error("{}: key `{key}`: {expected} expected, found {found}", path.display())]
    SplitKey { path: PathBuf, key: &'static str, expected: &'static str, found: String },
    #[error("{}: part {part} of {n_parts} by its keys, so its name must end in `{expected}`", path.display())]
    PartName { path: PathBuf, part: u64, n_parts: u64, expected: String, is_joined: bool },
    #[error("{}: part {part} of {n_parts} is missing", path.display())]
    PartMissing { path: PathBuf, part: usize, n_parts: usize },
    #[error("{}: part {expected} expected, key `split.no` declares part {found}", path.display())]
    PartNumber { path: PathBuf, expected: u64, found: u64 },
    #[error("{}: not of the same model as the first part: {what} {expected} expected, found {found}", path.display())]
    PartForeign { path: PathBuf, what: &'static str, expected: String, found: String },
    #[error(
        "{}: {}, {}: {}: these parts are of two sets, because a rewrite was interrupted (run the command that wrote them \
         again) or files of two models were mixed",
        first.display(), set_id(first_id.as_deref()), path.display(), set_id(id.as_deref())
    )]
    PartSet { path: PathBuf, id: Option<String>, first: PathBuf, first_id: Option<String> },
    #[error(
        "{}: tensor `{}`: name of {} bytes and {rank} dimensions; by the keys of the first part, {} bytes and {} dimensions \
         are the most",
        path.display(), escape(tensor), tensor.len(), limits.name_bytes, limits.dims
    )]
    PartLimits { path: PathBuf, tensor: String, rank: usize, limits: TensorLimits },
    #[error("{}: tensor `{}` is in `{}` too: the parts are of two files", path.display(), escape(tensor), other.display())]
    PartTensorTwice { path: PathBuf, tensor: String, other: PathBuf },
    #[error("{}: {found} tensors in all parts, key `split.tensors.count` declares {expected}", path.display())]
    PartTensors { path: PathBuf, expected: u64, found: u64 },
}

impl GgufError {
    /// Returns true if the file could not be read; false if it was read and its content is refused.
    pub const fn is_unread(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Lock(_) | Self::LockUnmapped { .. })
    }
}

fn set_id(id: Option<&str>) -> String {
    match id {
        Some(id) => format!("key `{SPLIT_ID}` is `{}`", escape(id)),
        None => format!("no key `{SPLIT_ID}`"),
    }
}

impl Hint for GgufError {
    fn hints(&self) -> Vec<String> {
        let text = match self {
            Self::Io(error) if error.kind() == std::io::ErrorKind::IsADirectory => {
                "name a GGUF file; `gguf-inspect checkpoint DIR` shows the checkpoint of a folder, `gguf-convert hf2gguf DIR` \
                 converts it"
            }
            // A pipe, a device, a socket.
            Self::Io(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                "files are read in several places at once: write it to a file first, and name that"
            }
            Self::OtherFile { what, .. } => return vec![what.hint()],
            Self::Header { error: HeaderError::Magic { found }, .. } => match found.as_slice() {
                b"ggml" | b"lmgg" => {
                    "this is a GGML file: a model of the time before GGUF, whose original checkpoint must be converted \
                     again, or one of whisper.cpp, which has its own `quantize`"
                }
                b"ggjt" | b"tjgg" | b"ggmf" | b"fmgg" => {
                    "this is a model of the time before GGUF: convert the original checkpoint again"
                }
                b"ggla" | b"algg" => {
                    "this is a LoRA adapter of the time before GGUF: convert the original with `gguf-convert lora2gguf`"
                }
                [0x80, 2..=5, ..] => {
                    "this is a pickle (a PyTorch checkpoint?): convert it with `gguf-convert`"
                }
                _ => return Vec::new(),
            },
            Self::Header { error: HeaderError::Version { found: 1, .. }, .. } => {
                "version 1 was replaced in 2023 and nothing reads it any more: convert the original checkpoint again"
            }
            Self::Header { error: HeaderError::Version { .. }, .. } => {
                "the file may be newer than this program, or damaged"
            }
            Self::Header { error, .. } if error.is_cut() => INCOMPLETE,
            Self::Header { error: HeaderError::ForeignType { found, .. }, .. } => {
                let program = foreign_type(*found).map_or("its program", |row| row.1);
                if program == OLLAMA {
                    "only Ollama reads these blocks; fetch the model's GGUF file from the hub (`ggml-org`), or convert the \
                     checkpoint with `gguf-convert hf2gguf`"
                } else {
                    return vec![format!(
                        "only {program} reads these blocks; `gguf-inspect` shows and edits the metadata. To have another type, \
                     quantize the original checkpoint"
                    )];
                }
            }
            Self::PartLimits { .. }
            | Self::Header {
                error: HeaderError::TensorNameLength { .. } | HeaderError::Rank { .. }, ..
            } => {
                "llama.cpp does not load such a file; `gguf-inspect` shows it, and `gguf-inspect rename` and `drop` change \
                  its list of tensors"
            }
            Self::Header { error: HeaderError::TensorTypeRemoved { .. }, .. } => {
                "quantize the model again to a type of today; repacking now happens when the model is loaded"
            }
            Self::Lock(error) => return error.hints(),
            Self::LockUnmapped { .. } => {
                "raise the limit with `ulimit -v unlimited`, or do not lock the file"
            }
            Self::PartName { is_joined: true, .. } => {
                "the file has more than this part: parts are joined by `gguf-inspect merge`, not by `cat`; fetch them again"
            }
            Self::PartName { .. } => "give the part its original name back",
            Self::PartMissing { .. } => "all parts must be in one directory",
            Self::PartSet { .. } | Self::PartTensorTwice { .. } => {
                "run the command that wrote the parts again, or fetch all of them from one place"
            }
            Self::PartNumber { .. } | Self::PartForeign { .. } => {
                "fetch the parts again, all from the same place"
            }
            _ => return Vec::new(),
        };
        vec![text.to_owned()]
    }
}
