//! Online reduction of a row's logits: the log-softmax, the best token, and the divergence of a pair.

use crate::exec::math;
use gguf_core::simd::SimdLevel;

/// Score of one row for the token that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Negative log likelihood of the target, natural logarithm.
    pub nll: f64,
    /// Most likely token, the one of lowest index on ties.
    pub top: u32,
}

/// Divergence of a model's row from the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenDivergence {
    /// Score of the reference.
    pub reference: TokenScore,
    /// Score of the model.
    pub model: TokenScore,
    /// Kullback-Leibler divergence of the model from the reference.
    pub kld: f64,
}

/// Log-softmax in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogitFold {
    max: f32,
    sum: f64,
    /// Sum `Σ e^(a - max_a) (a - b)`, in the reference's fold.
    weighted: f64,
    target: f32,
    top: (f32, u32),
}

impl LogitFold {
    /// Fold of no logits.
    pub(crate) const START: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
        weighted: 0.0,
        target: f32::NAN,
        top: (f32::NEG_INFINITY, 0),
    };

    /// Adds the logits of vocabulary rows `first ..`.
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

    /// Returns the folds of the reference's logits `a` and the model's logits `b` for the same vocabulary rows.
    pub(crate) fn pair(level: SimdLevel, a: &[f32], b: &[f32], first: usize, target: u32) -> (Self, Self) {
        let (mut fold_a, mut fold_b) = (Self::START, Self::START);
        fold_a.add(level, a, first, target);
        fold_b.add(level, b, first, target);
        fold_a.weighted = math::weighted_difference(level, a, b, fold_a.max);
        (fold_a, fold_b)
    }

    /// Rescales the sums to a larger maximum.
    fn lift(&mut self, peak: f32) {
        if peak > self.max {
            let shrink = f64::from(self.max - peak).exp();
            self.sum *= shrink;
            self.weighted *= shrink;
            self.max = peak;
        }
    }

    /// Adds the fold of later vocabulary rows.
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

    pub(crate) fn score(&self) -> TokenScore {
        TokenScore { nll: self.log_sum() - f64::from(self.target), top: self.top.1 }
    }
}
