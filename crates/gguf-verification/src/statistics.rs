//! Statistics that llama-perplexity prints for two models on the same tokens, by its definitions.

use serde::Serialize;

use crate::{Estimate, Position, Reference};

/// Quantiles of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Largest value.
    pub max: f64,
    /// 99.9th percentile: 0.999 of the values are below it.
    pub p999: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 95th percentile.
    pub(crate) p95: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 75th percentile.
    pub(crate) p75: f64,
    /// Median.
    pub median: f64,
    /// 25th percentile.
    pub(crate) p25: f64,
    /// 10th percentile.
    pub(crate) p10: f64,
    /// 5th percentile.
    pub p05: f64,
    /// 1st percentile.
    pub(crate) p01: f64,
    /// 0.1th percentile.
    pub p001: f64,
    /// Smallest value.
    pub min: f64,
}

/// Returns the value at a fraction of sorted values, interpolated between neighbours.
///
/// # Exactness
/// ref: the position between the neighbours is computed in f32, which is visible with many values. Kept.
fn quantile(sorted: &[f64], fraction: f32) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = fraction * last as f32;
    let low = (place as usize).min(last);
    let part = f64::from(place - place.trunc());
    (1.0 - part) * sorted[low] + part * sorted[(low + 1).min(last)]
}

impl Distribution {
    /// Computes the quantiles of values in any order; NaN if there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |fraction| quantile(&sorted, fraction);
        let n = sorted.len();
        let middle = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
        let median =
            if n % 2 == 1 { middle(n / 2) } else { 0.5 * (middle(n / 2) + middle((n / 2).wrapping_sub(1))) };
        Self {
            max: sorted.last().copied().unwrap_or(f64::NAN),
            p999: at(0.999),
            p99: at(0.99),
            p95: at(0.95),
            p90: at(0.9),
            p75: at(0.75),
            median,
            p25: at(0.25),
            p10: at(0.1),
            p05: at(0.05),
            p01: at(0.01),
            p001: at(0.001),
            min: sorted.first().copied().unwrap_or(f64::NAN),
        }
    }

    /// Returns the quantiles with their names, largest first.
    pub fn named(&self) -> [(&'static str, f64); 13] {
        [
            ("max", self.max),
            ("p999", self.p999),
            ("p99", self.p99),
            ("p95", self.p95),
            ("p90", self.p90),
            ("p75", self.p75),
            ("median", self.median),
            ("p25", self.p25),
            ("p10", self.p10),
            ("p05", self.p05),
            ("p01", self.p01),
            ("p001", self.p001),
            ("min", self.min),
        ]
    }
}

/// Statistics of two models on the same tokens. Δp is the model's probability of the true token minus the baseline's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Quantiles of the divergences.
    pub kld: Distribution,
    /// Quantiles of Δp.
    pub dp: Distribution,
    /// Mean Δp.
    pub mean_dp: Estimate,
    /// Root mean square of Δp.
    pub rms_dp: Estimate,
    /// Share of tokens with the same most likely prediction.
    pub same_top: Estimate,
    /// Perplexity divided by the baseline's.
    pub ppl_ratio: Estimate,
    /// Perplexity minus the baseline's.
    pub ppl_difference: Estimate,
    /// Standard error of the baseline's perplexity.
    pub baseline_ppl_stderr: f64,
    /// Correlation of the two models' log-likelihoods, -1 to 1; NaN if one of them is constant.
    pub ln_ppl_correlation: f64,
}

impl Statistics {
    /// Computes the statistics of positions with the baseline's results.
    pub(super) fn of(pairs: &[(&Position, Reference)]) -> Self {
        let n = pairs.len() as f64;
        let own = Estimate::of_mean(pairs.iter().map(|(p, _)| p.score.nll));
        let base = Estimate::of_mean(pairs.iter().map(|(_, r)| r.score.nll));
        let products = pairs.iter().map(|(p, r)| (p.score.nll - own.value) * (r.score.nll - base.value));
        // Covariance of the means, as the standard errors are those of the means.
        let covariance = products.sum::<f64>() / n / (n - 1.0);
        let (ppl, base_ppl) = (own.value.exp(), base.value.exp());
        let ln_ratio = Estimate::of_mean(pairs.iter().map(|(p, r)| p.score.nll - r.score.nll));
        let ratio = ln_ratio.value.exp();
        let (ppl_stderr, base_stderr) = (ppl * own.stderr, base_ppl * base.stderr);
        let difference_variance =
            ppl_stderr * ppl_stderr + base_stderr * base_stderr - 2.0 * ppl * base_ppl * covariance;
        let dp = || pairs.iter().map(|(p, r)| (-p.score.nll).exp() - (-r.score.nll).exp());
        let squares = Estimate::of_mean(dp().map(|d| d * d));
        let rms = squares.value.sqrt();
        let same = pairs.iter().filter(|(p, r)| p.score.top == r.score.top).count() as f64 / n;
        let same_stderr = if n > 1.0 { (same * (1.0 - same) / (n - 1.0)).sqrt() } else { 0.0 };
        Self {
            kld: Distribution::of(pairs.iter().map(|(_, r)| r.kld)),
            dp: Distribution::of(dp()),
            mean_dp: Estimate::of_mean(dp()),
            // Error of the square, propagated through the root; 0 for equal models.
            rms_dp: Estimate { value: rms, stderr: if rms > 0.0 { 0.5 / rms * squares.stderr } else { 0.0 } },
            same_top: Estimate { value: same, stderr: same_stderr },
            ppl_ratio: Estimate { value: ratio, stderr: ratio * ln_ratio.stderr },
            ppl_difference: Estimate {
                value: ppl - base_ppl,
                // Rounding may leave the variance of nearly equal models slightly below zero.
                stderr: difference_variance.max(0.0).sqrt(),
            },
            baseline_ppl_stderr: base_stderr,
            ln_ppl_correlation: covariance / (own.stderr * base.stderr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_engine::TokenScore;

    #[test]
    fn quantiles_interpolate() {
        let found = Distribution::of([3.0, 0.0, 2.0, 1.0].into_iter());
        assert_eq!((found.median, found.max, found.min), (1.5, 3.0, 0.0));
        assert!((found.p99 - 2.97).abs() < 1e-6 && (found.p05 - 0.15).abs() < 1e-6, "{found:?}");
        let one = Distribution::of([4.0].into_iter());
        assert!(one.named().iter().all(|(_, value)| *value == 4.0));
        assert!(Distribution::of(std::iter::empty()).named().iter().all(|(_, value)| value.is_nan()));
    }

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
        let pairs: Vec<_> = positions.iter().map(|p| (p, p.reference.unwrap())).collect();
        let found = Statistics::of(&pairs);
        // By hand: means 2 and 5/3, variances 2/3 and 13/18, covariance 1/6.
        let expected = (1.0 / 6.0) / ((2.0f64 / 3.0) * (13.0 / 18.0)).sqrt();
        assert!((found.ln_ppl_correlation - expected).abs() < 1e-12, "{found:?}");
        assert!((found.ppl_ratio.value - (1.0f64 / 3.0).exp()).abs() < 1e-12);
        assert!((found.same_top.value - 2.0 / 3.0).abs() < 1e-12);
        assert!((found.same_top.stderr - (2.0f64 / 9.0 / 2.0).sqrt()).abs() < 1e-12);
        let dp =
            [(-1f64).exp() - (-2f64).exp(), (-3f64).exp() - (-2.5f64).exp(), (-2f64).exp() - (-0.5f64).exp()];
        assert!((found.mean_dp.value - dp.iter().sum::<f64>() / 3.0).abs() < 1e-15);
        assert_eq!((found.dp.max, found.dp.min), (dp[0], dp[2]));
        let ratio = found.ppl_ratio;
        // d = -1, 1/2, 3/2: variance 19/18 over n - 1 = 2.
        assert!((ratio.stderr / ratio.value - (19.0f64 / 36.0).sqrt()).abs() < 1e-12, "{ratio:?}");
    }

    #[test]
    fn equal_models_have_no_errors() {
        let score = TokenScore { nll: 1.5, top: 1 };
        let reference = Some(Reference { score, kld: 0.0 });
        let positions = [Position { prompt: 0, at: 0, token: 0, score, reference, is_scored: true }; 4];
        let pairs: Vec<_> = positions.iter().map(|p| (p, p.reference.unwrap())).collect();
        let found = Statistics::of(&pairs);
        assert_eq!((found.rms_dp.value, found.rms_dp.stderr, found.ppl_difference.stderr), (0.0, 0.0, 0.0));
        assert_eq!((found.ppl_ratio.value, found.same_top.value), (1.0, 1.0));
    }
}
