//! Divergence of a file from the model, on held-out text.

use serde::Serialize;

use gguf_verification::Divergence;

/// Maximum ratio of a solved file's divergence to the importance matrix's; above it the solver tries again, then gives
/// up.
pub(crate) const WORTH_IT: f64 = 0.95;

/// Divergence of a file from the model, on held-out text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeldOutFigures {
    /// Mean divergence from the model (nats).
    pub mean_kld: f64,
    /// Standard error of the mean.
    pub stderr: f64,
    /// 99th percentile of the divergence.
    #[serde(rename = "kld_99")]
    pub p99: f64,
    /// Share of tokens with the same most likely prediction, 0 to 1.
    #[serde(rename = "top1")]
    pub top1_agreement: f64,
}

impl HeldOutFigures {
    pub(super) fn of(found: &Divergence) -> Self {
        let Divergence { kld, top1_agreement, .. } = *found;
        Self { mean_kld: kld.mean, stderr: kld.stderr, p99: kld.quantiles.p99, top1_agreement }
    }

    pub(super) fn figures(&self) -> [f64; 4] {
        [self.mean_kld, self.stderr, self.p99, self.top1_agreement]
    }

    pub(super) fn of_figures([mean_kld, stderr, p99, top1_agreement]: [f64; 4]) -> Self {
        Self { mean_kld, stderr, p99, top1_agreement }
    }

    /// Mean divergence as a share of another's.
    pub(super) fn ratio(&self, plain: &Self) -> f64 {
        if plain.mean_kld > 0.0 { self.mean_kld / plain.mean_kld } else { 1.0 }
    }
}
