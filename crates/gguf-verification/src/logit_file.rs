//! Format of llama-perplexity's `--kl-divergence-base` files: the predictions of a model for a text, stored so that the
//! model runs once.
//!
//! # Layout
//! Little-endian. `_logits_`, then four bytes each: tokens of a chunk `n_ctx`, size of the vocabulary `n_vocab`, chunks
//! `n_chunk`. Then `n_chunk * n_ctx` token ids of four bytes, as in the text: the reader replaces the first token of
//! each chunk by BOS. Then a row for each predicted token in the second half of each chunk (`n_ctx - 1 - n_ctx / 2` of
//! them): `scale` and `least` as F32, one 16-bit code for each token of the vocabulary, and one of padding if their
//! number is odd. A log-probability is `scale * code + least`; values 16 or more below the largest have code 0.
//!
//! Files of these programs go on with `_model__`, four bytes of length, and a JSON text by which the model is known;
//! llama-perplexity does not read that far.

pub(super) mod model_mark;
pub(super) mod read;
pub(super) mod write;

use std::path::PathBuf;

use gguf_core::output::OutputError;
use gguf_core::{Hint, text};

const MAGIC: &[u8; 8] = b"_logits_";
/// Magic bytes after the rows, before the facts of the model.
const MARK_MAGIC: &[u8; 8] = b"_model__";
/// Number of bytes before the token ids.
const HEADER_BYTES: u64 = 20;
/// Number of bytes of a row before its codes.
const ROW_HEAD_BYTES: usize = 8;

/// Errors of reading or writing a file of log-probabilities.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum LogitFileError {
    #[error("{}: offset 0: expected `_logits_`", path.display())]
    Magic { path: PathBuf },
    #[error("{}: offset {offset}: {name} is {found}, expected {expected}", path.display())]
    Header { path: PathBuf, offset: u64, name: &'static str, found: i64, expected: &'static str },
    #[error("{}: {found} bytes, its header declares {expected}", path.display())]
    Length { path: PathBuf, expected: u128, found: u64 },
    #[error("{}: offset {offset}: token {token}, the vocabulary has {n_vocab}", path.display())]
    Token { path: PathBuf, offset: u64, token: i64, n_vocab: usize },
    #[error("{}: offset {offset}: scale {scale} and least log-probability {least} of a row", path.display())]
    Row { path: PathBuf, offset: u64, scale: f32, least: f32 },
    #[error("prompt {prompt}: a logit file holds full chunks of {n_ctx} tokens, this is one of {tokens}")]
    Chunk { prompt: usize, n_ctx: usize, tokens: usize },
    #[error("{chunks} chunks of {n_ctx} tokens: a logit file has no number for that")]
    TooMany { chunks: usize, n_ctx: usize },
    #[error("logits of row {row} are not finite: nothing that a logit file can hold")]
    NotFinite { row: usize },
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Hint for LogitFileError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::Length { expected, found, .. } if u128::from(*found) < *expected => {
                vec!["it was cut off, or the program that wrote it was stopped: write it again".to_owned()]
            }
            Self::Chunk { .. } => {
                vec!["give running text, and a `--ctx` that it fills".to_owned()]
            }
            Self::TooMany { .. } => vec!["pass `--chunks N`".to_owned()],
            Self::Output(error) => error.hints(),
            _ => Vec::new(),
        }
    }
}

/// Sizes that follow from the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the format's own names")]
struct Geometry {
    n_ctx: usize,
    n_vocab: usize,
    n_chunks: usize,
}

impl Geometry {
    fn chunk_rows(self) -> usize {
        self.n_ctx - 1 - self.n_ctx / 2
    }

    /// Number of bytes of a row; codes are padded to an even number.
    fn row_bytes(self) -> usize {
        ROW_HEAD_BYTES + 2 * self.n_vocab.next_multiple_of(2)
    }

    /// Byte offset of the rows.
    fn rows_offset(self) -> u128 {
        u128::from(HEADER_BYTES) + 4 * self.n_chunks as u128 * self.n_ctx as u128
    }

    fn file_bytes(self) -> u128 {
        // Counts are below 2^32 each: no product exceeds 128 bits.
        self.rows_offset() + self.n_chunks as u128 * self.chunk_rows() as u128 * self.row_bytes() as u128
    }
}

/// Size of a file that is about to be written, and the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitFileSize {
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Free bytes at the destination, if the system reports them.
    pub free_bytes: Option<u64>,
    /// Number of predictions in the file.
    pub rows: usize,
    /// Number of tokens of the vocabulary.
    pub n_vocab: usize,
}

impl std::fmt::Display for LogitFileSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = text::bytes(self.file_bytes);
        write!(f, "{size}: {} predictions over {} tokens", self.rows, self.n_vocab)?;
        self.free_bytes.map_or(Ok(()), |free| write!(f, "; {} are free", text::bytes(free)))
    }
}
