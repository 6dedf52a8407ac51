//! Logits of a row folded as they come: the log-softmax, the best token, the divergence of a pair.

use crate::core::simd::SimdLevel;
use crate::engine::exec::math;

/// What one row says about the token that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Negative log likelihood of the target, natural logarithm.
    pub nll: f64,
    /// The most likely token, lowest index on ties.
    pub top: u32,
}

/// How two rows differ: the first is the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenDivergence {
    /// The reference's score.
    pub reference: TokenScore,
    /// The model's score.
    pub model: TokenScore,
    /// Kullback-Leibler divergence of the model from the reference.
    pub kld: f64,
}

/// A log-softmax in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogitFold {
    max: f32,
    sum: f64,
    /// `Σ e^(a - max_a) (a - b)`, in the reference's fold.
    weighted: f64,
    target: f32,
    top: (f32, u32),
}

impl LogitFold {
    pub(crate) const START: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
        weighted: 0.0,
        target: f32::NAN,
        top: (f32::NEG_INFINITY, 0),
    };

    /// Takes in the logits of vocabulary rows `first ..`.
    pub(crate) fn add(&mut self, level: SimdLevel, logits: &[f32], first: usize, target: u32) {
        let peak = math::max(level, logits);
        if peak > self.top.0 {
            let at = logits.iter().position(|&z| z == peak).unwrap_or(0);
            self.top = (peak, (first + at) as u32);
        }
        self.lift(peak);
        self.sum += math::sum_of_exp(level, logits, self.max);
        if let Some(&z) = (target as usize).checked_sub(first).and_then(|at| logits.get(at)) {
            self.target = z;
        }
    }

    /// Folds of the same vocabulary rows' logits of the reference and of the model.
    pub(crate) fn pair(
        level: SimdLevel,
        (a, b): (&[f32], &[f32]),
        first: usize,
        target: u32,
    ) -> (Self, Self) {
        let (mut fold_a, mut fold_b) = (Self::START, Self::START);
        fold_a.add(level, a, first, target);
        fold_b.add(level, b, first, target);
        fold_a.weighted = math::weighted_difference(level, a, b, fold_a.max);
        (fold_a, fold_b)
    }

    /// Makes the sums relative to a larger maximum.
    fn lift(&mut self, peak: f32) {
        if peak > self.max {
            let shrink = f64::from(self.max - peak).exp();
            self.sum *= shrink;
            self.weighted *= shrink;
            self.max = peak;
        }
    }

    /// Takes in the fold of later vocabulary rows.
    pub(crate) fn merge(&mut self, later: &Self) {
        if later.top.0 > self.top.0 {
            self.top = later.top;
        }
        self.lift(later.max);
        let shrink = f64::from(later.max - self.max).exp();
        self.sum += later.sum * shrink;
        self.weighted += later.weighted * shrink;
        if !later.target.is_nan() {
            self.target = later.target;
        }
    }

    /// Returns the divergence of a model's fold from this one, the reference's, of the same row.
    pub(crate) fn divergence(&self, model: &Self) -> TokenDivergence {
        let kld = self.weighted / self.sum - self.log_sum() + model.log_sum();
        // Rounding may leave a divergence of nearly equal rows slightly below zero.
        let kld = if (-1e-9..0.0).contains(&kld) { 0.0 } else { kld };
        TokenDivergence { reference: self.score(), model: model.score(), kld }
    }

    /// Returns the logarithm of the sum of exponentials.
    pub(crate) fn log_sum(&self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }

    /// Returns the score of the target.
    pub(crate) fn score(&self) -> TokenScore {
        TokenScore { nll: self.log_sum() - f64::from(self.target), top: self.top.1 }
    }
}
