//! Attention residuals (Kimi K3): mixes of the stream with earlier streams. `h_j` are the kept streams and the current
//! one, all `[n_tokens, n_embd]`. A branch reads `Σ_j p_j h_j` per token, with
//! `p = softmax_j(Σ_i w_i h_ji / rms(h_j))`.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::Result;
use crate::exec::batch::ChunkBatch;
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{LoadedNorm, Norm};
use crate::exec::workers::{ROWS_PER_TASK, Tasks};
use crate::resolve::resolver::Resolver;
use gguf_core::simd::SimdLevel;

/// Stream mixes of a layer's branches. Each score is the sum of a stream's normed values.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMix {
    /// Norm for the scores of the mixer's input.
    pub mixer: Norm,
    /// Norm for the scores of the feed-forward's input.
    pub ffn: Norm,
    /// True if the stream before the layer is kept for all later mixes; the stream then begins anew with the mixer's
    /// output.
    pub keeps: bool,
}

/// Rows of a batch that a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MixRows {
    /// One row per token.
    All,
    /// The wanted rows.
    Wanted,
}

/// Returns the mix that a branch reads instead of the stream `x`.
pub(crate) fn mix_streams(
    cx: &Context<'_>,
    score: &Norm,
    batch: &ChunkBatch,
    rows: MixRows,
    x: &[f32],
) -> Result<Buffer> {
    let (n_embd, level) = (cx.n_embd, cx.weights.level);
    let score = cx.weights.norm(score)?;
    let mut out = cx.take(x.len());
    let tokens: Vec<usize> = (0..batch.n_tokens()).collect();
    let tokens = match rows {
        MixRows::All => Cow::Borrowed(&tokens[..]),
        MixRows::Wanted => batch.select(&tokens, 1),
    };
    cx.carried.with_streams(batch.start, |kept| {
        cx.workers.install(|| {
            let tasks = out.par_chunks_mut(ROWS_PER_TASK * n_embd).zip(x.par_chunks(ROWS_PER_TASK * n_embd));
            tasks.zip(tokens.par_chunks(ROWS_PER_TASK)).run(&|((out, x), tokens)| {
                cx.clock.time(WorkKind::Norm, || {
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

/// Computes one token's mix of its rows.
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

/// Number of layers after which a stream is kept; if it is absent or 0, branches read the stream alone.
const PERIOD: &str = "attn_res.block_size";

impl StreamMix {
    /// Resolves the stream mixes of a layer's branches.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize, is_serial: bool) -> Result<Option<StreamMix>> {
        let Some(period) = b.keys.count(PERIOD)?.filter(|&n| n > 0) else { return Ok(None) };
        if !is_serial {
            return Err(b.keys.unknown(PERIOD, "0 in a graph that is not serial", &period.to_string()));
        }
        Ok(Some(StreamMix {
            mixer: b.need_norm_of(&format!("blk.{layer}.attn_res_score"), b.n_embd)?,
            ffn: b.need_norm_of(&format!("blk.{layer}.ffn_res_score"), b.n_embd)?,
            keeps: layer.is_multiple_of(period),
        }))
    }
}

/// Resolves the stream mix after the last layer.
pub(crate) fn final_mix(b: &mut Resolver<'_>) -> Result<Option<Norm>> {
    match b.keys.count(PERIOD)?.filter(|&n| n > 0) {
        Some(_) => b.need_norm_of("output_res_score", b.n_embd).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::weights::NormFormula;

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
        // A stream alone is unchanged.
        mix(level, &score, &[&rows[1]], &mut out);
        assert_eq!(out, rows[1]);
    }
}
