//! Divergence from the baseline as programs read it.

use serde::Serialize;

use crate::{Distribution, Divergence, Estimate, Mean, WorstToken};

/// Figures of a [`Divergence`], in the order in which they are printed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DivergenceDocument<'a> {
    /// Divergence from the baseline, in nats per token.
    kld: SpreadDocument,
    /// Δp: the model's probability of the true token minus the baseline's, -1 to 1.
    dp: SpreadDocument,
    /// Share of tokens with the same first choice, 0 to 1.
    top1_agreement: f64,
    /// Standard error of the share.
    top1_stderr: f64,
    /// Root mean square of Δp, 0 to 1.
    rms_dp: f64,
    /// Standard error of the root mean square.
    rms_dp_stderr: f64,
    /// Perplexity divided by the baseline's.
    ppl_ratio: Estimate,
    /// Perplexity minus the baseline's.
    ppl_difference: Estimate,
    /// Correlation of the two models' log-likelihoods, -1 to 1; null if one of them is constant.
    ln_ppl_correlation: f64,
    /// Standard error of the baseline's perplexity.
    baseline_ppl_stderr: f64,
    /// `ln(perplexity)` minus the baseline's; the standard error accounts for the correlation of the two.
    delta_ln_ppl: Estimate,
    /// Perplexity of the baseline.
    baseline_ppl: f64,
    /// Tokens with the largest divergences, largest first.
    worst: Vec<WorstDocument<'a>>,
}

/// Mean and quantiles of a figure over the tokens.
#[derive(Clone, Copy, Debug, Serialize)]
struct SpreadDocument {
    #[serde(flatten)]
    mean: Mean,
    #[serde(flatten)]
    quantiles: Distribution,
}

/// Token at which the models differ, with its context.
#[derive(Clone, Copy, Debug, Serialize)]
struct WorstDocument<'a> {
    #[serde(flatten)]
    token: &'a WorstToken,
    /// Text before the token; null without a tokenizer.
    context: Option<&'a str>,
}

impl<'a> DivergenceDocument<'a> {
    /// Describes a divergence; `contexts` are the texts before its worst tokens, if there is a tokenizer.
    pub(crate) fn new(divergence: &'a Divergence, contexts: &'a [String]) -> Self {
        let statistics = &divergence.statistics;
        let worst = divergence
            .worst
            .iter()
            .enumerate()
            .map(|(at, token)| WorstDocument { token, context: contexts.get(at).map(String::as_str) });
        Self {
            kld: SpreadDocument { mean: divergence.mean.into(), quantiles: statistics.kld },
            dp: SpreadDocument { mean: statistics.mean_dp.into(), quantiles: statistics.dp },
            top1_agreement: divergence.top1_agreement,
            top1_stderr: statistics.same_top.stderr,
            rms_dp: divergence.rms_dp,
            rms_dp_stderr: statistics.rms_dp.stderr,
            ppl_ratio: statistics.ppl_ratio,
            ppl_difference: statistics.ppl_difference,
            ln_ppl_correlation: statistics.ln_ppl_correlation,
            baseline_ppl_stderr: statistics.baseline_ppl_stderr,
            delta_ln_ppl: divergence.delta_ln_ppl,
            baseline_ppl: divergence.baseline_ppl,
            worst: worst.collect(),
        }
    }
}
