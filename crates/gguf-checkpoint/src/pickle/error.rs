//! Errors of reading a pickle.

use std::fmt;

use gguf_core::bytes::Truncated;
use gguf_core::text::escape;

/// Kinds of names that are not allowed in a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// A tensor of quantized elements.
    Quantized,
    /// A sparse tensor.
    Sparse,
    /// A tensor without data.
    Meta,
    /// A tensor subclass with its own code.
    Subclass,
    /// A nested tensor.
    Nested,
    /// A class of `torch.nn`: the whole module was saved.
    Module,
    /// Any other name; weights do not need it.
    Other,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quantized => "a quantized tensor, which cannot be read",
            Self::Sparse => "a sparse tensor, which cannot be read",
            Self::Meta => "a tensor without data",
            Self::Subclass => "a tensor subclass, which cannot be read",
            Self::Nested => "a nested tensor, which cannot be read",
            Self::Module => "a whole module was saved, not its weights",
            Self::Other => "not among the names that weights need; nothing was called",
        })
    }
}

/// Errors of a pickle that is broken or uses more than weights need.
///
/// Offsets are absolute in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts of the message above them")]
pub enum PickleError {
    #[error(transparent)]
    Truncated(#[from] Truncated),
    #[error("offset {offset}: pickle ends without STOP")]
    NoStop { offset: u64 },
    #[error("offset {offset}: line without end")]
    NoNewline { offset: u64 },
    #[error("offset {offset}: pickle protocol {found}, at most 5 expected")]
    Protocol { offset: u64, found: u8 },
    #[error("offset {offset}: pickle opcode 0x{opcode:02x}{} is not allowed", name(*.opcode))]
    Opcode { offset: u64, opcode: u8 },
    #[error("offset {offset}: nothing on the stack")]
    StackEmpty { offset: u64 },
    #[error("offset {offset}: no mark on the stack")]
    NoMark { offset: u64 },
    #[error("offset {offset}: memo slot {slot} is not set")]
    MemoMissing { offset: u64, slot: u64 },
    #[error("offset {offset}: {expected} expected, found {found}")]
    Kind { offset: u64, expected: &'static str, found: &'static str },
    #[error("offset {offset}: not {expected}")]
    Literal { offset: u64, expected: &'static str },
    #[error("offset {offset}: pickle wants `{}.{}`: {why}", escape(module), escape(name))]
    Name { offset: u64, module: String, name: String, why: Forbidden },
    #[error("offset {offset}: call of {what} that does not fit")]
    Call { offset: u64, what: &'static str },
    #[error("offset {offset}: more values than {limit} bytes of pickle justify")]
    TooManyValues { offset: u64, limit: u64 },
}

/// Returns the name of an opcode that exists but is refused.
fn name(opcode: u8) -> &'static str {
    match opcode {
        b'i' => " (INST)",
        b'o' => " (OBJ)",
        0x82 => " (EXT1)",
        0x83 => " (EXT2)",
        0x84 => " (EXT4)",
        0x97 => " (NEXT_BUFFER)",
        0x98 => " (READONLY_BUFFER)",
        _ => "",
    }
}
