//! LAuReL (Menghani et al. 2024): a low-rank residual in parallel with the mixer,
//! `x = (x + n + norm(R L n)) / sqrt(2)`, as in transformers' `Gemma3nTextDecoderLayer`.

use crate::Result;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::weights::{Matrix, Norm};
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::Extra;

/// Low-rank residual in parallel with the mixer (LAuReL, Menghani et al. 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Laurel {
    /// Projection to the low rank.
    pub left: Matrix,
    /// Projection back to the stream's width.
    pub right: Matrix,
    /// Norm of the projected rows.
    pub post: Norm,
}

impl Laurel {
    /// Computes `x = (x + n + norm(R L n)) / sqrt(2)`. `n` is the layer's normed input, the same rows as `x`,
    /// `[n_tokens, n_embd]` (LAuReL, Menghani et al. 2024; in Gemma 3n it follows the mixer:
    /// `Gemma3nTextDecoderLayer`).
    pub(crate) fn run(&self, cx: &Context<'_>, normed: &[f32], x: &mut [f32]) -> Result<()> {
        let n_embd = cx.n_embd;
        let n_tokens = x.len() / n_embd;
        let mut low = cx.take(n_tokens * self.left.n_rows);
        cx.products(normed, n_tokens, vec![Product::plain(&self.left, &mut low)])?;
        let mut added = cx.take(x.len());
        cx.products(&low, n_tokens, vec![Product::plain(&self.right, &mut added)])?;
        cx.add_rows(x, &mut added, Some(&cx.weights.norm(&self.post)?), 1.0, n_embd);
        added.copy_from_slice(normed);
        cx.add_rows(x, &mut added, None, 1.0, n_embd);
        cx.scale_rows(x, std::f32::consts::FRAC_1_SQRT_2);
        cx.give([low, added]);
        Ok(())
    }

    /// Resolves the low-rank residual of a layer; its tensor declares the rank.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<Laurel>> {
        if !b.features.extras.contains(&Extra::Laurel) {
            return Ok(None);
        }
        let at = |name: &str| format!("blk.{layer}.laurel_{name}");
        let rank = b.n_cols(&at("r"))?;
        Ok(Some(Laurel {
            left: b.tensors.need_matrix(&at("l"), rank, b.n_embd)?,
            right: b.tensors.need_matrix(&at("r"), b.n_embd, rank)?,
            post: b.need_norm(&at("post_norm"))?,
        }))
    }
}
