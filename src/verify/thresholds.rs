//! Limits that a file must keep.

use crate::verify::{Divergence, Perplexity, Quality};

/// Limits that a file must keep; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// Highest perplexity.
    pub max_ppl: Option<f64>,
    /// Highest increase of the perplexity over the baseline, as a share (0.02 is 2 %).
    pub max_ppl_increase: Option<f64>,
    /// Highest mean divergence, in nats per token.
    pub max_kld: Option<f64>,
    /// Highest 99th percentile of the divergence.
    pub max_kld_99: Option<f64>,
    /// Lowest share of tokens with the same most likely prediction.
    pub min_top1: Option<f64>,
    /// Lowest mean cosine of a text's vector with the baseline's, for encoders.
    pub min_cosine: Option<f64>,
    /// Lowest cosine of a single text's vector with the baseline's.
    pub min_worst_cosine: Option<f64>,
    /// Highest root mean square of the differences of scores, as a share of their spread.
    pub max_score_error: Option<f64>,
    /// Highest pseudo-perplexity, for masked language models.
    pub max_pseudo_ppl: Option<f64>,
    /// Highest mean divergence at masked tokens.
    pub max_masked_kld: Option<f64>,
    /// Lowest share of masked tokens with the same most likely prediction.
    pub min_masked_top1: Option<f64>,
    /// Lowest quality of the predictions.
    pub min_quality: Option<Quality>,
}

/// Figure that may have a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Perplexity.
    Ppl,
    /// Increase of the perplexity, as a share.
    PplIncrease,
    /// Mean divergence.
    Kld,
    /// 99th percentile of the divergence.
    Kld99,
    /// Share of tokens with the same most likely prediction.
    Top1,
    /// Mean cosine of a text's vector with the baseline's.
    Cosine,
    /// Lowest cosine of a single text's vector.
    WorstCosine,
    /// Difference of scores, as a share of their spread.
    ScoreError,
    /// Pseudo-perplexity.
    PseudoPpl,
    /// Mean divergence at masked tokens.
    MaskedKld,
    /// Share of masked tokens with the same most likely prediction.
    MaskedTop1,
}

impl Figure {
    pub(super) const ALL: [Self; 11] = [
        Self::Ppl,
        Self::PplIncrease,
        Self::Kld,
        Self::Kld99,
        Self::Top1,
        Self::Cosine,
        Self::WorstCosine,
        Self::ScoreError,
        Self::PseudoPpl,
        Self::MaskedKld,
        Self::MaskedTop1,
    ];

    /// Returns true for a figure of vectors, false for one of predictions.
    pub(super) fn is_of_vectors(self) -> bool {
        matches!(self, Self::Cosine | Self::WorstCosine | Self::ScoreError)
    }

    /// Returns true for a figure of masked tokens.
    pub(super) fn is_of_masks(self) -> bool {
        matches!(self, Self::PseudoPpl | Self::MaskedKld | Self::MaskedTop1)
    }

    /// Returns the name of the limit's option.
    #[must_use]
    pub fn limit_name(self) -> &'static str {
        match self {
            Self::Ppl => "max-ppl",
            Self::PplIncrease => "max-ppl-increase",
            Self::Kld => "max-kld",
            Self::Kld99 => "max-kld-99",
            Self::Top1 => "min-top1",
            Self::Cosine => "min-cosine",
            Self::WorstCosine => "min-worst-cosine",
            Self::ScoreError => "max-score-error",
            Self::PseudoPpl => "max-pseudo-ppl",
            Self::MaskedKld => "max-masked-kld",
            Self::MaskedTop1 => "min-masked-top1",
        }
    }

    /// Returns the name of the figure in sentences.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ppl => "perplexity",
            Self::PplIncrease => "increase of the perplexity",
            Self::Kld => "KLD",
            Self::Kld99 => "99 % KLD",
            Self::Top1 => "same choice",
            Self::Cosine => "mean cosine",
            Self::WorstCosine => "worst cosine",
            Self::ScoreError => "error of the scores",
            Self::PseudoPpl => "pseudo-perplexity",
            Self::MaskedKld => "KLD at masked tokens",
            Self::MaskedTop1 => "same choice at masked tokens",
        }
    }

    /// Returns true if more is better.
    #[must_use]
    pub fn is_floor(self) -> bool {
        matches!(self, Self::Top1 | Self::Cosine | Self::WorstCosine | Self::MaskedTop1)
    }

    /// Formats a value for readers.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Ppl | Self::PseudoPpl => format!("{value:.4}"),
            Self::PplIncrease => format!("{:+.2} %", 100.0 * value),
            Self::Top1 | Self::MaskedTop1 => format!("{:.2} %", 100.0 * value),
            // The distance from 1 is what counts.
            Self::Cosine | Self::WorstCosine => format!("{value:.8}"),
            Self::Kld | Self::Kld99 | Self::ScoreError | Self::MaskedKld => significant(value),
        }
    }
}

/// Formats a value with three significant digits, without an exponent unless it is very small.
fn significant(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if magnitude < -5 {
        return format!("{value:.2e}");
    }
    format!("{value:.*}", usize::try_from(2 - magnitude).unwrap_or(0))
}

/// Figure with its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitLine {
    /// Measured figure.
    pub figure: Figure,
    /// Measured value.
    pub value: f64,
    /// Standard error of the value, if it is known.
    pub stderr: Option<f64>,
    /// Limit of the value.
    pub limit: f64,
    /// True if the user set the limit.
    pub is_own: bool,
}

impl LimitLine {
    /// Returns true if the limit is missed. A NaN value misses every limit.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        let keeps = if self.figure.is_floor() { self.value >= self.limit } else { self.value <= self.limit };
        !keeps
    }

    /// Returns true if the limit is kept, but by less than two standard errors: more text may change the result.
    #[must_use]
    pub fn is_close(&self) -> bool {
        !self.is_missed() && !self.is_kept_by(2.0)
    }

    /// Returns true if the limit is kept even if the figure is off by this many standard errors.
    #[must_use]
    pub fn is_kept_by(&self, errors: f64) -> bool {
        let doubt = errors * self.stderr.unwrap_or(0.0);
        let worst = if self.figure.is_floor() { self.value - doubt } else { self.value + doubt };
        !Self { value: worst, ..*self }.is_missed()
    }

    /// Formats the comparison: `KLD 0.133 > 0.0300`.
    #[must_use]
    pub fn relation(&self) -> String {
        let sign = match (self.figure.is_floor(), self.is_missed()) {
            (false, true) => ">",
            (false, false) => "≤",
            (true, true) => "<",
            (true, false) => "≥",
        };
        let show = |value| self.figure.show(value);
        format!("{} {} {sign} {}", self.figure.label(), show(self.value), show(self.limit))
    }
}

impl Thresholds {
    /// Returns these limits, completed by those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            max_ppl: self.max_ppl.or(other.max_ppl),
            max_ppl_increase: self.max_ppl_increase.or(other.max_ppl_increase),
            max_kld: self.max_kld.or(other.max_kld),
            max_kld_99: self.max_kld_99.or(other.max_kld_99),
            min_top1: self.min_top1.or(other.min_top1),
            min_cosine: self.min_cosine.or(other.min_cosine),
            min_worst_cosine: self.min_worst_cosine.or(other.min_worst_cosine),
            max_score_error: self.max_score_error.or(other.max_score_error),
            max_pseudo_ppl: self.max_pseudo_ppl.or(other.max_pseudo_ppl),
            max_masked_kld: self.max_masked_kld.or(other.max_masked_kld),
            min_masked_top1: self.min_masked_top1.or(other.min_masked_top1),
            min_quality: self.min_quality.or(other.min_quality),
        }
    }

    /// Returns true if no limit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Figures with a limit in these thresholds.
    pub(super) fn own(&self) -> impl Iterator<Item = Figure> + '_ {
        Figure::ALL.into_iter().filter(|&figure| self.of(figure).is_some())
    }

    fn of(&self, figure: Figure) -> Option<f64> {
        match figure {
            Figure::Ppl => self.max_ppl,
            Figure::PplIncrease => self.max_ppl_increase,
            Figure::Kld => self.max_kld,
            Figure::Kld99 => self.max_kld_99,
            Figure::Top1 => self.min_top1,
            Figure::Cosine => self.min_cosine,
            Figure::WorstCosine => self.min_worst_cosine,
            Figure::ScoreError => self.max_score_error,
            Figure::PseudoPpl => self.max_pseudo_ppl,
            Figure::MaskedKld => self.max_masked_kld,
            Figure::MaskedTop1 => self.min_masked_top1,
        }
    }

    /// Returns every measured figure with its limit: from these thresholds if it is set, otherwise from `defaults`.
    #[must_use]
    pub fn lines(
        &self,
        defaults: &Self,
        perplexity: &Perplexity,
        divergence: Option<&Divergence>,
    ) -> Vec<LimitLine> {
        let mut figures = vec![(Figure::Ppl, perplexity.value, Some(perplexity.stderr))];
        if let Some(d) = divergence {
            let delta = &d.delta_ln_ppl;
            // Standard error of the logarithm, propagated through the exponential.
            let stderr = delta.stderr * delta.value.exp();
            figures.extend([
                (Figure::PplIncrease, delta.value.exp_m1(), Some(stderr)),
                (Figure::Kld, d.mean.value, Some(d.mean.stderr)),
                (Figure::Kld99, d.p99, None),
                (Figure::Top1, d.top1_agreement, None),
            ]);
        }
        let line = |(figure, value, stderr)| {
            let own = self.of(figure);
            let limit = own.or(defaults.of(figure))?;
            Some(LimitLine { figure, value, stderr, limit, is_own: own.is_some() })
        };
        figures.into_iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ppl(value: f64) -> Perplexity {
        Perplexity { value, stderr: 0.5, tokens: 1, total_nll: 0.0 }
    }

    #[test]
    fn own_limits_go_before_defaults_and_nan_keeps_none() {
        let own = Thresholds { max_ppl: Some(10.0), ..Thresholds::default() };
        let lines = |value| own.lines(&Thresholds { max_ppl: Some(2.0), ..own }, &ppl(value), None);
        assert_eq!(lines(8.0).len(), 1);
        assert!(lines(8.0)[0].is_own && !lines(8.0)[0].is_missed() && !lines(8.0)[0].is_close());
        assert!(lines(9.5)[0].is_close());
        assert!(lines(9.5)[0].is_kept_by(1.0) && !lines(9.5)[0].is_kept_by(1.1));
        assert!(lines(11.0)[0].is_missed() && lines(f64::NAN)[0].is_missed());
        assert_eq!(lines(11.0)[0].relation(), "perplexity 11.0000 > 10.0000");
    }

    #[test]
    fn figures_are_shown_as_people_read_them() {
        assert_eq!(Figure::Kld.show(0.1334), "0.133");
        assert_eq!(Figure::Kld.show(0.03), "0.0300");
        assert_eq!(Figure::Kld.show(4.2e-10), "4.20e-10");
        assert_eq!(Figure::Kld.show(12.34), "12.3");
        assert_eq!(Figure::Top1.show(0.98765), "98.77 %");
        let top1 = LimitLine { figure: Figure::Top1, value: 0.9, stderr: None, limit: 0.95, is_own: false };
        assert!(top1.is_missed());
        assert_eq!(top1.relation(), "same choice 90.00 % < 95.00 %");
    }
}
