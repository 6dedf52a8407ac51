//! Perplexity with its standard error, as llama-perplexity reports it.

use serde::Serialize;

use crate::Position;

/// Value with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Estimated value.
    pub value: f64,
    /// Standard error of the value; 0 for a single sample.
    pub stderr: f64,
}

impl Estimate {
    /// Computes the mean of samples, with the standard error `sqrt((mean of squares - square of mean) / (n - 1))`.
    pub(crate) fn of_mean(samples: impl Iterator<Item = f64> + Clone) -> Self {
        let n = samples.clone().count() as f64;
        let mean = samples.clone().sum::<f64>() / n;
        let variance = samples.map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        Self { value: mean, stderr: if n > 1.0 { (variance / (n - 1.0)).sqrt() } else { 0.0 } }
    }
}

/// Mean of a figure over tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// Mean value.
    pub mean: f64,
    /// Standard error of the mean.
    pub stderr: f64,
}

impl From<Estimate> for Mean {
    fn from(Estimate { value, stderr }: Estimate) -> Self {
        Self { mean: value, stderr }
    }
}

/// Perplexity of the scored tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// `e` to the mean negative log likelihood.
    pub value: f64,
    /// Standard error of the value.
    pub stderr: f64,
    /// Number of scored tokens.
    pub tokens: usize,
    /// Digest of the ids of the scored tokens (FNV-1a of 32 bits), by which a later report knows the same text; absent
    /// where they are not those of one text.
    pub ids_digest: Option<u32>,
    /// Sum of the negative log likelihoods.
    #[serde(skip)]
    pub total_nll: f64,
}

impl Perplexity {
    /// Computes the perplexity of the positions that count; `None` if none does.
    pub fn of<'a>(positions: impl Iterator<Item = &'a Position> + Clone) -> Option<Self> {
        let scored = positions.filter(|p| p.is_scored);
        let bytes = scored.clone().flat_map(|p| p.token.to_le_bytes());
        let digest =
            bytes.fold(0x811c_9dc5_u32, |all, byte| (all ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let found = Self::of_nll(scored.map(|p| p.score.nll))?;
        Some(Self { ids_digest: Some(digest), ..found })
    }

    /// Computes the perplexity of negative log likelihoods; `None` if there are none.
    pub fn of_nll(nll: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let tokens = nll.clone().count();
        if tokens == 0 {
            return None;
        }
        let mean = Estimate::of_mean(nll.clone());
        let value = mean.value.exp();
        // Standard error of the logarithm, propagated through the exponential.
        Some(Self { value, stderr: mean.stderr * value, tokens, ids_digest: None, total_nll: nll.sum() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_the_mean() {
        let p = Perplexity::of_nll([1.0, 2.0, 3.0].into_iter()).unwrap();
        assert!((p.value - 2f64.exp()).abs() < 1e-12);
        // Variance 2/3 over n - 1 = 2.
        assert!((p.stderr - (1.0f64 / 3.0).sqrt() * 2f64.exp()).abs() < 1e-12);
        assert_eq!(Perplexity::of_nll([0.5].into_iter()).unwrap().stderr, 0.0);
        assert!(Perplexity::of_nll(std::iter::empty()).is_none());
    }
}
