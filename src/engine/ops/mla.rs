//! Latent attention: what it adds to attention, making queries, keys and values of all heads from short rows.
//!
//! `q = W_q x`, or `W_qb norm(W_qa x)`; `[c | s] = W_kv x`, `c` normed; the key of head `h` is `[K_h c | s]` and its value
//! `V_h c`, the end of each query and `s` rotated (DeepSeek-AI 2024, arXiv 2405.04434, equations 9 to 19). Keys and values
//! are expanded, not queries compressed: with chunks of a few thousand tokens that takes fewer multiplications.

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::ops::attention::{self, Projected, Scores};
use crate::engine::ops::matmul::{MatrixTile, MatrixView, TileGrid, multiply_rows};
use crate::engine::ops::product::Product;
use crate::engine::plan::{Expansion, Matrix, Mla};
use crate::engine::run::batch::{ChunkBatch, TokenPlace};
use crate::engine::run::buffers::Buffer;
use crate::engine::run::panel::cuts;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;
use crate::engine::run::workers::lend;

/// Rows that one task norms, rotates or copies.
const ROWS_PER_TASK: usize = 64;
/// Rows that one task expands with a head's matrix.
const SLICE_ROWS: usize = 512;

impl Mla {
    pub(crate) fn scores(&self) -> Scores<'_> {
        Scores {
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

/// Bytes of a thread's buffers for chunks of this length: those of attention, or a head's matrix, encoded in a type of at
/// most four bytes, and decoded.
pub(crate) fn buffer_bytes(a: &Mla, chunk_len: usize) -> usize {
    let expansion = match a.expansion {
        Expansion::Joint(_) => 0,
        Expansion::Split { .. } => 2 * 4 * a.rank * a.n_own(),
    };
    attention::buffer_bytes(&a.scores(), chunk_len).max(expansion)
}

impl Runner<'_> {
    /// Latent attention of the normed input `x` (`[n_tokens, n_embd]`) into `out`, the wanted rows.
    pub(crate) fn latent_attention(
        &self,
        a: &Mla,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, n_wanted) = (batch.n_tokens(), batch.n_wanted());
        let q = self.latent_queries(a, batch, x)?;
        self.slot("q", &q, a.q.n_rows);
        let mut kv = self.take(n_tokens * a.kv.n_rows);
        self.products(x, n_tokens, vec![Product::plain(&a.kv, &mut kv)])?;
        let mut latent = self.take(n_tokens * a.rank);
        self.part_latent(a, &batch.places, &mut kv, &mut latent)?;
        self.slot("kv_latent", &latent, a.rank);
        let mut k = self.take(n_tokens * a.n_heads * a.dk);
        let mut v = self.take(n_tokens * a.n_heads * a.dv);
        match &a.expansion {
            Expansion::Joint(matrix) => {
                let mut both = self.take(n_tokens * matrix.n_rows);
                self.products(&latent, n_tokens, vec![Product::plain(matrix, &mut both)])?;
                self.part_joint(a, &both, &mut k, &mut v);
                self.give([both]);
            }
            Expansion::Split { keys, values } => {
                self.expand_values(a, values, &latent, &mut v)?;
                self.expand_keys(a, keys, &latent, &mut k)?;
                self.observe_queries(a, keys, &q);
            }
        }
        self.append_shared(a, &kv, &mut k);
        self.give([kv, latent]);
        self.slot("k", &k, a.n_heads * a.dk);
        let mut context = self.take(n_wanted * a.n_heads * a.dv);
        self.mix(a.scores(), batch, &batch.cuts, Projected { q: &q, k: &k, v: &v }, &mut context)?;
        self.slot("attention", &context, a.n_heads * a.dv);
        self.give([q, k, v]);
        if let Some(gate) = &a.gate {
            let rows = batch.select(x, gate.matrix.n_cols);
            self.gate_heads(gate, &rows, n_wanted, &mut context, a.out.n_cols)?;
        }
        self.products(&context, n_wanted, vec![Product::plain(&a.out, out)])?;
        self.give([context]);
        Ok(())
    }

    /// Queries of the wanted rows, their ends rotated.
    fn latent_queries(&self, a: &Mla, batch: &ChunkBatch, x: &[f32]) -> Result<Buffer, EngineError> {
        let n = batch.n_wanted();
        let mut q = self.take(n * a.q.n_rows);
        match &a.q_latent {
            None => {
                let rows = batch.select(x, a.q.n_cols);
                self.products(&rows, n, vec![Product::plain(&a.q, &mut q)])?;
            }
            Some(latent) => {
                let width = latent.down.n_rows;
                let (mut short, mut normed) = (self.take(n * width), self.take(n * width));
                let rows = batch.select(x, latent.down.n_cols);
                self.products(&rows, n, vec![Product::plain(&latent.down, &mut short)])?;
                self.norm_rows(&self.weights.norm(&latent.norm)?, &short, &mut normed, width);
                self.products(&normed, n, vec![Product::plain(&a.q, &mut q)])?;
                self.give([short, normed]);
            }
        }
        let places = batch.select(&batch.places, 1);
        let width = a.q.n_rows;
        self.workers.install(|| {
            let tasks = q.par_chunks_mut(ROWS_PER_TASK * width).zip(places.par_chunks(ROWS_PER_TASK));
            tasks.for_each(|(rows, places)| {
                self.clock.time(WorkKind::Rotate, || {
                    for (row, place) in rows.chunks_mut(width).zip(places) {
                        row.chunks_mut(a.dk)
                            .for_each(|head| self.rotate_shared(a, &mut head[a.n_own()..], place));
                        if let Some(temperature) = a.temperature {
                            temperature.scale(row, place.position as usize);
                        }
                    }
                });
            });
        });
        Ok(q)
    }

    /// Rotates a shared key or what meets it.
    fn rotate_shared(&self, a: &Mla, part: &mut [f32], place: &TokenPlace) {
        if let Some(rope) = a.rope {
            let table = self.ropes.table(rope, place.chunk_len as usize);
            table.rotate(self.weights.level, part, a.n_shared, place.position as usize);
        }
    }

    /// Norms the short part of each row of `kv` into `latent`, and rotates the shared key where it stands.
    fn part_latent(
        &self,
        a: &Mla,
        places: &[TokenPlace],
        kv: &mut [f32],
        latent: &mut [f32],
    ) -> Result<(), EngineError> {
        let norm = self.weights.norm(&a.kv_norm)?;
        let shared_norm = a.shared_norm.as_ref().map(|norm| self.weights.norm(norm)).transpose()?;
        let width = a.rank + a.n_shared;
        self.workers.install(|| {
            let tasks =
                kv.par_chunks_mut(ROWS_PER_TASK * width).zip(latent.par_chunks_mut(ROWS_PER_TASK * a.rank));
            tasks.zip(places.par_chunks(ROWS_PER_TASK)).for_each_init(
                Vec::new,
                |scratch, ((kv, latent), places)| {
                    self.clock.time(WorkKind::Norm, || {
                        let rows = kv.chunks_mut(width).zip(latent.chunks_mut(a.rank)).zip(places);
                        for ((row, latent), place) in rows {
                            let (short, shared) = row.split_at_mut(a.rank);
                            norm.row(self.weights.level, short, latent);
                            if let Some(norm) = &shared_norm {
                                attention::whole_row(norm, self.weights.level, shared, scratch);
                            }
                            self.rotate_shared(a, shared, place);
                        }
                    });
                },
            );
        });
        Ok(())
    }

    /// Rows of `[key | value]` per head become rows of keys, with room for the shared one, and of values.
    fn part_joint(&self, a: &Mla, both: &[f32], k: &mut [f32], v: &mut [f32]) {
        let (width, n_own) = (a.n_heads * (a.n_own() + a.dv), a.n_own());
        self.workers.install(|| {
            let tasks = k.par_chunks_mut(a.n_heads * a.dk).zip(v.par_chunks_mut(a.n_heads * a.dv));
            tasks.zip(both.par_chunks(width)).for_each(|((k, v), both)| {
                let heads = k.chunks_mut(a.dk).zip(v.chunks_mut(a.dv)).zip(both.chunks(n_own + a.dv));
                for ((k, v), both) in heads {
                    k[..n_own].copy_from_slice(&both[..n_own]);
                    v.copy_from_slice(&both[n_own..]);
                }
            });
        });
    }

    /// Appends the shared key to the key of every head.
    fn append_shared(&self, a: &Mla, kv: &[f32], k: &mut [f32]) {
        let n_own = a.n_own();
        self.workers.install(|| {
            let tasks = k.par_chunks_mut(a.n_heads * a.dk).zip(kv.par_chunks(a.rank + a.n_shared));
            tasks.for_each(|(k, kv)| {
                k.chunks_mut(a.dk).for_each(|head| head[n_own..].copy_from_slice(&kv[a.rank..]));
            });
        });
    }

    /// Values of all heads: their matrices lie behind one another, as one.
    fn expand_values(
        &self,
        a: &Mla,
        values: &[Matrix],
        latent: &[f32],
        v: &mut [f32],
    ) -> Result<(), EngineError> {
        let Some((first, rest)) = values.split_first() else { return Ok(()) };
        self.observe(rest.iter(), latent);
        let all = Matrix { n_rows: a.n_heads * a.dv, ..first.clone() };
        self.products(latent, latent.len() / a.rank, vec![Product::plain(&all, v)])
    }

    /// Keys of all heads, but the shared one: the columns of their matrices are the rows of the product, so each is decoded
    /// as it lies and multiplied from the right.
    fn expand_keys(
        &self,
        a: &Mla,
        keys: &[Matrix],
        latent: &[f32],
        k: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_own, n_tokens) = (a.n_own(), latent.len() / a.rank);
        let mut scales = Vec::with_capacity(keys.len());
        for matrix in keys {
            let scale = self.weights.optional(matrix.scale.as_ref())?;
            scales.push(scale.and_then(|scale| scale.first().copied()).unwrap_or(1.0));
        }
        let slices = cuts(n_tokens, SLICE_ROWS);
        let columns = (0..a.n_heads).flat_map(|head| [head * a.dk, head * a.dk + n_own]);
        let columns: Vec<usize> = columns.chain([a.n_heads * a.dk]).collect();
        let grid = TileGrid::new(k, a.n_heads * a.dk, slices.clone(), columns);
        let n_slices = slices.len().saturating_sub(1);
        self.workers.each(keys.len() * n_slices, |scratch, task| {
            let (head, slice) = (task / n_slices, task % n_slices);
            let matrix = &keys[head];
            let decoded = lend(&mut scratch.rows, a.rank * n_own);
            self.clock.time(WorkKind::Decode, || {
                self.weights.rows(matrix.tensor, matrix.first_row, a.rank, &mut scratch.bytes, decoded)
            })?;
            let rows = MatrixView::new(
                &latent[slices[slice] * a.rank..],
                slices[slice + 1] - slices[slice],
                a.rank,
                a.rank,
            );
            let mut out: MatrixTile<'_> = grid.take(slice, 2 * head);
            self.clock.time(WorkKind::Product, || {
                multiply_rows(&mut out, rows, MatrixView::new(decoded, a.rank, n_own, n_own), scales[head]);
            });
            if self.progress.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
        })
    }

    /// What the columns of the keys' matrices meet in the scores is the start of each query.
    fn observe_queries(&self, a: &Mla, keys: &[Matrix], q: &[f32]) {
        if self.observer.is_none_or(|observer| !observer.wants_inputs()) {
            return;
        }
        for (head, matrix) in keys.iter().enumerate() {
            let rows = q.chunks(a.q.n_rows).flat_map(|row| &row[head * a.dk..][..a.n_own()]);
            let rows: Vec<f32> = rows.copied().collect();
            self.observe(std::iter::once(matrix), &rows);
        }
    }
}

#[cfg(test)]
mod tests;
