//! Builds latent attention. Files hold what expands keys and values as one matrix or as two tensors of a matrix per head;
//! beside the latter the plain keys of widths describe the compressed rows, and `*_mla` the heads. Layers with a window may
//! have sizes of their own, in keys that end in `_swa`.

use crate::arch::graph::YarnMu;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{Expansion, Latent, Mask, Matrix, Mla, Norm, NormFormula};

/// Tensors that would change what the two expanding tensors do.
const AFFIXES: [&str; 3] = ["attn_k_b.bias", "attn_v_b.bias", "attn_v_b.scale"];

impl Builder<'_> {
    /// The latent attention of a layer.
    pub(super) fn mla(&mut self, layer: usize) -> Result<Mla, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let heads = self.keys.layer_count("attention.head_count", layer)?.filter(|&n| n > 0);
        let n_heads = heads.ok_or_else(|| self.keys.missing("attention.head_count"))?;
        let mask = self.mask(layer)?;
        let kind = self.mla_kind(mask)?;
        let dk = self.mla_width("key_length", kind, n_heads)?;
        let dv = self.mla_width("value_length", kind, n_heads)?;
        let rank = self.keys.need_count(&format!("attention.kv_lora_rank{kind}"))?;
        let kv_name = at("attn_kv_a_mqa");
        let n_shared = self.n_rows(&kv_name)?.checked_sub(rank).filter(|&n| n < dk);
        let n_shared = n_shared.ok_or_else(|| {
            let expected = "at most the rows of attn_kv_a_mqa, by less than the width of a key";
            self.keys.unknown("attention.kv_lora_rank", expected, &rank.to_string())
        })?;
        let rows = |width: usize| n_heads.checked_mul(width);
        let (Some(q_rows), Some(v_rows), Some(_)) = (rows(dk), rows(dv), rows(dk.saturating_add(dv))) else {
            let found = n_heads.to_string();
            return Err(self.keys.unknown("attention.head_count", "heads that fit in memory", &found));
        };
        let kv = self.tensors.need_matrix(&kv_name, rank + n_shared, self.n_embd)?;
        let kv_norm = self.latent_norm(&at("attn_kv_a_norm"), rank)?;
        let shared_norm = self.tensors.norm(&at("attn_k_norm"), n_shared, NormFormula::Rms, self.eps)?;
        let (q_latent, q) = self.mla_queries(layer, q_rows)?;
        let expansion = self.expansion(layer, (n_heads, dk - n_shared, dv), rank)?;
        let gate = self.output_gate(layer, n_heads, v_rows)?;
        let out = self.tensors.need_matrix(&at("attn_output"), self.n_embd, v_rows)?;
        // Without a shared key nothing is rotated.
        let rope = if n_shared == 0 { None } else { self.rope(layer, mask, n_shared)? };
        let sinks = self.tensors.vector(&at("attn_sinks.weight"), n_heads)?;
        self.limit_to_indexed(layer)?;
        let (scale, temperature) = (self.mla_scale(dk)? as f32, self.temperature(rope)?);
        Ok(Mla {
            q_latent,
            q,
            kv,
            kv_norm,
            shared_norm,
            expansion,
            gate,
            out,
            n_heads,
            dk,
            dv,
            rank,
            n_shared,
            rope,
            scale,
            sinks,
            mask,
            temperature,
        })
    }

    /// The ending of the keys of a layer's sizes.
    fn mla_kind(&self, mask: Mask) -> Result<&'static str, EngineError> {
        let has_own = self.keys.count("attention.kv_lora_rank_swa")?.is_some_and(|n| n > 0);
        Ok(if has_own && mask != Mask::Causal { "_swa" } else { "" })
    }

    /// A width of the heads, whichever form the file has.
    fn mla_width(&self, name: &str, kind: &str, n_heads: usize) -> Result<usize, EngineError> {
        match self.keys.count(&format!("attention.{name}_mla{kind}"))?.filter(|&n| n > 0) {
            Some(width) => Ok(width),
            None => {
                // As for other heads: a share of the width where the file does not say.
                let found = self.keys.count(&format!("attention.{name}{kind}"))?.filter(|&n| n > 0);
                Ok(found.unwrap_or(self.n_embd / n_heads))
            }
        }
    }

    fn n_rows(&self, name: &str) -> Result<usize, EngineError> {
        let tensor = format!("{name}.weight");
        match self.tensors.shape(&tensor) {
            Some(shape) => Ok(usize::try_from(shape.n_rows()).unwrap_or(usize::MAX)),
            None => Err(EngineError::MissingTensor { tensor }),
        }
    }

    fn latent_norm(&mut self, name: &str, width: usize) -> Result<Norm, EngineError> {
        let norm = self.tensors.norm(name, width, NormFormula::Rms, self.eps)?;
        norm.ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }

    fn mla_queries(&mut self, layer: usize, q_rows: usize) -> Result<(Option<Latent>, Matrix), EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        if !self.tensors.has(&at("attn_q_a.weight")) {
            return Ok((None, self.tensors.need_matrix(&at("attn_q"), q_rows, self.n_embd)?));
        }
        let rank = self.keys.need_count("attention.q_lora_rank")?;
        let down = self.tensors.need_matrix(&at("attn_q_a"), rank, self.n_embd)?;
        let norm = self.latent_norm(&at("attn_q_a_norm"), rank)?;
        let q = self.tensors.need_matrix(&at("attn_q_b"), q_rows, rank)?;
        Ok((Some(Latent { down, norm }), q))
    }

    fn expansion(
        &mut self,
        layer: usize,
        (n_heads, n_own, dv): (usize, usize, usize),
        rank: usize,
    ) -> Result<Expansion, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        if self.tensors.has(&at("attn_kv_b.weight")) {
            let n_rows = n_heads * (n_own + dv);
            return Ok(Expansion::Joint(self.tensors.need_matrix(&at("attn_kv_b"), n_rows, rank)?));
        }
        let tensors: Vec<String> =
            AFFIXES.into_iter().map(at).filter(|name| self.tensors.has(name)).collect();
        if !tensors.is_empty() {
            return Err(EngineError::LeftOver { tensors });
        }
        Ok(Expansion::Split {
            keys: self.tensors.experts(&at("attn_k_b"), n_heads, rank, n_own)?,
            values: self.tensors.experts(&at("attn_v_b"), n_heads, dv, rank)?,
        })
    }

    /// The width's square root, and the square of yarn's magnitude where the model puts it here and not on the angles.
    fn mla_scale(&self, dk: usize) -> Result<f64, EngineError> {
        if let Some(scale) = self.keys.number("attention.scale")?.filter(|&s| s > 0.0) {
            return Ok(scale);
        }
        let magnitude = match self.keys.nonzero("rope.scaling.yarn_log_multiplier")? {
            // The key is a tenth of the multiplier.
            Some(tenth) if self.features.yarn_mu == YarnMu::Tenth => {
                let factor = self.keys.nonzero("rope.scaling.factor")?.unwrap_or(1.0);
                if factor > 1.0 { tenth * factor.ln() + 1.0 } else { 1.0 }
            }
            Some(_) | None => 1.0,
        };
        Ok(magnitude * magnitude / (dk as f64).sqrt())
    }

    /// A layer that looks only at the keys an indexer picks looks at all while there are no more than it picks: longer
    /// chunks are not run.
    pub(super) fn limit_to_indexed(&mut self, layer: usize) -> Result<(), EngineError> {
        if !self.tensors.has_under(&format!("blk.{layer}.indexer.")) {
            return Ok(());
        }
        // Some pool keys, and those that do not fill a pool are seen only if they are always.
        let tail = "attention.indexer.kpool_select_tail";
        let pools = self.keys.count("attention.indexer.kpool")?.is_some_and(|n| n > 1);
        if pools && !self.keys.flag(tail)?.unwrap_or(false) {
            let expected = "true, as keys that fill no pool are not seen else, which is not built";
            return Err(self.keys.unknown(tail, expected, "false"));
        }
        // Some pick whole blocks of keys.
        let block = self.keys.count("attention.indexer.block_size")?.filter(|&n| n > 0).unwrap_or(1);
        let n_keys = self.keys.need_count("attention.indexer.top_k")?.saturating_mul(block);
        self.chunk_limit = Some(self.chunk_limit.map_or(n_keys, |limit| limit.min(n_keys)));
        Ok(())
    }
}
