//! Gradient of the divergence from a reference with respect to all weights: forward with the stream kept before each
//! layer, then back layer by layer. Nothing else of a layer outlives it.

use std::sync::atomic::Ordering;

use rayon::prelude::*;

use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::gradient::Gradients;
use crate::exec::hidden::Hidden;
use crate::exec::math;
use crate::exec::rope::RopeTables;
use crate::exec::weights::Norm;
use crate::layers::ends::begin;
use crate::layers::forward::Engine;
use crate::layers::graph::GraphPlan;
use crate::layers::layer::{LayerExtras, LayerPlan, Wiring};
use crate::layers::layer_run::run_layer;
use crate::ops::Mixer;
use crate::ops::attention::Attention;
use crate::ops::dense::FfnInputs;
use crate::ops::mixer::MixerOp;
use crate::outputs::head::BLOCK_LOGITS;
use crate::resolve::features::ModelKind;
use crate::{EngineError, Result};
use gguf_core::progress::Progress;

impl GraphPlan {
    /// Checks that every part of the graph has a gradient.
    ///
    /// # Errors
    /// [`EngineError::NoGradient`] names a part that has none.
    pub fn check_gradient(&self) -> Result<()> {
        let ends = [
            (
                self.kind != ModelKind::Decoder || self.encoder.is_some(),
                "its predictions are not of a next token",
            ),
            (!self.extras.is_empty() || self.final_mix.is_some(), "it has several streams or inputs"),
            (self.embed_norm.is_some(), "its embedding is normed"),
        ];
        let of_ends = ends.into_iter().find_map(|(is_there, what)| is_there.then_some(what));
        let of_layers = || self.layers.iter().find_map(|layer| layer.branches().err());
        of_ends.or_else(of_layers).map_or(Ok(()), |what| Err(EngineError::NoGradient { what }))
    }
}

impl LayerPlan {
    /// Returns the attention, or a part of the layer that has no gradient.
    fn branches(&self) -> Result<&Attention, &'static str> {
        let is_wired = matches!(self.wiring, Wiring::Serial | Wiring::Parallel)
            && self.mix.is_none()
            && self.cross.is_none()
            && self.connections.is_none()
            && self.extras == LayerExtras::default();
        let Mixer::Attention(attention) = &self.mixer else { return Err("a layer mixes without attention") };
        if !is_wired {
            return Err("a layer adds more than two branches to its stream");
        }
        match attention.without_gradient().or_else(|| self.ffn.without_gradient()) {
            Some(what) => Err(what),
            None => Ok(attention),
        }
    }

    /// Replaces the gradient `d` of the layer's output by that of its input `x`.
    fn gradient(
        &self,
        cx: &Context<'_>,
        to: &mut dyn Gradients,
        batch: &ChunkBatch,
        x: &[f32],
        d: &mut [f32],
    ) -> Result<()> {
        let attention = self.branches().map_err(|what| EngineError::NoGradient { what })?;
        let (n_embd, scale) = (cx.n_embd, self.residual_scale);
        let is_serial = self.wiring == Wiring::Serial;
        let mixer_input = normed(cx, self.pre_mixer.as_ref(), x)?;
        let mut mixed = cx.take(x.len());
        attention.run(cx, batch, &mixer_input, &mut mixed)?;
        let mut middle = copied(cx, x);
        if is_serial {
            let post = self.post_mixer.as_ref().map(|norm| cx.weights.norm(norm)).transpose()?;
            cx.add_rows(&mut middle, &mut mixed, post.as_ref(), scale, n_embd);
        }
        let ffn_input = match &self.pre_ffn {
            None if !is_serial => copied(cx, &mixer_input),
            norm => normed(cx, norm.as_ref(), &middle)?,
        };
        math::scale_and_cap(cx.weights.level, d, self.rescale, None);
        let mut d_ffn = cx.zeros(x.len());
        let mut branch = scaled(cx, d, scale);
        if let Some(post) = &self.post_ffn {
            let mut output = cx.take(x.len());
            let inputs = FfnInputs { input: &ffn_input, stream: &[], entry: &[] };
            self.ffn.run(cx, batch, inputs, &mut output)?;
            cx.norm_gradient(to, post, &output, &mut branch, n_embd)?;
            cx.give([output]);
        }
        self.ffn.gradient(cx, to, batch, (&ffn_input, &branch), &mut d_ffn)?;
        if let Some(norm) = &self.pre_ffn {
            cx.norm_gradient(to, norm, &middle, &mut d_ffn, n_embd)?;
        }
        if is_serial {
            math::add_scaled(cx.weights.level, d, &d_ffn, 1.0);
        }
        let mut branch_of_mixer = scaled(cx, d, scale);
        if let Some(post) = &self.post_mixer {
            cx.norm_gradient(to, post, &mixed, &mut branch_of_mixer, n_embd)?;
        }
        let mut d_mixer = cx.zeros(x.len());
        attention.gradient(cx, to, batch, (&mixer_input, &branch_of_mixer), &mut d_mixer)?;
        if !is_serial {
            // Parallel branches read the layer's input, or one normed input.
            let target = if self.pre_ffn.is_some() { &mut *d } else { &mut *d_mixer };
            math::add_scaled(cx.weights.level, target, &d_ffn, 1.0);
        }
        if let Some(norm) = &self.pre_mixer {
            cx.norm_gradient(to, norm, x, &mut d_mixer, n_embd)?;
        }
        math::add_scaled(cx.weights.level, d, &d_mixer, 1.0);
        cx.give([mixer_input, mixed, middle, ffn_input, d_ffn, branch, branch_of_mixer, d_mixer]);
        Ok(())
    }
}

fn copied(cx: &Context<'_>, x: &[f32]) -> Buffer {
    let mut copy = cx.take(x.len());
    copy.copy_from_slice(x);
    copy
}

fn scaled(cx: &Context<'_>, x: &[f32], factor: f32) -> Buffer {
    let mut copy = copied(cx, x);
    math::scale_and_cap(cx.weights.level, &mut copy, factor, None);
    copy
}

fn normed(cx: &Context<'_>, norm: Option<&Norm>, x: &[f32]) -> Result<Buffer> {
    let Some(norm) = norm else { return Ok(copied(cx, x)) };
    let mut out = cx.take(x.len());
    cx.norm_rows(&cx.weights.norm(norm)?, x, &mut out, cx.n_embd);
    Ok(out)
}

/// Model that another is to predict like, and its final states for the wanted rows of the same chunks.
#[derive(Clone, Copy)]
pub struct Reference<'a, 'e> {
    /// Model.
    pub engine: &'a Engine<'e>,
    /// Its states.
    pub hidden: &'a Hidden,
}

impl Engine<'_> {
    /// Returns the largest number of bytes of [`Engine::gradients`] in addition to the weights, for `n_tokens` in chunks
    /// of at most `chunk_len`: streams before all layers, a layer's values with their gradients, and logits.
    pub fn gradient_bytes(&self, n_tokens: usize, chunk_len: usize) -> u64 {
        let stream = 4 * (self.plan.n_embd * n_tokens) as u64;
        let streams = stream.saturating_mul(self.plan.layers.len() as u64 + 4);
        let layer = self.run_bytes(n_tokens, n_tokens, chunk_len).saturating_mul(3);
        let attention = (8 * 2 * chunk_len * chunk_len.min(512)) as u64;
        let threads = attention.saturating_mul(self.workers.n_threads() as u64);
        streams.saturating_add(layer).saturating_add(threads).saturating_add(4 * BLOCK_LOGITS as u64)
    }

    /// Returns the mean divergence of the wanted rows of `chunks` from a reference, and hands out its gradients. The
    /// chunks go through the layers together: their streams before all layers are in memory, or in files if the engine
    /// [spills](Engine::spilling).
    ///
    /// # Errors
    /// [`EngineError::NoGradient`], [`EngineError::Vocabulary`]; also if weights cannot be read or the run is cancelled.
    pub fn gradients(
        &self,
        chunks: &[TokenChunk],
        reference: Reference<'_, '_>,
        to: &mut dyn Gradients,
        progress: &dyn Progress,
    ) -> Result<f64> {
        let plan = &self.plan;
        plan.check_gradient()?;
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        plan.check_length(longest)?;
        let ropes = RopeTables::new(&plan.ropes, self.weights(), longest)?;
        let mut cx = Context { ropes, buffers: self.buffers(), ..self.head_run(progress, None) };
        let mut states = vec![begin(&mut cx, plan, chunks)?];
        let batch = ChunkBatch::new(chunks.iter().map(|chunk| chunk.tokens.len()));
        for (at, layer) in plan.layers.iter().enumerate() {
            cx.layer.store(at, Ordering::Relaxed);
            let mut x = copied(&cx, &states[at]);
            run_layer(&cx, layer, &batch, &mut x)?;
            states.push(x);
        }
        let mut d = cx.zeros(states[0].len());
        let last = states.pop().unwrap_or_default();
        let wanted = batch.clone().narrowed(chunks.iter().map(|chunk| chunk.rows.clone()));
        let divergence = self.end_gradient(&cx, &wanted, &last, reference, (to, &mut d))?;
        for (layer, x) in plan.layers.iter().zip(states).rev() {
            layer.gradient(&cx, to, &batch, &x, &mut d)?;
            cx.give([x]);
        }
        math::scale_and_cap(self.options.level, &mut d, plan.embed_scale, None);
        for (&token, d) in chunks.iter().flat_map(|chunk| &chunk.tokens).zip(d.chunks(plan.n_embd)) {
            to.rows(&plan.embedding, token as usize, d);
        }
        cx.buffers.check()?;
        Ok(divergence)
    }

    /// Computes the divergence, and adds its gradient with respect to the last layer's output `x` to `d`.
    fn end_gradient(
        &self,
        cx: &Context<'_>,
        wanted: &ChunkBatch,
        x: &[f32],
        reference: Reference<'_, '_>,
        (to, d): (&mut dyn Gradients, &mut [f32]),
    ) -> Result<f64> {
        let (plan, other) = (&self.plan, &reference.engine.plan);
        let (n_embd, n_vocab, n_rows) = (plan.n_embd, plan.n_vocab, wanted.n_wanted());
        if n_vocab != other.n_vocab || reference.hidden.n_rows != n_rows {
            return Err(EngineError::Vocabulary { model: n_vocab, baseline: other.n_vocab });
        }
        let rows = wanted.select(x, n_embd);
        let hidden = Hidden { n_rows, states: normed(cx, plan.final_norm.as_ref(), &rows)? };
        let mut d_hidden = cx.zeros(rows.len());
        let of_reference = reference.engine.head_run(cx.progress, None);
        let step = (BLOCK_LOGITS / (2 * n_vocab.max(1))).max(1);
        let mut total = 0.0;
        for first in (0..n_rows).step_by(step) {
            let range = first..n_rows.min(first + step);
            let of_range = range.start * n_embd..range.end * n_embd;
            let (mut logits, mut goal) = (cx.take(range.len() * n_vocab), cx.take(range.len() * n_vocab));
            let own = hidden.rows(range.clone());
            self.logits_block(cx, &own, &(0..n_vocab), &mut logits)?;
            let states = reference.hidden.rows(range);
            reference.engine.logits_block(&of_reference, &states, &(0..n_vocab), &mut goal)?;
            let each: Vec<f64> = cx.workers.install(|| {
                let rows = logits.par_chunks_mut(n_vocab).zip(goal.par_chunks(n_vocab));
                rows.map(|(logits, goal)| plan.divergence_gradient(logits, goal, n_rows)).collect()
            });
            total += each.iter().sum::<f64>();
            cx.product_gradient(to, &plan.head, &own.states, &logits, &mut d_hidden[of_range])?;
            cx.give([logits, goal]);
        }
        if let Some(norm) = &plan.final_norm {
            cx.norm_gradient(to, norm, &rows, &mut d_hidden, n_embd)?;
        }
        let mut rest = &d_hidden[..];
        for chunk in 0..wanted.cuts.len() - 1 {
            let tokens = wanted.wanted(chunk);
            let (own, later) = rest.split_at(tokens.len() * n_embd);
            d[tokens.start * n_embd..tokens.end * n_embd].copy_from_slice(own);
            rest = later;
        }
        cx.give([hidden.states, d_hidden]);
        Ok(total / n_rows.max(1) as f64)
    }
}

impl GraphPlan {
    /// Returns the divergence of a row, and replaces its finished logits by the gradient of the mean over `n_rows` with
    /// respect to the products of the head.
    fn divergence_gradient(&self, logits: &mut [f32], goal: &[f32], n_rows: usize) -> f64 {
        let log_sum = |logits: &[f32]| {
            let max = logits.iter().fold(f32::NEG_INFINITY, |max, &z| max.max(z));
            let max = f64::from(max);
            max + logits.iter().map(|&z| (f64::from(z) - max).exp()).sum::<f64>().ln()
        };
        let (own, other) = (log_sum(logits), log_sum(goal));
        let mut divergence = 0.0;
        for (z, &goal) in logits.iter_mut().zip(goal) {
            let (log_q, log_p) = (f64::from(*z) - own, f64::from(goal) - other);
            let (q, p) = (log_q.exp(), log_p.exp());
            if p > 0.0 {
                divergence += p * (log_p - log_q);
            }
            let slope = match self.final_cap {
                // Logits of tokens that are never generated are beyond every cap and have no gradient.
                Some(cap) => 1.0 - f64::from(*z / cap).powi(2).min(1.0),
                None => 1.0,
            };
            *z = ((q - p) / n_rows as f64 * slope * f64::from(self.logit_scale)) as f32;
        }
        divergence
    }
}

#[cfg(test)]
mod tests;
