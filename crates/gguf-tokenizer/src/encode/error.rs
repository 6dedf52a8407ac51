//! Errors of a file's vocabulary that prevent encoding.

use crate::pretokenizer::offer;
use gguf_core::Hint;
use gguf_core::text::escape;

/// Reasons why no encoder could be made from the keys of a GGUF file.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the facts that the messages name")]
pub enum EncodeError {
    #[error("`{key}` is missing, expected {expected}")]
    MissingKey { key: &'static str, expected: &'static str },
    #[error("`{key}` is of type {found}, expected {expected}")]
    KeyType { key: &'static str, expected: &'static str, found: String },
    #[error("`{key}` has {found} elements, the vocabulary has {expected} tokens")]
    Length { key: &'static str, found: usize, expected: usize },
    #[error("`tokenizer.ggml.tokens` has {found} elements, at most {limit} are read")]
    TooManyTokens { found: usize, limit: u64 },
    #[error("`tokenizer.ggml.model` is `{}`, text is encoded for {expected}", escape(found))]
    Model { found: String, expected: &'static str },
    #[error("`tokenizer.ggml.pre` is `{}`, which is not known{}", escape(found), offer(*nearest))]
    Pre { found: String, nearest: Option<&'static str> },
    #[error("`tokenizer.ggml.merges[{rank}]`: no blank between two tokens in `{}`", escape(merge))]
    Merge { rank: usize, merge: String },
    #[error("`tokenizer.ggml.precompiled_charsmap`: byte {offset}: {reason}")]
    Charsmap { offset: usize, reason: &'static str },
    #[error(
        "`tokenizer.ggml.precompiled_charsmap`: a text of {n_bytes} bytes becomes longer than {limit}, expected at most \
         16 times as long"
    )]
    Growth { n_bytes: usize, limit: usize },
    #[error("`tokenizer.ggml.tokens[{id}]` has {n_bytes} bytes, at most {limit} can be searched for")]
    TokenTooLong { id: u32, n_bytes: usize, limit: usize },
    #[error("the vocabulary has neither a token for the unknown nor one for each byte")]
    NoUnknownToken,
}

impl Hint for EncodeError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Pre { nearest, .. } => vec![format!(
                "if its splitting is the same, `gguf-inspect set FILE tokenizer.ggml.pre=str:{}` writes a known name",
                nearest.unwrap_or("NAME")
            )],
            _ => Vec::new(),
        }
    }
}
