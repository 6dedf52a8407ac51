//! Softmax attention (multi-head, multi-query or grouped-query): `softmax(scale q kᵀ) v` per head, over whole chunks.
//! One task per key-value head and chunk, or part of a long chunk.

use std::sync::atomic::Ordering;

use rayon::prelude::*;

use crate::exec::batch::{ChunkBatch, TokenPlace};
use crate::exec::context::Context;
use crate::exec::mask::Mask;
use crate::exec::matmul::{MatrixView, TileGrid};
use crate::exec::product::Product;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{LoadedNorm, Matrix, Norm, Vector};
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use crate::ops::attention::heads::{AttentionHeads, HeadKv, Queries, ScoreParams};
use crate::ops::attention::kv_cache::cache_step;
use crate::ops::gated_q::{apply_gates, take_gates};
use crate::ops::kept::{Kept, Reach};
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::output_gate::OutputGate;
use crate::ops::prefix::rotate_2d;
use crate::ops::relative::{RelativeBias, RelativeScores};
use crate::ops::switched::{SwitchedAttention, SwitchedHeads, switch_heads, switch_output};
use crate::{EngineError, Result};
use gguf_core::simd::SimdLevel;

/// Part of a projection that a q or k norm spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSpan {
    /// Every head separately, all with the same weight.
    Head,
    /// Every head separately, each with its own row of the weight.
    HeadRows,
    /// Every head separately, then multiplied by one factor per head.
    HeadFactor,
    /// The whole projection, before it is split into heads.
    Projection,
}

/// Norm of q or k.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    /// Formula, weights, epsilon.
    pub norm: Norm,
    /// Part that it spans.
    pub span: HeadSpan,
}

/// Factor of queries by position: `1 + growth ln(1 + floor((position + first) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub growth: f64,
    /// Number of positions of a step.
    pub length: usize,
    /// Offset of positions.
    pub first: usize,
}

/// Softmax attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query projection, `n_heads * dk` rows, or twice as many if each head's query is followed by its gate.
    pub q: Matrix,
    /// Key projection, `n_kv_heads * dk` rows.
    pub k: Matrix,
    /// Value projection, `n_kv_heads * dv` rows.
    pub v: Matrix,
    /// Output projection.
    pub out: Matrix,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key-value heads; query head `h` uses `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Width of a query or key head.
    pub dk: usize,
    /// Width of a value head.
    pub dv: usize,
    /// Norm of the queries.
    pub q_norm: Option<HeadNorm>,
    /// Norm of the keys.
    pub k_norm: Option<HeadNorm>,
    /// True if the norms follow the rotation.
    pub(crate) norm_after_rope: bool,
    /// Index into the plan's rotations.
    pub rope: Option<usize>,
    /// True if the two halves of a head are rotated by one position each.
    pub rope_2d: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Visible keys.
    pub mask: Mask,
    /// Bound `c`: q, k and v are clamped to ± c.
    pub clamp: Option<f32>,
    /// Attention sinks: one extra logit per head that takes probability and has no value.
    pub sinks: Option<Vector>,
    /// ALiBi: slope per head of a penalty proportional to distance.
    pub alibi: Option<Vec<f32>>,
    /// Bias by relative position.
    pub relative: Option<RelativeBias>,
    /// Factor of the queries that depends on their position.
    pub temperature: Option<Temperature>,
    /// Norm of each head's values.
    pub v_norm: Option<Norm>,
    /// Source of keys and values.
    pub kv: KvSource,
    /// Gate of the heads' outputs.
    pub gate: Option<OutputGate>,
    /// Norm of the heads' outputs, over all heads together.
    pub(crate) sub_norm: Option<Norm>,
    /// Factor of the projected output.
    pub(crate) out_scale: Option<f32>,
    /// Adapters (LoRA) of the projections that tokens switch on.
    pub switched: Option<Box<SwitchedAttention>>,
}

/// Source of a layer's keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvSource {
    /// The layer's own projections, without later use.
    #[default]
    Own,
    /// The layer's own projections, which later layers use too.
    Kept,
    /// Keys and values of an earlier layer, by index.
    From(usize),
}

impl Attention {
    /// Returns true if each head's query is followed by the gate of the head's output.
    pub(crate) fn has_gated_queries(&self) -> bool {
        self.q.n_rows == 2 * self.n_heads * self.dk
    }
}

mod gradient;
pub(crate) mod heads;

pub(crate) mod kv_cache;
pub(crate) mod resolve;

/// Queries of the wanted tokens; keys and values of all.
#[derive(Clone, Copy)]
pub(crate) struct Projected<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
}

/// Parameters of the norm and rotation of queries or keys.
pub(crate) struct QkTransform<'a> {
    n_heads: usize,
    norm: Option<&'a HeadNorm>,
    temperature: Option<Temperature>,
}

impl<'a> QkTransform<'a> {
    fn queries(a: &'a Attention) -> Self {
        Self { n_heads: a.n_heads, norm: a.q_norm.as_ref(), temperature: a.temperature }
    }

    fn keys(a: &'a Attention) -> Self {
        Self { n_heads: a.n_kv_heads, norm: a.k_norm.as_ref(), temperature: None }
    }
}

impl MixerOp for Attention {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, n_wanted) = (batch.n_tokens(), batch.n_wanted());
        let mut q = cx.take(n_wanted * self.q.n_rows);
        let mut k = cx.take(n_tokens * self.k.n_rows);
        let mut v = cx.take(n_tokens * self.v.n_rows);
        let own_kv = !matches!(self.kv, KvSource::From(_));
        let mut products = Vec::with_capacity(3);
        if own_kv {
            products.extend([Product::plain(&self.k, &mut k), Product::plain(&self.v, &mut v)]);
        }
        let queries = batch.select(x, self.q.n_cols);
        if batch.is_whole() {
            products.insert(0, Product::plain(&self.q, &mut q));
            cx.products(x, n_tokens, products)?;
        } else {
            cx.products(x, n_tokens, products)?;
            cx.products(&queries, n_wanted, vec![Product::plain(&self.q, &mut q)])?;
        }
        if let Some(switched) = &self.switched {
            let heads = SwitchedHeads { q: &mut q, k: &mut k, v: &mut v };
            switch_heads(cx, switched, batch, x, &queries, heads)?;
        }
        let gates = self.has_gated_queries().then(|| take_gates(cx, self.n_heads, self.dk, &mut q));
        if let Some(c) = self.clamp {
            cx.workers.install(|| {
                [&mut q, &mut k, &mut v].into_par_iter().run(&|values| {
                    for x in values.iter_mut() {
                        *x = x.clamp(-c, c);
                    }
                });
            });
        }
        norm_and_rotate(cx, self, &QkTransform::queries(self), &batch.select(&batch.places, 1), &mut q)?;
        match self.kv {
            KvSource::From(layer) => cx.carried.recall(layer, batch.start, &mut k, &mut v),
            KvSource::Own | KvSource::Kept => {
                norm_and_rotate(cx, self, &QkTransform::keys(self), &batch.places, &mut k)?;
                cx.norm_in_place(self.v_norm.as_ref(), &mut v, self.dv)?;
            }
        }
        if self.kv == KvSource::Kept {
            cx.carried.keep(cx.layer.load(Ordering::Relaxed), batch.start, &k, &v);
        }
        cx.slot("q", &q, self.n_heads * self.dk);
        cx.slot("k", &k, self.k.n_rows);
        let mut context = cx.take(n_wanted * self.n_heads * self.dv);
        mix(cx, self.scores(), batch, &batch.cuts, Projected { q: &q, k: &k, v: &v }, &mut context)?;
        cx.slot("attention", &context, self.n_heads * self.dv);
        cx.give([q, k, v]);
        apply_gates(cx, gates, &mut context, self.n_heads * self.dv);
        if let Some(gate) = &self.gate {
            gate.run(cx, &queries, n_wanted, &mut context, self.out.n_cols)?;
        }
        cx.norm_in_place(self.sub_norm.as_ref(), &mut context, self.out.n_cols)?;
        cx.products(&context, n_wanted, vec![Product::plain(&self.out, out)])?;
        if let Some(switched) = &self.switched {
            switch_output(cx, switched, batch, &context, out)?;
        }
        if let Some(factor) = self.out_scale {
            cx.scale_rows(out, factor);
        }
        cx.give([context]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        // Adapters that tokens switch on are added after the product.
        if self.switched.is_some() {
            return None;
        }
        BranchEnd::of(&self.out, self.out_scale.unwrap_or(1.0))
    }

    fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str> {
        kv_cache::remembered(&self.scores(), n_ctx)
    }

    fn kept(&self) -> Kept {
        match self.kv {
            KvSource::From(_) => Kept::default(),
            KvSource::Own | KvSource::Kept => {
                Kept::rows(self.n_kv_heads, self.dk, self.dv, Reach::of(self.mask))
            }
        }
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        heads::buffer_bytes(&self.scores(), chunk_len)
    }
}

/// Normalizes and rotates queries or keys, in the model's order.
pub(crate) fn norm_and_rotate(
    cx: &Context<'_>,
    a: &Attention,
    transform: &QkTransform<'_>,
    places: &[TokenPlace],
    values: &mut [f32],
) -> Result<()> {
    let norm = match transform.norm {
        Some(plan) => Some((plan.span, cx.weights.norm(&plan.norm)?)),
        None => None,
    };
    let width = transform.n_heads * a.dk;
    let level = cx.weights.level;
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
    let apply = |row: &mut [f32], place: &TokenPlace, scratch: &mut Vec<f32>| {
        let position = place.position as usize;
        if !a.norm_after_rope {
            normalize(row, scratch);
        }
        if let Some(rope) = a.rope {
            let table = cx.ropes.table(rope, place.chunk_len as usize);
            if a.rope_2d {
                rotate_2d(table, level, row, a.dk, *place);
            } else {
                table.rotate(level, row, a.dk, position);
            }
        }
        if a.norm_after_rope {
            normalize(row, scratch);
        }
        if let Some(temperature) = transform.temperature {
            temperature.scale(row, position);
        }
    };
    cx.workers.install(|| {
        let tasks = values.par_chunks_mut(ROWS_PER_TASK * width).zip(places.par_chunks(ROWS_PER_TASK));
        tasks.run_with_scratch(&|scratch, (rows, places)| {
            cx.clock.time(WorkKind::Rotate, || {
                rows.chunks_mut(width).zip(places).for_each(|(row, at)| apply(row, at, scratch));
            });
        });
    });
    Ok(())
}

/// Computes `softmax(scale q k) v` of every chunk and head; `keys` holds the first key of every chunk and the number of
/// keys. In a continued run, the chunks' keys and values are appended to those of earlier tokens.
pub(crate) fn mix(
    cx: &Context<'_>,
    a: ScoreParams<'_>,
    batch: &ChunkBatch,
    keys: &[usize],
    projected: Projected<'_>,
    out: &mut [f32],
) -> Result<()> {
    let mut cache = cx.past.map(|past| past.take(kv_cache::sequence_floats(&a, past.capacity)));
    let kept = match (cx.past, &mut cache) {
        (Some(past), Some(cache)) => Some(cache_step(cx, &a, batch, projected, past, cache)),
        _ => None,
    };
    let before = |chunk: usize| cx.past.map_or(0, |past| past.before[chunk]);
    let heads = AttentionHeads {
        a,
        level: cx.weights.level,
        clock: cx.clock,
        sinks: cx.weights.optional(a.sinks)?,
        relative: match a.relative {
            Some(plan) => {
                let lengths = keys.windows(2).enumerate().map(|(at, cut)| before(at) + cut[1] - cut[0]);
                let longest = lengths.max().unwrap_or(0);
                Some(RelativeScores::new(plan, cx.weights, longest.max(1))?)
            }
            None => None,
        },
    };
    let blocks = query_blocks(batch, keys, cx.past.is_some());
    let rows: Vec<usize> = std::iter::once(0).chain(blocks.iter().map(|block| block.row + block.n)).collect();
    let columns: Vec<usize> = (0..=a.n_heads).map(|head| head * a.dv).collect();
    let grid = TileGrid::new(out, a.n_heads * a.dv, rows, columns);
    cx.each(blocks.len() * a.n_kv_heads, |scratch, task| {
        let (at, kv_head) = (task / a.n_kv_heads, task % a.n_kv_heads);
        let block = &blocks[at];
        let (start, before) = (keys[block.chunk], before(block.chunk));
        let prefix = batch.prefix(block.chunk);
        let n_chunk_keys = before + keys[block.chunk + 1] - start;
        // Later keys are not visible to any of the queries.
        let n_keys = match (before + block.first_query + block.n).checked_sub(1) {
            Some(last) if block.n > 0 => a.mask.end_key(last, n_chunk_keys).max(prefix),
            _ => 0,
        };
        let queries = Queries {
            kv_head,
            first: before + block.first_query,
            n: block.n,
            prefix,
            mask: a.mask,
            n_chunk_keys,
            rows: &projected.q[block.row * a.n_heads * a.dk..],
            kv: match &kept {
                Some(kept) => HeadKv::Columns(kept.of(block.chunk, kv_head, n_keys)),
                None => HeadKv::Rows(
                    rows_of_head(projected.k, start, n_keys, kv_head, a.n_kv_heads, a.dk),
                    rows_of_head(projected.v, start, n_keys, kv_head, a.n_kv_heads, a.dv),
                ),
            },
        };
        let out = |head| grid.take(at, head);
        if block.is_whole {
            heads.whole(&queries, out, scratch);
        } else {
            heads.online(&queries, out, scratch);
        }
        if cx.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
    })?;
    drop(kept);
    cx.give_cache(cache);
    Ok(())
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

/// Wanted queries of a chunk that form one task per key-value head.
struct QueryBlock {
    chunk: usize,
    /// Position of the first query in the chunk.
    first_query: usize,
    n: usize,
    /// Row of the first query among the wanted rows.
    row: usize,
    /// True if all keys are processed together.
    is_whole: bool,
}

/// Splits the queries of a batch: a short chunk is one block, a long one has blocks of equal size. Keys that are kept
/// as columns are processed as a whole.
fn query_blocks(batch: &ChunkBatch, keys: &[usize], are_columns: bool) -> Vec<QueryBlock> {
    let mut blocks = Vec::new();
    let mut row = 0;
    for (chunk, cut) in batch.cuts.windows(2).enumerate() {
        let wanted = batch.wanted(chunk);
        let is_whole = are_columns || keys[chunk + 1] - keys[chunk] <= heads::WHOLE_KEYS;
        let step = if is_whole { wanted.len().max(1) } else { heads::PART_QUERIES };
        // A chunk without wanted queries still gets a block.
        for first in (0..wanted.len().max(1)).step_by(step) {
            let n = step.min(wanted.len() - first);
            blocks.push(QueryBlock { chunk, first_query: wanted.start - cut[0] + first, n, row, is_whole });
            row += n;
        }
    }
    blocks
}

/// Returns `n` rows of one head in `[tokens, n_heads * width]`.
fn rows_of_head(
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

/// Normalizes a row in place.
pub(crate) fn whole_row(norm: &LoadedNorm, level: SimdLevel, x: &mut [f32], scratch: &mut Vec<f32>) {
    scratch.clear();
    scratch.extend_from_slice(x);
    norm.row(level, scratch, x);
}
