//! Gradient of a feed-forward network.

use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::gradient::Gradients;
use crate::ops::ffn::Ffn;
use crate::{EngineError, Result};

impl Ffn {
    /// Returns a part that has no gradient, if there is one.
    pub(crate) fn without_gradient(&self) -> Option<&'static str> {
        match self {
            Self::Dense(dense) => dense.without_gradient(),
            Self::Moe(moe) => moe.without_gradient(),
            Self::None => Some("a layer without a feed-forward"),
            Self::Switched(_) => Some("a feed-forward with adapters"),
            Self::ChannelMix(_) => Some("a channel mix"),
            Self::Both(_) => Some("a dense feed-forward beside experts"),
        }
    }

    /// Adds the gradient of the input `x` to `dx`, and hands out those of the weights; `dy` is that of the output.
    pub(crate) fn gradient(
        &self,
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        batch: &ChunkBatch,
        (x, dy): (&[f32], &[f32]),
        dx: &mut [f32],
    ) -> Result<()> {
        match (self, self.without_gradient()) {
            (Self::Dense(dense), None) => dense.gradient(cx, to, x, dy, dx),
            (Self::Moe(moe), None) => moe.gradient(cx, to, batch, (x, dy), dx),
            (_, what) => Err(EngineError::NoGradient { what: what.unwrap_or("a feed-forward") }),
        }
    }
}
