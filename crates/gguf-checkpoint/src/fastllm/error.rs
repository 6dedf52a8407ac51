//! Errors of reading an `.flm` file.

use std::fmt;

use gguf_core::bytes::Truncated;
use gguf_core::text::escape;

/// Section of an `.flm` file, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlmSection {
    /// The first integer.
    Version,
    /// Keys and values of the configuration.
    Dictionary,
    /// Dictionaries of adapters.
    Adapters,
    /// Tokens.
    Vocabulary,
    /// List of special tokens.
    SpecialTokens,
    /// Names, shapes and types of tensors.
    Tensors,
    /// Elements, codes and value ranges.
    TensorData,
}

impl fmt::Display for FlmSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "version",
            Self::Dictionary => "dictionary",
            Self::Adapters => "adapters",
            Self::Vocabulary => "vocabulary",
            Self::SpecialTokens => "special tokens",
            Self::Tensors => "tensors",
            Self::TensorData => "tensor data",
        })
    }
}

/// Rules of the format that a file breaks.
///
/// Offsets are absolute.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum FlmError {
    #[error("{section}: unexpected end of file: {source}")]
    Truncated { section: FlmSection, source: Truncated },
    #[error("this is a GGUF file, not an `.flm` file")]
    Gguf,
    #[error("version {found}, expected 0, 1 or 2")]
    Version { found: i32 },
    #[error("{section}: offset {offset}: {what} {found} is negative")]
    Negative { section: FlmSection, offset: u64, what: &'static str, found: i32 },
    #[error("{section}: offset {offset}: {what} {found} cannot fit, {left} bytes are left")]
    CannotFit { section: FlmSection, offset: u64, what: &'static str, found: i32, left: u64 },
    #[error("{section}: offset {offset}: text is not UTF-8")]
    NotUtf8 { section: FlmSection, offset: u64 },
    #[error("{section}: key `{}` appears twice", escape(key))]
    DuplicateKey { section: FlmSection, key: String },
    #[error("`peft_size` is `{}`, expected a number of adapters", escape(found))]
    PeftSize { found: String },
    #[error("vocabulary: offset {offset}: token byte {found} outside -128..255")]
    TokenByte { offset: u64, found: i32 },
    #[error("vocabulary: offset {offset}: token id {found}, expected 0 to {limit}")]
    TokenId { offset: u64, found: i32, limit: u64 },
    #[error("vocabulary: offset {offset}: score {found} of token id {id}")]
    Score { offset: u64, id: i32, found: f32 },
    #[error("tensors: {found} tensors, at most {limit} allowed")]
    TooManyTensors { found: u64, limit: u64 },
    #[error("tensors: offset {offset}: name `{}` is empty or holds a NUL", escape(name))]
    Name { offset: u64, name: String },
    #[error("tensor `{}` appears twice", escape(name))]
    DuplicateTensor { name: String },
    #[error("tensor `{}`: {found} dimensions, at most {limit} allowed", escape(name))]
    Rank { name: String, found: i32, limit: usize },
    #[error("tensor `{}`: dimension {found} is negative", escape(name))]
    Dimension { name: String, found: i32 },
    #[error("tensor `{}`: the number of elements of {dims:?} overflows", escape(name))]
    Overflow { name: String, dims: Vec<u64> },
    #[error(
        "tensor `{}`: unexpected end of file inside tensor data: {wanted} bytes expected, {left} left",
        escape(name)
    )]
    DataTruncated { name: String, wanted: u64, left: u64 },
    #[error("tensor `{}`: data type {found}{} is not read from `.flm` files", escape(name), type_name(*found))]
    DataType { name: String, found: i32 },
    #[error("tensor `{}`: channel axis {found}, expected 0 or -1", escape(name))]
    Axis { name: String, found: i32 },
    #[error("tensor `{}`: {n_groups} groups of {group_cols} for {cols} columns", escape(name))]
    Groups { name: String, n_groups: i32, group_cols: i32, cols: u64 },
    #[error("offset {offset}: {n_bytes} bytes are left after the last tensor")]
    Trailing { offset: u64, n_bytes: u64 },
    #[error("the dictionary has no `model_type`")]
    NoModelType,
}

/// Returns the name of a data type that exists in the format's enumeration but in no file.
fn type_name(number: i32) -> &'static str {
    match number {
        2 => " (INT16)",
        5 => " (INT2)",
        6 => " (BIT)",
        10 => " (FP8_E4M3)",
        11 => " (INT2_GROUP)",
        12 => " (BASE3_GROUP)",
        13 => " (INT32)",
        14 => " (NVFP4)",
        _ => "",
    }
}

impl FlmError {
    /// Suggestions for the user.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NotUtf8 { section: FlmSection::Dictionary, .. }
            | Self::CannotFit { section: FlmSection::Dictionary, .. }
            | Self::Negative { section: FlmSection::Dictionary, .. } => {
                "a string length does not match: exporters before February 2024 counted characters of text that is \
                 not ASCII, such a file has to be exported again"
            }
            Self::Truncated { section: FlmSection::Adapters, .. }
            | Self::NotUtf8 { section: FlmSection::Adapters, .. }
            | Self::CannotFit { section: FlmSection::Adapters, .. }
            | Self::Negative { section: FlmSection::Adapters, .. } => {
                "FastLLM's own `SaveModel` leaves the adapters' dictionaries out and keeps `peft_size`: export the \
                 file again from the original model"
            }
            Self::Truncated { .. } | Self::DataTruncated { .. } => gguf_core::input::INCOMPLETE,
            Self::NoModelType => {
                "`gguf-convert flm2gguf FILE --arch NAME` names the architecture, `gguf-convert archs` lists them"
            }
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}
