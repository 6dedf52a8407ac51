//! Multi-head latent attention (MLA; DeepSeek-AI 2024, arXiv 2405.04434, section 2.1): the keys and values of all heads
//! are expanded from one latent row per token. One rotated key per token, which all heads share, is appended to the
//! keys.

use rayon::prelude::*;

use crate::exec::batch::{ChunkBatch, TokenPlace};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::mask::Mask;
use crate::exec::matmul::{MatrixTile, MatrixView, TileGrid, multiply_rows};
use crate::exec::panel::cuts;
use crate::exec::product::Product;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm, NormFormula, Vector};
use crate::exec::workers::{ROWS_PER_TASK, Tasks, lend};
use crate::ops::attention::heads::ScoreParams;
use crate::ops::attention::{self, Projected, Temperature, mix};
use crate::ops::kept::{Kept, Reach};
use crate::ops::mixer::{BranchEnd, MixerOp};
use crate::ops::mla;
use crate::ops::output_gate::OutputGate;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};

/// Projection to a latent row, which is normed before it is expanded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latent {
    /// Projection.
    pub down: Matrix,
    /// Norm of the latent row.
    pub norm: Norm,
}

impl Latent {
    /// Computes `expansion norm(down x)` of the wanted rows of `x` into `out`.
    pub(crate) fn expand(
        &self,
        cx: &Context<'_>,
        expansion: &Matrix,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        let (n, rank) = (batch.n_wanted(), self.down.n_rows);
        let mut latent = cx.take(n * rank);
        cx.products(&batch.select(x, self.down.n_cols), n, vec![Product::plain(&self.down, &mut latent)])?;
        cx.norm_in_place(Some(&self.norm), &mut latent, rank)?;
        cx.products(&latent, n, vec![Product::plain(expansion, out)])?;
        cx.give([latent]);
        Ok(())
    }

    /// Resolves the projection of a layer's queries.
    pub(crate) fn queries(b: &mut Resolver<'_>, layer: usize) -> Result<Latent> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let rank = b.keys.need_count("attention.q_lora_rank")?;
        Ok(Latent {
            down: b.tensors.need_matrix(&at("attn_q_a"), rank, b.n_embd)?,
            norm: b.need_rms_norm(&at("attn_q_a_norm"), rank)?,
        })
    }
}

/// Expansion of the latent row to keys and values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expansion {
    /// One matrix, whose rows are, head by head, those of the key and those of the value.
    Joint(Matrix),
    /// Two tensors with one matrix per head.
    Split {
        /// Matrices of the keys, `[rank, dk - n_shared]` each: the latent row is multiplied from the left.
        keys: Vec<Matrix>,
        /// Matrices of the values, `[dv, rank]` each.
        values: Vec<Matrix>,
    },
}

/// Multi-head latent attention of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    /// Projection of the queries' latent row, if they have one.
    pub(crate) q_latent: Option<Latent>,
    /// Query projection, `n_heads * dk` rows, from the latent row or the layer's input.
    pub q: Matrix,
    /// Projection to the latent row of keys and values, `rank` rows, and the shared key, `n_shared` rows.
    pub kv: Matrix,
    /// Norm of the latent row.
    pub(crate) kv_norm: Norm,
    /// Norm of the shared key, before the rotation.
    pub(crate) shared_norm: Option<Norm>,
    /// Expansion of the latent row to keys and values.
    pub(crate) expansion: Expansion,
    /// Gate of the heads' outputs.
    pub gate: Option<OutputGate>,
    /// Output projection.
    pub out: Matrix,
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a query or key: the expanded part, then the shared key.
    pub dk: usize,
    /// Width of a value.
    pub dv: usize,
    /// Width of the latent row.
    pub rank: usize,
    /// Width of the shared key, and of the end of each query that is multiplied with it.
    pub n_shared: usize,
    /// Index into the plan's rotations, for the shared key and the ends of the queries.
    pub rope: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// Attention sinks: one extra logit per head that takes probability and has no value.
    pub sinks: Option<Vector>,
    /// Visible keys.
    pub mask: Mask,
    /// Factor of the queries that depends on their position.
    pub temperature: Option<Temperature>,
}

impl Mla {
    /// Returns the width of a key without the shared key.
    pub fn n_own(&self) -> usize {
        self.dk - self.n_shared
    }
}

/// Number of rows that one task expands with a head's matrix.
const SLICE_ROWS: usize = 512;

impl Mla {
    pub(crate) fn scores(&self) -> ScoreParams<'_> {
        ScoreParams {
            n_heads: self.n_heads,
            n_kv_heads: self.n_heads,
            dk: self.dk,
            dv: self.dv,
            scale: self.scale,
            cap: None,
            mask: self.mask,
            sinks: self.sinks.as_ref(),
            alibi: None,
            relative: None,
        }
    }
}

/// Returns the bytes of a thread's buffers for chunks of this length: those of attention, or a head's matrix, decoded
/// and encoded in a type of at most four bytes.
pub(crate) fn buffer_bytes(a: &Mla, chunk_len: usize) -> usize {
    let expansion = match a.expansion {
        Expansion::Joint(_) => 0,
        Expansion::Split { .. } => 2 * 4 * a.rank * a.n_own(),
    };
    attention::heads::buffer_bytes(&a.scores(), chunk_len).max(expansion)
}

impl MixerOp for Mla {
    fn run(&self, cx: &Context<'_>, batch: &ChunkBatch, x: &[f32], out: &mut [f32]) -> Result<()> {
        let (n_tokens, n_wanted) = (batch.n_tokens(), batch.n_wanted());
        let q = latent_queries(cx, self, batch, x)?;
        cx.slot("q", &q, self.q.n_rows);
        let mut kv = cx.take(n_tokens * self.kv.n_rows);
        cx.products(x, n_tokens, vec![Product::plain(&self.kv, &mut kv)])?;
        let mut latent = cx.take(n_tokens * self.rank);
        part_latent(cx, self, &batch.places, &mut kv, &mut latent)?;
        cx.slot("kv_latent", &latent, self.rank);
        let mut k = cx.take(n_tokens * self.n_heads * self.dk);
        let mut v = cx.take(n_tokens * self.n_heads * self.dv);
        match &self.expansion {
            Expansion::Joint(matrix) => {
                let mut both = cx.take(n_tokens * matrix.n_rows);
                cx.products(&latent, n_tokens, vec![Product::plain(matrix, &mut both)])?;
                part_joint(cx, self, &both, &mut k, &mut v);
                cx.give([both]);
            }
            Expansion::Split { keys, values } => {
                expand_values(cx, self, values, &latent, &mut v)?;
                expand_keys(cx, self, keys, &latent, &mut k)?;
                observe_queries(cx, self, keys, &q);
            }
        }
        append_shared(cx, self, &kv, &mut k);
        cx.give([kv, latent]);
        cx.slot("k", &k, self.n_heads * self.dk);
        let mut context = cx.take(n_wanted * self.n_heads * self.dv);
        mix(cx, self.scores(), batch, &batch.cuts, Projected { q: &q, k: &k, v: &v }, &mut context)?;
        cx.slot("attention", &context, self.n_heads * self.dv);
        cx.give([q, k, v]);
        if let Some(gate) = &self.gate {
            let rows = batch.select(x, gate.matrix.n_cols);
            gate.run(cx, &rows, n_wanted, &mut context, self.out.n_cols)?;
        }
        cx.products(&context, n_wanted, vec![Product::plain(&self.out, out)])?;
        cx.give([context]);
        Ok(())
    }

    fn end(&self) -> Option<BranchEnd<'_>> {
        BranchEnd::of(&self.out, 1.0)
    }

    fn remembered(&self, n_ctx: usize) -> Result<usize, &'static str> {
        attention::kv_cache::remembered(&self.scores(), n_ctx)
    }

    fn kept(&self) -> Kept {
        let reach = Reach::of(self.mask);
        match self.expansion {
            // A file with one matrix for keys and values is run with the expanded heads.
            Expansion::Joint(_) => Kept::rows(self.n_heads, self.dk, self.dv, reach),
            Expansion::Split { .. } => Kept::rows(1, self.rank + self.n_shared, 0, reach),
        }
    }

    fn thread_bytes(&self, chunk_len: usize) -> usize {
        mla::buffer_bytes(self, chunk_len)
    }
}

/// Computes the queries of the wanted rows, with their ends rotated.
fn latent_queries(cx: &Context<'_>, a: &Mla, batch: &ChunkBatch, x: &[f32]) -> Result<Buffer> {
    let n = batch.n_wanted();
    let mut q = cx.take(n * a.q.n_rows);
    match &a.q_latent {
        None => {
            let rows = batch.select(x, a.q.n_cols);
            cx.products(&rows, n, vec![Product::plain(&a.q, &mut q)])?;
        }
        Some(latent) => latent.expand(cx, &a.q, batch, x, &mut q)?,
    }
    let places = batch.select(&batch.places, 1);
    let width = a.q.n_rows;
    cx.workers.install(|| {
        let tasks = q.par_chunks_mut(ROWS_PER_TASK * width).zip(places.par_chunks(ROWS_PER_TASK));
        tasks.run(&|(rows, places)| {
            cx.clock.time(WorkKind::Rotate, || {
                for (row, place) in rows.chunks_mut(width).zip(places) {
                    row.chunks_mut(a.dk).for_each(|head| rotate_shared(cx, a, &mut head[a.n_own()..], place));
                    if let Some(temperature) = a.temperature {
                        temperature.scale(row, place.position as usize);
                    }
                }
            });
        });
    });
    Ok(q)
}

/// Rotates a shared key, or the end of a query.
fn rotate_shared(cx: &Context<'_>, a: &Mla, part: &mut [f32], place: &TokenPlace) {
    if let Some(rope) = a.rope {
        let table = cx.ropes.table(rope, place.chunk_len as usize);
        table.rotate(cx.weights.level, part, a.n_shared, place.position as usize);
    }
}

/// Writes the normed latent part of each row of `kv` to `latent`, and rotates the shared key in place.
fn part_latent(
    cx: &Context<'_>,
    a: &Mla,
    places: &[TokenPlace],
    kv: &mut [f32],
    latent: &mut [f32],
) -> Result<()> {
    let norm = cx.weights.norm(&a.kv_norm)?;
    let shared_norm = a.shared_norm.as_ref().map(|norm| cx.weights.norm(norm)).transpose()?;
    let width = a.rank + a.n_shared;
    cx.workers.install(|| {
        let tasks =
            kv.par_chunks_mut(ROWS_PER_TASK * width).zip(latent.par_chunks_mut(ROWS_PER_TASK * a.rank));
        tasks.zip(places.par_chunks(ROWS_PER_TASK)).run_with_scratch(&|scratch, ((kv, latent), places)| {
            cx.clock.time(WorkKind::Norm, || {
                let rows = kv.chunks_mut(width).zip(latent.chunks_mut(a.rank)).zip(places);
                for ((row, latent), place) in rows {
                    let (short, shared) = row.split_at_mut(a.rank);
                    norm.row(cx.weights.level, short, latent);
                    if let Some(norm) = &shared_norm {
                        attention::whole_row(norm, cx.weights.level, shared, scratch);
                    }
                    rotate_shared(cx, a, shared, place);
                }
            });
        });
    });
    Ok(())
}

/// Splits rows of `[key | value]` per head into rows of keys, with space for the shared key, and rows of values.
fn part_joint(cx: &Context<'_>, a: &Mla, both: &[f32], k: &mut [f32], v: &mut [f32]) {
    let (width, n_own) = (a.n_heads * (a.n_own() + a.dv), a.n_own());
    cx.workers.install(|| {
        let tasks = k.par_chunks_mut(a.n_heads * a.dk).zip(v.par_chunks_mut(a.n_heads * a.dv));
        tasks.zip(both.par_chunks(width)).run(&|((k, v), both)| {
            let heads = k.chunks_mut(a.dk).zip(v.chunks_mut(a.dv)).zip(both.chunks(n_own + a.dv));
            for ((k, v), both) in heads {
                k[..n_own].copy_from_slice(&both[..n_own]);
                v.copy_from_slice(&both[n_own..]);
            }
        });
    });
}

/// Appends the shared key to the key of every head.
fn append_shared(cx: &Context<'_>, a: &Mla, kv: &[f32], k: &mut [f32]) {
    let n_own = a.n_own();
    cx.workers.install(|| {
        let tasks = k.par_chunks_mut(a.n_heads * a.dk).zip(kv.par_chunks(a.rank + a.n_shared));
        tasks.run(&|(k, kv)| {
            k.chunks_mut(a.dk).for_each(|head| head[n_own..].copy_from_slice(&kv[a.rank..]));
        });
    });
}

/// Computes the values of all heads: their matrices are consecutive in the tensor and are used as one.
fn expand_values(cx: &Context<'_>, a: &Mla, values: &[Matrix], latent: &[f32], v: &mut [f32]) -> Result<()> {
    let Some((first, rest)) = values.split_first() else { return Ok(()) };
    cx.observe(rest.iter(), latent);
    let all = Matrix { n_rows: a.n_heads * a.dv, ..first.clone() };
    cx.products(latent, latent.len() / a.rank, vec![Product::plain(&all, v)])
}

/// Computes the keys of all heads without the shared key. The columns of their matrices are the rows of the product, so
/// each is decoded as it is stored and multiplied from the right.
fn expand_keys(cx: &Context<'_>, a: &Mla, keys: &[Matrix], latent: &[f32], k: &mut [f32]) -> Result<()> {
    let (n_own, n_tokens) = (a.n_own(), latent.len() / a.rank);
    let mut scales = Vec::with_capacity(keys.len());
    for matrix in keys {
        let scale = cx.weights.optional(matrix.scale.as_ref())?;
        scales.push(scale.and_then(|scale| scale.first().copied()).unwrap_or(1.0));
    }
    let slices = cuts(n_tokens, SLICE_ROWS);
    let columns = (0..a.n_heads).flat_map(|head| [head * a.dk, head * a.dk + n_own]);
    let columns: Vec<usize> = columns.chain([a.n_heads * a.dk]).collect();
    let grid = TileGrid::new(k, a.n_heads * a.dk, slices.clone(), columns);
    let n_slices = slices.len().saturating_sub(1);
    cx.each(keys.len() * n_slices, |scratch, task| {
        let (head, slice) = (task / n_slices, task % n_slices);
        let matrix = &keys[head];
        let decoded = lend(&mut scratch.rows, a.rank * n_own);
        cx.clock.time(WorkKind::Decode, || {
            cx.weights.rows(matrix.tensor, matrix.first_row, a.rank, &mut scratch.bytes, decoded)
        })?;
        let rows = MatrixView::new(
            &latent[slices[slice] * a.rank..],
            slices[slice + 1] - slices[slice],
            a.rank,
            a.rank,
        );
        let mut out: MatrixTile<'_> = grid.take(slice, 2 * head);
        cx.clock.time(WorkKind::Product, || {
            multiply_rows(&mut out, rows, MatrixView::new(decoded, a.rank, n_own, n_own), scales[head]);
        });
        if cx.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
    })
}

/// Shows the observer the start of each query, which the columns of the keys' matrices are multiplied with in the
/// scores.
fn observe_queries(cx: &Context<'_>, a: &Mla, keys: &[Matrix], q: &[f32]) {
    if cx.observer.is_none() {
        return;
    }
    for (head, matrix) in keys.iter().enumerate() {
        let rows = q.chunks(a.q.n_rows).flat_map(|row| &row[head * a.dk..][..a.n_own()]);
        let rows: Vec<f32> = rows.copied().collect();
        cx.observe(std::iter::once(matrix), &rows);
    }
}

/// Tensors that would change the results of the two expanding tensors; they are not implemented.
const AFFIXES: [&str; 3] = ["attn_k_b.bias", "attn_v_b.bias", "attn_v_b.scale"];

impl Mla {
    /// Resolves the latent attention of a layer.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Mla> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let heads = b.keys.layer_count("attention.head_count", layer)?.filter(|&n| n > 0);
        let n_heads = heads.ok_or_else(|| b.keys.missing("attention.head_count"))?;
        let mask = b.mask(layer)?;
        let kind = mla_kind(b, mask)?;
        let dk = mla_width(b, "key_length", kind, n_heads)?;
        let dv = mla_width(b, "value_length", kind, n_heads)?;
        let rank = b.keys.need_count(&format!("attention.kv_lora_rank{kind}"))?;
        let kv_name = at("attn_kv_a_mqa");
        let n_shared = b.n_rows(&kv_name)?.checked_sub(rank).filter(|&n| n < dk);
        let n_shared = n_shared.ok_or_else(|| {
            let expected = "at most the rows of attn_kv_a_mqa, by less than the width of a key";
            b.keys.unknown("attention.kv_lora_rank", expected, &rank.to_string())
        })?;
        let rows = |width: usize| n_heads.checked_mul(width);
        let (Some(q_rows), Some(v_rows), Some(_)) = (rows(dk), rows(dv), rows(dk.saturating_add(dv))) else {
            let found = n_heads.to_string();
            return Err(b.keys.unknown("attention.head_count", "heads that fit in memory", &found));
        };
        let kv = b.tensors.need_matrix(&kv_name, rank + n_shared, b.n_embd)?;
        let kv_norm = b.need_rms_norm(&at("attn_kv_a_norm"), rank)?;
        let shared_norm = b.tensors.norm(&at("attn_k_norm"), n_shared, NormFormula::Rms, b.eps)?;
        let (q_latent, q) = mla_queries(b, layer, q_rows)?;
        let expansion = expansion(b, layer, n_heads, dk - n_shared, dv, rank)?;
        let gate = OutputGate::resolve(b, layer, n_heads, v_rows)?;
        let out = b.tensors.need_matrix(&at("attn_output"), b.n_embd, v_rows)?;
        // Without a shared key, nothing is rotated.
        let rope = if n_shared == 0 { None } else { b.rope(layer, mask, n_shared)? };
        let sinks = b.tensors.vector(&at("attn_sinks.weight"), n_heads)?;
        b.limit_to_indexed(layer)?;
        let (scale, temperature) = (mla_scale(b, dk)? as f32, Temperature::resolve(b, rope)?);
        Ok(Mla {
            q_latent,
            q,
            kv,
            kv_norm,
            shared_norm,
            expansion,
            gate,
            out,
            n_heads,
            dk,
            dv,
            rank,
            n_shared,
            rope,
            scale,
            sinks,
            mask,
            temperature,
        })
    }
}

/// Returns the suffix of the keys with a layer's sizes: windowed layers may have their own.
fn mla_kind(b: &Resolver<'_>, mask: Mask) -> Result<&'static str> {
    let has_own = b.keys.count("attention.kv_lora_rank_swa")?.is_some_and(|n| n > 0);
    Ok(if has_own && mask != Mask::Causal { "_swa" } else { "" })
}

/// Reads a width of the heads, from the key with or without the suffix `_mla`.
fn mla_width(b: &Resolver<'_>, name: &str, kind: &str, n_heads: usize) -> Result<usize> {
    match b.keys.count(&format!("attention.{name}_mla{kind}"))?.filter(|&n| n > 0) {
        Some(width) => Ok(width),
        None => {
            // As for other attention: a share of the stream's width if the file has no key.
            let found = b.keys.count(&format!("attention.{name}{kind}"))?.filter(|&n| n > 0);
            Ok(found.unwrap_or(b.n_embd / n_heads))
        }
    }
}

fn mla_queries(b: &mut Resolver<'_>, layer: usize, q_rows: usize) -> Result<(Option<Latent>, Matrix)> {
    let at = |name: &str| format!("blk.{layer}.{name}");
    if !b.tensors.has(&at("attn_q_a.weight")) {
        return Ok((None, b.tensors.need_matrix(&at("attn_q"), q_rows, b.n_embd)?));
    }
    let latent = Latent::queries(b, layer)?;
    let q = b.tensors.need_matrix(&at("attn_q_b"), q_rows, latent.down.n_rows)?;
    Ok((Some(latent), q))
}

fn expansion(
    b: &mut Resolver<'_>,
    layer: usize,
    n_heads: usize,
    n_own: usize,
    dv: usize,
    rank: usize,
) -> Result<Expansion> {
    let at = |name: &str| format!("blk.{layer}.{name}");
    if b.tensors.has(&at("attn_kv_b.weight")) {
        let n_rows = n_heads * (n_own + dv);
        return Ok(Expansion::Joint(b.tensors.need_matrix(&at("attn_kv_b"), n_rows, rank)?));
    }
    let tensors: Vec<String> = AFFIXES.into_iter().map(at).filter(|name| b.tensors.has(name)).collect();
    if !tensors.is_empty() {
        return Err(EngineError::LeftOver { tensors });
    }
    Ok(Expansion::Split {
        keys: b.tensors.experts(&at("attn_k_b"), n_heads, rank, n_own)?,
        values: b.tensors.experts(&at("attn_v_b"), n_heads, dv, rank)?,
    })
}

/// Returns the factor of scores: `1 / sqrt(dk)`, times the square of the magnitude that comes with a scaling of rotations.
fn mla_scale(b: &Resolver<'_>, dk: usize) -> Result<f64> {
    if let Some(scale) = b.keys.number("attention.scale")?.filter(|&s| s > 0.0) {
        return Ok(scale);
    }
    let magnitude = b.rope_magnitudes()?.scores;
    Ok(magnitude * magnitude / (dk as f64).sqrt())
}

#[cfg(test)]
mod tests;
