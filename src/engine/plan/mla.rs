//! Latent attention: the keys and values of all heads are expanded from one short row per token, beside which stands one
//! rotated key that all heads share (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

use crate::engine::ops::mla;
use crate::engine::plan::{Footprint, Mask, Matrix, Norm, OutputGate, Temperature, Vector};

/// A short row that is normed before it is expanded.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// Makes it.
    pub down: Matrix,
    /// Norms it.
    pub norm: Norm,
}

/// How the short row becomes keys and values.
#[derive(Clone, Debug, PartialEq)]
pub enum Expansion {
    /// One matrix; its rows are, head by head, those of the key and those of the value.
    Joint(Matrix),
    /// Two tensors of a matrix per head.
    Split {
        /// `[rank, dk - n_shared]` each: the short row is multiplied from the left.
        keys: Vec<Matrix>,
        /// `[dv, rank]` each.
        values: Vec<Matrix>,
    },
}

/// Latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// The short row of the queries, if they are made from one.
    pub q_latent: Option<Latent>,
    /// Queries, `n_heads * dk` rows, from the short row or the layer's input.
    pub q: Matrix,
    /// The short row of keys and values, `rank` rows, and the shared key, `n_shared` rows.
    pub kv: Matrix,
    /// Norm of the short row.
    pub kv_norm: Norm,
    /// Norm of the shared key, before it is rotated.
    pub shared_norm: Option<Norm>,
    /// Keys and values from the short row.
    pub expansion: Expansion,
    /// Gate on the heads' outputs.
    pub gate: Option<OutputGate>,
    /// Output projection.
    pub out: Matrix,
    /// Heads.
    pub n_heads: usize,
    /// Width of a query or key: what is expanded, then the shared key.
    pub dk: usize,
    /// Width of a value.
    pub dv: usize,
    /// Width of the short row.
    pub rank: usize,
    /// Width of the shared key, and of the end of each query that meets it.
    pub n_shared: usize,
    /// Index into the plan's rotations, for the shared key and the ends of the queries.
    pub rope: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// One extra logit per head that takes probability and has no value.
    pub sinks: Option<Vector>,
    /// Visible keys.
    pub mask: Mask,
    /// Factor of the queries that grows with their position.
    pub temperature: Option<Temperature>,
}

impl Mla {
    /// Width of a key before the shared one is appended.
    #[must_use]
    pub fn n_own(&self) -> usize {
        self.dk - self.n_shared
    }
}

impl Footprint for Mla {
    fn widest(&self) -> usize {
        let latent = self.q_latent.as_ref().map_or(0, |latent| latent.down.n_cols);
        latent.max(self.q.n_cols).max(self.kv.n_cols).max(self.out.n_cols).max(self.rank)
    }

    fn floats_per_token(&self) -> usize {
        // Rows before and after their norms, queries, keys, values, contexts.
        let queries = self.q.n_rows + self.q_latent.as_ref().map_or(0, |latent| 2 * latent.down.n_rows);
        let joint = match &self.expansion {
            Expansion::Joint(matrix) => matrix.n_rows,
            Expansion::Split { .. } => 0,
        };
        let gate = self.gate.as_ref().map_or(0, |gate| gate.matrix.n_rows);
        gate + queries + self.kv.n_rows + self.rank + joint + self.n_heads * (self.dk + 2 * self.dv)
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        mla::buffer_bytes(self, chunk_len)
    }
}
