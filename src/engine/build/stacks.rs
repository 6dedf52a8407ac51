//! Models of two stacks of layers, and what attends from one to the other.

use crate::arch::graph::GraphKind;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::features::{PositionRule, Sight};
use crate::engine::plan::{Attention, CrossAttention, EncoderPlan, KvSource, Mask, RelativeBias};

const BUCKETS: &str = "attention.relative_buckets_count";
/// Distance from which on all keys share a bucket, where the file does not say.
const MAX_DISTANCE: usize = 128;
const FARTHEST: &str = "attention.relative_max_distance";

impl Builder<'_> {
    /// The encoder of a model of two stacks; what is built after it belongs to the decoder.
    pub(super) fn encoder(&mut self) -> Result<Option<EncoderPlan>, EngineError> {
        if self.features.kind != GraphKind::Encdec {
            // An encoder may come alone, under the names that it has beside a decoder.
            if self.tensors.has("enc.blk.0.attn_norm.weight") {
                self.tensors.enter("enc.");
            }
            return Ok(None);
        }
        self.tensors.enter("enc.");
        self.built.sight = Sight::Full;
        let layers = (0..self.n_layers).map(|layer| self.layer(layer)).collect::<Result<_, _>>()?;
        let final_norm = Some(self.need_norm("output_norm")?);
        self.tensors.enter("dec.");
        self.built.sight = Sight::Causal;
        if let Some(n_layers) = self.keys.count("decoder_block_count")?.filter(|&n| n > 0) {
            self.n_layers = n_layers;
        }
        let start = self.keys.count("decoder_start_token_id")?.and_then(|id| u32::try_from(id).ok());
        Ok(Some(EncoderPlan { layers, final_norm, start }))
    }

    /// A layer's attention to the encoder's states, if it has one.
    pub(super) fn cross_attention(&mut self, layer: usize) -> Result<Option<CrossAttention>, EngineError> {
        let at = |name: &str| format!("blk.{layer}.cross_attn_{name}");
        if !self.tensors.has(&at("q.weight")) {
            return Ok(None);
        }
        let n_heads = self.keys.need_count("attention.head_count")?;
        let heads = self.heads(n_heads, n_heads, Mask::Full)?;
        let n_embd = self.n_embd;
        let attention = Attention {
            q: self.tensors.need_matrix(&at("q"), heads.q_rows, n_embd)?,
            k: self.tensors.need_matrix(&at("k"), heads.k_rows, n_embd)?,
            v: self.tensors.need_matrix(&at("v"), heads.v_rows, n_embd)?,
            out: self.tensors.need_matrix(&at("o"), n_embd, heads.out_cols)?,
            n_heads,
            n_kv_heads: n_heads,
            dk: heads.dk,
            dv: heads.dv,
            q_norm: None,
            k_norm: None,
            norm_after_rope: false,
            rope: None,
            rope_2d: false,
            scale: self.attention_scale(heads, None)? as f32,
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
        Ok(Some(CrossAttention { norm: self.need_norm(&at("norm"))?, attention: Box::new(attention) }))
    }

    /// The bias by relative position: a table of the layer's own, else that of the first layer.
    pub(super) fn relative(
        &mut self,
        layer: usize,
        n_heads: usize,
    ) -> Result<Option<RelativeBias>, EngineError> {
        if self.built.positions != PositionRule::Relative {
            return Ok(None);
        }
        let n_buckets = self.keys.need_count(BUCKETS)?;
        if n_buckets < 4 || n_buckets % 2 != 0 {
            return Err(self.keys.unknown(BUCKETS, "an even number of 4 or more", &n_buckets.to_string()));
        }
        let both_sides = self.built.sight == Sight::Full;
        let max_distance = self.keys.count(FARTHEST)?.unwrap_or(MAX_DISTANCE);
        // The nearest distances have a bucket each: what the others share must lie beyond.
        if max_distance <= n_buckets / if both_sides { 4 } else { 2 } {
            let expected = "more than half of the buckets of a side";
            return Err(self.keys.unknown(FARTHEST, expected, &max_distance.to_string()));
        }
        let len = n_buckets.saturating_mul(n_heads);
        let own = self.tensors.vector(&format!("blk.{layer}.attn_rel_b.weight"), len)?;
        let first = "blk.0.attn_rel_b.weight";
        let table = match own {
            Some(own) => own,
            None => self
                .tensors
                .vector(first, len)?
                .ok_or_else(|| EngineError::MissingTensor { tensor: first.to_owned() })?,
        };
        Ok(Some(RelativeBias { table, n_buckets, max_distance, both_sides }))
    }
}
