//! Whole rows of logits, some at a time, and divergences from a baseline's stored log-probabilities.

use std::ops::Range;

use rayon::prelude::*;

use crate::exec::hidden::Hidden;
use crate::exec::workers::Tasks;
use crate::layers::forward::Engine;
use crate::outputs::fold::{LogitFold, TokenDivergence, TokenScore};
use crate::outputs::head::BLOCK_LOGITS;
use crate::{EngineError, Result};
use gguf_core::progress::Progress;

/// Smallest number of rows of logits per step: decoding a weight costs as much as multiplying it with about fifty rows.
const MIN_ROWS: usize = 64;
/// Log-probability up to which a token is left out of a divergence (llama-perplexity's limit).
const LEAST_LOG_PROB: f32 = -16.0;

/// Stored log-probabilities of a baseline, which is not run.
pub trait LogProbs: Sync {
    /// Reads the log-probabilities (natural logarithm) of tokens `first .. first + out.len()` at a row.
    fn read(&self, row: usize, first: usize, out: &mut [f32]);
}

/// Fold of one row of a baseline, block by block.
#[derive(Clone, Copy, Debug)]
struct KnownFold {
    /// Sum of probabilities, `Σ p`.
    mass: f64,
    /// Sum `Σ p (ln p - z)`, with the model's logits z.
    weighted: f64,
    target: f32,
    top: (f32, u32),
}

impl KnownFold {
    const START: Self = Self { mass: 0.0, weighted: 0.0, target: f32::NAN, top: (f32::NEG_INFINITY, 0) };

    fn add(&mut self, known: &[f32], logits: &[f32], first: usize, target: u32) {
        for (at, (&log_prob, &logit)) in known.iter().zip(logits).enumerate() {
            if log_prob > self.top.0 {
                self.top = (log_prob, (first + at) as u32);
            }
            if log_prob > LEAST_LOG_PROB {
                let p = f64::from(log_prob.exp());
                self.mass += p;
                self.weighted += p * f64::from(log_prob - logit);
            }
        }
        if let Some(&log_prob) = (target as usize).checked_sub(first).and_then(|at| known.get(at)) {
            self.target = log_prob;
        }
    }

    fn score(&self) -> TokenScore {
        TokenScore { nll: -f64::from(self.target), top: self.top.1 }
    }
}

impl Hidden {
    /// Returns some of the rows, one range after another.
    pub fn select(&self, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let n_embd = self.states.len() / self.n_rows.max(1);
        let (mut n_rows, mut states) = (0, Vec::new());
        for range in ranges {
            let end = range.end.min(self.n_rows);
            let rows = range.start.min(end)..end;
            n_rows += rows.len();
            states.extend_from_slice(&self.states[rows.start * n_embd..rows.end * n_embd]);
        }
        Self { n_rows, states: states.into() }
    }
}

impl Engine<'_> {
    /// Calls `each` with the logits of the rows, in order, and with the index of the first of them: a few megabytes at
    /// a time, `[some rows, n_vocab]`.
    ///
    /// # Errors
    /// If weights cannot be read or the run is cancelled, and the errors of `each`.
    pub fn each_logits<E: From<EngineError>>(
        &self,
        hidden: &Hidden,
        progress: &dyn Progress,
        mut each: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let n_vocab = self.plan.n_vocab;
        let run = self.head_run(progress, None);
        let step = (BLOCK_LOGITS / n_vocab.max(1)).max(MIN_ROWS);
        let mut logits = Vec::new();
        for first in (0..hidden.n_rows).step_by(step) {
            if progress.is_cancelled() {
                return Err(EngineError::Cancelled.into());
            }
            let part = hidden.select(std::iter::once(first..first + step));
            logits.resize(part.n_rows * n_vocab, 0.0);
            self.logits_block(&run, &part, &(0..n_vocab), &mut logits)?;
            each(first, &logits)?;
        }
        Ok(())
    }

    /// Returns the scores and divergences of the model's rows from a baseline's stored log-probabilities.
    ///
    /// # Exactness
    /// Equal to llama-perplexity's `--kl-divergence`: the baseline's probabilities are used unchanged and not
    /// normalized, and those of at most e^-16 are left out. A divergence may be slightly below zero.
    pub fn divergences_from(
        &self,
        hidden: &Hidden,
        known: &dyn LogProbs,
        targets: &[u32],
        progress: &dyn Progress,
    ) -> Result<Vec<TokenDivergence>> {
        let level = self.options.level;
        let run = self.head_run(progress, None);
        let mut folds = vec![(LogitFold::START, KnownFold::START); hidden.n_rows];
        let mut logits = Vec::new();
        for vocabulary in self.blocks(hidden.n_rows) {
            let n = vocabulary.len();
            logits.resize(hidden.n_rows * n, 0.0);
            self.logits_block(&run, hidden, &vocabulary, &mut logits)?;
            self.workers.install(|| {
                let rows = folds.par_iter_mut().enumerate().zip(logits.par_chunks(n)).zip(targets);
                rows.run_with_scratch(&|log_probs, (((row, (own, base)), logits), &target)| {
                    log_probs.resize(n, 0.0);
                    known.read(row, vocabulary.start, log_probs);
                    own.add(level, logits, vocabulary.start, target);
                    base.add(log_probs, logits, vocabulary.start, target);
                });
            });
        }
        let divergence = |(own, base): &(LogitFold, KnownFold)| TokenDivergence {
            reference: base.score(),
            model: own.score(),
            kld: base.weighted + base.mass * own.log_sum(),
        };
        Ok(folds.iter().map(divergence).collect())
    }
}
