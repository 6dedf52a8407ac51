//! How far a model is from its baseline.

use crate::verify::{Estimate, Position, Reference};

/// Tokens shown where the two differ most.
const N_WORST: usize = 8;

/// A token at which the models differ.
#[derive(Clone, Debug, PartialEq)]
pub struct WorstToken {
    /// Index of the prompt.
    pub prompt: usize,
    /// Index of the token in it.
    pub at: usize,
    /// Divergence.
    pub kld: f64,
    /// What the prompt has there.
    pub token: u32,
    /// What the baseline predicts.
    pub baseline_top: u32,
    /// What the model predicts.
    pub model_top: u32,
}

/// Divergence statistics over the scored tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Mean, with its standard error.
    pub mean: Estimate,
    /// Median.
    pub median: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
    /// Share of tokens with the same most likely prediction, 0 to 1.
    pub top1_agreement: f64,
    /// Root mean square of the difference of the true token's probability.
    pub rms_dp: f64,
    /// `ln(PPL / PPL of the baseline)`; the error knows that the two are correlated.
    pub delta_ln_ppl: Estimate,
    /// The baseline's perplexity.
    pub baseline_ppl: f64,
    /// The largest divergences, largest first.
    pub worst: Vec<WorstToken>,
}

/// The value at a fraction of sorted values, interpolated between neighbours.
fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { return f64::NAN };
    let at = fraction * (sorted.len() - 1) as f64;
    let low = at.floor() as usize;
    match (sorted.get(low), sorted.get(low + 1)) {
        (Some(a), Some(b)) => a + (at - low as f64) * (b - a),
        (Some(_), None) => last,
        _ => first,
    }
}

impl Divergence {
    /// Statistics of the positions that count and have a reference; `None` if there are none.
    #[must_use]
    pub fn of(positions: &[Position]) -> Option<Self> {
        let pairs: Vec<(&Position, Reference)> =
            positions.iter().filter(|p| p.is_scored).filter_map(|p| Some((p, p.reference?))).collect();
        if pairs.is_empty() {
            return None;
        }
        let n = pairs.len() as f64;
        let mut sorted: Vec<f64> = pairs.iter().map(|(_, r)| r.kld).collect();
        sorted.sort_by(f64::total_cmp);
        let same = pairs.iter().filter(|(p, r)| p.score.top == r.score.top).count() as f64;
        let dp = pairs.iter().map(|(p, r)| (-p.score.nll).exp() - (-r.score.nll).exp());
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
            median: percentile(&sorted, 0.5),
            p99: percentile(&sorted, 0.99),
            p999: percentile(&sorted, 0.999),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            top1_agreement: same / n,
            rms_dp: (dp.map(|d| d * d).sum::<f64>() / n).sqrt(),
            // The mean of differences has the error of differences: what correlation leaves.
            delta_ln_ppl: Estimate::of_mean(pairs.iter().map(|(p, r)| p.score.nll - r.score.nll)),
            baseline_ppl: (pairs.iter().map(|(_, r)| r.score.nll).sum::<f64>() / n).exp(),
            worst: worst.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        let sorted = [0.0, 1.0, 2.0, 3.0];
        assert_eq!(percentile(&sorted, 0.5), 1.5);
        assert_eq!(percentile(&sorted, 1.0), 3.0);
        assert!((percentile(&sorted, 0.99) - 2.97).abs() < 1e-12);
        assert_eq!(percentile(&[4.0], 0.999), 4.0);
    }
}
