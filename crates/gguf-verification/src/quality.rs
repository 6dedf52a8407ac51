//! Quality of a file's predictions, reported along with the verdict.
//!
//! The verdict declares whether a file is intact, which a file with one bit per weight can be. The quality measures how
//! much of the model is left. Its thresholds are fixed and do not depend on the type: the mean Kullback-Leibler
//! divergence of the predictions from the baseline's, and the share of tokens for which both predict the same next
//! token. The worse of the two decides.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::{Check, Divergence, Finding, Report};

const CHECK: Check = Check::MinQuality;
/// Number of standard errors within which a figure is too close to its limit to tell.
const ERRORS: f64 = 2.0;

/// Closeness of a file's predictions to its baseline's, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quality {
    /// Practically indistinguishable.
    NearLossless,
    /// Quality of good files with five and six bits per weight.
    VeryGood,
    /// Quality of good files with four bits per weight.
    Good,
    /// Usable if memory is short.
    Fair,
    /// Effectively another model.
    Poor,
}

impl Quality {
    /// All qualities, from good to bad.
    pub const ALL: [Self; 5] = [Self::NearLossless, Self::VeryGood, Self::Good, Self::Fair, Self::Poor];

    /// Returns the name in sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::NearLossless => "near lossless",
            Self::VeryGood => "very good",
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Poor => "poor",
        }
    }

    /// Returns the name in JSON and of `--min-quality`, without spaces.
    pub fn word(self) -> &'static str {
        match self {
            Self::NearLossless => "near-lossless",
            Self::VeryGood => "very-good",
            other => other.name(),
        }
    }

    /// Returns the highest mean divergence, in nats per token, and the lowest share of tokens with the same first
    /// choice.
    pub fn limits(self) -> (f64, f64) {
        match self {
            Self::NearLossless => (0.005, 0.95),
            Self::VeryGood => (0.02, 0.90),
            Self::Good => (0.06, 0.85),
            Self::Fair => (0.2, 0.75),
            Self::Poor => (f64::INFINITY, 0.0),
        }
    }

    /// Returns the quality of predictions with this mean divergence and this share of equal choices; NaN is poor.
    pub fn of(mean_kld: f64, same_choice: f64) -> Self {
        let keeps = |quality: &Self| {
            let (most, least) = quality.limits();
            mean_kld <= most && same_choice >= least
        };
        Self::ALL.into_iter().find(keeps).unwrap_or(Self::Poor)
    }

    pub(crate) fn of_divergence(divergence: &Divergence) -> Self {
        Self::of(divergence.kld.mean, divergence.top1_agreement)
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error for a word that names no quality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a quality: near-lossless, very-good, good or fair")]
pub struct UnknownQuality;

impl FromStr for Quality {
    type Err = UnknownQuality;

    fn from_str(text: &str) -> Result<Self, UnknownQuality> {
        let text = text.trim().to_ascii_lowercase().replace([' ', '_'], "-");
        Self::ALL.into_iter().find(|quality| quality.word() == text).ok_or(UnknownQuality)
    }
}

/// Checks a report against the requested quality, once everything has been measured.
pub(super) fn judge(report: &mut Report) {
    let Some(least) = report.thresholds.min_quality else { return };
    let finding = match report.predictions() {
        Some(divergence) => check(least, divergence),
        None if report.quality().is_some_and(|found| found <= least) => None,
        None => {
            let why = match report.embeddings {
                Some(_) => "an encoder predicts no tokens: `--min-cosine` limits its vectors",
                None => "no text was run through both models",
            };
            Some(Finding::unchecked(CHECK, format!("{least} was asked for, but {why}")))
        }
    };
    report.extend(finding);
}

/// Returns a finding if a divergence is worse than the requested quality, or too close to the limit to tell.
fn check(least: Quality, divergence: &Divergence) -> Option<Finding> {
    let found = Quality::of_divergence(divergence);
    let (most, share) = least.limits();
    let (kld, stderr) = (divergence.kld.mean, divergence.kld.stderr);
    let (same, same_stderr) = (divergence.top1_agreement, divergence.top1_stderr);
    let measured = format!(
        "mean KLD {kld:.4} ± {stderr:.4}, same first choice {:.1} % ± {:.1}",
        100.0 * same,
        100.0 * same_stderr
    );
    let asked = format!("{least} needs {most} or less and {:.0} % or more", 100.0 * share);
    let best = Quality::of(kld - ERRORS * stderr, same + ERRORS * same_stderr);
    if found > least && best > least {
        return Some(Finding::error(CHECK, format!("the quality is {found} ({measured}); {asked}")));
    }
    let is_close = found > least || kld + ERRORS * stderr > most || same - ERRORS * same_stderr < share;
    is_close.then(|| {
        let message =
            format!("the quality is too close to a limit to tell over so little text ({measured}); {asked}");
        Finding::unchecked(CHECK, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Spread, Thresholds};

    #[test]
    fn the_worse_of_both_figures_decides() {
        assert_eq!(Quality::of(0.005, 0.99), Quality::NearLossless);
        assert_eq!(Quality::of(0.0051, 0.99), Quality::VeryGood);
        assert_eq!(Quality::of(0.0001, 0.94), Quality::VeryGood);
        assert_eq!(Quality::of(0.06, 0.89), Quality::Good);
        assert_eq!(Quality::of(0.061, 0.89), Quality::Fair);
        assert_eq!(Quality::of(0.1, 0.71), Quality::Poor);
        assert_eq!(Quality::of(0.21, 0.9), Quality::Poor);
        assert_eq!(Quality::of(f64::NAN, 1.0), Quality::Poor);
        assert_eq!(Quality::of(f64::INFINITY, 1.0), Quality::Poor);
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for quality in Quality::ALL {
            assert_eq!(quality.word().parse(), Ok(quality));
            assert_eq!(quality.name().parse(), Ok(quality));
        }
        assert_eq!("Very_Good".parse(), Ok(Quality::VeryGood));
        assert_eq!("great".parse::<Quality>(), Err(UnknownQuality));
    }

    #[test]
    fn a_quality_that_was_asked_for_is_kept_missed_or_too_close() {
        let divergence = |value: f64, stderr: f64| Divergence {
            kld: Spread { mean: value, stderr, ..Spread::default() },
            top1_agreement: 0.97,
            ..Divergence::default()
        };
        let asked = Quality::VeryGood;
        assert_eq!(check(asked, &divergence(0.01, 0.001)), None);
        let missed = check(asked, &divergence(0.03, 0.001)).unwrap();
        assert!(missed.message.starts_with("the quality is good (mean KLD 0.0300"), "{}", missed.message);
        assert_eq!(missed.severity, crate::Severity::Error);
        let close = check(asked, &divergence(0.019, 0.001)).unwrap();
        assert_eq!(close.severity, crate::Severity::Unchecked);
        let mut thresholds = Thresholds::default();
        thresholds.min_quality = Some(asked);
        let mut nothing = Report::new(None, None, thresholds);
        judge(&mut nothing);
        assert_eq!(nothing.findings.len(), 1, "nothing was measured");
    }
}
