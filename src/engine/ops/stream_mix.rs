//! Mixes of the stream with what it was before earlier layers (Kimi K3, "attention residuals"): of the kept streams and
//! the current one, `h_j`, all `[n_tokens, n_embd]`, a branch reads per token
//! `Σ_j p_j h_j` with `p = softmax_j(Σ_i w_i h_ji / rms(h_j))`.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::math;
use crate::engine::plan::Norm;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::Buffer;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;
use crate::engine::run::weights::LoadedNorm;

/// Rows that one task mixes.
const ROWS_PER_TASK: usize = 64;

/// Which rows of a batch a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MixRows {
    /// One per token.
    All,
    /// Those that are wanted.
    Wanted,
}

impl Runner<'_> {
    /// What a branch reads instead of the stream `x`.
    pub(crate) fn mix_streams(
        &self,
        score: &Norm,
        batch: &ChunkBatch,
        rows: MixRows,
        x: &[f32],
    ) -> Result<Buffer, EngineError> {
        let (n_embd, level) = (self.plan.n_embd, self.weights.level);
        let score = self.weights.norm(score)?;
        let mut out = self.take(x.len());
        let tokens: Vec<usize> = (0..batch.n_tokens()).collect();
        let tokens = match rows {
            MixRows::All => Cow::Borrowed(&tokens[..]),
            MixRows::Wanted => batch.select(&tokens, 1),
        };
        self.carried.with_streams(batch.start, |kept| {
            self.workers.install(|| {
                let tasks =
                    out.par_chunks_mut(ROWS_PER_TASK * n_embd).zip(x.par_chunks(ROWS_PER_TASK * n_embd));
                tasks.zip(tokens.par_chunks(ROWS_PER_TASK)).for_each(|((out, x), tokens)| {
                    self.clock.time(WorkKind::Norm, || {
                        for ((out, x), token) in out.chunks_mut(n_embd).zip(x.chunks(n_embd)).zip(tokens) {
                            let kept = kept.iter().map(|stream| &stream[token * n_embd..][..n_embd]);
                            let rows: Vec<&[f32]> = kept.chain([x]).collect();
                            mix(level, &score, &rows, out);
                        }
                    });
                });
            });
        });
        Ok(out)
    }
}

/// One token's mix of its rows.
fn mix(level: SimdLevel, score: &LoadedNorm, rows: &[&[f32]], out: &mut [f32]) {
    let sum_of_normed = |row: &&[f32]| {
        score.row(level, row, out);
        math::moments(level, out, 0.0).0
    };
    let scores: Vec<f64> = rows.iter().map(sum_of_normed).collect();
    let peak = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - peak).exp()).collect();
    let total: f64 = powers.iter().sum();
    out.fill(0.0);
    for (row, power) in rows.iter().zip(powers) {
        math::add_scaled(level, out, row, (power / total) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::NormFormula;

    #[test]
    fn a_mix_weighs_raw_rows_by_the_scores_of_normed_ones() {
        let weight = [0.5f32, -1.0, 2.0, 0.25, 1.0];
        let rows =
            [[1.0f32, 2.0, -0.5, 0.0, 3.0], [0.25, -4.0, 1.0, 2.0, -1.0], [10.0, 0.0, 20.0, -5.0, 1.0]];
        let eps = 1e-5;
        let score = LoadedNorm {
            formula: NormFormula::Rms,
            weight: Some(weight.to_vec()),
            bias: None,
            eps: eps as f32,
        };
        let scores: Vec<f64> = rows
            .iter()
            .map(|row| {
                let square: f64 = row.iter().map(|x| f64::from(x * x)).sum::<f64>() / 5.0;
                row.iter().zip(weight).map(|(x, w)| f64::from(x * w)).sum::<f64>() / (square + eps).sqrt()
            })
            .collect();
        let total: f64 = scores.iter().map(|score| score.exp()).sum();
        let level = SimdLevel::detect();
        let mut out = [0.0; 5];
        mix(level, &score, &rows.each_ref().map(|row| &row[..]), &mut out);
        for (at, found) in out.iter().enumerate() {
            let expected: f64 =
                rows.iter().zip(&scores).map(|(row, s)| f64::from(row[at]) * s.exp() / total).sum();
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{at}: {found} {expected}");
        }
        // Alone the stream is what it was.
        mix(level, &score, &[&rows[1]], &mut out);
        assert_eq!(out, rows[1]);
    }
}
