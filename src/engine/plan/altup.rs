//! Alternating updates: several streams per token, of which each layer computes one.

use crate::engine::plan::{GraphPlan, LayerPlan, Matrix, Norm, Vector};

/// The streams of a model (Baykal et al. 2023, as Gemma 3n has them).
#[derive(Clone, Debug, PartialEq)]
pub struct AltUp {
    /// Streams per token.
    pub n: usize,
    /// The one that layers compute.
    pub active: usize,
    /// From the embedding, which is the first stream, to each of the others.
    pub entry: Vec<Matrix>,
    /// From each of the others to what is averaged with the first.
    pub exit: Vec<Matrix>,
}

/// How a layer moves the streams along.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerAltUp {
    /// Norm of what the router reads.
    pub router_norm: Norm,
    /// A row per stream.
    pub router: Matrix,
    /// From the router's values to a factor for each pair of streams.
    pub predict: Matrix,
    /// From the router's values to a factor for each stream.
    pub correct: Matrix,
    /// Factors of the computed stream, where the layer's own embedding reads it.
    pub correct_scale: Vector,
}

/// A residual of low rank beside the mixer (LAuReL, Menghani et al. 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Laurel {
    /// To the low rank.
    pub left: Matrix,
    /// And back.
    pub right: Matrix,
    /// Norm of what comes back.
    pub post: Norm,
}

impl GraphPlan {
    /// Values per token between layers.
    pub(crate) fn stream_width(&self) -> usize {
        let n = self.altup.as_ref().map(|altup| altup.n).or(self.streams.as_ref().map(|streams| streams.n));
        self.n_embd * n.unwrap_or(1)
    }
}

impl LayerPlan {
    /// Floats per token that streams and residuals of low rank take inside a layer.
    pub(super) fn stream_floats(&self, n_embd: usize) -> usize {
        // The computed stream, its norm, what is added to the others, and the factors.
        let altup = self.extras.altup.as_ref();
        let altup = altup.map_or(0, |altup| 3 * n_embd + altup.predict.n_rows + 2 * altup.router.n_rows);
        let laurel = self.extras.laurel.as_ref();
        altup + laurel.map_or(0, |laurel| laurel.left.n_rows + n_embd)
    }

    /// Columns of the widest matrix outside of the branches.
    pub(super) fn widest_extra(&self) -> usize {
        let laurel = self.extras.laurel.as_ref().map_or(0, |laurel| laurel.right.n_cols);
        let ngrams = self.extras.ngrams.as_ref().map_or(0, |ngrams| ngrams.widest());
        self.extras.embedding.as_ref().map_or(0, |embedding| embedding.proj.n_cols).max(laurel).max(ngrams)
    }
}
