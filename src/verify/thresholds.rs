//! The limits that a file must keep.

use crate::verify::{Divergence, Finding, Perplexity};

/// Limits that a file must keep; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// Perplexity.
    pub max_ppl: Option<f64>,
    /// Increase of the perplexity over the baseline, as a share (0.02 is 2 %).
    pub max_ppl_increase: Option<f64>,
    /// Mean divergence.
    pub max_kld: Option<f64>,
    /// 99th percentile of the divergence.
    pub max_kld_99: Option<f64>,
    /// Share of tokens with the same most likely prediction.
    pub min_top1: Option<f64>,
}

impl Thresholds {
    /// Defaults against a baseline, by the bits per weight of the file.
    ///
    /// They are set at some four times what the plain recipes of each width cost a model of 135 million parameters
    /// (small models suffer most): a file beyond them is not merely small but damaged.
    #[must_use]
    pub fn for_bits_per_weight(bpw: f64) -> Self {
        let rows = [
            // from bpw, mean, 99 %, increase, top-1
            (15.0, 0.002, 0.02, 0.005, 0.97),
            (7.5, 0.01, 0.06, 0.02, 0.93),
            (6.0, 0.04, 0.25, 0.05, 0.88),
            (5.0, 0.12, 0.7, 0.15, 0.80),
            (4.5, 0.3, 1.7, 0.35, 0.70),
            (4.0, 1.0, 5.0, 1.0, 0.50),
            (3.0, 2.0, 9.0, 4.0, 0.35),
            (0.0, 4.0, 16.0, 20.0, 0.15),
        ];
        let (_, kld, kld_99, increase, top1) =
            rows.into_iter().find(|row| bpw >= row.0).unwrap_or(rows[rows.len() - 1]);
        Self {
            max_ppl: None,
            max_ppl_increase: Some(increase),
            max_kld: Some(kld),
            max_kld_99: Some(kld_99),
            min_top1: Some(top1),
        }
    }

    /// These limits where they are set, else the others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            max_ppl: self.max_ppl.or(other.max_ppl),
            max_ppl_increase: self.max_ppl_increase.or(other.max_ppl_increase),
            max_kld: self.max_kld.or(other.max_kld),
            max_kld_99: self.max_kld_99.or(other.max_kld_99),
            min_top1: self.min_top1.or(other.min_top1),
        }
    }

    /// The limits that a measurement misses. A measurement that is not a number misses every limit.
    #[must_use]
    pub fn missed(&self, perplexity: &Perplexity, divergence: Option<&Divergence>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut above = |name: &'static str, value: f64, limit: Option<f64>| {
            if let Some(limit) = limit.filter(|&limit| value.is_nan() || value > limit) {
                findings.push(Finding::error(name, format!("{value:.6} is above the limit of {limit}")));
            }
        };
        above("max-ppl", perplexity.value, self.max_ppl);
        if let Some(d) = divergence {
            above("max-ppl-increase", d.delta_ln_ppl.value.exp_m1(), self.max_ppl_increase);
            above("max-kld", d.mean.value, self.max_kld);
            above("max-kld-99", d.p99, self.max_kld_99);
            if let Some(limit) = self.min_top1.filter(|&limit| d.top1_agreement < limit) {
                let message = format!("{:.4} is below the limit of {limit}", d.top1_agreement);
                findings.push(Finding::error("min-top1", message));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_as_bits_shrink_and_nan_passes_none() {
        let widths = [16.0, 8.5, 6.6, 5.5, 4.85, 4.25, 3.4, 2.1];
        let limits = widths.map(|bpw| Thresholds::for_bits_per_weight(bpw).max_kld.unwrap());
        assert!(limits.is_sorted());
        let set = Thresholds { max_ppl: Some(10.0), ..Thresholds::default() };
        let ppl = |value| Perplexity { value, stderr: 0.0, tokens: 1, total_nll: 0.0 };
        assert!(set.missed(&ppl(9.0), None).is_empty());
        assert_eq!(set.missed(&ppl(11.0), None).len(), 1);
        assert_eq!(set.missed(&ppl(f64::NAN), None).len(), 1);
    }
}
