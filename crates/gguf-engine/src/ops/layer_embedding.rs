//! Per-layer embeddings (Gemma 3n, `project_per_layer_inputs`): each layer has its own embedding of the tokens.
//!
//! `proj (gelu(gate x) z)`, where `z = (norm(model x0 / sqrt(D)) + sqrt(w) e) / sqrt(2)`.

use rayon::prelude::*;

use crate::exec::activation::{Activation, PlainActivation};
use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::weights::{LoadedNorm, Matrix, Norm, Vector};
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::Extra;
use gguf_core::simd::SimdLevel;

/// Embeddings of all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerEmbeddings {
    /// Embedding with one row per token, which has one part per layer.
    pub embedding: Matrix,
    /// Norm of a layer's projected part.
    pub norm: Norm,
    /// Width of a layer's part.
    pub width: usize,
}

/// Embedding of a layer, added after its branches.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerEmbedding {
    /// Embeddings of all layers.
    pub all: LayerEmbeddings,
    /// Index of the layer's first value in a row of the embedding.
    pub first: usize,
    /// Projection of the model's embedding to the layer's part.
    pub model: Matrix,
    /// Projection from the stream to the gate.
    pub gate: Matrix,
    /// Projection back to the stream.
    pub proj: Matrix,
    /// Norm of the result, before it is added.
    pub post: Norm,
}

impl LayerEmbedding {
    /// Computes `proj (gelu(gate x) z)`, where `z = (norm(model x0 / sqrt(D)) + sqrt(w) e) / sqrt(2)`. `x0` is the
    /// stream before the first layer, and `e` is the layer's part of the token's row, `w` wide (Gemma 3n,
    /// `project_per_layer_inputs`).
    pub(crate) fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (all, n_embd, n_wanted) = (&self.all, cx.n_embd, batch.n_wanted());
        let width = all.width;
        let of_batch = batch.start..batch.start + batch.n_tokens();
        let tokens = batch.select(&cx.carried.tokens[of_batch.clone()], 1);
        let start = batch.select(&cx.carried.start[of_batch.start * n_embd..of_batch.end * n_embd], n_embd);
        let mut parts = cx.take(n_wanted * width);
        cx.products(&start, n_wanted, vec![Product::plain(&self.model, &mut parts)])?;
        let mut gates = cx.take(n_wanted * width);
        let gelu = Activation::Plain(PlainActivation::GeluTanh);
        let gate = Product { weight: &self.gate, act: Some(&gelu), out: &mut gates };
        cx.products(x, n_wanted, vec![gate])?;
        let norm = cx.weights.norm(&all.norm)?;
        let mix = PartMix { norm: &norm, level: cx.weights.level, shrink: (n_embd as f32).sqrt().recip() };
        cx.workers.install(|| {
            let rows = gates.par_chunks_mut(width).zip(parts.par_chunks_mut(width));
            rows.zip(&*tokens).try_for_each(|((gate, part), &token)| {
                let first = token as usize * all.embedding.n_cols + self.first;
                let own = Vector { tensor: all.embedding.tensor, first, len: width };
                mix.apply(gate, part, &cx.weights.vector(&own)?);
                Ok::<_, EngineError>(())
            })
        })?;
        cx.products(&gates, n_wanted, vec![Product::plain(&self.proj, out)])?;
        cx.give([parts, gates]);
        Ok(())
    }
}

/// Mixture of a token's projected start and per-layer embedding, the factor of its gate.
struct PartMix<'a> {
    norm: &'a LoadedNorm,
    level: SimdLevel,
    /// Factor of the projected start.
    shrink: f32,
}

impl PartMix<'_> {
    fn apply(&self, gate: &mut [f32], part: &mut [f32], own: &[f32]) {
        math::scale_and_cap(self.level, part, self.shrink, None);
        let mut normed = vec![0.0; part.len()];
        self.norm.row(self.level, part, &mut normed);
        let grow = (own.len() as f32).sqrt();
        for ((gate, normed), own) in gate.iter_mut().zip(&normed).zip(own) {
            *gate *= (normed + own * grow) * std::f32::consts::FRAC_1_SQRT_2;
        }
    }
}

impl LayerEmbedding {
    /// Resolves the embedding of a layer, if the model has per-layer embeddings.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<LayerEmbedding>> {
        let width = b.keys.count("embedding_length_per_layer_input")?.unwrap_or(0);
        if width == 0 || !b.features.extras.contains(&Extra::Ple) {
            return Ok(None);
        }
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let all = LayerEmbeddings::resolve(b, width)?;
        let n_rows = width.saturating_mul(b.n_layers);
        let model = b.tensors.need_matrix("per_layer_model_proj", n_rows, n_embd)?;
        let first = layer * width;
        Ok(Some(LayerEmbedding {
            all,
            first,
            model: model.rows(first, width),
            gate: b.tensors.need_matrix(&at("inp_gate"), width, n_embd)?,
            proj: b.tensors.need_matrix(&at("proj"), n_embd, width)?,
            post: b.need_norm(&at("post_norm"))?,
        }))
    }
}

impl LayerEmbeddings {
    /// Resolves the embeddings, with parts of `width` values.
    fn resolve(b: &mut Resolver<'_>, width: usize) -> Result<LayerEmbeddings> {
        let name = "per_layer_token_embd";
        let n_rows = b.n_rows(name)?;
        let embedding = b.tensors.need_matrix(name, n_rows, width.saturating_mul(b.n_layers))?;
        Ok(LayerEmbeddings { embedding, norm: b.need_norm_of("per_layer_proj_norm", width)?, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::weights::NormFormula;

    #[test]
    fn a_part_is_normed_and_joined_with_the_embedding() {
        let weight = Some(vec![1.0, 2.0, 0.5, 1.0]);
        let norm = LoadedNorm { formula: NormFormula::Rms, weight, bias: None, eps: 1e-6 };
        let mix = PartMix { norm: &norm, level: SimdLevel::detect(), shrink: 0.25 };
        let (own, projected) = ([0.5f32, -1.0, 0.0, 2.0], [4.0f32, -8.0, 2.0, 1.0]);
        let (mut gate, mut part) = ([1.0, 2.0, 3.0, -1.0], projected);
        mix.apply(&mut gate, &mut part, &own);
        let square: f32 = projected.iter().map(|c| (c / 4.0) * (c / 4.0)).sum::<f32>() / 4.0;
        for (at, (gate, factor)) in gate.iter().zip([1.0, 2.0, 3.0, -1.0]).enumerate() {
            let weight = [1.0, 2.0, 0.5, 1.0][at];
            let normed = projected[at] / 4.0 / (square + 1e-6).sqrt() * weight;
            let expected = factor * (normed + own[at] * 2.0) / 2f32.sqrt();
            assert!((gate - expected).abs() < 1e-5, "{at}: {gate} {expected}");
        }
    }
}
