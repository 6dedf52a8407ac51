//! Mixing with the token before (RWKV), matrices one after the other, and the feed-forward made of both.

use rayon::prelude::*;

use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::ops::rowwise::ValueFunction;
use crate::engine::plan::{ChannelMix, LowRank, Vector};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::past::move_on;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Rows that one task works on.
const ROWS_PER_TASK: usize = 64;

impl Runner<'_> {
    /// The token before less each token, `[n_tokens, n_cols]`; before the first token of a chunk there are zeros.
    pub(super) fn shifted(&self, batch: &ChunkBatch, x: &[f32], n_cols: usize) -> Buffer {
        let mut out = self.take(batch.n_tokens() * n_cols);
        let mut place = self.past.map(|past| past.take(n_cols));
        let mut last = match (self.past, &mut place) {
            (Some(past), Some(place)) => past.parts(place),
            _ => Vec::new(),
        };
        let shift = |token: usize, row: &mut [f32]| {
            let at = &x[token * n_cols..][..n_cols];
            if batch.places[token].position == 0 {
                row.iter_mut().zip(at).for_each(|(y, &x)| *y = -x);
            } else {
                // The first token of a chunk that goes on a sequence follows the last of the step before.
                let chunk = batch.cuts.binary_search(&token).ok();
                let before: &[f32] = match chunk.and_then(|chunk| last.get(chunk)) {
                    Some(row) => row,
                    None => &x[(token - 1) * n_cols..][..n_cols],
                };
                row.iter_mut().zip(before).zip(at).for_each(|((y, &before), &x)| *y = before - x);
            }
        };
        self.workers.install(|| {
            out.par_chunks_mut(ROWS_PER_TASK * n_cols).enumerate().for_each(|(task, rows)| {
                self.clock.time(WorkKind::Activation, || {
                    for (at, row) in rows.chunks_mut(n_cols).enumerate() {
                        shift(task * ROWS_PER_TASK + at, row);
                    }
                });
            });
        });
        for (last, cut) in last.iter_mut().zip(batch.cuts.windows(2)) {
            move_on(last, &x[cut[0] * n_cols..cut[1] * n_cols]);
        }
        self.give_place(place);
        out
    }

    /// `x + lerp * shifted`.
    pub(super) fn lerp(&self, lerp: &Vector, x: &[f32], shifted: &[f32]) -> Result<Buffer, EngineError> {
        let weight = self.weights.vector(lerp)?;
        let n = weight.len();
        let mut out = self.take(x.len());
        self.workers.install(|| {
            let tasks = out.par_chunks_mut(ROWS_PER_TASK * n).zip(x.par_chunks(ROWS_PER_TASK * n));
            tasks.zip(shifted.par_chunks(ROWS_PER_TASK * n)).for_each(|((out, x), shifted)| {
                self.clock.time(WorkKind::Activation, || {
                    for ((out, x), shifted) in out.chunks_mut(n).zip(x.chunks(n)).zip(shifted.chunks(n)) {
                        let values = out.iter_mut().zip(x).zip(shifted).zip(&weight);
                        values.for_each(|(((y, &x), &shifted), &w)| *y = x + w * shifted);
                    }
                });
            });
        });
        Ok(out)
    }

    /// `second act(first x)`, or `first x`.
    pub(super) fn low_rank(
        &self,
        low_rank: &LowRank,
        x: &[f32],
        n_tokens: usize,
        act: ValueFunction,
    ) -> Result<Buffer, EngineError> {
        let mut inner = self.take(n_tokens * low_rank.first.n_rows);
        self.products(x, n_tokens, vec![Product::plain(&low_rank.first, &mut inner)])?;
        let Some(second) = &low_rank.second else { return Ok(inner) };
        self.map_rows(act, None, &mut inner, low_rank.first.n_rows);
        let mut out = self.take(n_tokens * second.n_rows);
        self.products(&inner, n_tokens, vec![Product::plain(second, &mut out)])?;
        self.give([inner]);
        Ok(out)
    }

    /// The feed-forward of RWKV: `value max(key (x + μ_k sx), 0)²`, times `sig(receptance (x + μ_r sx))` if it has one.
    /// All rows of the chunks are there.
    pub(crate) fn channel_mix(
        &self,
        mix: &ChannelMix,
        batch: &ChunkBatch,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_tokens = batch.n_tokens();
        let shifted = self.shifted(batch, x, mix.key.n_cols);
        let keys_of = self.lerp(&mix.lerp_k, x, &shifted)?;
        let mut inner = self.take(n_tokens * mix.key.n_rows);
        self.products(&keys_of, n_tokens, vec![Product::plain(&mix.key, &mut inner)])?;
        self.map_rows(ValueFunction::Relu2, None, &mut inner, mix.key.n_rows);
        self.products(&inner, n_tokens, vec![Product::plain(&mix.value, out)])?;
        self.give([keys_of, inner]);
        if let Some((lerp, matrix)) = &mix.receptance {
            let seen = self.lerp(lerp, x, &shifted)?;
            let mut gate = self.take(n_tokens * matrix.n_rows);
            self.products(&seen, n_tokens, vec![Product::plain(matrix, &mut gate)])?;
            let level = self.weights.level;
            self.each_row((out, matrix.n_rows), (&gate, matrix.n_rows), |y, gate| {
                math::times_sigmoid(level, y, gate);
            });
            self.give([seen, gate]);
        }
        self.give([shifted]);
        Ok(())
    }
}
