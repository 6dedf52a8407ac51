//! What the last tokens, looked up as n-grams by their hashes, add to the streams of a layer (Qwen 3.8).

use crate::engine::plan::{Matrix, Norm, Vector};

/// The table of n-grams and the hashes of its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramTable {
    /// Rows of all parts, one part after the other.
    pub rows: Matrix,
    /// Factors of a token and of those before it, by distance: n-grams are at most so long.
    pub multipliers: Vec<u64>,
    /// First row and number of rows of every part: of pairs, then of triples and so on.
    pub parts: Vec<(usize, usize)>,
    /// Parts for each length of n-grams.
    pub n_per_length: usize,
    /// A token that ends what is remembered, and that stands for what is not.
    pub end: u32,
}

/// A layer's addition of n-grams to the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Ngrams {
    /// What is looked up.
    pub table: NgramTable,
    /// A key for each stream, of the looked up rows.
    pub key: Matrix,
    /// The value, for all streams.
    pub value: Matrix,
    /// Norm of each key.
    pub key_norm: Norm,
    /// Norm of each stream.
    pub query_norm: Norm,
    /// Norm before the convolution.
    pub conv_norm: Norm,
    /// Taps of the convolution, `[n_streams * n_embd, n_taps]`.
    pub conv: Vector,
    /// Number of taps.
    pub n_taps: usize,
    /// Tokens from tap to tap.
    pub dilation: usize,
}

impl Ngrams {
    /// Columns of the widest matrix.
    pub(super) fn widest(&self) -> usize {
        self.key.n_cols
    }

    /// Floats per token: rows, keys, streams as queries, the value.
    pub(super) fn floats_per_token(&self) -> usize {
        self.key.n_cols + 2 * self.key.n_rows + self.value.n_rows
    }
}
