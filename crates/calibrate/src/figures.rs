//! Divergence of a file from the model, on held-out text.

use gguf_verification::{Divergence, Estimate};

/// Maximum ratio of a solved file's divergence to the importance matrix's; above it the solver tries again, then gives
/// up.
pub const WORTH_IT: f64 = 0.95;

/// Divergence of a file from the model, on held-out text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOutFigures {
    /// Mean divergence, with its standard error.
    pub mean: Estimate,
    /// 99th percentile.
    pub p99: f64,
    /// Share of tokens with the same most likely prediction, 0 to 1.
    pub top1_agreement: f64,
}

impl HeldOutFigures {
    pub(super) fn of(found: &Divergence) -> Self {
        Self { mean: found.mean, p99: found.p99, top1_agreement: found.top1_agreement }
    }

    pub(super) fn figures(&self) -> [f64; 4] {
        [self.mean.value, self.mean.stderr, self.p99, self.top1_agreement]
    }

    pub(super) fn of_figures([value, stderr, p99, top1_agreement]: [f64; 4]) -> Self {
        Self { mean: Estimate { value, stderr }, p99, top1_agreement }
    }

    /// Mean divergence as a share of another's.
    pub(super) fn ratio(&self, plain: &Self) -> f64 {
        if plain.mean.value > 0.0 { self.mean.value / plain.mean.value } else { 1.0 }
    }
}
