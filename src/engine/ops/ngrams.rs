//! N-grams of tokens that add to the streams (Qwen 3.8's `Qwen4ExpTextPLELayer`).
//!
//! With `t_j` the token `j` before, and from the last `end` before on `end` itself, an n-gram is the row
//! `(t_0 m_0 xor .. xor t_(n-1) m_(n-1)) mod size` of each of its parts; `e` is all rows, of pairs first. For each stream `s`
//! of `h`: `g_s = sig(sign(a) sqrt(max(|a|, 1e-6)))` with `a = norm(K_s e) · norm(h_s) / sqrt(n_embd)`, `u_s = g_s V e`, and
//! `h_s += u_s + silu(Σ_k w_k norm(u)_s[(n_taps - 1 - k) dilation before])`.

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::recurrence::transposed;
use crate::engine::plan::{NgramTable, Ngrams};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Rows that one task computes.
const ROWS_PER_TASK: usize = 64;
/// The least that a root is taken of.
const LEAST: f32 = 1e-6;

impl Runner<'_> {
    /// Adds the n-grams to the streams `x`, `[n_tokens, n_streams * n_embd]`.
    pub(crate) fn add_ngrams(
        &self,
        n: &Ngrams,
        batch: &ChunkBatch,
        x: &mut [f32],
    ) -> Result<(), EngineError> {
        let (n_tokens, width, n_embd) = (batch.n_tokens(), n.key.n_rows, n.value.n_rows);
        let n_streams = width / n_embd;
        let mut found = self.take(n_tokens * n.key.n_cols);
        self.look_up(&n.table, batch, &mut found)?;
        let [mut added, mut query] = [(); 2].map(|()| self.take(n_tokens * width));
        let mut value = self.take(n_tokens * n_embd);
        let products = vec![Product::plain(&n.key, &mut added), Product::plain(&n.value, &mut value)];
        self.products(&found, n_tokens, products)?;
        self.give([found]);
        self.norm_parts(&self.weights.norm(&n.key_norm)?, &mut added, width, n_streams);
        query.copy_from_slice(x);
        self.norm_parts(&self.weights.norm(&n.query_norm)?, &mut query, width, n_streams);
        self.workers.install(|| {
            let rows = added.par_chunks_mut(n_embd).zip(query.par_chunks(n_embd)).enumerate();
            rows.for_each(|(at, (key, query))| {
                self.clock.time(WorkKind::Activation, || {
                    let dot: f64 = key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
                    let gate = gate((dot / (n_embd as f64).sqrt()) as f32);
                    let value = &value[at / n_streams * n_embd..][..n_embd];
                    key.iter_mut().zip(value).for_each(|(to, value)| *to = gate * value);
                });
            });
        });
        let mut normed = query;
        normed.copy_from_slice(&added);
        self.norm_parts(&self.weights.norm(&n.conv_norm)?, &mut normed, width, n_streams);
        let taps = transposed(&self.weights.vector(&n.conv)?, n.n_taps);
        self.workers.install(|| {
            let rows = x.par_chunks_mut(ROWS_PER_TASK * width).zip(added.par_chunks(ROWS_PER_TASK * width));
            rows.enumerate().for_each_init(Vec::new, |sum, (task, (x, added))| {
                self.clock.time(WorkKind::Activation, || {
                    let rows = x.chunks_mut(width).zip(added.chunks(width)).enumerate();
                    for (row, (x, added)) in rows {
                        let token = task * ROWS_PER_TASK + row;
                        Self::convolve_far(n, (&taps, &normed), batch, token, sum);
                        for ((x, added), conv) in x.iter_mut().zip(added).zip(&*sum) {
                            *x += added + conv * math::sigmoid(*conv);
                        }
                    }
                });
            });
        });
        self.give([added, value, normed]);
        Ok(())
    }

    /// The rows of every token, one part after the other.
    fn look_up(&self, table: &NgramTable, batch: &ChunkBatch, out: &mut [f32]) -> Result<(), EngineError> {
        let tokens = &self.carried.tokens[batch.start..batch.start + batch.n_tokens()];
        let (width, mut bytes) = (table.rows.n_cols, Vec::new());
        let mut parts = out.chunks_mut(width);
        for cut in batch.cuts.windows(2) {
            for token in cut[0]..cut[1] {
                for (row, out) in table.rows_of(&tokens[cut[0]..=token]).into_iter().zip(&mut parts) {
                    self.weights.rows(table.rows.tensor, row, 1, &mut bytes, out)?;
                }
            }
        }
        Ok(())
    }

    /// The convolution of one token, over taps that lie apart.
    fn convolve_far(
        n: &Ngrams,
        (taps, x): (&[f32], &[f32]),
        batch: &ChunkBatch,
        token: usize,
        sum: &mut Vec<f32>,
    ) {
        let width = n.key.n_rows;
        sum.clear();
        sum.resize(width, 0.0);
        for (tap, weights) in taps.chunks(width).enumerate() {
            let back = (n.n_taps - 1 - tap).saturating_mul(n.dilation);
            // Tokens before a chunk's first are another's.
            if back <= batch.places[token].position as usize {
                let row = &x[(token - back) * width..][..width];
                for ((sum, weight), x) in sum.iter_mut().zip(weights).zip(row) {
                    *sum += weight * x;
                }
            }
        }
    }
}

impl NgramTable {
    /// The rows of the last of the tokens.
    fn rows_of(&self, tokens: &[u32]) -> Vec<usize> {
        let mut before = tokens.iter().rev().copied();
        let Some(last) = before.next() else { return Vec::new() };
        let mut mixed = u64::from(last).wrapping_mul(self.multipliers[0]);
        let mut is_cut = false;
        let mut rows = Vec::with_capacity(self.parts.len());
        for (factor, parts) in self.multipliers[1..].iter().zip(self.parts.chunks(self.n_per_length)) {
            let token = before.next().filter(|&token| !is_cut && token != self.end);
            is_cut = token.is_none();
            mixed ^= u64::from(token.unwrap_or(self.end)).wrapping_mul(*factor);
            rows.extend(parts.iter().map(|&(first, n)| first + (mixed % n as u64) as usize));
        }
        rows
    }
}

/// The logistic function of the root with its sign.
fn gate(a: f32) -> f32 {
    if a == 0.0 { 0.5 } else { math::sigmoid(a.abs().max(LEAST).sqrt().copysign(a)) }
}

#[cfg(test)]
mod tests;
