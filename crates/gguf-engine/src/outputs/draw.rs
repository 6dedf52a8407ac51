//! Sampling of next tokens from the distribution that a model predicts.

use rayon::prelude::*;

use crate::exec::hidden::Hidden;
use crate::exec::{math, scalar};
use crate::layers::forward::Engine;
use crate::{EngineError, Result};
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;

/// Number of logits whose probabilities are summed before one of them is searched for.
const PART: usize = 1024;

impl Engine<'_> {
    /// Draws a token for each row from the whole distribution `softmax(logits / temperature)`: the first token at which
    /// the cumulative probability exceeds the row's number in `draws`, from 0 to less than 1.
    ///
    /// # Exactness
    /// The tokens are the same for every number of threads, on machines with the same vector instructions.
    ///
    /// # Errors
    /// If weights cannot be read or the run is cancelled; [`EngineError::NoDistribution`] for logits that are not
    /// finite.
    pub fn draw(
        &self,
        hidden: &Hidden,
        draws: &[f64],
        temperature: f32,
        progress: &dyn Progress,
    ) -> Result<Vec<u32>> {
        let mut logits = self.logits(hidden, progress)?;
        let (level, n) = (self.options().level, self.plan().n_vocab.max(1));
        self.install(|| {
            let rows = logits.par_chunks_mut(n).zip(draws);
            rows.map(|(row, &draw)| drawn(level, row, temperature, draw).ok_or(EngineError::NoDistribution))
                .collect()
        })
    }
}

/// Returns the token at cumulative probability `draw`; `None` if there is no distribution.
fn drawn(level: SimdLevel, logits: &mut [f32], temperature: f32, draw: f64) -> Option<u32> {
    if temperature != 1.0 {
        math::scale_and_cap(level, logits, 1.0 / temperature, None);
    }
    let peak = math::max(level, logits);
    let sums: Vec<f64> = logits.chunks(PART).map(|part| math::sum_of_exp(level, part, peak)).collect();
    let total: f64 = sums.iter().sum();
    if !peak.is_finite() || !total.is_finite() {
        return None;
    }
    let mut rest = draw * total;
    // Rounding may leave a little more than the total: then it is the last token with any probability.
    let last = sums.iter().rposition(|&sum| sum > 0.0)?;
    let part = sums[..last].iter().position(|sum| {
        let is_here = rest < *sum;
        if !is_here {
            rest -= sum;
        }
        is_here
    });
    let part = part.unwrap_or(last);
    let own = logits.chunks(PART).nth(part)?;
    let mut found = None;
    for (at, &logit) in own.iter().enumerate() {
        let p = f64::from(scalar::exp(logit - peak));
        if p > 0.0 {
            found = Some(at);
            if rest < p {
                break;
            }
            rest -= p;
        }
    }
    found.and_then(|at| u32::try_from(part * PART + at).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        // 1500 tokens, of which four have any probability, in two parts.
        let mut logits = vec![f32::MIN; 1500];
        let p = [(3, 0.5f32), (700, 0.25), (1023, 0.125), (1024, 0.125)];
        for &(at, p) in &p {
            logits[at] = p.ln() + 3.0;
        }
        let n = 4000;
        let mut counts = std::collections::BTreeMap::new();
        for draw in 0..n {
            let token =
                drawn(SimdLevel::detect(), &mut logits.clone(), 1.0, (f64::from(draw) + 0.5) / f64::from(n));
            *counts.entry(token.unwrap()).or_insert(0) += 1;
        }
        let expected = [(3, 2000), (700, 1000), (1023, 500), (1024, 500)];
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
        // Half the temperature squares the probabilities.
        let at = |draw| drawn(SimdLevel::detect(), &mut logits.clone(), 0.5, draw).unwrap();
        let (a, b) = (0.25 / 0.34375, 0.3125 / 0.34375);
        assert_eq!([a - 1e-4, a + 1e-4, b - 1e-4, b + 1e-4].map(at), [3, 700, 700, 1023]);
    }

    #[test]
    fn the_ends_of_a_distribution_and_none() {
        let mut logits = vec![f32::NEG_INFINITY; 3000];
        (logits[5], logits[2500]) = (0.0, 0.0);
        let at = |logits: &[f32], draw| drawn(SimdLevel::detect(), &mut logits.to_vec(), 1.0, draw);
        assert_eq!(at(&logits, 0.0), Some(5));
        assert_eq!(at(&logits, 1.0 - f64::EPSILON), Some(2500));
        assert_eq!(at(&logits, 1.0), Some(2500));
        assert_eq!(at(&[f32::NEG_INFINITY; 8], 0.5), None);
        assert_eq!(at(&[0.0, f32::NAN], 0.5), None);
        assert_eq!(at(&[0.0, f32::INFINITY], 0.5), None);
    }
}
