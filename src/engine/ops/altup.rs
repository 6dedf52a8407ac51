//! Alternating updates: what happens to the streams of a token before, beside and behind the layer that computes one of
//! them (Baykal et al. 2023; the formulas are those of transformers' `modeling_gemma3n.py`).

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::{AltUp, LayerAltUp, LayerPlan};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Tokens that one task works on.
const TOKENS_PER_TASK: usize = 64;
/// A stream's mean square at least, where it is brought to the size of another.
const LEAST_SQUARE: f32 = 1e-5;

impl Runner<'_> {
    /// The streams `[n_tokens, n, n_embd]` of embeddings `x`: the first is the embedding, each other one its projection,
    /// brought to the embedding's size.
    pub(crate) fn spread(&self, altup: &AltUp, x: &[f32]) -> Result<Buffer, EngineError> {
        let (n_embd, width, level) = (self.plan.n_embd, self.plan.stream_width(), self.weights.level);
        let n_tokens = x.len() / n_embd;
        let mut streams = self.take(n_tokens * width);
        self.each_token(&mut streams, width, |token, streams| {
            streams[..n_embd].copy_from_slice(&x[token * n_embd..][..n_embd]);
        });
        let mut other = self.take(x.len());
        for (at, matrix) in altup.entry.iter().enumerate() {
            self.products(x, n_tokens, vec![Product::plain(matrix, &mut other)])?;
            self.each_token(&mut streams, width, |token, streams| {
                let (first, others) = streams.split_at_mut(n_embd);
                let stream = &mut others[at * n_embd..][..n_embd];
                stream.copy_from_slice(&other[token * n_embd..][..n_embd]);
                let factor = size_factor(level, stream, first);
                math::scale_and_cap(level, stream, factor, None);
            });
        }
        self.give([other]);
        Ok(streams)
    }

    /// One row per token of its streams: the mean of the first and of the others' projections, each brought to the size
    /// of the first.
    pub(crate) fn collapse(&self, altup: &AltUp, streams: &[f32]) -> Result<Buffer, EngineError> {
        let (n_embd, width, level) = (self.plan.n_embd, self.plan.stream_width(), self.weights.level);
        let n_tokens = streams.len() / width;
        let mut sum = self.take(n_tokens * n_embd);
        self.stream(streams, 0, &mut sum);
        let (mut stream, mut other) = (self.take(sum.len()), self.take(sum.len()));
        for (at, matrix) in altup.exit.iter().enumerate() {
            self.stream(streams, at + 1, &mut stream);
            self.products(&stream, n_tokens, vec![Product::plain(matrix, &mut other)])?;
            self.each_token(&mut other, n_embd, |token, other| {
                let factor = size_factor(level, other, &streams[token * width..][..n_embd]);
                math::scale_and_cap(level, other, factor, None);
            });
            self.add_rows(&mut sum, &mut other, None, 1.0, n_embd);
        }
        self.give([stream, other]);
        self.scale_rows(&mut sum, (altup.n as f32).recip());
        Ok(sum)
    }

    /// A layer over the streams `x`, `[n_tokens, n, n_embd]`: all are predicted, the active one goes through the layer,
    /// and what the layer changed corrects all. If not all rows are wanted, those that are come to the front.
    pub(crate) fn altup_layer(
        &self,
        (altup, own): (&AltUp, &LayerAltUp),
        layer: &LayerPlan,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_embd, width) = (self.plan.n_embd, self.plan.stream_width());
        let mut active = self.take(batch.n_tokens() * n_embd);
        self.stream(x, altup.active, &mut active);
        self.predict(own, altup.n, &active, x)?;
        self.stream(x, altup.active, &mut active);
        self.plain_layer(layer, batch, &mut active)?;
        let x = batch.gather(x, width);
        let computed = &mut active[..batch.n_wanted() * n_embd];
        self.correct((altup, own), computed, x)?;
        if let (Some(embedding), Some(all)) = (&layer.extras.embedding, &self.plan.layer_embeddings) {
            self.stream(x, altup.active, computed);
            let scale = self.weights.vector(&own.correct_scale)?;
            self.each_token(computed, n_embd, |_, row| row.iter_mut().zip(&scale).for_each(|(x, s)| *x *= s));
            let mut added = self.take(computed.len());
            self.layer_embedding(embedding, all, batch, computed, &mut added)?;
            self.norm_rows(&self.weights.norm(&embedding.post)?, &added, computed, n_embd);
            self.give([added]);
            let (level, added) = (self.weights.level, &*computed);
            // To all streams but the first, whichever is active.
            self.each_token(x, width, |token, streams| {
                let added = &added[token * n_embd..][..n_embd];
                for stream in streams[n_embd..].chunks_mut(n_embd) {
                    math::add_scaled(level, stream, added, 1.0);
                }
            });
        }
        self.give([active]);
        self.slot("streams", x, width);
        Ok(())
    }

    /// `x_i += Σ_j (P r)_ij x_j` for each stream of `x`, `[n_tokens, n, n_embd]`, with the router's values `r` of the
    /// active one.
    fn predict(&self, own: &LayerAltUp, n: usize, active: &[f32], x: &mut [f32]) -> Result<(), EngineError> {
        let (n_tokens, level) = (active.len() / self.plan.n_embd, self.weights.level);
        let (mut routes, mut factors) = (self.take(n_tokens * n), self.take(n_tokens * n * n));
        self.routes(own, active, &mut routes)?;
        self.products(&routes, n_tokens, vec![Product::plain(&own.predict, &mut factors)])?;
        self.each_token(x, self.plan.stream_width(), |token, streams| {
            mix_streams(level, streams, &factors[token * n * n..][..n * n], n);
        });
        self.give([routes, factors]);
        Ok(())
    }

    /// `x_i += (1 + (C r)_i) (y - x_a)` for each stream of `x`, `[n_tokens, n, n_embd]`, with what the layer made of the
    /// active stream `a`, `y`, `[n_tokens, n_embd]`, and the router's values `r` of that.
    fn correct(
        &self,
        (altup, own): (&AltUp, &LayerAltUp),
        computed: &[f32],
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n, n_embd, level) = (altup.n, self.plan.n_embd, self.weights.level);
        let n_tokens = computed.len() / n_embd;
        let (mut routes, mut gains) = (self.take(n_tokens * n), self.take(n_tokens * n));
        self.routes(own, computed, &mut routes)?;
        self.products(&routes, n_tokens, vec![Product::plain(&own.correct, &mut gains)])?;
        self.each_token(x, n * n_embd, |token, streams| {
            let mut change = computed[token * n_embd..][..n_embd].to_vec();
            math::add_scaled(level, &mut change, &streams[altup.active * n_embd..][..n_embd], -1.0);
            add_change(level, streams, &change, &gains[token * n..][..n]);
        });
        self.give([routes, gains]);
        Ok(())
    }

    /// The router's values `tanh(R norm(x) / n_embd)` of `x`, `[n_tokens, n_embd]`.
    fn routes(&self, own: &LayerAltUp, x: &[f32], out: &mut [f32]) -> Result<(), EngineError> {
        let n_embd = self.plan.n_embd;
        let mut normed = self.take(x.len());
        self.norm_rows(&self.weights.norm(&own.router_norm)?, x, &mut normed, n_embd);
        self.scale_rows(&mut normed, (n_embd as f32).recip());
        self.products(&normed, x.len() / n_embd, vec![Product::plain(&own.router, out)])?;
        self.give([normed]);
        for r in out {
            *r = r.tanh();
        }
        Ok(())
    }

    /// Copies one of the streams to `out`, `[n_tokens, n_embd]`.
    fn stream(&self, streams: &[f32], at: usize, out: &mut [f32]) {
        let (n_embd, width) = (self.plan.n_embd, self.plan.stream_width());
        self.each_token(out, n_embd, |token, out| {
            out.copy_from_slice(&streams[token * width + at * n_embd..][..n_embd]);
        });
    }

    /// Calls `work` with every row of `x` and its number.
    fn each_token(&self, x: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        self.workers.install(|| {
            x.par_chunks_mut(TOKENS_PER_TASK * width).enumerate().for_each(|(task, rows)| {
                self.clock.time(WorkKind::Norm, || {
                    for (at, row) in rows.chunks_mut(width).enumerate() {
                        work(task * TOKENS_PER_TASK + at, row);
                    }
                });
            });
        });
    }
}

/// Root of the mean square.
fn magnitude(level: SimdLevel, x: &[f32], least_square: f32) -> f32 {
    let square = (math::moments(level, x, 0.0).1 / x.len() as f64) as f32;
    square.max(least_square).sqrt()
}

/// What brings `x` to the size of another row.
fn size_factor(level: SimdLevel, x: &[f32], other: &[f32]) -> f32 {
    magnitude(level, other, 0.0) / magnitude(level, x, LEAST_SQUARE)
}

/// `x_i += Σ_j f_ij x_j` of a token's `n` streams.
fn mix_streams(level: SimdLevel, streams: &mut [f32], factors: &[f32], n: usize) {
    let before = streams.to_vec();
    let n_embd = before.len() / n;
    for (stream, factors) in streams.chunks_mut(n_embd).zip(factors.chunks(n)) {
        for (other, &factor) in before.chunks(n_embd).zip(factors) {
            math::add_scaled(level, stream, other, factor);
        }
    }
}

/// `x_i += (1 + g_i) change` of a token's streams.
fn add_change(level: SimdLevel, streams: &mut [f32], change: &[f32], gains: &[f32]) {
    for (stream, gain) in streams.chunks_mut(change.len()).zip(gains) {
        math::add_scaled(level, stream, change, 1.0 + gain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level() -> SimdLevel {
        SimdLevel::detect()
    }

    #[test]
    fn a_stream_takes_the_size_of_another_unless_it_is_next_to_nothing() {
        let other = [3.0f32, -4.0, 0.0, 5.0];
        let x = [0.5f32, 0.25, -1.0, 2.0];
        let factor = size_factor(level(), &x, &other);
        let root = |x: &[f32]| (x.iter().map(|x| x * x).sum::<f32>() / 4.0).sqrt();
        let sized = x.map(|x| x * factor);
        assert!((root(&sized) - root(&other)).abs() < 1e-6);
        let expected = root(&other) / 1e-5f32.sqrt();
        assert!((size_factor(level(), &[0.0; 4], &other) - expected).abs() < 1e-3 * expected);
    }

    #[test]
    fn streams_are_mixed_as_they_were_before() {
        let n = 3;
        let streams: Vec<f32> = (0..6).map(|i| i as f32 * 0.5 - 1.0).collect();
        let factors: Vec<f32> = (0..9).map(|i| 0.1 * i as f32 - 0.3).collect();
        let mut found = streams.clone();
        mix_streams(level(), &mut found, &factors, n);
        for i in 0..n {
            for d in 0..2 {
                let sum: f32 = (0..n).map(|j| factors[i * n + j] * streams[j * 2 + d]).sum();
                assert!((found[i * 2 + d] - (streams[i * 2 + d] + sum)).abs() < 1e-6, "{i}, {d}");
            }
        }
    }

    #[test]
    fn a_change_reaches_every_stream_by_its_gain() {
        let mut streams = [1.0, 2.0, 10.0, 20.0];
        add_change(level(), &mut streams, &[0.5, -1.0], &[0.0, -0.5]);
        assert_eq!(streams, [1.5, 1.0, 10.25, 19.5]);
    }
}
