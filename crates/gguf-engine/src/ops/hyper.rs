//! Hyper-connections (Zhu et al. 2024, arXiv 2409.19606): a model with several residual streams. Each branch reads a
//! mixture of the streams, and its output is distributed among them.

use rayon::prelude::*;

use crate::exec::batch::TokenChunk;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use crate::exec::{math, scalar};
use crate::ops::model_extra::ModelExtraOp;
use crate::ops::ngrams::Ngrams;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::ResidualRule;
use gguf_core::simd::SimdLevel;

/// Residual streams of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    /// Number of streams; all begin as the embedding.
    pub n: usize,
    /// Reduction of the streams to one, after the last layer.
    pub end: StreamsEnd,
}

/// Reduction of the streams to one.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamsEnd {
    /// Mean of the streams.
    Mean,
    /// Mixture of the streams, as a branch reads it.
    Read(Box<Connection>),
}

/// Effect of a branch's output on the streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamsWrite {
    /// No effect: there is no branch.
    None,
    /// Each stream adds a share of the output: `magnitude sig(..) + eps`.
    Add {
        /// Factor of the sigmoid.
        magnitude: f32,
        /// Term that is added to each weight.
        eps: f32,
    },
    /// Each stream becomes a mixture of all, by a doubly stochastic matrix, and adds the output times `2 sig(..)`.
    Mix {
        /// Number of times that the columns are normalized to a sum of one, with the rows normalized in between.
        iterations: usize,
    },
}

/// Connection with one weight per stream, computed from all streams together.
#[derive(Clone, Debug, PartialEq)]
pub struct WeighedStreams {
    /// Norm of all streams as one row.
    pub norm: Norm,
    /// Matrix with a row for each weight of reading, of writing, and of the mixing matrix.
    pub matrix: Matrix,
    /// Bias of the scaled products, one each.
    pub base: Vector,
    /// Factors of the products: one for those of reading, one for those of writing, and one for the mixing matrix.
    pub scale: Vector,
    /// Term that is added to each weight of reading, and to sums that are divided by.
    pub eps: f32,
    /// Effect of the branch's output.
    pub write: StreamsWrite,
}

/// Connection with one weight per value of each stream, computed by a low-rank projection.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedStreams {
    /// Norm of each stream separately; the normed streams are read.
    pub norm: Norm,
    /// Projection to the low rank.
    pub down: Matrix,
    /// Projection from the low rank to the weights.
    pub up: Matrix,
    /// Matrix of the shares of the branch's output that streams add.
    pub inject: Option<Matrix>,
}

/// Connection of a branch: its reading of the streams and its writing to them.
#[derive(Clone, Debug, PartialEq)]
pub enum Connection {
    /// One weight per stream.
    Weighed(WeighedStreams),
    /// One weight per value.
    Gated(GatedStreams),
}

/// Connections of a layer's two branches.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConnections {
    /// Connection of the mixer.
    pub mixer: Connection,
    /// Connection of the feed-forward network.
    pub ffn: Connection,
}

impl Connection {
    /// Returns true if the branch's input is normed by the connection.
    pub fn norms(&self) -> bool {
        matches!(self, Self::Gated(_))
    }

    /// Returns the number of weights per token that reading leaves for writing.
    pub(crate) fn n_weights(&self) -> usize {
        match self {
            Self::Weighed(c) => c.matrix.n_rows,
            Self::Gated(c) => c.inject.as_ref().map_or(0, |inject| inject.n_rows),
        }
    }
}

impl ModelExtraOp for Streams {
    fn resolve(b: &mut Resolver<'_>) -> Result<Option<Streams>> {
        if !has_streams(b) {
            return Ok(None);
        }
        let n = n_streams(b)?;
        let has_any =
            |parts: [&str; 3]| parts.iter().any(|part| b.tensors.has(&format!("output_hc_{part}.weight")));
        let end = if has_any(["down", "up", "norm"]) {
            let read = GatedStreams::resolve(b, "output_hc", n, false)?;
            StreamsEnd::Read(Box::new(Connection::Gated(read)))
        } else if has_any(["fn", "base", "scale"]) {
            let read = WeighedStreams::resolve(b, "output_hc", n, StreamsWrite::None)?;
            StreamsEnd::Read(Box::new(Connection::Weighed(read)))
        } else {
            StreamsEnd::Mean
        };
        Ok(Some(Streams { n, end }))
    }

    fn n_streams(&self) -> Option<usize> {
        Some(self.n)
    }

    fn begin(&self, cx: &mut Context<'_>, _: &[TokenChunk], x: Buffer) -> Result<Buffer> {
        let n_embd = cx.n_embd;
        let mut all = cx.take(x.len() * self.n);
        for (rows, row) in all.chunks_mut(n_embd * self.n).zip(x.chunks(n_embd)) {
            rows.chunks_mut(n_embd).for_each(|stream| stream.copy_from_slice(row));
        }
        cx.give([x]);
        Ok(all)
    }

    fn end(&self, cx: &Context<'_>, x: Buffer) -> Result<Buffer> {
        let n_embd = cx.n_embd;
        let n_tokens = x.len() / (n_embd * self.n);
        let mut out = cx.take(n_tokens * n_embd);
        match &self.end {
            StreamsEnd::Read(connection) => {
                let weights = connection.read(cx, &x, n_tokens, &mut out)?;
                cx.give([weights]);
            }
            StreamsEnd::Mean => {
                let (level, part) = (cx.weights.level, (self.n as f32).recip());
                out.fill(0.0);
                for (out, rows) in out.chunks_mut(n_embd).zip(x.chunks(n_embd * self.n)) {
                    rows.chunks(n_embd).for_each(|stream| math::add_scaled(level, out, stream, part));
                }
            }
        }
        Ok(out)
    }
}

impl Connection {
    /// Computes a branch's input `out` (`[n_tokens, n_embd]`) from the streams `x` (`[n_tokens, n * n_embd]`), and
    /// returns the weights for [`Connection::write`].
    pub(crate) fn read(
        &self,
        cx: &Context<'_>,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<Buffer> {
        match self {
            Connection::Weighed(c) => c.read(cx, x, n_tokens, out),
            Connection::Gated(c) => c.read(cx, x, n_tokens, out),
        }
    }
}

impl WeighedStreams {
    /// Reads the streams, as [`Connection::read`].
    pub(crate) fn read(
        &self,
        cx: &Context<'_>,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<Buffer> {
        let (width, n_weights, n_embd) = (self.matrix.n_cols, self.matrix.n_rows, cx.n_embd);
        let level = cx.weights.level;
        let mut normed = cx.take(x.len());
        cx.norm_rows(&cx.weights.norm(&self.norm)?, x, &mut normed, width);
        let mut weights = cx.take(n_tokens * n_weights);
        cx.products(&normed, n_tokens, vec![Product::plain(&self.matrix, &mut weights)])?;
        cx.give([normed]);
        let (base, scale) = (cx.weights.vector(&self.base)?, cx.weights.vector(&self.scale)?);
        let n = width / n_embd;
        cx.workers.install(|| {
            let tasks = out.par_chunks_mut(ROWS_PER_TASK * n_embd).zip(x.par_chunks(ROWS_PER_TASK * width));
            tasks.zip(weights.par_chunks_mut(ROWS_PER_TASK * n_weights)).run(&|((out, x), weights)| {
                cx.clock.time(WorkKind::Norm, || {
                    let rows = out.chunks_mut(n_embd).zip(x.chunks(width)).zip(weights.chunks_mut(n_weights));
                    for ((out, x), weights) in rows {
                        finish_weights(weights, n, &base, &scale, self.eps, self.write);
                        out.fill(0.0);
                        for (stream, &weight) in x.chunks(n_embd).zip(&*weights) {
                            math::add_scaled(level, out, stream, weight);
                        }
                    }
                });
            });
        });
        Ok(weights)
    }
}

impl GatedStreams {
    /// Reads the streams, as [`Connection::read`].
    pub(crate) fn read(
        &self,
        cx: &Context<'_>,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<Buffer> {
        let (width, rank, n_embd) = (self.up.n_rows, self.down.n_rows, cx.n_embd);
        let n = width / n_embd;
        let part = (n as f32).recip();
        let mut normed = cx.take(x.len());
        normed.copy_from_slice(x);
        cx.norm_parts(&cx.weights.norm(&self.norm)?, &mut normed, width, n);
        let mut narrow = cx.take(n_tokens * rank);
        let n_writes = self.inject.as_ref().map_or(0, |inject| inject.n_rows);
        let mut writes = cx.take(n_tokens * n_writes);
        let mut products = vec![Product::plain(&self.down, &mut narrow)];
        products.extend(self.inject.as_ref().map(|inject| Product::plain(inject, &mut writes)));
        cx.products(&normed, n_tokens, products)?;
        for x in narrow.iter_mut() {
            let scaled = *x * part;
            *x = scaled * scalar::sigmoid(scaled);
        }
        for x in writes.iter_mut() {
            *x = 2.0 * scalar::sigmoid(*x * part);
        }
        let mut gates = cx.take(n_tokens * width);
        cx.products(&narrow, n_tokens, vec![Product::plain(&self.up, &mut gates)])?;
        let level = cx.weights.level;
        cx.workers.install(|| {
            let tasks =
                normed.par_chunks_mut(ROWS_PER_TASK * width).zip(gates.par_chunks(ROWS_PER_TASK * width));
            tasks.zip(out.par_chunks_mut(ROWS_PER_TASK * n_embd)).run(&|((x, gates), out)| {
                cx.clock.time(WorkKind::Activation, || {
                    math::times_sigmoid(level, x, gates);
                    for (out, x) in out.chunks_mut(n_embd).zip(x.chunks(width)) {
                        out.fill(0.0);
                        x.chunks(n_embd).for_each(|stream| math::add_scaled(level, out, stream, part));
                    }
                });
            });
        });
        cx.give([normed, narrow, gates]);
        Ok(writes)
    }
}

impl Connection {
    /// Distributes the branch's output (`[n_tokens, n_embd]`) among the streams.
    pub(crate) fn write(&self, cx: &Context<'_>, x: &mut [f32], weights: &[f32], branch: &[f32]) {
        let (n_embd, n_weights, level) = (cx.n_embd, self.n_weights(), cx.weights.level);
        let (width, first, write) = match self {
            Connection::Weighed(c) => (c.matrix.n_cols, c.matrix.n_cols / n_embd, c.write),
            Connection::Gated(c) => (c.up.n_rows, 0, StreamsWrite::Add { magnitude: 2.0, eps: 0.0 }),
        };
        let n = width / n_embd;
        cx.workers.install(|| {
            let tasks =
                x.par_chunks_mut(ROWS_PER_TASK * width).zip(branch.par_chunks(ROWS_PER_TASK * n_embd));
            tasks.zip(weights.par_chunks(ROWS_PER_TASK * n_weights)).run_with_scratch(&|scratch,
                                                                                        (
                (x, branch),
                weights,
            )| {
                cx.clock.time(WorkKind::Activation, || {
                    let rows = x.chunks_mut(width).zip(branch.chunks(n_embd)).zip(weights.chunks(n_weights));
                    for ((x, branch), weights) in rows {
                        let (own, matrix) = weights[first..].split_at(n);
                        if matches!(write, StreamsWrite::Mix { .. }) {
                            mix(level, x, matrix, n, scratch);
                        }
                        for (stream, &weight) in x.chunks_mut(n_embd).zip(own) {
                            math::add_scaled(level, stream, branch, weight);
                        }
                    }
                });
            });
        });
    }
}

/// Turns products into weights: those of reading, those of writing, and the mixing matrix from streams to streams.
fn finish_weights(weights: &mut [f32], n: usize, base: &[f32], scale: &[f32], eps: f32, write: StreamsWrite) {
    for (at, (weight, base)) in weights.iter_mut().zip(base).enumerate() {
        *weight = *weight * scale[(at / n).min(scale.len() - 1)] + base;
    }
    let (reads, rest) = weights.split_at_mut(n);
    for weight in reads {
        *weight = scalar::sigmoid(*weight) + eps;
    }
    let (magnitude, more) = match write {
        StreamsWrite::None => return,
        StreamsWrite::Add { magnitude, eps } => (magnitude, eps),
        StreamsWrite::Mix { .. } => (2.0, 0.0),
    };
    let (writes, matrix) = rest.split_at_mut(n);
    for weight in writes {
        *weight = magnitude * scalar::sigmoid(*weight) + more;
    }
    if let StreamsWrite::Mix { iterations } = write {
        sinkhorn(matrix, n, eps, iterations);
    }
}

/// Makes `[from, to]` doubly stochastic: a softmax of the rows, then columns, and alternately rows and columns, are
/// divided by their sums (Sinkhorn and Knopp 1967; DeepSeek-V4, `hc_split_sinkhorn`).
fn sinkhorn(matrix: &mut [f32], n: usize, eps: f32, iterations: usize) {
    for row in matrix.chunks_mut(n) {
        let peak = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for x in row.iter_mut() {
            *x = scalar::exp(*x - peak);
        }
        let sum: f32 = row.iter().sum();
        for x in row.iter_mut() {
            *x = *x / sum + eps;
        }
    }
    for round in 0..iterations {
        if round > 0 {
            for row in matrix.chunks_mut(n) {
                let sum = row.iter().sum::<f32>() + eps;
                for x in row.iter_mut() {
                    *x /= sum;
                }
            }
        }
        for col in 0..n {
            let sum = matrix.iter().skip(col).step_by(n).sum::<f32>() + eps;
            matrix.iter_mut().skip(col).step_by(n).for_each(|x| *x /= sum);
        }
    }
}

/// Mixes the streams of a token: `x_d = Σ_s C_sd x_s`.
fn mix(level: SimdLevel, x: &mut [f32], matrix: &[f32], n: usize, scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(x);
    x.fill(0.0);
    let n_embd = x.len() / n;
    for (to, stream) in x.chunks_mut(n_embd).enumerate() {
        for (from, row) in scratch.chunks(n_embd).zip(matrix.chunks(n)) {
            math::add_scaled(level, stream, from, row[to]);
        }
    }
}

/// Largest number of Sinkhorn iterations, more than any model has.
const MOST_ITERATIONS: usize = 1000;
/// Largest number of streams, more than any model has.
const MOST_STREAMS: usize = 256;

fn has_streams(b: &Resolver<'_>) -> bool {
    b.features.residual == ResidualRule::Hyper
}

/// Returns the number of streams, whose width together is a `usize`.
fn n_streams(b: &Resolver<'_>) -> Result<usize> {
    let key = "hyper_connection.count";
    let n = b.keys.need_count(key)?;
    match n.checked_mul(b.n_embd) {
        Some(_) if (2..=MOST_STREAMS).contains(&n) => Ok(n),
        _ => Err(b.keys.unknown(key, "from 2 to 256", &n.to_string())),
    }
}

/// Resolves the n-gram embeddings that are added to the streams before a layer, if the model has several streams.
pub(crate) fn stream_ngrams(b: &mut Resolver<'_>, layer: usize) -> Result<Option<Box<Ngrams>>> {
    if !has_streams(b) {
        return Ok(None);
    }
    let n = n_streams(b)?;
    Ngrams::resolve(b, layer, n)
}

impl LayerConnections {
    /// Resolves the connections of a layer's branches, if the model has several streams.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Option<Box<LayerConnections>>> {
        if !has_streams(b) {
            return Ok(None);
        }
        let mixer = Connection::resolve(b, &format!("blk.{layer}.hc_attn"))?;
        let ffn = Connection::resolve(b, &format!("blk.{layer}.hc_ffn"))?;
        if mixer.norms() != ffn.norms() {
            let tensors =
                vec![format!("blk.{layer}.hc_attn_down.weight"), format!("blk.{layer}.hc_ffn_fn.weight")];
            return Err(EngineError::LeftOver { tensors });
        }
        Ok(Some(Box::new(LayerConnections { mixer, ffn })))
    }
}

impl Connection {
    /// Resolves the connection whose tensors' names begin with `name`.
    pub(crate) fn resolve(b: &mut Resolver<'_>, name: &str) -> Result<Connection> {
        let n = n_streams(b)?;
        if b.tensors.has(&format!("{name}_down.weight")) {
            return GatedStreams::resolve(b, name, n, true).map(Connection::Gated);
        }
        // Without rows for a mixing matrix, the streams are not mixed.
        let n_rows = b.n_rows(&format!("{name}_fn"))?;
        let n_mixed = 2 * n + n * n;
        let write = if n_rows == 2 * n {
            StreamsWrite::Add { magnitude: magnitude(b)?, eps: connection_eps(b)? }
        } else {
            if n_rows != n_mixed {
                b.tensors.need_matrix(&format!("{name}_fn"), n_mixed, n * b.n_embd)?;
            }
            StreamsWrite::Mix { iterations: sinkhorn_iterations(b)? }
        };
        WeighedStreams::resolve(b, name, n, write).map(Connection::Weighed)
    }
}

impl WeighedStreams {
    /// Resolves a connection of `n` streams with one weight per stream.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        name: &str,
        n: usize,
        write: StreamsWrite,
    ) -> Result<WeighedStreams> {
        let (n_weights, n_scales) = match write {
            StreamsWrite::None => (n, 1),
            StreamsWrite::Add { .. } => (2 * n, 2),
            StreamsWrite::Mix { .. } => (2 * n + n * n, 3),
        };
        Ok(WeighedStreams {
            norm: b.free_norm(),
            matrix: b.tensors.need_matrix(&format!("{name}_fn"), n_weights, n * b.n_embd)?,
            base: b.need_vector(&format!("{name}_base.weight"), n_weights)?,
            scale: b.need_vector(&format!("{name}_scale.weight"), n_scales)?,
            eps: connection_eps(b)?,
            write,
        })
    }
}

impl GatedStreams {
    /// Resolves a connection of `n` streams with one weight per value.
    pub(crate) fn resolve(b: &mut Resolver<'_>, name: &str, n: usize, writes: bool) -> Result<GatedStreams> {
        let width = n * b.n_embd;
        let rank = b.keys.need_count("hyper_connection.low_rank")?;
        let weight = b.need_vector(&format!("{name}_norm.weight"), width)?;
        let inject =
            writes.then(|| b.tensors.need_matrix(&format!("{name}_inject"), n, width)).transpose()?;
        Ok(GatedStreams {
            norm: Norm { weight: Some(weight), ..b.free_norm() },
            down: b.tensors.need_matrix(&format!("{name}_down"), rank, width)?,
            up: b.tensors.need_matrix(&format!("{name}_up"), width, rank)?,
            inject,
        })
    }
}

fn connection_eps(b: &Resolver<'_>) -> Result<f32> {
    let key = "hyper_connection.epsilon";
    b.keys.number(key)?.map(|eps| eps as f32).ok_or_else(|| b.keys.missing(key))
}

/// Reads the factor of the weights of writing.
pub(crate) fn magnitude(b: &Resolver<'_>) -> Result<f32> {
    let key = "hyper_connection.magnitude";
    b.keys.number(key)?.map(|magnitude| magnitude as f32).ok_or_else(|| b.keys.missing(key))
}

pub(crate) fn sinkhorn_iterations(b: &Resolver<'_>) -> Result<usize> {
    let key = "hyper_connection.sinkhorn_iterations";
    let n = b.keys.need_count(key)?;
    if n > MOST_ITERATIONS {
        return Err(b.keys.unknown(key, "at most 1000", &n.to_string()));
    }
    Ok(n)
}

#[cfg(test)]
mod tests;
