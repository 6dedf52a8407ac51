//! Feed-forward networks.

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Activation, Dense, DenseAndMoe, Ffn, GatedActivation, Matrix};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// What a feed-forward may read, `[n_tokens, n_embd]` each.
#[derive(Clone, Copy)]
pub(crate) struct FfnInputs<'a> {
    /// The stream after the norm before the feed-forward.
    pub(crate) input: &'a [f32],
    /// The stream before the feed-forward.
    pub(crate) stream: &'a [f32],
    /// The stream before the layer; empty unless the layer needs it.
    pub(crate) entry: &'a [f32],
}

impl Runner<'_> {
    /// The feed-forward of a layer into `out`, `[n_tokens, n_embd]`.
    pub(crate) fn ffn(
        &self,
        ffn: &Ffn,
        batch: &ChunkBatch,
        inputs: FfnInputs<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_tokens = batch.n_wanted();
        match ffn {
            Ffn::None => {
                out.fill(0.0);
                Ok(())
            }
            Ffn::Dense(dense) => match &dense.switched {
                Some(switched) => self.switched_dense(dense, switched, (batch, inputs.input), out),
                None => self.dense(dense, inputs.input, n_tokens, out),
            },
            Ffn::ChannelMix(mix) => self.channel_mix(mix, batch, inputs.input, out),
            Ffn::Moe(moe) => self.moe(moe, inputs, batch, out),
            Ffn::Both(both) => self.dense_and_moe(both, inputs, batch, out),
        }
    }

    /// `(P1 dense(x) + P2 moe(x')) scale`, each branch with its own norms where it has some.
    fn dense_and_moe(
        &self,
        both: &DenseAndMoe,
        inputs: FfnInputs<'_>,
        batch: &ChunkBatch,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_tokens = batch.n_wanted();
        let n_embd = both.dense.up.n_cols;
        self.dense(&both.dense, inputs.input, n_tokens, out)?;
        self.norm_in_place(both.dense_post.as_ref(), out, n_embd)?;
        let mut own = self.take(n_tokens * n_embd);
        let input = match &both.moe_pre {
            Some(norm) => {
                let from = if both.moe_from_entry { inputs.entry } else { inputs.stream };
                self.norm_rows(&self.weights.norm(norm)?, from, &mut own, n_embd);
                &own
            }
            None => inputs.input,
        };
        let mut routed = self.take(n_tokens * n_embd);
        self.moe(&both.moe, FfnInputs { input, ..inputs }, batch, &mut routed)?;
        let post = both.moe_post.as_ref().map(|norm| self.weights.norm(norm)).transpose()?;
        self.add_rows(out, &mut routed, post.as_ref(), 1.0, n_embd);
        self.scale_rows(out, both.scale);
        self.give([own, routed]);
        Ok(())
    }

    /// `down(norm(act(gate x) * up x))`, or `down(norm(act(up x)))`; most models have no norm there.
    pub(crate) fn dense(
        &self,
        dense: &Dense,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut inner = self.take(n_tokens * dense.up.n_rows);
        match (dense.sparsity, &dense.act) {
            (Some(deviations), Activation::Gated { act, gate }) => {
                self.sparse_inner(dense, (*act, gate, deviations), x, n_tokens, &mut inner)?;
            }
            _ => {
                let product = Product { weight: &dense.up, act: Some(&dense.act), out: &mut inner };
                self.products(x, n_tokens, vec![product])?;
            }
        }
        self.norm_in_place(dense.sub_norm.as_ref(), &mut inner, dense.up.n_rows)?;
        self.products(&inner, n_tokens, vec![Product::plain(&dense.down, out)])?;
        self.give([inner]);
        Ok(())
    }

    /// `act(top(gate x)) * up x`: of each row of the gate only what is far above its mean is left.
    fn sparse_inner(
        &self,
        dense: &Dense,
        (act, gate, deviations): (GatedActivation, &Matrix, f32),
        x: &[f32],
        n_tokens: usize,
        inner: &mut [f32],
    ) -> Result<(), EngineError> {
        let (level, width) = (self.weights.level, dense.up.n_rows);
        let mut gates = self.take(n_tokens * width);
        let products = vec![Product::plain(&dense.up, inner), Product::plain(gate, &mut gates)];
        self.products(x, n_tokens, products)?;
        self.workers.install(|| {
            inner.par_chunks_mut(width).zip(gates.par_chunks_mut(width)).for_each(|(inner, gate)| {
                self.clock.time(WorkKind::Activation, || {
                    gaussian_top(level, gate, deviations);
                    math::gated(level, act, gate, inner);
                });
            });
        });
        self.give([gates]);
        Ok(())
    }
}

/// `x = max(x - (mean + deviations std), 0)` with the standard deviation of the row itself, divided by n (Gemma 3n,
/// `_gaussian_topk`).
fn gaussian_top(level: SimdLevel, x: &mut [f32], deviations: f32) {
    let n = x.len() as f64;
    let mean = math::moments(level, x, 0.0).0 / n;
    let std = (math::moments(level, x, mean).1 / n).sqrt();
    let cut = (mean + std * f64::from(deviations)) as f32;
    for x in x.iter_mut() {
        *x = (*x - cut).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_far_above_the_mean_is_left() {
        let row = [0.0f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 1.0];
        // Mean 0.4; mean of squares 1.0, so that the variance is 0.84.
        let mut x = row;
        gaussian_top(SimdLevel::detect(), &mut x, 1.5);
        let cut = 0.4 + 1.5 * 0.84f32.sqrt();
        for (x, from) in x.iter().zip(row) {
            assert!((x - (from - cut).max(0.0)).abs() < 1e-6, "{x} {from}");
        }
        assert_eq!(x.iter().filter(|&&x| x > 0.0).count(), 1);
    }
}
