//! Heads of softmax attention: tiles of queries with all keys that they see. In long chunks, tiles of queries with one
//! tile of keys after another and a running (online) softmax, so that a thread's buffers do not grow with the chunk.

use std::ops::Range;

use crate::exec::decode::transpose;
use crate::exec::mask::Mask;
use crate::exec::math::{self, RunningSoftmax, SoftmaxRow};
use crate::exec::matmul::{MatrixTile, MatrixView, multiply, multiply_add};
use crate::exec::timings::{Clock, WorkKind};
use crate::exec::weights::Vector;
use crate::exec::workers::{WorkerBuffers, lend};
use crate::ops::attention::{Attention, rows_of_head};
use crate::ops::relative::{RelativeBias, RelativeScores};
use gguf_core::simd::SimdLevel;

/// Number of queries per tile: keys beyond the tile's last query are never computed. A multiple of the kernels' width.
const QUERY_ROWS: usize = 96;
/// Keys are computed in multiples of this, so that kernels work on whole vectors; the scores beyond the last key are
/// ignored.
pub(crate) const KEY_ROWS: usize = 16;
/// Longest chunk whose keys are processed together: a tile of scores still fits a core's L2 cache.
pub(crate) const WHOLE_KEYS: usize = 2048;
/// Number of keys per tile in longer chunks; a multiple of [`KEY_ROWS`].
const TILE_KEYS: usize = 1024;
/// Number of queries of a long chunk per task: enough that transposing a tile of keys costs little compared with using
/// it.
pub(crate) const PART_QUERIES: usize = 8 * QUERY_ROWS;

/// Parameters of the scores and the softmax, independent of the source of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreParams<'a> {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) dk: usize,
    pub(crate) dv: usize,
    pub(crate) scale: f32,
    pub(crate) cap: Option<f32>,
    pub(crate) mask: Mask,
    pub(crate) sinks: Option<&'a Vector>,
    pub(crate) alibi: Option<&'a [f32]>,
    pub(crate) relative: Option<&'a RelativeBias>,
}

impl Attention {
    pub(crate) fn scores(&self) -> ScoreParams<'_> {
        ScoreParams {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            dk: self.dk,
            dv: self.dv,
            scale: self.scale,
            cap: self.cap,
            mask: self.mask,
            sinks: self.sinks.as_ref(),
            alibi: self.alibi.as_deref(),
            relative: self.relative.as_ref(),
        }
    }
}

/// Returns the bytes of a thread's buffers for chunks of this length.
pub(crate) fn buffer_bytes(a: &ScoreParams<'_>, chunk_len: usize) -> usize {
    let keys = if chunk_len <= WHOLE_KEYS { chunk_len.next_multiple_of(KEY_ROWS) } else { TILE_KEYS };
    let running = if chunk_len <= WHOLE_KEYS { 0 } else { PART_QUERIES * a.n_heads / a.n_kv_heads.max(1) };
    // The bias by relative position is shared but small: it is counted for each thread.
    let relative = a.relative.map_or(0, |_| 8 * a.n_heads * chunk_len);
    4 * (QUERY_ROWS + a.dk + a.dv) * keys + size_of::<RunningSoftmax>() * running + relative
}

/// State that the heads of a layer share.
pub(crate) struct AttentionHeads<'a> {
    pub(crate) a: ScoreParams<'a>,
    pub(crate) level: SimdLevel,
    pub(crate) clock: &'a Clock,
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) relative: Option<RelativeScores>,
}

/// Queries of one chunk, with the keys and values that the query heads of one key-value head see.
pub(crate) struct Queries<'a> {
    pub(crate) kv_head: usize,
    /// Position of the first query in the chunk.
    pub(crate) first: usize,
    pub(crate) n: usize,
    /// Number of tokens of the chunk's prefix, which see one another.
    pub(crate) prefix: usize,
    pub(crate) mask: Mask,
    pub(crate) n_chunk_keys: usize,
    /// All heads of these queries; rows of other queries may follow.
    pub(crate) rows: &'a [f32],
    /// Keys and values from the chunk's first key to the last that any of the queries sees.
    pub(crate) kv: HeadKv<'a>,
}

/// Keys and values of one head.
#[derive(Clone, Copy)]
pub(crate) enum HeadKv<'a> {
    /// Keys and values as rows, interleaved with those of other heads.
    Rows(MatrixView<'a>, MatrixView<'a>),
    /// Keys and values in the layout that the products read.
    Columns(GatheredKv<'a>),
}

/// Keys as columns, followed by columns without meaning, and values as contiguous rows.
#[derive(Clone, Copy)]
pub(crate) struct GatheredKv<'a> {
    pub(crate) keys: MatrixView<'a>,
    pub(crate) values: MatrixView<'a>,
}

impl Queries<'_> {
    /// Returns the position after the last key that the query at `position` sees.
    fn end(&self, position: usize) -> usize {
        self.mask.end_key(position, self.n_chunk_keys).max(self.prefix)
    }

    /// Iterates over the tiles of queries, counted from the first query.
    fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let n = self.n;
        (0..n).step_by(QUERY_ROWS).map(move |first| first..(first + QUERY_ROWS).min(n))
    }
}

impl AttentionHeads<'_> {
    /// Returns the query heads that use a key-value head.
    fn group(&self, kv_head: usize) -> Range<usize> {
        let n = self.a.n_heads / self.a.n_kv_heads;
        kv_head * n..(kv_head + 1) * n
    }

    fn softmax_row(&self, head: usize) -> SoftmaxRow<'_> {
        SoftmaxRow {
            cap: self.a.cap.map(|cap| (self.a.scale, cap)),
            slope: self.a.alibi.map(|slopes| slopes[head]),
            own: 0,
            bias: None,
            sink: self.sinks.as_ref().map(|sinks| sinks[head]),
        }
    }

    /// Returns the softmax parameters of the query at `position` with these keys.
    fn at<'h>(
        &'h self,
        row: SoftmaxRow<'h>,
        head: usize,
        position: usize,
        keys: Range<usize>,
    ) -> SoftmaxRow<'h> {
        let bias = self.relative.as_ref().map(|bias| bias.row(head, position, keys.start, keys.len()));
        SoftmaxRow { own: position as isize - keys.start as isize, bias, ..row }
    }

    /// Computes the scores of a tile of queries with keys, `[n, width]`.
    fn scores<'s>(
        &self,
        queries: &Queries<'_>,
        tile: &Range<usize>,
        head: usize,
        keys: MatrixView<'_>,
        scores: &'s mut Vec<f32>,
    ) -> &'s mut [f32] {
        let rows = rows_of_head(queries.rows, tile.start, tile.len(), head, self.a.n_heads, self.a.dk);
        // With a cap, the softmax scales scores before it caps them.
        let scale = if self.a.cap.is_some() { 1.0 } else { self.a.scale };
        let scores = lend(scores, tile.len() * keys.n_cols());
        self.clock.time(WorkKind::Attention, || {
            multiply(&mut MatrixTile::whole(scores, tile.len(), keys.n_cols()), rows, keys, scale);
        });
        scores
    }

    /// Copies keys to columns, followed by columns without meaning, and values to contiguous rows. In the layout of all
    /// heads, rows are often a power of two apart, and values that every tile of queries needs would evict one another
    /// from the caches.
    fn gathered<'k>(
        &self,
        keys: MatrixView<'_>,
        values: MatrixView<'_>,
        out: &'k mut Vec<f32>,
    ) -> GatheredKv<'k> {
        let (n, dk, dv) = (keys.n_rows(), self.a.dk, self.a.dv);
        let width = n.next_multiple_of(KEY_ROWS);
        let (columns, rows) = lend(out, dk * width + n * dv).split_at_mut(dk * width);
        self.clock.time(WorkKind::Attention, || {
            transpose(keys, &mut MatrixTile::whole(columns, dk, width));
            for (at, row) in rows.chunks_mut(dv.max(1)).enumerate() {
                row.copy_from_slice(values.row(at));
            }
        });
        GatheredKv {
            keys: MatrixView::new(columns, dk, width, width),
            values: MatrixView::new(rows, n, dv, dv),
        }
    }

    /// Runs all query heads of a key-value head, each tile of queries with all keys at once.
    pub(crate) fn whole<'o>(
        &self,
        queries: &Queries<'_>,
        out: impl Fn(usize) -> MatrixTile<'o>,
        WorkerBuffers { rows: keys, tile: scores, sums, .. }: &mut WorkerBuffers,
    ) {
        let GatheredKv { keys, values } = match queries.kv {
            HeadKv::Rows(rows, values) => self.gathered(rows, values, keys),
            HeadKv::Columns(gathered) => gathered,
        };
        for head in self.group(queries.kv_head) {
            let options = self.softmax_row(head);
            let mut out = out(head);
            for tile in queries.tiles() {
                let positions = queries.first + tile.start..queries.first + tile.end;
                let first_key = self.a.mask.first_key(positions.start) / KEY_ROWS * KEY_ROWS;
                let n_keys = queries.end(positions.end - 1) - first_key;
                let width = n_keys.next_multiple_of(KEY_ROWS);
                let seen = keys.columns(first_key..first_key + width);
                let scores = self.scores(queries, &tile, head, seen, scores);
                let sums = lend(sums, tile.len());
                self.clock.time(WorkKind::Softmax, || {
                    for ((row, sum), position) in scores.chunks_mut(width).zip(sums.iter_mut()).zip(positions)
                    {
                        let visible =
                            self.a.mask.first_key(position) - first_key..queries.end(position) - first_key;
                        row[..visible.start].fill(0.0);
                        row[visible.end..].fill(0.0);
                        let seen = first_key + visible.start..first_key + visible.end;
                        let options = self.at(options, head, position, seen);
                        *sum = (1.0 / math::softmax(self.level, &mut row[visible], options)) as f32;
                    }
                });
                self.clock.time(WorkKind::Attention, || {
                    let mut out = out.rows_mut(tile.clone());
                    let values = values.rows(first_key..first_key + n_keys);
                    let scores = MatrixView::new(scores, tile.len(), n_keys, width);
                    multiply(&mut out, scores, values, 1.0);
                    for (row, &sum) in sums.iter().enumerate() {
                        out.row_mut(row).iter_mut().for_each(|x| *x *= sum);
                    }
                });
            }
        }
    }

    /// Does the same as [`AttentionHeads::whole`], with one tile of keys after another.
    pub(crate) fn online<'o>(
        &self,
        queries: &Queries<'_>,
        out: impl Fn(usize) -> MatrixTile<'o>,
        buffers: &mut WorkerBuffers,
    ) {
        let HeadKv::Rows(all_keys, all_values) = queries.kv else {
            return self.whole(queries, out, buffers);
        };
        let WorkerBuffers { rows: gathered, tile: scores, sums, .. } = buffers;
        if queries.n == 0 {
            return;
        }
        let mut heads: Vec<OnlineHead<'_>> = self
            .group(queries.kv_head)
            .map(|head| OnlineHead::new(head, self.softmax_row(head), out(head), queries.n))
            .collect();
        let first = self.a.mask.first_key(queries.first) / KEY_ROWS * KEY_ROWS;
        let end = all_keys.n_rows();
        for first in (first..end).step_by(TILE_KEYS) {
            let seen = first..(first + TILE_KEYS).min(end);
            let kv = self.gathered(all_keys.rows(seen.clone()), all_values.rows(seen.clone()), gathered);
            let keys = KeyTile { seen, kv };
            for head in &mut heads {
                for tile in queries.tiles() {
                    self.online_tile(queries, &tile, &keys, head, scores, sums);
                }
            }
        }
        self.clock.time(WorkKind::Attention, || {
            for head in &mut heads {
                for (row, running) in head.running.iter().enumerate() {
                    let share = (1.0 / running.sum) as f32;
                    head.out.row_mut(row).iter_mut().for_each(|x| *x *= share);
                }
            }
        });
    }

    /// Adds one tile of keys to one tile of queries of a head.
    fn online_tile(
        &self,
        queries: &Queries<'_>,
        tile: &Range<usize>,
        keys: &KeyTile<'_>,
        head: &mut OnlineHead<'_>,
        scores: &mut Vec<f32>,
        shrinks: &mut Vec<f32>,
    ) {
        let KeyTile { seen, kv } = keys;
        let positions = queries.first + tile.start..queries.first + tile.end;
        let first = (self.a.mask.first_key(positions.start) / KEY_ROWS * KEY_ROWS).max(seen.start);
        let end = queries.end(positions.end - 1).min(seen.end);
        if first >= end {
            return;
        }
        let (n, n_keys) = (tile.len(), end - first);
        let width = n_keys.next_multiple_of(KEY_ROWS);
        let keys = kv.keys.columns(first - seen.start..first - seen.start + width);
        let scores = self.scores(queries, tile, head.at, keys, scores);
        let shrinks = lend(shrinks, n);
        let running = &mut head.running[tile.clone()];
        self.clock.time(WorkKind::Softmax, || {
            let rows = scores.chunks_mut(width).zip(shrinks.iter_mut()).zip(running).zip(positions);
            for (((row, shrink), running), position) in rows {
                let query_end = queries.end(position);
                let to = query_end.min(end);
                let from = self.a.mask.first_key(position).clamp(first, to.max(first));
                let visible = from - first..to.max(from) - first;
                row[..visible.start].fill(0.0);
                row[visible.end..].fill(0.0);
                let options = self.at(head.options, head.at, position, from..to.max(from));
                *shrink = if visible.is_empty() {
                    1.0
                } else {
                    running.add(self.level, &mut row[visible], options)
                };
            }
        });
        self.clock.time(WorkKind::Attention, || {
            let mut out = head.out.rows_mut(tile.clone());
            for (row, &shrink) in shrinks.iter().enumerate().filter(|(_, shrink)| **shrink != 1.0) {
                out.row_mut(row).iter_mut().for_each(|x| *x *= shrink);
            }
            let values = kv.values.rows(first - seen.start..end - seen.start);
            multiply_add(&mut out, MatrixView::new(scores, n, n_keys, width), values);
        });
    }
}

/// Tile of keys of a long chunk, with their values.
struct KeyTile<'a> {
    /// Positions of the keys, from the chunk's first key.
    seen: Range<usize>,
    kv: GatheredKv<'a>,
}

/// Query head whose softmax is not finished.
struct OnlineHead<'a> {
    at: usize,
    options: SoftmaxRow<'a>,
    /// Sums of values, relative to the largest score so far.
    out: MatrixTile<'a>,
    running: Vec<RunningSoftmax>,
}

impl<'a> OnlineHead<'a> {
    fn new(at: usize, options: SoftmaxRow<'a>, mut out: MatrixTile<'a>, n: usize) -> Self {
        (0..n).for_each(|row| out.row_mut(row).fill(0.0));
        Self { at, options, out, running: vec![RunningSoftmax::new(options.sink); n] }
    }
}

#[cfg(test)]
mod tests;
