//! Mean and quantiles of a figure over the tokens, by the definitions of llama-perplexity.

use serde::Serialize;

use crate::Estimate;

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
    pub p95: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 75th percentile.
    pub p75: f64,
    /// Median.
    pub median: f64,
    /// 25th percentile.
    pub p25: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 5th percentile.
    pub p05: f64,
    /// 1st percentile.
    pub p01: f64,
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

/// Mean and quantiles of a figure over the tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean value.
    pub mean: f64,
    /// Standard error of the mean.
    pub stderr: f64,
    /// Quantiles.
    #[serde(flatten)]
    pub quantiles: Distribution,
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let Estimate { value: mean, stderr } = Estimate::of_mean(values.clone());
        Self { mean, stderr, quantiles: Distribution::of(values) }
    }

    /// Returns the mean with its standard error.
    pub fn estimate(&self) -> Estimate {
        Estimate { value: self.mean, stderr: self.stderr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let found = Distribution::of([3.0, 0.0, 2.0, 1.0].into_iter());
        assert_eq!((found.median, found.max, found.min), (1.5, 3.0, 0.0));
        assert!((found.p99 - 2.97).abs() < 1e-6 && (found.p05 - 0.15).abs() < 1e-6, "{found:?}");
        let one = Distribution::of([4.0].into_iter());
        assert!(one.named().iter().all(|(_, value)| *value == 4.0));
        assert!(Distribution::of(std::iter::empty()).named().iter().all(|(_, value)| value.is_nan()));
    }
}
