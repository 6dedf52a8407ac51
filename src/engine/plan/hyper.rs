//! Several residual streams beside one another (hyper-connections; Zhu et al. 2024, arXiv 2409.19606): each branch reads a
//! mixture of them, and its output is shared out among them.

use crate::engine::plan::{Matrix, Norm, Vector};

/// The streams of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    /// How many; all begin as the embedding.
    pub n: usize,
    /// How they become one behind the last layer.
    pub end: StreamsEnd,
}

/// How the streams become one.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamsEnd {
    /// Their mean.
    Mean,
    /// They are read as by a branch.
    Read(Box<Connection>),
}

/// What a branch's output does to the streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamsWrite {
    /// Nothing: there is no branch.
    None,
    /// Each takes some of it: `magnitude sig(..) + eps`.
    Add {
        /// The most that a stream takes.
        magnitude: f32,
        /// Added to each weight.
        eps: f32,
    },
    /// Each becomes a mixture of all, by a matrix whose rows and columns add to one, and takes `2 sig(..)` of it.
    Mix {
        /// How often columns are brought to a sum of one, with rows between.
        iterations: usize,
    },
}

/// A weight per stream, from all streams together.
#[derive(Clone, Debug, PartialEq)]
pub struct WeighedStreams {
    /// Norm of all streams as one row.
    pub norm: Norm,
    /// A row for each weight of reading, of writing, and of the matrix.
    pub matrix: Matrix,
    /// Added to the scaled products, one each.
    pub base: Vector,
    /// Factors of the products: one of those for reading, of those for writing, and of the matrix.
    pub scale: Vector,
    /// Added to each weight of reading, and to sums that are divided by.
    pub eps: f32,
    /// What becomes of the branch's output.
    pub write: StreamsWrite,
}

/// A weight per value of each stream, by way of a narrow row.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedStreams {
    /// Norm of each stream alone, which is what is read.
    pub norm: Norm,
    /// The narrow row.
    pub down: Matrix,
    /// The weights, of the narrow row.
    pub up: Matrix,
    /// What each stream takes of the branch's output.
    pub inject: Option<Matrix>,
}

/// How a branch reads the streams and writes to them.
#[derive(Clone, Debug, PartialEq)]
pub enum Connection {
    /// A weight per stream.
    Weighed(WeighedStreams),
    /// A weight per value.
    Gated(GatedStreams),
}

/// The connections of a layer's two branches.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConnections {
    /// Of the mixer.
    pub mixer: Connection,
    /// Of the feed-forward.
    pub ffn: Connection,
}

impl Connection {
    /// True if what is read is normed already.
    #[must_use]
    pub fn norms(&self) -> bool {
        matches!(self, Self::Gated(_))
    }

    /// Numbers per token that reading leaves for writing.
    pub(crate) fn n_weights(&self) -> usize {
        match self {
            Self::Weighed(c) => c.matrix.n_rows,
            Self::Gated(c) => c.inject.as_ref().map_or(0, |inject| inject.n_rows),
        }
    }

    fn widest(&self) -> usize {
        match self {
            Self::Weighed(c) => c.matrix.n_cols,
            Self::Gated(c) => c.down.n_cols.max(c.up.n_cols),
        }
    }

    /// Floats per token of what reading needs.
    fn floats_per_token(&self) -> usize {
        let inner = match self {
            Self::Weighed(c) => c.matrix.n_cols,
            Self::Gated(c) => c.down.n_rows + 2 * c.up.n_rows,
        };
        inner + self.n_weights()
    }
}

impl LayerConnections {
    fn both(&self) -> [&Connection; 2] {
        [&self.mixer, &self.ffn]
    }

    /// Columns of the widest matrix.
    pub(super) fn widest(&self) -> usize {
        self.both().map(Connection::widest).into_iter().max().unwrap_or(0)
    }

    /// Floats per token of the intermediates, beside those of a layer of one stream.
    pub(super) fn floats_per_token(&self, n_embd: usize) -> usize {
        // What is read is kept beside what is normed of it.
        n_embd + self.both().map(Connection::floats_per_token).into_iter().max().unwrap_or(0)
    }
}

impl Streams {
    /// Columns of the widest matrix behind the last layer.
    pub(crate) fn widest(&self) -> usize {
        match &self.end {
            StreamsEnd::Mean => 0,
            StreamsEnd::Read(connection) => connection.widest(),
        }
    }

    /// Floats per token that making one stream of all needs.
    pub(crate) fn end_floats(&self) -> usize {
        match &self.end {
            StreamsEnd::Mean => 0,
            StreamsEnd::Read(connection) => connection.floats_per_token(),
        }
    }
}
