//! Feed-forward networks.

use crate::engine::EngineError;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Dense, Ffn};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// The feed-forward of `x` into `out`, both `[n_tokens, n_embd]`.
    pub(crate) fn ffn(
        &self,
        ffn: &Ffn,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_tokens = batch.n_wanted();
        match ffn {
            Ffn::None => {
                out.fill(0.0);
                Ok(())
            }
            Ffn::Dense(dense) => self.dense(dense, x, n_tokens, out),
            Ffn::ChannelMix(mix) => self.channel_mix(mix, batch, x, out),
            Ffn::Moe(moe) => self.moe(moe, x, n_tokens, out),
        }
    }

    /// `down(act(gate x) * up x)`, or `down(act(up x))`.
    pub(crate) fn dense(
        &self,
        dense: &Dense,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut inner = self.take(n_tokens * dense.up.n_rows);
        let product = Product { weight: &dense.up, act: Some(&dense.act), out: &mut inner };
        self.products(x, n_tokens, vec![product])?;
        self.products(&inner, n_tokens, vec![Product::plain(&dense.down, out)])?;
        self.give([inner]);
        Ok(())
    }
}
