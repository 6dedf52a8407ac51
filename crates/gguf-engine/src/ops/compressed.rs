//! Compressed attention (DeepSeek-V4): attention to a window of tokens and, before it, to compressed rows, each
//! of several tokens. Key and value of a token are one row, which all heads share.

use std::ops::Range;

use rayon::prelude::*;

use crate::exec::batch::{ChunkBatch, TokenPlace};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::mask::Mask;
use crate::exec::math::{self, SoftmaxRow};
use crate::exec::matmul::TileGrid;
use crate::exec::product::Product;
use crate::exec::rope::PairLayout;
use crate::exec::scalar;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::exec::workers::{ROWS_PER_TASK, Tasks, lend};
use crate::ops::compressed;
use crate::ops::kept::{Kept, Reach};
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::mla::Latent;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};

/// Compressor of several tokens into one row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compressor {
    /// Number of tokens per row.
    pub ratio: usize,
    /// True if a row is made of twice as many tokens, including those of the row before. Rows of `kv`, `score` and
    /// `places` then have two halves, the first for the next compressed row.
    pub overlaps: bool,
    /// Projection of the values that are mixed.
    pub kv: Matrix,
    /// Projection of the scores, one for each value of a token.
    pub score: Matrix,
    /// Bias of the scores by the token's position in its group, one row per position.
    pub places: Vector,
    /// Norm of the compressed row.
    pub norm: Norm,
}

/// Attention to a window of tokens and to compressed rows.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedAttention {
    /// Projection of the queries' latent row, and its norm.
    pub(crate) q_latent: Latent,
    /// Queries from the latent row.
    pub q: Matrix,
    /// Norm of each head's query.
    pub q_norm: Norm,
    /// Projection of the keys, which are also the values.
    pub kv: Matrix,
    /// Norm of the keys.
    pub(crate) kv_norm: Norm,
    /// Compressor, in layers that have one.
    pub(crate) compressor: Option<Compressor>,
    /// Low-rank output projections, one per group of heads.
    pub narrow: Vec<Matrix>,
    /// Output projection of all low-rank rows together.
    pub out: Matrix,
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Index into the plan's rotations; rotates the ends of queries and keys, and rotates outputs back.
    pub rope: usize,
    /// Width of the rotated ends.
    pub(crate) n_rotated: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Attention sinks: one extra logit per head that takes probability and has no value.
    pub sinks: Option<Vector>,
    /// Window of visible tokens.
    pub mask: Mask,
}

/// Returns the bytes of a thread's buffers for chunks of this length: a row of scores.
pub(crate) fn buffer_bytes(a: &CompressedAttention, chunk_len: usize) -> usize {
    let rows = a.compressor.as_ref().map_or(0, |c| chunk_len / c.ratio);
    4 * (chunk_len + rows + 2 * a.head_dim)
}

/// Compressed rows of a batch.
struct CompressedRows {
    values: Buffer,
    /// First row of every chunk, followed by the number of rows.
    cuts: Vec<usize>,
    ratio: usize,
}

/// Rows that queries attend to, which are keys and values.
#[derive(Clone, Copy)]
struct VisibleRows<'a> {
    /// One row per token.
    tokens: &'a [f32],
    compressed: Option<&'a CompressedRows>,
}

impl MixerOp for CompressedAttention {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_wanted, width) = (batch.n_wanted(), self.q.n_rows);
        let places = batch.select(&batch.places, 1);
        let q = compressed_queries(cx, self, batch, x, &places)?;
        cx.slot("q", &q, width);
        let mut kv = cx.take(batch.n_tokens() * self.head_dim);
        cx.products(x, batch.n_tokens(), vec![Product::plain(&self.kv, &mut kv)])?;
        cx.norm_in_place(Some(&self.kv_norm), &mut kv, self.head_dim)?;
        rotate_ends(cx, self, &batch.places, &mut kv, self.head_dim, false);
        cx.slot("k", &kv, self.head_dim);
        let rows = self.compressor.as_ref().map(|c| compress(cx, self, c, batch, x)).transpose()?;
        let mut context = cx.take(n_wanted * width);
        let visible = VisibleRows { tokens: &kv, compressed: rows.as_ref() };
        mix_compressed(cx, self, batch, &q, visible, &mut context)?;
        rotate_ends(cx, self, &places, &mut context, width, true);
        cx.slot("attention", &context, width);
        cx.give([q, kv]);
        if let Some(rows) = rows {
            cx.give([rows.values]);
        }
        narrow_output(cx, self, n_wanted, &context, out)?;
        cx.give([context]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, _: usize) -> Result<usize, &'static str> {
        Err("its attention looks at compressed rows of earlier tokens")
    }

    fn kept(&self) -> Kept {
        let window = Kept::rows(1, self.head_dim, 0, Reach::of(self.mask));
        match &self.compressor {
            Some(compressor) => window.and(Kept::rows(1, self.head_dim, 0, Reach::OnePer(compressor.ratio))),
            None => window,
        }
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        compressed::buffer_bytes(self, chunk_len)
    }
}

/// Computes the queries of the wanted tokens, normed and rotated.
fn compressed_queries(
    cx: &Context<'_>,
    a: &CompressedAttention,
    batch: &ChunkBatch,
    x: &[f32],
    places: &[TokenPlace],
) -> Result<Buffer> {
    let width = a.q.n_rows;
    let mut q = cx.take(batch.n_wanted() * width);
    a.q_latent.expand(cx, &a.q, batch, x, &mut q)?;
    cx.norm_parts(&cx.weights.norm(&a.q_norm)?, &mut q, width, a.n_heads);
    rotate_ends(cx, a, places, &mut q, width, false);
    Ok(q)
}

/// Rotates the ends of all heads of each row, or rotates them back.
fn rotate_ends(
    cx: &Context<'_>,
    a: &CompressedAttention,
    places: &[TokenPlace],
    x: &mut [f32],
    n_cols: usize,
    is_back: bool,
) {
    let pairs = cx.ropes.pairs(a.rope);
    cx.workers.install(|| {
        let tasks = x.par_chunks_mut(ROWS_PER_TASK * n_cols).zip(places.par_chunks(ROWS_PER_TASK));
        tasks.run(&|(rows, places)| {
            cx.clock.time(WorkKind::Rotate, || {
                for (row, place) in rows.chunks_mut(n_cols).zip(places) {
                    let table = cx.ropes.table(a.rope, place.chunk_len as usize);
                    for head in row.chunks_mut(a.head_dim) {
                        let end = &mut head[a.head_dim - a.n_rotated..];
                        // The inverse of a rotation is the rotation between two reflections.
                        if is_back {
                            reflect(pairs, end);
                        }
                        table.rotate(cx.weights.level, end, a.n_rotated, place.position as usize);
                        if is_back {
                            reflect(pairs, end);
                        }
                    }
                }
            });
        });
    });
}

/// Computes the compressed rows of every chunk.
fn compress(
    cx: &Context<'_>,
    a: &CompressedAttention,
    c: &Compressor,
    batch: &ChunkBatch,
    x: &[f32],
) -> Result<CompressedRows> {
    let (n_tokens, width, dim) = (batch.n_tokens(), c.kv.n_rows, a.head_dim);
    let [mut kv, mut score] = [(); 2].map(|()| cx.take(n_tokens * width));
    let products = vec![Product::plain(&c.kv, &mut kv), Product::plain(&c.score, &mut score)];
    cx.products(x, n_tokens, products)?;
    let inputs = CompressorInputs { kv: &kv, score: &score, by_position: &cx.weights.vector(&c.places)? };
    let mut cuts = vec![0];
    let (mut places, mut firsts) = (Vec::new(), Vec::new());
    for cut in batch.cuts.windows(2) {
        let chunk_len = (cut[1] - cut[0]) as u32;
        for row in 0..(cut[1] - cut[0]) / c.ratio {
            places.push(TokenPlace { position: (row * c.ratio) as u32, block: 0, chunk_len });
            // The first row of a chunk has no tokens before it: those belong to another chunk.
            firsts.push((cut[0] + row * c.ratio, c.overlaps && row > 0));
        }
        cuts.push(places.len());
    }
    let mut values = cx.take(places.len() * dim);
    cx.workers.install(|| {
        values.par_chunks_mut(dim).zip(&firsts).run(&|(out, &(first, has_before))| {
            cx.clock.time(WorkKind::Activation, || {
                let tokens =
                    if has_before { first - c.ratio..first + c.ratio } else { first..first + c.ratio };
                compress_row(c, dim, inputs, tokens, first, out);
            });
        });
    });
    cx.give([kv, score]);
    cx.norm_in_place(Some(&c.norm), &mut values, dim)?;
    rotate_ends(cx, a, &places, &mut values, dim, false);
    cx.slot("compressed", &values, dim);
    Ok(CompressedRows { values, cuts, ratio: c.ratio })
}

/// Computes one softmax over the window's tokens and the compressed rows, for each query and head.
fn mix_compressed(
    cx: &Context<'_>,
    a: &CompressedAttention,
    batch: &ChunkBatch,
    q: &[f32],
    visible: VisibleRows<'_>,
    out: &mut [f32],
) -> Result<()> {
    let (dim, level, n_chunks) = (a.head_dim, cx.weights.level, batch.cuts.len() - 1);
    let sinks = cx.weights.optional(a.sinks.as_ref())?;
    let mut cuts = vec![0];
    for chunk in 0..n_chunks {
        cuts.push(cuts[chunk] + batch.wanted(chunk).len());
    }
    let columns: Vec<usize> = (0..=a.n_heads).map(|head| head * dim).collect();
    let grid = TileGrid::new(out, a.q.n_rows, cuts.clone(), columns);
    cx.each(n_chunks * a.n_heads, |scratch, task| {
        if cx.progress.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let (chunk, head) = (task / a.n_heads, task % a.n_heads);
        let mut tile = grid.take(chunk, head);
        let start = batch.cuts[chunk];
        let sink = sinks.as_ref().map(|sinks| sinks[head]);
        cx.clock.time(WorkKind::Attention, || {
            for (at, token) in batch.wanted(chunk).enumerate() {
                let position = token - start;
                let query = &q[(cuts[chunk] + at) * a.q.n_rows + head * dim..][..dim];
                let seen = start + a.mask.first_key(position)..start + position + 1;
                let window = &visible.tokens[seen.start * dim..seen.end * dim];
                let older = visible.compressed.map_or(&[][..], |rows| {
                    let first = rows.cuts[chunk];
                    &rows.values[first * dim..(first + (position + 1) / rows.ratio) * dim]
                });
                let scores = lend(&mut scratch.tile, (window.len() + older.len()) / dim);
                let keys = || window.chunks(dim).chain(older.chunks(dim));
                for (score, key) in scores.iter_mut().zip(keys()) {
                    *score = a.scale * dot(query, key);
                }
                let options = SoftmaxRow { cap: None, slope: None, own: 0, bias: None, sink };
                let sum = math::softmax(level, scores, options);
                let out = tile.row_mut(at);
                out.fill(0.0);
                for (score, value) in scores.iter().zip(keys()) {
                    math::add_scaled(level, out, value, (f64::from(*score) / sum) as f32);
                }
            }
        });
        Ok(())
    })
}

/// Projects each group of heads to a low-rank row, and all of these to the output.
fn narrow_output(
    cx: &Context<'_>,
    a: &CompressedAttention,
    n: usize,
    context: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let (width, all) = (a.q.n_rows, a.out.n_cols);
    let mut narrow = cx.take(n * all);
    let mut first = 0;
    for (group, matrix) in a.narrow.iter().enumerate() {
        let mut heads = cx.take(n * matrix.n_cols);
        let mut part = cx.take(n * matrix.n_rows);
        for (to, from) in heads.chunks_mut(matrix.n_cols).zip(context.chunks(width)) {
            to.copy_from_slice(&from[group * matrix.n_cols..][..matrix.n_cols]);
        }
        cx.products(&heads, n, vec![Product::plain(matrix, &mut part)])?;
        for (to, from) in narrow.chunks_mut(all).zip(part.chunks(matrix.n_rows)) {
            to[first..first + matrix.n_rows].copy_from_slice(from);
        }
        first += matrix.n_rows;
        cx.give([heads, part]);
    }
    cx.products(&narrow, n, vec![Product::plain(&a.out, out)])?;
    cx.give([narrow]);
    Ok(())
}

/// Negates the second value of each pair.
fn reflect(pairs: PairLayout, x: &mut [f32]) {
    let half = x.len() / 2;
    match pairs {
        PairLayout::Interleaved => x.iter_mut().skip(1).step_by(2).for_each(|x| *x = -*x),
        PairLayout::Half | PairLayout::HalfBetween => x.iter_mut().skip(half).for_each(|x| *x = -*x),
    }
}

/// Inputs of a compressor, in rows as wide as its projections.
#[derive(Clone, Copy)]
struct CompressorInputs<'a> {
    /// Values of every token.
    kv: &'a [f32],
    /// Scores of every token's values.
    score: &'a [f32],
    /// Bias of the scores, by position in the group.
    by_position: &'a [f32],
}

/// Computes one compressed row, before its norm, from `tokens`; those from `first` on are its own.
fn compress_row(
    c: &Compressor,
    dim: usize,
    inputs: CompressorInputs<'_>,
    tokens: Range<usize>,
    first: usize,
    out: &mut [f32],
) {
    let CompressorInputs { kv, score, by_position } = inputs;
    let width = c.kv.n_rows;
    // Of tokens before its own, a row uses the first half.
    let half = |token: usize| if c.overlaps && token >= first { dim } else { 0 };
    let group_position = |token: usize| if token >= first { token - first } else { token + c.ratio - first };
    for (value, out) in out.iter_mut().enumerate() {
        let of = |token: usize| {
            let at = half(token) + value;
            (
                score[token * width + at] + by_position[group_position(token) * width + at],
                kv[token * width + at],
            )
        };
        let peak = tokens.clone().map(|token| of(token).0).fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut mixed) = (0.0f64, 0.0f64);
        for token in tokens.clone() {
            let (score, kv) = of(token);
            let weight = f64::from(scalar::exp(score - peak));
            sum += weight;
            mixed += weight * f64::from(kv);
        }
        *out = (mixed / sum) as f32;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for at in 0..LANES {
            lanes[at] += a[at] * b[at];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

const RATIOS: &str = "attention.compress_ratios";

impl CompressedAttention {
    /// Resolves the attention of a layer; layers whose compression ratio is 0 have no compressor.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<CompressedAttention> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let heads = b.keys.layer_count("attention.head_count", layer)?.filter(|&n| n > 0);
        let n_heads = heads.ok_or_else(|| b.keys.missing("attention.head_count"))?;
        let head_dim = b.keys.need_count("attention.key_length")?;
        let dv = b.keys.need_count("attention.value_length")?;
        if dv != head_dim {
            let expected = "attention.key_length, as keys are the values";
            return Err(b.keys.unknown("attention.value_length", expected, &dv.to_string()));
        }
        let q_latent = Latent::queries(b, layer)?;
        let width = n_heads.saturating_mul(head_dim);
        let mask = b.mask(layer)?;
        if mask.is_global() {
            return Err(b.keys.missing("attention.sliding_window"));
        }
        let ratio = b.keys.layer_count(RATIOS, layer)?.ok_or_else(|| b.keys.missing(RATIOS))?;
        let (compressor, rope) = if ratio == 0 {
            (None, b.rope(layer, mask, head_dim)?)
        } else {
            let compressor = Compressor::resolve(b, layer, ratio, head_dim)?;
            (Some(compressor), Some(b.compressed_rope(head_dim)?))
        };
        let rope = rope.ok_or_else(|| b.keys.missing("rope.dimension_count"))?;
        let n_groups = b.divisor("attention.output_group_count", n_heads)?;
        let n_narrow = b.keys.need_count("attention.output_lora_rank")?;
        let all = n_groups.saturating_mul(n_narrow);
        let parts = b.tensors.need_matrix(&at("attn_output_a"), all, width / n_groups)?;
        Ok(CompressedAttention {
            q: b.tensors.need_matrix(&at("attn_q_b"), width, q_latent.down.n_rows)?,
            q_latent,
            q_norm: b.free_norm(),
            kv: b.tensors.need_matrix(&at("attn_kv"), head_dim, n_embd)?,
            kv_norm: b.need_rms_norm(&at("attn_kv_a_norm"), head_dim)?,
            compressor,
            narrow: (0..n_groups).map(|group| parts.rows(group * n_narrow, n_narrow)).collect(),
            out: b.tensors.need_matrix(&at("attn_output_b"), n_embd, all)?,
            n_heads,
            head_dim,
            n_rotated: b.ropes.get(rope).map_or(0, |rope| rope.n_dims),
            rope,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            sinks: b.tensors.vector(&at("attn_sinks.weight"), n_heads)?,
            mask,
        })
    }
}

impl Compressor {
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        layer: usize,
        ratio: usize,
        width: usize,
    ) -> Result<Compressor> {
        let at = |name: &str| format!("blk.{layer}.attn_compressor_{name}");
        // Only wider rows have a half for the next compressed row.
        let overlaps = b.n_rows(&at("kv"))? != width;
        let n_rows = if overlaps { width.saturating_mul(2) } else { width };
        // An indexer selects some of the compressed rows: all of them, up to the number that it selects.
        if b.tensors.has_under(&format!("blk.{layer}.indexer.")) {
            let n_keys = b.keys.need_count("attention.indexer.top_k")?.saturating_mul(ratio);
            b.chunk_limit = Some(b.chunk_limit.map_or(n_keys, |limit| limit.min(n_keys)));
        }
        Ok(Compressor {
            ratio,
            overlaps,
            kv: b.tensors.need_matrix(&at("kv"), n_rows, b.n_embd)?,
            score: b.tensors.need_matrix(&at("gate"), n_rows, b.n_embd)?,
            places: b.need_vector(&format!("{}.weight", at("ape")), n_rows.saturating_mul(ratio))?,
            norm: b.need_rms_norm(&at("norm"), width)?,
        })
    }
}

#[cfg(test)]
mod tests;
