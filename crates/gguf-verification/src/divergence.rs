//! Divergence of a model from its baseline.

pub(super) mod document;

use serde::Serialize;

use crate::{Estimate, Position, Reference, Statistics};

/// Number of tokens that are shown where the two differ most.
const N_WORST: usize = 8;

/// Token at which the models differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstToken {
    /// Index of the prompt, from 0.
    pub prompt: usize,
    /// Index of the token in the prompt.
    #[serde(rename = "token_index")]
    pub at: usize,
    /// Divergence of the two predictions, in nats.
    pub kld: f64,
    /// Id of the token of the prompt.
    pub token: u32,
    /// Id of the most likely token of the baseline.
    pub baseline_top: u32,
    /// Id of the most likely token of the model.
    pub model_top: u32,
}

/// Divergence statistics over the scored tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Mean, with its standard error, in nats per token.
    pub mean: Estimate,
    /// Median.
    pub median: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest divergence.
    pub max: f64,
    /// Share of tokens with the same most likely prediction, 0 to 1.
    pub top1_agreement: f64,
    /// Root mean square of the difference between the models' probabilities of the true token.
    pub rms_dp: f64,
    /// `ln(PPL / PPL of the baseline)`; the standard error accounts for the correlation of the two.
    pub delta_ln_ppl: Estimate,
    /// Perplexity of the baseline.
    pub baseline_ppl: f64,
    /// Further statistics of llama-perplexity.
    pub statistics: Statistics,
    /// Tokens with the largest divergences, largest first.
    pub worst: Vec<WorstToken>,
}

impl Divergence {
    /// Computes the statistics of the positions that count and have a reference; `None` if there are none.
    pub fn of(positions: &[Position]) -> Option<Self> {
        let pairs: Vec<(&Position, Reference)> =
            positions.iter().filter(|p| p.is_scored).filter_map(|p| Some((p, p.reference?))).collect();
        if pairs.is_empty() {
            return None;
        }
        let n = pairs.len() as f64;
        let statistics = Statistics::of(&pairs);
        let kld = statistics.kld;
        let mut worst: Vec<_> = pairs.iter().collect();
        worst.sort_by(|a, b| b.1.kld.total_cmp(&a.1.kld));
        let worst = worst.iter().take(N_WORST).map(|(p, r)| WorstToken {
            prompt: p.prompt,
            at: p.at,
            kld: r.kld,
            token: p.token,
            baseline_top: r.score.top,
            model_top: p.score.top,
        });
        Some(Self {
            mean: Estimate::of_mean(pairs.iter().map(|(_, r)| r.kld)),
            median: kld.median,
            p99: kld.p99,
            p999: kld.p999,
            max: kld.max,
            top1_agreement: statistics.same_top.value,
            rms_dp: statistics.rms_dp.value,
            // The standard error of the mean difference accounts for the correlation.
            delta_ln_ppl: Estimate::of_mean(pairs.iter().map(|(p, r)| p.score.nll - r.score.nll)),
            baseline_ppl: (pairs.iter().map(|(_, r)| r.score.nll).sum::<f64>() / n).exp(),
            statistics,
            worst: worst.collect(),
        })
    }
}
