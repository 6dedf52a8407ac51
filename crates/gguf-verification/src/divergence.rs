//! Divergence of a model from its baseline.

use serde::Serialize;

use crate::{Estimate, Position, Reference, Spread};

/// Number of tokens that are shown where the two differ most.
const N_WORST: usize = 8;

/// Token at which the models differ, with its context.
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
    /// Text before the token; null without a tokenizer.
    pub context: Option<String>,
}

/// Divergence over the scored tokens, and what llama-perplexity prints of two models, by its definitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Divergence {
    /// Divergence from the baseline, in nats per token.
    pub kld: Spread,
    /// Δp: the model's probability of the true token minus the baseline's, -1 to 1.
    pub dp: Spread,
    /// Share of tokens with the same first choice, 0 to 1.
    pub top1_agreement: f64,
    /// Standard error of the share.
    pub top1_stderr: f64,
    /// Root mean square of Δp, 0 to 1.
    pub rms_dp: f64,
    /// Standard error of the root mean square.
    pub rms_dp_stderr: f64,
    /// Perplexity divided by the baseline's.
    pub ppl_ratio: Estimate,
    /// Perplexity minus the baseline's.
    pub ppl_difference: Estimate,
    /// Correlation of the two models' log-likelihoods, -1 to 1; null if one of them is constant.
    pub ln_ppl_correlation: f64,
    /// Standard error of the baseline's perplexity.
    pub baseline_ppl_stderr: f64,
    /// `ln(perplexity)` minus the baseline's; the standard error accounts for the correlation of the two.
    pub delta_ln_ppl: Estimate,
    /// Perplexity of the baseline.
    pub baseline_ppl: f64,
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
        let own = Estimate::of_mean(pairs.iter().map(|(p, _)| p.score.nll));
        let base = Estimate::of_mean(pairs.iter().map(|(_, r)| r.score.nll));
        let products = pairs.iter().map(|(p, r)| (p.score.nll - own.value) * (r.score.nll - base.value));
        // Covariance of the means, as the standard errors are those of the means.
        let covariance = products.sum::<f64>() / n / (n - 1.0);
        let (ppl, base_ppl) = (own.value.exp(), base.value.exp());
        // The standard error of the mean difference accounts for the correlation.
        let delta_ln_ppl = Estimate::of_mean(pairs.iter().map(|(p, r)| p.score.nll - r.score.nll));
        let ratio = delta_ln_ppl.value.exp();
        let (ppl_stderr, base_stderr) = (ppl * own.stderr, base_ppl * base.stderr);
        let difference_variance =
            ppl_stderr * ppl_stderr + base_stderr * base_stderr - 2.0 * ppl * base_ppl * covariance;
        let dp = pairs.iter().map(|(p, r)| (-p.score.nll).exp() - (-r.score.nll).exp());
        let squares = Estimate::of_mean(dp.clone().map(|d| d * d));
        let rms = squares.value.sqrt();
        let same = pairs.iter().filter(|(p, r)| p.score.top == r.score.top).count() as f64 / n;
        Some(Self {
            kld: Spread::of(pairs.iter().map(|(_, r)| r.kld)),
            dp: Spread::of(dp),
            top1_agreement: same,
            top1_stderr: if n > 1.0 { (same * (1.0 - same) / (n - 1.0)).sqrt() } else { 0.0 },
            rms_dp: rms,
            // Error of the square, propagated through the root; 0 for equal models.
            rms_dp_stderr: if rms > 0.0 { 0.5 / rms * squares.stderr } else { 0.0 },
            ppl_ratio: Estimate { value: ratio, stderr: ratio * delta_ln_ppl.stderr },
            ppl_difference: Estimate {
                value: ppl - base_ppl,
                // Rounding may leave the variance of nearly equal models slightly below zero.
                stderr: difference_variance.max(0.0).sqrt(),
            },
            ln_ppl_correlation: covariance / (own.stderr * base.stderr),
            baseline_ppl_stderr: base_stderr,
            delta_ln_ppl,
            baseline_ppl: base_ppl,
            worst: worst(&pairs),
        })
    }

    /// Returns the relative change of the perplexity; 0.02 is 2 %.
    pub fn ppl_increase(&self) -> Estimate {
        let Estimate { value, stderr } = self.delta_ln_ppl;
        // Error of the logarithm, propagated through the exponential.
        Estimate { value: value.exp_m1(), stderr: stderr * value.exp() }
    }
}

/// Returns the tokens with the largest divergences, largest first, without their contexts.
fn worst(pairs: &[(&Position, Reference)]) -> Vec<WorstToken> {
    let mut worst: Vec<_> = pairs.iter().collect();
    worst.sort_by(|a, b| b.1.kld.total_cmp(&a.1.kld));
    let token = |(p, r): &&(&Position, Reference)| WorstToken {
        prompt: p.prompt,
        at: p.at,
        kld: r.kld,
        token: p.token,
        baseline_top: r.score.top,
        model_top: p.score.top,
        context: None,
    };
    worst.iter().take(N_WORST).map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_engine::TokenScore;

    #[test]
    fn errors_are_those_of_means() {
        let position = |nll, base, same| {
            let score = TokenScore { nll, top: 1 };
            let reference =
                Reference { score: TokenScore { nll: base, top: if same { 1 } else { 2 } }, kld: 0.0 };
            let reference = Some(reference);
            Position { prompt: 0, at: 0, token: 0, score, reference, is_scored: true }
        };
        let positions = [position(1.0, 2.0, true), position(3.0, 2.5, false), position(2.0, 0.5, true)];
        let found = Divergence::of(&positions).unwrap();
        // By hand: means 2 and 5/3, variances 2/3 and 13/18, covariance 1/6.
        let expected = (1.0 / 6.0) / ((2.0f64 / 3.0) * (13.0 / 18.0)).sqrt();
        assert!((found.ln_ppl_correlation - expected).abs() < 1e-12, "{found:?}");
        assert!((found.ppl_ratio.value - (1.0f64 / 3.0).exp()).abs() < 1e-12);
        assert!((found.top1_agreement - 2.0 / 3.0).abs() < 1e-12);
        assert!((found.top1_stderr - (2.0f64 / 9.0 / 2.0).sqrt()).abs() < 1e-12);
        let dp =
            [(-1f64).exp() - (-2f64).exp(), (-3f64).exp() - (-2.5f64).exp(), (-2f64).exp() - (-0.5f64).exp()];
        assert!((found.dp.mean - dp.iter().sum::<f64>() / 3.0).abs() < 1e-15);
        assert_eq!((found.dp.quantiles.max, found.dp.quantiles.min), (dp[0], dp[2]));
        let ratio = found.ppl_ratio;
        // d = -1, 1/2, 3/2: variance 19/18 over n - 1 = 2.
        assert!((ratio.stderr / ratio.value - (19.0f64 / 36.0).sqrt()).abs() < 1e-12, "{ratio:?}");
    }

    #[test]
    fn equal_models_have_no_errors() {
        let score = TokenScore { nll: 1.5, top: 1 };
        let reference = Some(Reference { score, kld: 0.0 });
        let positions = [Position { prompt: 0, at: 0, token: 0, score, reference, is_scored: true }; 4];
        let found = Divergence::of(&positions).unwrap();
        assert_eq!((found.rms_dp, found.rms_dp_stderr, found.ppl_difference.stderr), (0.0, 0.0, 0.0));
        assert_eq!((found.ppl_ratio.value, found.top1_agreement), (1.0, 1.0));
    }
}
