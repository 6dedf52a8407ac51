//! Softmax attention over whole chunks: tiles of queries against all visible keys, one task per chunk and key-value
//! head.

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::math::{self, SoftmaxRow};
use crate::engine::ops::matmul::{MatrixTile, MatrixView, TileGrid, multiply};
use crate::engine::ops::prefix::rotate_2d;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Attention, HeadNorm, HeadSpan, Temperature};
use crate::engine::run::batch::{ChunkBatch, TokenPlace};
use crate::engine::run::panel::transpose;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;
use crate::engine::run::weights::LoadedNorm;
use crate::engine::run::workers::{WorkerBuffers, lend};

/// Queries per tile: keys beyond the tile's last query are never computed. A multiple of the kernels' width.
const QUERY_ROWS: usize = 96;
/// Keys are computed in multiples of this, so that kernels find whole vectors; what is beyond is not looked at.
const KEY_ROWS: usize = 16;

/// Bytes of a thread's buffers for chunks of this length.
pub(crate) fn buffer_bytes(a: &Attention, chunk_len: usize) -> usize {
    4 * (QUERY_ROWS + a.dk) * chunk_len.next_multiple_of(KEY_ROWS)
}

/// Rows that one task places.
const ROWS_PER_TASK: usize = 64;

/// Queries of the wanted tokens; keys and values of all.
#[derive(Clone, Copy)]
struct Projected<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
}

/// Queries or keys, as they are placed.
struct Side<'a> {
    n_heads: usize,
    norm: Option<&'a HeadNorm>,
    temperature: Option<Temperature>,
}

impl<'a> Side<'a> {
    fn queries(a: &'a Attention) -> Self {
        Self { n_heads: a.n_heads, norm: a.q_norm.as_ref(), temperature: a.temperature }
    }

    fn keys(a: &'a Attention) -> Self {
        Self { n_heads: a.n_kv_heads, norm: a.k_norm.as_ref(), temperature: None }
    }
}

impl Runner<'_> {
    /// Attention of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn attention(
        &self,
        a: &Attention,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, n_wanted) = (batch.n_tokens(), batch.n_wanted());
        let mut q = self.take(n_wanted * a.q.n_rows);
        let mut k = self.take(n_tokens * a.k.n_rows);
        let mut v = self.take(n_tokens * a.v.n_rows);
        let mut products = vec![Product::plain(&a.k, &mut k), Product::plain(&a.v, &mut v)];
        if batch.is_whole() {
            products.insert(0, Product::plain(&a.q, &mut q));
            self.products(x, n_tokens, products)?;
        } else {
            self.products(x, n_tokens, products)?;
            let queries = batch.select(x, a.q.n_cols);
            self.products(&queries, n_wanted, vec![Product::plain(&a.q, &mut q)])?;
        }
        if let Some(c) = a.clamp {
            self.workers.install(|| {
                [&mut q, &mut k, &mut v].into_par_iter().for_each(|values| {
                    for x in values.iter_mut() {
                        *x = x.clamp(-c, c);
                    }
                });
            });
        }
        self.place(a, &Side::queries(a), &batch.select(&batch.places, 1), &mut q)?;
        self.place(a, &Side::keys(a), &batch.places, &mut k)?;
        self.slot("q", &q, a.q.n_rows);
        self.slot("k", &k, a.k.n_rows);
        let mut context = self.take(n_wanted * a.n_heads * a.dv);
        self.mix(a, batch, Projected { q: &q, k: &k, v: &v }, &mut context)?;
        self.slot("attention", &context, a.n_heads * a.dv);
        self.give([q, k, v]);
        self.products(&context, n_wanted, vec![Product::plain(&a.out, out)])?;
        self.give([context]);
        Ok(())
    }

    /// Norm and rotation of queries or keys, in the order the model has them.
    fn place(
        &self,
        a: &Attention,
        side: &Side<'_>,
        places: &[TokenPlace],
        values: &mut [f32],
    ) -> Result<(), EngineError> {
        let norm = match side.norm {
            Some(plan) => Some((plan.span, self.weights.norm(&plan.norm)?)),
            None => None,
        };
        let width = side.n_heads * a.dk;
        let level = self.weights.level;
        let normalize = |row: &mut [f32], scratch: &mut Vec<f32>| match &norm {
            None => {}
            Some((HeadSpan::Projection, norm)) => whole_row(norm, level, row, scratch),
            Some((HeadSpan::Head, norm)) => {
                row.chunks_mut(a.dk).for_each(|head| whole_row(norm, level, head, scratch));
            }
            Some((HeadSpan::HeadRows, norm)) => {
                row.chunks_mut(a.dk).enumerate().for_each(|(at, head)| norm.head(level, head, at, scratch));
            }
        };
        let place = |row: &mut [f32], place: &TokenPlace, scratch: &mut Vec<f32>| {
            let position = place.position as usize;
            if !a.norm_after_rope {
                normalize(row, scratch);
            }
            if let Some(rope) = a.rope {
                let table = self.ropes.table(rope, place.chunk_len as usize);
                if a.rope_2d {
                    rotate_2d(table, level, row, a.dk, *place);
                } else {
                    table.rotate(level, row, a.dk, position);
                }
            }
            if a.norm_after_rope {
                normalize(row, scratch);
            }
            if let Some(Temperature { growth, length }) = side.temperature {
                let factor = 1.0 + growth * (1.0 + (position / length) as f64).ln();
                for x in row.iter_mut() {
                    *x *= factor as f32;
                }
            }
        };
        self.workers.install(|| {
            let tasks = values.par_chunks_mut(ROWS_PER_TASK * width).zip(places.par_chunks(ROWS_PER_TASK));
            tasks.for_each_init(Vec::new, |scratch, (rows, places)| {
                self.clock.time(WorkKind::Rotate, || {
                    rows.chunks_mut(width).zip(places).for_each(|(row, at)| place(row, at, scratch));
                });
            });
        });
        Ok(())
    }

    /// `softmax(scale q k) v` of every chunk and head.
    fn mix(
        &self,
        a: &Attention,
        batch: &ChunkBatch,
        projected: Projected<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let sinks = self.weights.optional(a.sinks.as_ref())?;
        let heads: Vec<usize> = (0..=a.n_heads).map(|head| head * a.dv).collect();
        let cuts = batch.wanted_cuts();
        let grid = TileGrid::new(out, a.n_heads * a.dv, cuts.clone(), heads);
        let group = a.n_heads / a.n_kv_heads;
        self.workers.each((cuts.len() - 1) * a.n_kv_heads, |scratch, task| {
            let (chunk, kv_head) = (task / a.n_kv_heads, task % a.n_kv_heads);
            let start = batch.cuts[chunk];
            let wanted = batch.wanted(chunk);
            let prefix = batch.prefix(chunk);
            // Later keys are not visible to any wanted query.
            let n_keys = (wanted.end - start).max(prefix);
            let WorkerBuffers { rows: keys, tile: scores, sums, .. } = scratch;
            let width = n_keys.next_multiple_of(KEY_ROWS);
            let keys = lend(keys, a.dk * width);
            self.clock.time(WorkKind::Attention, || {
                let rows = rows_of(projected.k, start, n_keys, kv_head, a.n_kv_heads, a.dk);
                transpose(rows, &mut MatrixTile::whole(keys, a.dk, width));
            });
            let head = Head {
                first_query: wanted.start - start,
                n_queries: wanted.len(),
                prefix,
                queries: &projected.q[cuts[chunk] * a.n_heads * a.dk..],
                keys: MatrixView::new(keys, a.dk, width, width),
                values: rows_of(projected.v, start, n_keys, kv_head, a.n_kv_heads, a.dv),
            };
            for at in kv_head * group..(kv_head + 1) * group {
                let sink = sinks.as_ref().map(|sinks| sinks[at]);
                self.head(a, at, &head, sink, &mut grid.take(chunk, at), (scores, sums));
            }
            if self.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
        })
    }

    /// One query head of a chunk.
    fn head(
        &self,
        a: &Attention,
        at: usize,
        head: &Head<'_>,
        sink: Option<f32>,
        out: &mut MatrixTile<'_>,
        (scores, sums): (&mut Vec<f32>, &mut Vec<f32>),
    ) {
        let level = self.weights.level;
        let softmax = SoftmaxRow {
            cap: a.cap.map(|cap| (a.scale, cap)),
            slope: a.alibi.as_ref().map(|slopes| slopes[at]),
            sink,
        };
        let scale = if a.cap.is_some() { 1.0 } else { a.scale };
        let mut first = 0;
        while first < head.n_queries {
            let end = (first + QUERY_ROWS).min(head.n_queries);
            let positions = head.first_query + first..head.first_query + end;
            let first_key = a.mask.first_key(positions.start) / KEY_ROWS * KEY_ROWS;
            let n_keys = positions.end.max(head.prefix) - first_key;
            let width = n_keys.next_multiple_of(KEY_ROWS);
            let n = end - first;
            let queries = rows_of(head.queries, first, n, at, a.n_heads, a.dk);
            let scores = lend(scores, n * width);
            self.clock.time(WorkKind::Attention, || {
                let keys = head.keys.columns(first_key..first_key + width);
                multiply(&mut MatrixTile::whole(scores, n, width), queries, keys, scale);
            });
            let sums = lend(sums, n);
            self.clock.time(WorkKind::Softmax, || {
                for ((row, sum), position) in scores.chunks_mut(width).zip(sums.iter_mut()).zip(positions) {
                    let end = (position + 1).max(head.prefix);
                    let visible = a.mask.first_key(position) - first_key..end - first_key;
                    row[..visible.start].fill(0.0);
                    row[visible.end..].fill(0.0);
                    *sum = (1.0 / math::softmax(level, &mut row[visible], softmax)) as f32;
                }
            });
            self.clock.time(WorkKind::Attention, || {
                let mut tile = out.rows_mut(first..end);
                let values = head.values.rows(first_key..first_key + n_keys);
                multiply(&mut tile, MatrixView::new(scores, n, n_keys, width), values, 1.0);
                for (row, &sum) in sums.iter().enumerate() {
                    tile.row_mut(row).iter_mut().for_each(|x| *x *= sum);
                }
            });
            first = end;
        }
    }
}

/// One key-value head of a chunk.
struct Head<'a> {
    /// Position of the first wanted query in the chunk.
    first_query: usize,
    n_queries: usize,
    /// Tokens that see one another.
    prefix: usize,
    /// The chunk's wanted queries, all heads, and what follows.
    queries: &'a [f32],
    /// Transposed: one column per key, then some that mean nothing.
    keys: MatrixView<'a>,
    values: MatrixView<'a>,
}

/// `n` rows of one head in `[tokens, n_heads * width]`.
fn rows_of(
    data: &[f32],
    first: usize,
    n: usize,
    head: usize,
    n_heads: usize,
    width: usize,
) -> MatrixView<'_> {
    let start = if n == 0 { 0 } else { (first * n_heads + head) * width };
    MatrixView::new(&data[start..], n, width, n_heads * width)
}

fn whole_row(norm: &LoadedNorm, level: SimdLevel, x: &mut [f32], scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(x);
    norm.row(level, scratch, x);
}
