//! AltUp (alternating updates, Baykal et al. 2023): each token has several streams, of which layers compute one and
//! update the others. The formulas are those of transformers' `modeling_gemma3n.py`.

use rayon::prelude::*;

use crate::Result;
use crate::exec::batch::TokenChunk;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::exec::workers::Tasks;
use crate::ops::model_extra::ModelExtraOp;
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::Extra;
use gguf_core::simd::SimdLevel;

/// AltUp streams of a model (Baykal et al. 2023), as in Gemma 3n.
#[derive(Clone, Debug, PartialEq)]
pub struct AltUp {
    /// Number of streams per token.
    pub n: usize,
    /// Projections from the embedding, which is the first stream, to each of the others.
    pub entry: Vec<Matrix>,
    /// Projections of each of the other streams, which are averaged with the first.
    pub exit: Vec<Matrix>,
}

/// AltUp of a layer: its predictions and corrections of the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerAltUp {
    /// Index of the stream that the layer computes.
    pub active: usize,
    /// Norm of the router's input.
    pub(crate) router_norm: Norm,
    /// Router, one row per stream.
    pub router: Matrix,
    /// Matrix from the router's values to a factor for each pair of streams.
    pub predict: Matrix,
    /// Matrix from the router's values to a factor for each stream.
    pub(crate) correct: Matrix,
    /// Factors of the computed stream that the layer's embedding reads.
    pub(crate) correct_scale: Vector,
}

impl LayerAltUp {
    /// Returns the number of streams per token.
    pub(crate) fn n(&self) -> usize {
        self.router.n_rows
    }
}

const TOKENS_PER_TASK: usize = 64;
/// Lower bound of a stream's mean square when it is scaled to the magnitude of another.
const LEAST_SQUARE: f32 = 1e-5;

impl ModelExtraOp for AltUp {
    fn resolve(b: &mut Resolver<'_>) -> Result<Option<AltUp>> {
        let Some(n) = n_streams(b)? else { return Ok(None) };
        active_stream(b, n)?;
        let n_embd = b.n_embd;
        let entry = b.tensors.experts("altup_proj", n - 1, n_embd, n_embd)?;
        let exit = b.tensors.experts("altup_unembd_proj", n - 1, n_embd, n_embd)?;
        Ok(Some(AltUp { n, entry, exit }))
    }

    fn n_streams(&self) -> Option<usize> {
        Some(self.n)
    }

    /// Returns the streams of the embeddings: the first is the embedding, each other one its projection, scaled to the
    /// magnitude of the embedding.
    fn begin(&self, cx: &mut Context<'_>, _: &[TokenChunk], x: Buffer) -> Result<Buffer> {
        let cx = &*cx;
        let (n_embd, width, level) = (cx.n_embd, self.n * cx.n_embd, cx.weights.level);
        let n_tokens = x.len() / n_embd;
        let mut streams = cx.take(n_tokens * width);
        each_token(cx, &mut streams, width, |token, streams| {
            streams[..n_embd].copy_from_slice(&x[token * n_embd..][..n_embd]);
        });
        let mut other = cx.take(x.len());
        for (at, matrix) in self.entry.iter().enumerate() {
            cx.products(&x, n_tokens, vec![Product::plain(matrix, &mut other)])?;
            each_token(cx, &mut streams, width, |token, streams| {
                let (first, others) = streams.split_at_mut(n_embd);
                let stream = &mut others[at * n_embd..][..n_embd];
                stream.copy_from_slice(&other[token * n_embd..][..n_embd]);
                let factor = size_factor(level, stream, first);
                math::scale_and_cap(level, stream, factor, None);
            });
        }
        cx.give([other, x]);
        Ok(streams)
    }

    /// Returns the mean of the first stream and of the others' projections, each scaled to the magnitude of the first.
    fn end(&self, cx: &Context<'_>, streams: Buffer) -> Result<Buffer> {
        let (n_embd, width, level) = (cx.n_embd, self.n * cx.n_embd, cx.weights.level);
        let n_tokens = streams.len() / width;
        let mut sum = cx.take(n_tokens * n_embd);
        copy_stream(cx, &streams, 0, &mut sum);
        let (mut stream, mut other) = (cx.take(sum.len()), cx.take(sum.len()));
        for (at, matrix) in self.exit.iter().enumerate() {
            copy_stream(cx, &streams, at + 1, &mut stream);
            cx.products(&stream, n_tokens, vec![Product::plain(matrix, &mut other)])?;
            each_token(cx, &mut other, n_embd, |token, other| {
                let factor = size_factor(level, other, &streams[token * width..][..n_embd]);
                math::scale_and_cap(level, other, factor, None);
            });
            cx.add_rows(&mut sum, &mut other, None, 1.0, n_embd);
        }
        cx.give([stream, other]);
        cx.scale_rows(&mut sum, (self.n as f32).recip());
        Ok(sum)
    }
}

/// Computes `x_i += Σ_j (P r)_ij x_j` for each stream of `x`, `[n_tokens, n, n_embd]`. `r` are the router's values of
/// the active stream.
pub(crate) fn predict(cx: &Context<'_>, own: &LayerAltUp, active: &[f32], x: &mut [f32]) -> Result<()> {
    let (n, n_tokens, level) = (own.n(), active.len() / cx.n_embd, cx.weights.level);
    let (mut routes, mut factors) = (cx.take(n_tokens * n), cx.take(n_tokens * n * n));
    route(cx, own, active, &mut routes)?;
    cx.products(&routes, n_tokens, vec![Product::plain(&own.predict, &mut factors)])?;
    each_token(cx, x, n * cx.n_embd, |token, streams| {
        predict_streams(level, streams, &factors[token * n * n..][..n * n], n);
    });
    cx.give([routes, factors]);
    Ok(())
}

/// Computes `x_i += (1 + (C r)_i) (y - x_a)` for each stream of `x`, `[n_tokens, n, n_embd]`. `y`,
/// `[n_tokens, n_embd]`, is the layer's output for the active stream `a`, and `r` are the router's values of `y`.
pub(crate) fn correct(cx: &Context<'_>, own: &LayerAltUp, computed: &[f32], x: &mut [f32]) -> Result<()> {
    let (n, n_embd, level) = (own.n(), cx.n_embd, cx.weights.level);
    let n_tokens = computed.len() / n_embd;
    let (mut routes, mut gains) = (cx.take(n_tokens * n), cx.take(n_tokens * n));
    route(cx, own, computed, &mut routes)?;
    cx.products(&routes, n_tokens, vec![Product::plain(&own.correct, &mut gains)])?;
    each_token(cx, x, n * n_embd, |token, streams| {
        let mut change = computed[token * n_embd..][..n_embd].to_vec();
        math::add_scaled(level, &mut change, &streams[own.active * n_embd..][..n_embd], -1.0);
        add_change(level, streams, &change, &gains[token * n..][..n]);
    });
    cx.give([routes, gains]);
    Ok(())
}

/// Writes the router's values `tanh(R norm(x) / n_embd)` of `x`, `[n_tokens, n_embd]`, to `out`.
fn route(cx: &Context<'_>, own: &LayerAltUp, x: &[f32], out: &mut [f32]) -> Result<()> {
    let n_embd = cx.n_embd;
    let mut normed = cx.take(x.len());
    cx.norm_rows(&cx.weights.norm(&own.router_norm)?, x, &mut normed, n_embd);
    cx.scale_rows(&mut normed, (n_embd as f32).recip());
    cx.products(&normed, x.len() / n_embd, vec![Product::plain(&own.router, out)])?;
    cx.give([normed]);
    for r in out {
        *r = r.tanh();
    }
    Ok(())
}

/// Copies one of the streams to `out`, `[n_tokens, n_embd]`.
pub(crate) fn copy_stream(cx: &Context<'_>, streams: &[f32], at: usize, out: &mut [f32]) {
    let n_embd = cx.n_embd;
    let width = streams.len() / (out.len() / n_embd).max(1);
    each_token(cx, out, n_embd, |token, out| {
        out.copy_from_slice(&streams[token * width + at * n_embd..][..n_embd]);
    });
}

/// Calls `work` with the index of every row of `x` and the row.
pub(crate) fn each_token(
    cx: &Context<'_>,
    x: &mut [f32],
    width: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    cx.workers.install(|| {
        x.par_chunks_mut(TOKENS_PER_TASK * width).enumerate().run(&|(task, rows)| {
            cx.clock.time(WorkKind::Norm, || {
                for (at, row) in rows.chunks_mut(width).enumerate() {
                    work(task * TOKENS_PER_TASK + at, row);
                }
            });
        });
    });
}

/// Returns the root of the mean square, which is at least `least_square`.
fn magnitude(level: SimdLevel, x: &[f32], least_square: f32) -> f32 {
    let square = (math::moments(level, x, 0.0).1 / x.len() as f64) as f32;
    square.max(least_square).sqrt()
}

/// Returns the factor that scales `x` to the magnitude of another row.
fn size_factor(level: SimdLevel, x: &[f32], other: &[f32]) -> f32 {
    magnitude(level, other, 0.0) / magnitude(level, x, LEAST_SQUARE)
}

/// Computes `x_i += Σ_j f_ij x_j` for a token's `n` streams.
fn predict_streams(level: SimdLevel, streams: &mut [f32], factors: &[f32], n: usize) {
    let before = streams.to_vec();
    let n_embd = before.len() / n;
    for (stream, factors) in streams.chunks_mut(n_embd).zip(factors.chunks(n)) {
        for (other, &factor) in before.chunks(n_embd).zip(factors) {
            math::add_scaled(level, stream, other, factor);
        }
    }
}

/// Computes `x_i += (1 + g_i) change` for a token's streams.
fn add_change(level: SimdLevel, streams: &mut [f32], change: &[f32], gains: &[f32]) {
    for (stream, gain) in streams.chunks_mut(change.len()).zip(gains) {
        math::add_scaled(level, stream, change, 1.0 + gain);
    }
}

/// Largest number of streams of a token: the memory of all tokens is proportional to it.
const MOST_STREAMS: usize = 64;

/// Returns the number of AltUp streams, if the model has them.
pub(crate) fn n_streams(b: &Resolver<'_>) -> Result<Option<usize>> {
    if !b.features.extras.contains(&Extra::Altup) {
        return Ok(None);
    }
    let key = "altup.num_inputs";
    let n = b.keys.need_count(key)?;
    if !(2..=MOST_STREAMS).contains(&n) {
        return Err(b.keys.unknown(key, "2 to 64", &n.to_string()));
    }
    Ok(Some(n))
}

/// Returns the index of the stream that layers compute, of `n`.
fn active_stream(b: &Resolver<'_>, n: usize) -> Result<usize> {
    let key = "altup.active_idx";
    let active = b.keys.count(key)?.ok_or_else(|| b.keys.missing(key))?;
    if active >= n {
        return Err(b.keys.unknown(key, "less than altup.num_inputs", &active.to_string()));
    }
    Ok(active)
}

impl LayerAltUp {
    /// Resolves the AltUp of a layer, if the model has AltUp streams.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<LayerAltUp>> {
        let Some(n) = n_streams(b)? else { return Ok(None) };
        let at = |name: &str| format!("blk.{layer}.altup_{name}");
        let n_embd = b.n_embd;
        Ok(Some(LayerAltUp {
            active: active_stream(b, n)?,
            router_norm: b.need_norm(&at("router_norm"))?,
            router: b.tensors.need_matrix(&at("router"), n, n_embd)?,
            predict: b.tensors.need_matrix(&at("predict_coef"), n * n, n)?,
            correct: b.tensors.need_matrix(&at("correct_coef"), n, n)?,
            correct_scale: b.need_vector(&at("correct_scale.weight"), n_embd)?,
        }))
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
        predict_streams(level(), &mut found, &factors, n);
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
