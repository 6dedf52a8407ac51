//! Softmax attention over whole chunks: tiles of queries against all visible keys, one task per chunk and head.

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::graph::{Batch, Run};
use crate::engine::math;
use crate::engine::matmul::{Grid, Tile, View, multiply};
use crate::engine::plan::{Attention, HeadSpan};
use crate::engine::prefix::rotate_2d;
use crate::engine::product::Product;
use crate::engine::weights::LoadedNorm;
use crate::engine::workers::lend;

/// Queries per tile: keys beyond the tile's last query are never computed.
const QUERY_ROWS: usize = 128;

impl Run<'_> {
    /// Attention of the normed input `x` into `out`, both `[n_tokens, n_embd]`.
    pub(super) fn attention(
        &self,
        a: &Attention,
        batch: &Batch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_tokens = batch.n_tokens();
        let mut q = self.take(n_tokens * a.q.n_rows);
        let mut k = self.take(n_tokens * a.k.n_rows);
        let mut v = self.take(n_tokens * a.v.n_rows);
        let products =
            vec![Product::plain(&a.q, &mut q), Product::plain(&a.k, &mut k), Product::plain(&a.v, &mut v)];
        self.products(x, n_tokens, products)?;
        if let Some(c) = a.clamp {
            self.workers.install(|| {
                [&mut q, &mut k, &mut v].into_par_iter().for_each(|values| {
                    for x in values.iter_mut() {
                        *x = x.clamp(-c, c);
                    }
                });
            });
        }
        self.place(a, batch, &mut q, true)?;
        self.place(a, batch, &mut k, false)?;
        self.slot("q", &q, a.q.n_rows);
        self.slot("k", &k, a.k.n_rows);
        let mut context = self.take(n_tokens * a.n_heads * a.dv);
        self.mix(a, batch, (&q, &k, &v), &mut context)?;
        self.slot("attention", &context, a.n_heads * a.dv);
        self.give([q, k, v]);
        self.products(&context, n_tokens, vec![Product::plain(&a.out, out)])?;
        self.give([context]);
        Ok(())
    }

    /// Norm and rotation of queries or keys, in the order the model has them.
    fn place(
        &self,
        a: &Attention,
        batch: &Batch,
        values: &mut [f32],
        is_query: bool,
    ) -> Result<(), EngineError> {
        let (plan, n_heads) = if is_query { (&a.q_norm, a.n_heads) } else { (&a.k_norm, a.n_kv_heads) };
        let norm = match plan {
            Some(plan) => Some((plan.span, self.weights.norm(&plan.norm)?)),
            None => None,
        };
        let width = n_heads * a.dk;
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
        let temperature = a.temperature.filter(|_| is_query);
        self.workers.install(|| {
            values.par_chunks_mut(width).zip(&batch.places).with_min_len(16).for_each_init(
                Vec::new,
                |scratch, (row, place)| {
                    let position = place.position as usize;
                    if !a.norm_after_rope {
                        normalize(row, scratch);
                    }
                    if let Some(rope) = a.rope {
                        let table = self.ropes.table(rope, place.chunk_len as usize);
                        if a.rope_2d {
                            row.chunks_mut(a.dk).for_each(|head| rotate_2d(table, head, *place));
                        } else {
                            row.chunks_mut(a.dk).for_each(|head| table.rotate(head, position));
                        }
                    }
                    if a.norm_after_rope {
                        normalize(row, scratch);
                    }
                    if let Some((by, length)) = temperature {
                        let factor = 1.0 + by * (1.0 + (position / length) as f64).ln();
                        for x in row.iter_mut() {
                            *x *= factor as f32;
                        }
                    }
                },
            );
        });
        Ok(())
    }

    /// `softmax(scale q k) v` of every chunk and head.
    fn mix(
        &self,
        a: &Attention,
        batch: &Batch,
        (q, k, v): (&[f32], &[f32], &[f32]),
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let sinks = self.weights.optional(a.sinks.as_ref())?;
        let level = self.weights.level;
        let heads: Vec<usize> = (0..=a.n_heads).map(|head| head * a.dv).collect();
        let grid = Grid::new(out, a.n_heads * a.dv, batch.cuts.clone(), heads);
        let n_chunks = batch.cuts.len() - 1;
        self.workers.each(n_chunks * a.n_heads, |scratch, task| {
            let (chunk, head) = (task / a.n_heads, task % a.n_heads);
            let start = batch.cuts[chunk];
            let n_tokens = batch.cuts[chunk + 1] - start;
            let kv_head = head / (a.n_heads / a.n_kv_heads);
            let mut out = grid.take(chunk, head);
            let prefix = batch.prefix(chunk);
            let sink = sinks.as_ref().map(|sinks| sinks[head]);
            let slope = a.alibi.as_ref().map(|slopes| slopes[head]);
            let mut first = 0;
            while first < n_tokens {
                let end = (first + QUERY_ROWS).min(n_tokens);
                let first_key = a.mask.first_key(first);
                let n_keys = end.max(prefix) - first_key;
                let view = |data, row: usize, n_rows, at: usize, n_heads: usize, width: usize| {
                    let data: &[f32] = data;
                    let offset = (start + row) * n_heads * width + at * width;
                    View::new(&data[offset..], n_rows, width, n_heads * width)
                };
                let queries = view(q, first, end - first, head, a.n_heads, a.dk);
                let keys = view(k, first_key, n_keys, kv_head, a.n_kv_heads, a.dk);
                let values = view(v, first_key, n_keys, kv_head, a.n_kv_heads, a.dv);
                let scores = lend(&mut scratch.tile, (end - first) * n_keys);
                let scale = if a.cap.is_some() { 1.0 } else { a.scale };
                multiply(
                    &mut Tile::whole(scores, end - first, n_keys),
                    queries,
                    keys.transposed(),
                    scale,
                    false,
                );
                let sums = lend(&mut scratch.panel, end - first);
                for ((row, sum), position) in scores.chunks_mut(n_keys).zip(sums.iter_mut()).zip(first..end) {
                    let last = (position + 1).max(prefix);
                    let visible = a.mask.first_key(position) - first_key..last - first_key;
                    row[..visible.start].fill(0.0);
                    row[visible.end..].fill(0.0);
                    let row = &mut row[visible];
                    if a.cap.is_some() {
                        math::scale_and_cap(level, row, a.scale, a.cap);
                    }
                    if let Some(slope) = slope {
                        let last = row.len() - 1;
                        row.iter_mut().enumerate().for_each(|(at, s)| *s -= slope * (last - at) as f32);
                    }
                    let peak = math::max(level, row).max(sink.unwrap_or(f32::NEG_INFINITY));
                    let total = math::exp_in_place(level, row, peak);
                    let total = total + sink.map_or(0.0, |sink| f64::from(math::exp(sink - peak)));
                    *sum = (1.0 / total) as f32;
                }
                let mut tile = out.rows_mut(first..end);
                let scores = View::new(scores, end - first, n_keys, n_keys);
                multiply(&mut tile, scores, values, 1.0, false);
                for (row, &sum) in sums.iter().enumerate() {
                    tile.row_mut(row).iter_mut().for_each(|x| *x *= sum);
                }
                first = end;
            }
            if self.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
        })
    }
}

fn whole_row(norm: &LoadedNorm, level: crate::core::simd::SimdLevel, x: &mut [f32], scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(x);
    norm.row(level, scratch, x);
}
