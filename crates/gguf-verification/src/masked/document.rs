//! Predictions at masked tokens as programs read them.

use serde::Serialize;

use crate::{Cost, Estimate, MaskedReport, Perplexity};

/// Figures, or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MaskedDocument<'a> {
    Figures(MaskedFigures),
    Absent(MaskedAbsence<'a>),
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct MaskedAbsence<'a> {
    /// Reason why there are no figures, in place of all other keys.
    absent: &'a str,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct MaskedFigures {
    /// Pseudo-perplexity over the tokens that were masked, each alone.
    pseudo_perplexity: Perplexity,
    /// Number of texts with masked tokens; each has at most 128 tokens.
    texts: usize,
    /// Number of tokens from which the sample was taken.
    candidates: usize,
    /// Id of the token that masks.
    mask_token: u32,
    /// Comparison with the baseline, if it predicts masked tokens too.
    against: Option<MaskedDifference>,
}

/// Differences from the baseline's predictions at masked tokens.
#[derive(Clone, Copy, Debug, Serialize)]
struct MaskedDifference {
    /// Mean divergence, in nats per token.
    kld: f64,
    /// Standard error of the mean.
    kld_stderr: f64,
    /// Largest divergence.
    kld_max: f64,
    /// Share of tokens with the same first choice, 0 to 1.
    top1_agreement: f64,
    /// `ln(pseudo-perplexity)` minus the baseline's.
    delta_ln_ppl: Estimate,
    /// Pseudo-perplexity of the baseline.
    baseline_pseudo_perplexity: f64,
    /// Figures of an undamaged file of these types, if they were measured.
    healthy: Option<HealthyMasked>,
}

/// Differences of an undamaged file from the baseline at masked tokens.
#[derive(Clone, Copy, Debug, Serialize)]
struct HealthyMasked {
    /// Mean divergence, in nats per token.
    kld: f64,
    /// Share of tokens with another first choice, 0 to 1.
    other_choice: f64,
}

impl<'a> From<&'a Result<Box<MaskedReport>, String>> for MaskedDocument<'a> {
    fn from(masked: &'a Result<Box<MaskedReport>, String>) -> Self {
        match masked {
            Ok(found) => Self::Figures(MaskedFigures::from(&**found)),
            Err(absent) => Self::Absent(MaskedAbsence { absent }),
        }
    }
}

impl From<&MaskedReport> for MaskedFigures {
    fn from(found: &MaskedReport) -> Self {
        let against = found.divergence.as_ref().map(|divergence| MaskedDifference {
            kld: divergence.kld.mean,
            kld_stderr: divergence.kld.stderr,
            kld_max: divergence.kld.quantiles.max,
            top1_agreement: divergence.top1_agreement,
            delta_ln_ppl: divergence.delta_ln_ppl,
            baseline_pseudo_perplexity: divergence.baseline_ppl,
            healthy: found.healthy.map(|Cost { kld, other_choice, .. }| HealthyMasked { kld, other_choice }),
        });
        Self {
            pseudo_perplexity: found.perplexity,
            texts: found.texts,
            candidates: found.candidates,
            mask_token: found.mask_token,
            against,
        }
    }
}
