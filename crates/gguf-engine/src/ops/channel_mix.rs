//! Channel mix, the feed-forward network of RWKV: `value max(key (x + μ_k sx), 0)²`, where `sx` is the previous token
//! minus `x`.

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::rowwise::ValueFunction;
use crate::exec::weights::{Matrix, Vector};
use crate::ops::rwkv::{lerp, shifted, square};
use crate::resolve::resolver::Resolver;

/// Channel mix, the feed-forward network of RWKV.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMix {
    /// Share of the previous token in the input of the keys, `μ_k`.
    pub(crate) lerp_k: Vector,
    /// Key projection, followed by the square of positive values.
    pub key: Matrix,
    /// Value projection.
    pub value: Matrix,
    /// Gate: share of the previous token in its input, `μ_r`, and its projection.
    pub(crate) receptance: Option<(Vector, Matrix)>,
}

impl ChannelMix {
    /// Computes `value max(key (x + μ_k sx), 0)²`, times `sig(receptance (x + μ_r sx))` if there is a gate. `x` holds
    /// all rows of the chunks.
    pub(crate) fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let n_tokens = batch.n_tokens();
        let shifted = shifted(cx, batch, x, self.key.n_cols);
        let keys_of = lerp(cx, &self.lerp_k, x, &shifted)?;
        let mut inner = cx.take(n_tokens * self.key.n_rows);
        cx.products(&keys_of, n_tokens, vec![Product::plain(&self.key, &mut inner)])?;
        cx.map_rows(ValueFunction::Relu2, None, &mut inner, self.key.n_rows);
        cx.products(&inner, n_tokens, vec![Product::plain(&self.value, out)])?;
        cx.give([keys_of, inner]);
        if let Some((shares, matrix)) = &self.receptance {
            let seen = lerp(cx, shares, x, &shifted)?;
            let mut gate = cx.take(n_tokens * matrix.n_rows);
            cx.products(&seen, n_tokens, vec![Product::plain(matrix, &mut gate)])?;
            let level = cx.weights.level;
            cx.each_row(out, matrix.n_rows, &gate, matrix.n_rows, |y, gate| {
                math::times_sigmoid(level, y, gate);
            });
            cx.give([seen, gate]);
        }
        cx.give([shifted]);
        Ok(())
    }

    /// Resolves the channel mix of a layer, if it has one.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<ChannelMix>> {
        let at = |name: &str| format!("blk.{layer}.channel_mix_{name}");
        if !b.tensors.has(&at("key.weight")) {
            return Ok(None);
        }
        let n_embd = b.n_embd;
        let width = b.keys.need_count("feed_forward_length")?;
        let receptance = match b.tensors.vector(&at("lerp_r.weight"), n_embd)? {
            Some(lerp) => Some((lerp, square(b, &at("receptance"))?)),
            None => None,
        };
        Ok(Some(ChannelMix {
            lerp_k: b.need_vector(&at("lerp_k.weight"), n_embd)?,
            key: b.tensors.need_matrix(&at("key"), width, n_embd)?,
            value: b.tensors.need_matrix(&at("value"), n_embd, width)?,
            receptance,
        }))
    }
}
