//! The file that llama-perplexity's `--kl-divergence-base` writes and reads: what a model said about a text, kept so
//! that it is run once.
//!
//! # Layout
//! Little-endian. `_logits_`, then four bytes each: tokens of a chunk `n_ctx`, size of the vocabulary `n_vocab`, chunks
//! `n_chunk`. Then `n_chunk * n_ctx` token ids of four bytes, as the text has them: the reader puts BOS in the place of
//! a chunk's first. Then a row for each token that is predicted in the second half of each chunk (`n_ctx - 1 - n_ctx / 2`
//! of them): `scale` and `least` as F32, one 16-bit code for each token of the vocabulary, and one of padding where their
//! number is odd. A log-probability is `scale * code + least`; what lies 16 and more below the largest has code 0.

pub(super) mod read;
pub(super) mod write;

use std::path::PathBuf;

use crate::core::Hint;
use crate::core::output::OutputError;
use crate::core::text;

/// First bytes of the file.
const MAGIC: &[u8; 8] = b"_logits_";
/// Bytes before the token ids.
const HEADER_BYTES: u64 = 20;
/// Bytes of a row before its codes.
const ROW_HEAD_BYTES: usize = 8;

/// What is wrong with a file of log-probabilities, or with what should go into one.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum LogitFileError {
    /// Another kind of file.
    #[error("{}: offset 0: expected `_logits_`", path.display())]
    Magic { path: PathBuf },
    /// A number of the header that makes no sense.
    #[error("{}: offset {offset}: {name} is {found}, expected {expected}", path.display())]
    Header { path: PathBuf, offset: u64, name: &'static str, found: i64, expected: &'static str },
    /// The length is not what the header says.
    #[error("{}: {found} bytes, its header says {expected}", path.display())]
    Length { path: PathBuf, expected: u128, found: u64 },
    /// A token id outside the vocabulary.
    #[error("{}: offset {offset}: token {token}, the vocabulary has {n_vocab}", path.display())]
    Token { path: PathBuf, offset: u64, token: i64, n_vocab: usize },
    /// A row whose numbers are no log-probabilities.
    #[error("{}: offset {offset}: scale {scale} and least log-probability {least} of a row", path.display())]
    Row { path: PathBuf, offset: u64, scale: f32, least: f32 },
    /// A prompt that is not cut into full chunks.
    #[error("prompt {prompt}: a logit file holds full chunks of {n_ctx} tokens, this is one of {tokens}")]
    Chunk { prompt: usize, n_ctx: usize, tokens: usize },
    /// More chunks or a longer context than the header has numbers for.
    #[error("{chunks} chunks of {n_ctx} tokens: a logit file has no number for that")]
    TooMany { chunks: usize, n_ctx: usize },
    /// Logits that no probability can be made of.
    #[error("logits of row {row} are not finite: nothing that a logit file can hold")]
    NotFinite { row: usize },
    /// The file cannot be written.
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
    /// Predictions of a chunk.
    fn chunk_rows(self) -> usize {
        self.n_ctx - 1 - self.n_ctx / 2
    }

    /// Bytes of a row: codes are padded to an even number.
    fn row_bytes(self) -> usize {
        ROW_HEAD_BYTES + 2 * self.n_vocab.next_multiple_of(2)
    }

    /// Where the rows begin.
    fn rows_offset(self) -> u128 {
        u128::from(HEADER_BYTES) + 4 * self.n_chunks as u128 * self.n_ctx as u128
    }

    fn file_bytes(self) -> u128 {
        // Counts below 2^32 each: no product leaves 128 bits.
        self.rows_offset() + self.n_chunks as u128 * self.chunk_rows() as u128 * self.row_bytes() as u128
    }
}

/// A file that is about to be written: how large, and whether it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitFileSize {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes free where it goes, if the system tells.
    pub free_bytes: Option<u64>,
    /// Predictions in it.
    pub rows: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
}

impl std::fmt::Display for LogitFileSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = text::bytes(self.file_bytes);
        write!(f, "{size}: {} predictions over {} tokens", self.rows, self.n_vocab)?;
        self.free_bytes.map_or(Ok(()), |free| write!(f, "; {} are free", text::bytes(free)))
    }
}
