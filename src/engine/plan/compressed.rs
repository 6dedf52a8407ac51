//! Attention to a window of tokens and, behind it, to rows that stand for several tokens each (DeepSeek-V4). Key and value
//! of a token are one row, which all heads share.

use crate::engine::ops::compressed;
use crate::engine::plan::{Footprint, Latent, Mask, Matrix, Norm, Vector};

/// Makes one row of several tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Compressor {
    /// Tokens that a row stands for.
    pub ratio: usize,
    /// A row is made of twice as many, those before its own among them: rows of `kv`, `score` and `places` have two halves
    /// then, the first for the row behind.
    pub overlaps: bool,
    /// What is mixed.
    pub kv: Matrix,
    /// How much each value of a token counts.
    pub score: Matrix,
    /// Added to that by the token's place, a row for each.
    pub places: Vector,
    /// Norm of the row.
    pub norm: Norm,
}

/// Attention to a window and to compressed rows.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedAttention {
    /// The short row of the queries.
    pub q_latent: Latent,
    /// Queries from the short row.
    pub q: Matrix,
    /// Norm of each head's query.
    pub q_norm: Norm,
    /// Keys, which are the values.
    pub kv: Matrix,
    /// Norm of the keys.
    pub kv_norm: Norm,
    /// What makes the compressed rows, in layers that have some.
    pub compressor: Option<Compressor>,
    /// Narrow rows of the output, one of each group of heads.
    pub narrow: Vec<Matrix>,
    /// Output projection, of all narrow rows.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Index into the plan's rotations, of the ends of queries and keys; outputs are rotated back.
    pub rope: usize,
    /// Width of those ends.
    pub n_rotated: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// One extra logit per head that takes probability and has no value.
    pub sinks: Option<Vector>,
    /// Visible tokens.
    pub mask: Mask,
}

impl Footprint for CompressedAttention {
    fn widest(&self) -> usize {
        let narrow = self.narrow.iter().map(|matrix| matrix.n_cols).max().unwrap_or(0);
        self.q_latent.down.n_cols.max(self.q.n_cols).max(narrow).max(self.out.n_cols)
    }

    fn floats_per_token(&self) -> usize {
        let compressor = self.compressor.as_ref().map_or(0, |c| 2 * c.kv.n_rows + self.head_dim);
        // Queries, contexts, and those of a group of heads.
        let heads = 2 * self.q.n_rows + self.q.n_rows / self.narrow.len().max(1);
        let narrow: usize = self.narrow.iter().map(|matrix| matrix.n_rows).sum();
        heads + 2 * self.q_latent.down.n_rows + self.kv.n_rows + compressor + 2 * narrow
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        compressed::buffer_bytes(self, chunk_len)
    }
}
