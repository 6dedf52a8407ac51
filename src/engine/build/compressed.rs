//! Builds attention to a window and to compressed rows.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{CompressedAttention, Compressor, Latent, Norm, NormFormula};

const RATIOS: &str = "attention.compress_ratios";

impl Builder<'_> {
    pub(super) fn compressed(&mut self, layer: usize) -> Result<CompressedAttention, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let heads = self.keys.layer_count("attention.head_count", layer)?.filter(|&n| n > 0);
        let n_heads = heads.ok_or_else(|| self.keys.missing("attention.head_count"))?;
        let head_dim = self.keys.need_count("attention.key_length")?;
        let dv = self.keys.need_count("attention.value_length")?;
        if dv != head_dim {
            let expected = "attention.key_length, as keys are the values";
            return Err(self.keys.unknown("attention.value_length", expected, &dv.to_string()));
        }
        let rank = self.keys.need_count("attention.q_lora_rank")?;
        let width = n_heads.saturating_mul(head_dim);
        let mask = self.mask(layer)?;
        if mask.is_global() {
            return Err(self.keys.missing("attention.sliding_window"));
        }
        let ratio = self.keys.layer_count(RATIOS, layer)?.ok_or_else(|| self.keys.missing(RATIOS))?;
        let (compressor, rope) = if ratio == 0 {
            (None, self.rope(layer, mask, head_dim)?)
        } else {
            let compressor = self.compressor(layer, ratio, head_dim)?;
            (Some(compressor), Some(self.compressed_rope(head_dim)?))
        };
        let rope = rope.ok_or_else(|| self.keys.missing("rope.dimension_count"))?;
        let n_groups = self.divisor("attention.output_group_count", n_heads)?;
        let n_narrow = self.keys.need_count("attention.output_lora_rank")?;
        let all = n_groups.saturating_mul(n_narrow);
        let parts = self.tensors.need_matrix(&at("attn_output_a"), all, width / n_groups)?;
        Ok(CompressedAttention {
            q_latent: Latent {
                down: self.tensors.need_matrix(&at("attn_q_a"), rank, n_embd)?,
                norm: self.compressed_norm(&at("attn_q_a_norm"), rank)?,
            },
            q: self.tensors.need_matrix(&at("attn_q_b"), width, rank)?,
            q_norm: self.free_norm(),
            kv: self.tensors.need_matrix(&at("attn_kv"), head_dim, n_embd)?,
            kv_norm: self.compressed_norm(&at("attn_kv_a_norm"), head_dim)?,
            compressor,
            narrow: (0..n_groups).map(|group| parts.rows(group * n_narrow, n_narrow)).collect(),
            out: self.tensors.need_matrix(&at("attn_output_b"), n_embd, all)?,
            n_heads,
            head_dim,
            n_rotated: self.ropes.get(rope).map_or(0, |rope| rope.n_dims),
            rope,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            sinks: self.tensors.vector(&at("attn_sinks.weight"), n_heads)?,
            mask,
        })
    }

    fn compressed_norm(&mut self, name: &str, width: usize) -> Result<Norm, EngineError> {
        let norm = self.tensors.norm(name, width, NormFormula::Rms, self.eps)?;
        norm.ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }

    fn compressor(&mut self, layer: usize, ratio: usize, width: usize) -> Result<Compressor, EngineError> {
        let at = |name: &str| format!("blk.{layer}.attn_compressor_{name}");
        // Only wider rows have a part for the compressed row behind theirs.
        let tensor = format!("{}.weight", at("kv"));
        let n_rows = self.tensors.shape(&tensor).map(crate::core::Shape::n_rows);
        let n_rows = n_rows.ok_or(EngineError::MissingTensor { tensor })?;
        let overlaps = n_rows != width as u64;
        let n_rows = if overlaps { width.saturating_mul(2) } else { width };
        // Of these an indexer picks some, which are all while there are no more than it picks.
        if self.tensors.has_under(&format!("blk.{layer}.indexer.")) {
            let n_keys = self.keys.need_count("attention.indexer.top_k")?.saturating_mul(ratio);
            self.chunk_limit = Some(self.chunk_limit.map_or(n_keys, |limit| limit.min(n_keys)));
        }
        Ok(Compressor {
            ratio,
            overlaps,
            kv: self.tensors.need_matrix(&at("kv"), n_rows, self.n_embd)?,
            score: self.tensors.need_matrix(&at("gate"), n_rows, self.n_embd)?,
            places: self.need_vector(&format!("{}.weight", at("ape")), n_rows.saturating_mul(ratio))?,
            norm: self.compressed_norm(&at("norm"), width)?,
        })
    }
}
