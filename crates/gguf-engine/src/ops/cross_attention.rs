//! Cross-attention of encoder-decoder models: the decoder's queries attend to the encoder's final states.

use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::mask::Mask;
use crate::exec::product::Product;
use crate::exec::weights::Norm;
use crate::ops::attention::resolve::{attention_scale, head_shape};
use crate::ops::attention::{Attention, KvSource, Projected, mix};
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};

/// Cross-attention: attention to the final states of the encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossAttention {
    /// Norm of the stream before the attention.
    pub norm: Norm,
    /// Attention with queries from the stream, and keys and values from the encoder's states.
    pub attention: Box<Attention>,
}

impl Attention {
    /// Computes the attention of the normed wanted rows `x` to the encoder's states, into `out`.
    pub(crate) fn run_across(
        &self,
        cx: &Context<'_>,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        let (Some((first, last)), n_wanted) =
            (batch.memory.first().zip(batch.memory.last()), batch.n_wanted())
        else {
            return Err(EngineError::NoSource);
        };
        let (states, n_states) = (&cx.memory[first * self.k.n_cols..last * self.k.n_cols], last - first);
        let mut q = cx.take(n_wanted * self.q.n_rows);
        let mut k = cx.take(n_states * self.k.n_rows);
        let mut v = cx.take(n_states * self.v.n_rows);
        cx.products(x, n_wanted, vec![Product::plain(&self.q, &mut q)])?;
        let products = vec![Product::plain(&self.k, &mut k), Product::plain(&self.v, &mut v)];
        cx.products(states, n_states, products)?;
        let mut context = cx.take(n_wanted * self.n_heads * self.dv);
        let cuts: Vec<usize> = batch.memory.iter().map(|cut| cut - first).collect();
        mix(cx, self.scores(), batch, &cuts, Projected { q: &q, k: &k, v: &v }, &mut context)?;
        cx.give([q, k, v]);
        cx.products(&context, n_wanted, vec![Product::plain(&self.out, out)])?;
        cx.give([context]);
        Ok(())
    }
}

impl CrossAttention {
    /// Resolves a layer's attention to the encoder's states, if it has one.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<CrossAttention>> {
        let at = |name: &str| format!("blk.{layer}.cross_attn_{name}");
        if !b.tensors.has(&at("q.weight")) {
            return Ok(None);
        }
        let n_heads = b.keys.need_count("attention.head_count")?;
        let heads = head_shape(b, n_heads, n_heads, Mask::Full)?;
        let n_embd = b.n_embd;
        let attention = Attention {
            q: b.tensors.need_matrix(&at("q"), heads.q_rows, n_embd)?,
            k: b.tensors.need_matrix(&at("k"), heads.k_rows, n_embd)?,
            v: b.tensors.need_matrix(&at("v"), heads.v_rows, n_embd)?,
            out: b.tensors.need_matrix(&at("o"), n_embd, heads.out_cols)?,
            n_heads,
            n_kv_heads: n_heads,
            dk: heads.dk,
            dv: heads.dv,
            q_norm: None,
            k_norm: None,
            norm_after_rope: false,
            rope: None,
            rope_2d: false,
            scale: attention_scale(b, heads, None)? as f32,
            cap: None,
            mask: Mask::Full,
            clamp: None,
            sinks: None,
            alibi: None,
            relative: None,
            temperature: None,
            v_norm: None,
            kv: KvSource::Own,
            gate: None,
            sub_norm: None,
            out_scale: None,
            switched: None,
        };
        Ok(Some(CrossAttention { norm: b.need_norm(&at("norm"))?, attention: Box::new(attention) }))
    }
}
