//! Attention to a window of tokens and to compressed rows (DeepSeek-V4).
//!
//! `q_h = norm(W_b norm(W_a x))_h`, `k = norm(W_kv x)`, the ends of both rotated. Row `b` stands for the tokens
//! `b r .. (b+1) r`: value by value it is `norm(Σ_t softmax_t(s_t + p_(t mod r)) c_t)` with `c = W_c x`, `s = W_s x`, rotated
//! as a token at `b r`; where rows overlap, `c`, `s` and `p` have two halves, and the first half of the tokens of row `b - 1`
//! counts beside the second half of those of row `b`. The query at `i` sees the tokens of its window and the rows with
//! `(b+1) r <= i + 1`, by one softmax; each `k` is its own value, so that what is summed is rotated back by `i`.

use std::ops::Range;

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::ops::math::{self, SoftmaxRow};
use crate::engine::ops::matmul::TileGrid;
use crate::engine::ops::product::Product;
use crate::engine::plan::{CompressedAttention, Compressor, PairLayout};
use crate::engine::run::batch::{ChunkBatch, TokenPlace};
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;
use crate::engine::run::workers::lend;

/// Rows that one task rotates.
const ROWS_PER_TASK: usize = 64;

/// Bytes of a thread's buffers for chunks of this length: a row of scores.
pub(crate) fn buffer_bytes(a: &CompressedAttention, chunk_len: usize) -> usize {
    let rows = a.compressor.as_ref().map_or(0, |c| chunk_len / c.ratio);
    4 * (chunk_len + rows + 2 * a.head_dim)
}

/// Compressed rows of a batch.
struct Rows {
    values: Buffer,
    /// First row of every chunk, and the number of rows.
    cuts: Vec<usize>,
    ratio: usize,
}

impl Runner<'_> {
    /// The attention of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn compressed_attention(
        &self,
        a: &CompressedAttention,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_wanted, width) = (batch.n_wanted(), a.q.n_rows);
        let places = batch.select(&batch.places, 1);
        let q = self.compressed_queries(a, batch, x, &places)?;
        self.slot("q", &q, width);
        let mut kv = self.take(batch.n_tokens() * a.head_dim);
        self.products(x, batch.n_tokens(), vec![Product::plain(&a.kv, &mut kv)])?;
        self.norm_in_place(Some(&a.kv_norm), &mut kv, a.head_dim)?;
        self.rotate_ends(a, &batch.places, &mut kv, a.head_dim, false);
        self.slot("k", &kv, a.head_dim);
        let rows = a.compressor.as_ref().map(|c| self.compress(a, c, batch, x)).transpose()?;
        let mut context = self.take(n_wanted * width);
        self.mix_compressed(a, batch, (&q, &kv), rows.as_ref(), &mut context)?;
        self.rotate_ends(a, &places, &mut context, width, true);
        self.slot("attention", &context, width);
        self.give([q, kv]);
        if let Some(rows) = rows {
            self.give([rows.values]);
        }
        self.narrow_output(a, n_wanted, &context, out)?;
        self.give([context]);
        Ok(())
    }

    fn compressed_queries(
        &self,
        a: &CompressedAttention,
        batch: &ChunkBatch,
        x: &[f32],
        places: &[TokenPlace],
    ) -> Result<Buffer, EngineError> {
        let (n, rank, width) = (batch.n_wanted(), a.q_latent.down.n_rows, a.q.n_rows);
        let mut short = self.take(n * rank);
        let input = batch.select(x, a.q_latent.down.n_cols);
        self.products(&input, n, vec![Product::plain(&a.q_latent.down, &mut short)])?;
        self.norm_in_place(Some(&a.q_latent.norm), &mut short, rank)?;
        let mut q = self.take(n * width);
        self.products(&short, n, vec![Product::plain(&a.q, &mut q)])?;
        self.give([short]);
        self.norm_parts(&self.weights.norm(&a.q_norm)?, &mut q, width, a.n_heads);
        self.rotate_ends(a, places, &mut q, width, false);
        Ok(q)
    }

    /// Rotates the ends of all heads of each row, or rotates them back.
    fn rotate_ends(
        &self,
        a: &CompressedAttention,
        places: &[TokenPlace],
        x: &mut [f32],
        n_cols: usize,
        is_back: bool,
    ) {
        let pairs = self.plan.ropes[a.rope].pairs;
        self.workers.install(|| {
            let tasks = x.par_chunks_mut(ROWS_PER_TASK * n_cols).zip(places.par_chunks(ROWS_PER_TASK));
            tasks.for_each(|(rows, places)| {
                self.clock.time(WorkKind::Rotate, || {
                    for (row, place) in rows.chunks_mut(n_cols).zip(places) {
                        let table = self.ropes.table(a.rope, place.chunk_len as usize);
                        for head in row.chunks_mut(a.head_dim) {
                            let end = &mut head[a.head_dim - a.n_rotated..];
                            // Back is forth between two reflections.
                            if is_back {
                                reflect(pairs, end);
                            }
                            table.rotate(self.weights.level, end, a.n_rotated, place.position as usize);
                            if is_back {
                                reflect(pairs, end);
                            }
                        }
                    }
                });
            });
        });
    }

    /// The compressed rows of every chunk.
    fn compress(
        &self,
        a: &CompressedAttention,
        c: &Compressor,
        batch: &ChunkBatch,
        x: &[f32],
    ) -> Result<Rows, EngineError> {
        let (n_tokens, width, dim) = (batch.n_tokens(), c.kv.n_rows, a.head_dim);
        let [mut kv, mut score] = [(); 2].map(|()| self.take(n_tokens * width));
        let products = vec![Product::plain(&c.kv, &mut kv), Product::plain(&c.score, &mut score)];
        self.products(x, n_tokens, products)?;
        let by_place = self.weights.vector(&c.places)?;
        let mut cuts = vec![0];
        let (mut places, mut firsts) = (Vec::new(), Vec::new());
        for cut in batch.cuts.windows(2) {
            let chunk_len = (cut[1] - cut[0]) as u32;
            for row in 0..(cut[1] - cut[0]) / c.ratio {
                places.push(TokenPlace { position: (row * c.ratio) as u32, block: 0, chunk_len });
                // The tokens before those of a chunk's first row are another's.
                firsts.push((cut[0] + row * c.ratio, c.overlaps && row > 0));
            }
            cuts.push(places.len());
        }
        let mut values = self.take(places.len() * dim);
        self.workers.install(|| {
            values.par_chunks_mut(dim).zip(&firsts).for_each(|(out, &(first, has_before))| {
                self.clock.time(WorkKind::Activation, || {
                    let tokens =
                        if has_before { first - c.ratio..first + c.ratio } else { first..first + c.ratio };
                    compress_row(c, dim, (&kv, &score, &by_place), tokens, first, out);
                });
            });
        });
        self.give([kv, score]);
        self.norm_in_place(Some(&c.norm), &mut values, dim)?;
        self.rotate_ends(a, &places, &mut values, dim, false);
        self.slot("compressed", &values, dim);
        Ok(Rows { values, cuts, ratio: c.ratio })
    }

    /// One softmax over the tokens of the window and the compressed rows, for each query and head.
    fn mix_compressed(
        &self,
        a: &CompressedAttention,
        batch: &ChunkBatch,
        (q, kv): (&[f32], &[f32]),
        rows: Option<&Rows>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (dim, level, n_chunks) = (a.head_dim, self.weights.level, batch.cuts.len() - 1);
        let sinks = self.weights.optional(a.sinks.as_ref())?;
        let mut cuts = vec![0];
        for chunk in 0..n_chunks {
            cuts.push(cuts[chunk] + batch.wanted(chunk).len());
        }
        let columns: Vec<usize> = (0..=a.n_heads).map(|head| head * dim).collect();
        let grid = TileGrid::new(out, a.q.n_rows, cuts.clone(), columns);
        self.workers.each(n_chunks * a.n_heads, |scratch, task| {
            if self.progress.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let (chunk, head) = (task / a.n_heads, task % a.n_heads);
            let mut tile = grid.take(chunk, head);
            let start = batch.cuts[chunk];
            let sink = sinks.as_ref().map(|sinks| sinks[head]);
            self.clock.time(WorkKind::Attention, || {
                for (at, token) in batch.wanted(chunk).enumerate() {
                    let position = token - start;
                    let query = &q[(cuts[chunk] + at) * a.q.n_rows + head * dim..][..dim];
                    let window =
                        &kv[(start + a.mask.first_key(position)) * dim..(start + position + 1) * dim];
                    let older = rows.map_or(&[][..], |rows| {
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

    /// Each group of heads makes a narrow row, and all of them the output.
    fn narrow_output(
        &self,
        a: &CompressedAttention,
        n: usize,
        context: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (width, all) = (a.q.n_rows, a.out.n_cols);
        let mut narrow = self.take(n * all);
        let mut first = 0;
        for (group, matrix) in a.narrow.iter().enumerate() {
            let mut heads = self.take(n * matrix.n_cols);
            let mut part = self.take(n * matrix.n_rows);
            for (to, from) in heads.chunks_mut(matrix.n_cols).zip(context.chunks(width)) {
                to.copy_from_slice(&from[group * matrix.n_cols..][..matrix.n_cols]);
            }
            self.products(&heads, n, vec![Product::plain(matrix, &mut part)])?;
            for (to, from) in narrow.chunks_mut(all).zip(part.chunks(matrix.n_rows)) {
                to[first..first + matrix.n_rows].copy_from_slice(from);
            }
            first += matrix.n_rows;
            self.give([heads, part]);
        }
        self.products(&narrow, n, vec![Product::plain(&a.out, out)])?;
        self.give([narrow]);
        Ok(())
    }
}

/// Turns the second of each pair around.
fn reflect(pairs: PairLayout, x: &mut [f32]) {
    let half = x.len() / 2;
    match pairs {
        PairLayout::Interleaved => x.iter_mut().skip(1).step_by(2).for_each(|x| *x = -*x),
        PairLayout::Half | PairLayout::HalfBetween => x.iter_mut().skip(half).for_each(|x| *x = -*x),
    }
}

/// One compressed row, before its norm: of `tokens`, of which those from `first` on are its own.
fn compress_row(
    c: &Compressor,
    dim: usize,
    (kv, score, by_place): (&[f32], &[f32], &[f32]),
    tokens: Range<usize>,
    first: usize,
    out: &mut [f32],
) {
    let width = c.kv.n_rows;
    // Of tokens before its own a row takes the first half.
    let half = |token: usize| if c.overlaps && token >= first { dim } else { 0 };
    let place = |token: usize| if token >= first { token - first } else { token + c.ratio - first };
    for (value, out) in out.iter_mut().enumerate() {
        let of = |token: usize| {
            let at = half(token) + value;
            (score[token * width + at] + by_place[place(token) * width + at], kv[token * width + at])
        };
        let peak = tokens.clone().map(|token| of(token).0).fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut mixed) = (0.0f64, 0.0f64);
        for token in tokens.clone() {
            let (score, kv) = of(token);
            let weight = f64::from(math::exp(score - peak));
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

#[cfg(test)]
mod tests;
