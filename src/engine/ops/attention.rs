//! Softmax attention over whole chunks, one task per key-value head and chunk, or part of a long one.

mod heads;
mod kept;

use std::sync::atomic::Ordering;

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::attention::heads::{Heads, Queries, Seen};
use crate::engine::ops::matmul::{MatrixView, TileGrid};
use crate::engine::ops::prefix::rotate_2d;
use crate::engine::ops::product::Product;
use crate::engine::ops::relative::RelativeScores;
use crate::engine::ops::switched::SwitchedHeads;
use crate::engine::plan::{Attention, HeadNorm, HeadSpan, KvSource, Temperature};
use crate::engine::run::batch::{ChunkBatch, TokenPlace};
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;
use crate::engine::run::weights::LoadedNorm;

pub(crate) use heads::{Scores, buffer_bytes};
pub(crate) use kept::kept_floats;

/// Rows that one task places.
const ROWS_PER_TASK: usize = 64;

/// Queries of the wanted tokens; keys and values of all.
#[derive(Clone, Copy)]
pub(crate) struct Projected<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
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
        let own_kv = !matches!(a.kv, KvSource::From(_));
        let mut products = Vec::with_capacity(3);
        if own_kv {
            products.extend([Product::plain(&a.k, &mut k), Product::plain(&a.v, &mut v)]);
        }
        let queries = batch.select(x, a.q.n_cols);
        if batch.is_whole() {
            products.insert(0, Product::plain(&a.q, &mut q));
            self.products(x, n_tokens, products)?;
        } else {
            self.products(x, n_tokens, products)?;
            self.products(&queries, n_wanted, vec![Product::plain(&a.q, &mut q)])?;
        }
        if let Some(switched) = &a.switched {
            let heads = SwitchedHeads { q: &mut q, k: &mut k, v: &mut v };
            self.switch_heads(switched, batch, (x, &queries), heads)?;
        }
        let gates = self.take_gates(a, &mut q);
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
        match a.kv {
            KvSource::From(layer) => self.carried.recall(layer, batch.start, &mut k, &mut v),
            KvSource::Own | KvSource::Kept => {
                self.place(a, &Side::keys(a), &batch.places, &mut k)?;
                self.norm_in_place(a.v_norm.as_ref(), &mut v, a.dv)?;
            }
        }
        if a.kv == KvSource::Kept {
            self.carried.keep(self.layer.load(Ordering::Relaxed), batch.start, &k, &v);
        }
        self.slot("q", &q, a.n_heads * a.dk);
        self.slot("k", &k, a.k.n_rows);
        let mut context = self.take(n_wanted * a.n_heads * a.dv);
        self.mix(a.scores(), batch, &batch.cuts, Projected { q: &q, k: &k, v: &v }, &mut context)?;
        self.slot("attention", &context, a.n_heads * a.dv);
        self.give([q, k, v]);
        self.apply_gates(gates, &mut context, a.n_heads * a.dv);
        if let Some(gate) = &a.gate {
            self.gate_heads(gate, &queries, n_wanted, &mut context, a.out.n_cols)?;
        }
        self.norm_in_place(a.sub_norm.as_ref(), &mut context, a.out.n_cols)?;
        self.products(&context, n_wanted, vec![Product::plain(&a.out, out)])?;
        if let Some(switched) = &a.switched {
            self.switch_output(switched, batch, &context, out)?;
        }
        if let Some(factor) = a.out_scale {
            self.scale_rows(out, factor);
        }
        self.give([context]);
        Ok(())
    }

    /// Attention of the normed wanted rows `x` to the states of another stack, into `out`.
    pub(crate) fn cross_attention(
        &self,
        a: &Attention,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (Some((first, last)), n_wanted) =
            (batch.memory.first().zip(batch.memory.last()), batch.n_wanted())
        else {
            return Err(EngineError::NoSource);
        };
        let (states, n_states) = (&self.memory[first * a.k.n_cols..last * a.k.n_cols], last - first);
        let mut q = self.take(n_wanted * a.q.n_rows);
        let mut k = self.take(n_states * a.k.n_rows);
        let mut v = self.take(n_states * a.v.n_rows);
        self.products(x, n_wanted, vec![Product::plain(&a.q, &mut q)])?;
        let products = vec![Product::plain(&a.k, &mut k), Product::plain(&a.v, &mut v)];
        self.products(states, n_states, products)?;
        let mut context = self.take(n_wanted * a.n_heads * a.dv);
        let cuts: Vec<usize> = batch.memory.iter().map(|cut| cut - first).collect();
        self.mix(a.scores(), batch, &cuts, Projected { q: &q, k: &k, v: &v }, &mut context)?;
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
            Some((HeadSpan::HeadFactor, norm)) => {
                row.chunks_mut(a.dk).enumerate().for_each(|(at, head)| norm.scaled(level, head, at, scratch));
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
            if let Some(temperature) = side.temperature {
                temperature.scale(row, position);
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

    /// `softmax(scale q k) v` of every chunk and head; `keys` are where the chunks' keys begin and end. In a run that goes
    /// on, the chunks' keys and values join those of the tokens before.
    pub(crate) fn mix(
        &self,
        a: Scores<'_>,
        batch: &ChunkBatch,
        keys: &[usize],
        projected: Projected<'_>,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut place = self.past.map(|past| past.take(kept_floats(&a, past.capacity)));
        let kept = match (self.past, &mut place) {
            (Some(past), Some(place)) => Some(self.keep_step(&a, batch, projected, (past, place))),
            _ => None,
        };
        let before = |chunk: usize| self.past.map_or(0, |past| past.before[chunk]);
        let heads = Heads {
            a,
            level: self.weights.level,
            clock: self.clock,
            sinks: self.weights.optional(a.sinks)?,
            relative: match a.relative {
                Some(plan) => {
                    let lengths = keys.windows(2).enumerate().map(|(at, cut)| before(at) + cut[1] - cut[0]);
                    let longest = lengths.max().unwrap_or(0);
                    Some(RelativeScores::new(plan, self.weights, longest.max(1))?)
                }
                None => None,
            },
        };
        let parts = parts(batch, keys, self.past.is_some());
        let rows: Vec<usize> = std::iter::once(0).chain(parts.iter().map(|part| part.row + part.n)).collect();
        let columns: Vec<usize> = (0..=a.n_heads).map(|head| head * a.dv).collect();
        let grid = TileGrid::new(out, a.n_heads * a.dv, rows, columns);
        self.workers.each(parts.len() * a.n_kv_heads, |scratch, task| {
            let (at, kv_head) = (task / a.n_kv_heads, task % a.n_kv_heads);
            let part = &parts[at];
            let (start, before) = (keys[part.chunk], before(part.chunk));
            let prefix = batch.prefix(part.chunk);
            let n_chunk_keys = before + keys[part.chunk + 1] - start;
            // Later keys are not visible to any of the queries.
            let n_keys = match (before + part.first_query + part.n).checked_sub(1) {
                Some(last) if part.n > 0 => a.mask.end_key(last, n_chunk_keys).max(prefix),
                _ => 0,
            };
            let queries = Queries {
                kv_head,
                first: before + part.first_query,
                n: part.n,
                prefix,
                mask: a.mask,
                n_chunk_keys,
                rows: &projected.q[part.row * a.n_heads * a.dk..],
                seen: match &kept {
                    Some(kept) => {
                        let (columns, values) = kept.of(part.chunk, kv_head, n_keys);
                        Seen::Columns(columns, values)
                    }
                    None => Seen::Rows(
                        rows_of(projected.k, start, n_keys, kv_head, a.n_kv_heads, a.dk),
                        rows_of(projected.v, start, n_keys, kv_head, a.n_kv_heads, a.dv),
                    ),
                },
            };
            let out = |head| grid.take(at, head);
            if part.is_whole {
                heads.whole(&queries, out, scratch);
            } else {
                heads.online(&queries, out, scratch);
            }
            if self.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
        })?;
        drop(kept);
        self.give_place(place);
        Ok(())
    }
}

impl Temperature {
    /// Multiplies queries at `position` by their factor.
    pub(crate) fn scale(self, row: &mut [f32], position: usize) {
        let factor = 1.0 + self.growth * (1.0 + ((position + self.first) / self.length) as f64).ln();
        for x in row.iter_mut() {
            *x *= factor as f32;
        }
    }
}

/// Wanted queries of a chunk that are one task for each key-value head.
struct Part {
    chunk: usize,
    /// Position of the first query in the chunk.
    first_query: usize,
    n: usize,
    /// Its row among the wanted rows.
    row: usize,
    /// All keys are looked at together.
    is_whole: bool,
}

/// Cuts the queries of a batch: a short chunk stays whole, a long one has parts of the same size. Keys that are kept as
/// columns are there as a whole.
fn parts(batch: &ChunkBatch, keys: &[usize], are_columns: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut row = 0;
    for (chunk, cut) in batch.cuts.windows(2).enumerate() {
        let wanted = batch.wanted(chunk);
        let is_whole = are_columns || keys[chunk + 1] - keys[chunk] <= heads::WHOLE_KEYS;
        let step = if is_whole { wanted.len().max(1) } else { heads::PART_QUERIES };
        // A chunk of which nothing is wanted keeps its place.
        for first in (0..wanted.len().max(1)).step_by(step) {
            let n = step.min(wanted.len() - first);
            parts.push(Part { chunk, first_query: wanted.start - cut[0] + first, n, row, is_whole });
            row += n;
        }
    }
    parts
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

pub(crate) fn whole_row(norm: &LoadedNorm, level: SimdLevel, x: &mut [f32], scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(x);
    norm.row(level, scratch, x);
}
