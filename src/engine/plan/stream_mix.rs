//! Branches that read a mix of the stream and of what it was before earlier layers (Kimi K3, "attention residuals").

use crate::engine::plan::{GraphPlan, Norm};

/// What the branches of a layer read where kept streams are mixed in. Each score is the sum of a stream's normed values.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMix {
    /// Scores what the mixer reads.
    pub mixer: Norm,
    /// Scores what the feed-forward reads.
    pub ffn: Norm,
    /// The stream before the layer is kept for all later mixes, and begins anew with the mixer's output.
    pub keeps: bool,
}

impl GraphPlan {
    /// Streams that stay from the layer that keeps them to the end.
    pub(super) fn n_kept_streams(&self) -> usize {
        self.layers.iter().filter(|layer| layer.mix.as_ref().is_some_and(|mix| mix.keeps)).count()
    }
}
