//! What follows the two branches of a layer: its own embedding of the token, a factor, a norm.

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::{
    Activation, LayerEmbedding, LayerEmbeddings, LayerExtras, PlainActivation, Vector,
};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;
use crate::engine::run::weights::LoadedNorm;

impl Runner<'_> {
    /// What follows the branches, on the wanted rows of the stream.
    pub(crate) fn extras(
        &self,
        extras: &LayerExtras,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        // With several streams the embedding is for those that the layer does not compute.
        let embedding = extras.embedding.as_ref().filter(|_| extras.altup.is_none());
        if let (Some(embedding), Some(all)) = (embedding, &self.plan.layer_embeddings) {
            let mut added = self.take(x.len());
            self.layer_embedding(embedding, all, batch, x, &mut added)?;
            let post = self.weights.norm(&embedding.post)?;
            self.add_rows(x, &mut added, Some(&post), 1.0, n_embd);
            self.give([added]);
        }
        if let Some(factor) = self.weights.optional(extras.start_scale.as_ref())? {
            let of_batch = batch.start * n_embd..(batch.start + batch.n_tokens()) * n_embd;
            let mut start = batch.select(&self.carried.start[of_batch], n_embd).into_owned();
            self.add_rows(x, &mut start, None, factor.first().copied().unwrap_or(1.0), n_embd);
        }
        if let Some(factor) = self.weights.optional(extras.out_scale.as_ref())? {
            self.scale_rows(x, factor.first().copied().unwrap_or(1.0));
        }
        self.norm_in_place(extras.exit_norm.as_ref(), x, n_embd)?;
        Ok(())
    }

    /// `proj (gelu(gate x) z)`, where `z = (norm(model x0 / sqrt(D)) + sqrt(w) e) / sqrt(2)` is made of the stream's
    /// start `x0` and the layer's part `e`, `w` wide, of the token's row (Gemma 3n, `project_per_layer_inputs`).
    pub(crate) fn layer_embedding(
        &self,
        layer: &LayerEmbedding,
        all: &LayerEmbeddings,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_embd, width, n_wanted) = (self.plan.n_embd, all.width, batch.n_wanted());
        let of_batch = batch.start..batch.start + batch.n_tokens();
        let tokens = batch.select(&self.carried.tokens[of_batch.clone()], 1);
        let start = batch.select(&self.carried.start[of_batch.start * n_embd..of_batch.end * n_embd], n_embd);
        let mut parts = self.take(n_wanted * width);
        self.products(&start, n_wanted, vec![Product::plain(&layer.model, &mut parts)])?;
        let mut gates = self.take(n_wanted * width);
        let gelu = Activation::Plain(PlainActivation::GeluTanh);
        let gate = Product { weight: &layer.gate, act: Some(&gelu), out: &mut gates };
        self.products(x, n_wanted, vec![gate])?;
        let norm = self.weights.norm(&all.norm)?;
        let mix = PartMix { norm: &norm, level: self.weights.level, shrink: (n_embd as f32).sqrt().recip() };
        self.workers.install(|| {
            let rows = gates.par_chunks_mut(width).zip(parts.par_chunks_mut(width));
            rows.zip(&*tokens).try_for_each(|((gate, part), &token)| {
                let first = token as usize * all.embedding.n_cols + layer.first;
                let own = Vector { tensor: all.embedding.tensor, first, len: width };
                mix.apply(gate, part, &self.weights.vector(&own)?);
                Ok::<_, EngineError>(())
            })
        })?;
        self.products(&gates, n_wanted, vec![Product::plain(&layer.proj, out)])?;
        self.give([parts, gates]);
        Ok(())
    }
}

/// How a token's projected start and own embedding become the factor of its gate.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::NormFormula;

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
