//! Text of the tuning: what is learned from, and what chooses among the states.

use crate::sampler::chance::Chance;
use crate::{CalibrationText, Result, SelfText};
use gguf_core::progress::Progress;
use gguf_engine::{EngineOptions, TokenChunk};
use gguf_verification::{Model, Window};

/// Part of the calibration text that chooses: one of so many sequences, fewer if they would be more than enough.
const PARTS: usize = 7;
const CHOOSING_TOKENS: usize = 4096;
/// Tokens that the model writes for each token of calibration text.
const OWN_TOKENS: usize = 2;
/// Tokens of its own text for each token of given text, about: given text is repeated for that.
const OWN_PER_GIVEN: usize = 3;

pub(super) struct TuningText {
    /// Sequences whose divergence has a gradient.
    pub(super) learned: Vec<TokenChunk>,
    /// Sequences in the shares that they are learned in: given text is repeated.
    pub(super) order: Vec<usize>,
    /// Sequences by whose divergence a state is kept.
    pub(super) choosing: Vec<TokenChunk>,
}

impl TuningText {
    /// Divides the calibration text. If the model has written some of it, it writes more.
    pub(super) fn new(
        text: &CalibrationText,
        model: &Model<'_>,
        engine: EngineOptions,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut found = Self { learned: Vec::new(), order: Vec::new(), choosing: Vec::new() };
        let (mut n_given, mut given) = (0, Vec::new());
        let parts = PARTS.max(text.n_tokens() / CHOOSING_TOKENS);
        for kind in &text.kinds {
            for (at, window) in kind.windows.iter().enumerate() {
                if at % parts == parts / 2 {
                    found.choosing.push(whole(window));
                    continue;
                }
                if kind.seed.is_none() {
                    n_given += window.chunk.tokens.len();
                    given.push(found.learned.len());
                }
                found.learned.push(whole(window));
            }
        }
        if found.choosing.is_empty() {
            found.choosing.extend(found.learned.pop());
        }
        if let Some(own) = own_text(text) {
            let written = if let Some(written) = text.tuning.get() {
                written
            } else {
                progress.steps(1);
                let written = own.write(model, engine, progress)?.windows;
                text.tuning.get_or_init(|| written)
            };
            found.learned.extend(written.iter().map(whole));
        }
        let n_tokens: usize = found.learned.iter().map(|chunk| chunk.tokens.len()).sum();
        let n_own = n_tokens - n_given;
        let n_repeats = (n_own / (OWN_PER_GIVEN * n_given).max(1)).max(1) - 1;
        found.order = (0..found.learned.len()).collect();
        found.order.extend(std::iter::repeat_n(given, n_repeats).flatten());
        Ok(found)
    }

    /// Largest number of tokens.
    pub(super) fn n_tokens(text: &CalibrationText) -> usize {
        text.n_tokens() + own_text(text).map_or(0, |own| own.n_tokens + own.n_ctx)
    }
}

/// Further text that the model writes; `None` if it writes none of the calibration text.
fn own_text(text: &CalibrationText) -> Option<SelfText> {
    let seed = text.kinds.iter().find_map(|kind| kind.seed)?;
    // The next seed, since that of the text held back is the complement.
    let seed = seed.wrapping_add(1);
    Some(SelfText { n_tokens: OWN_TOKENS * text.n_tokens(), n_ctx: text.n_ctx, seed, ..SelfText::default() })
}

/// Sequence all of whose predictions count.
fn whole(window: &Window) -> TokenChunk {
    let TokenChunk { tokens, n_source, .. } = &window.chunk;
    TokenChunk { tokens: tokens.clone(), rows: *n_source..tokens.len(), n_source: *n_source }
}

/// Endless sequence of batches: all sequences in random order, then again in another one.
pub(super) struct Batches {
    lengths: Vec<usize>,
    all: Vec<usize>,
    left: Vec<usize>,
    chance: Chance,
}

impl Batches {
    /// Batches of the sequences `all`, of which some may come several times; `lengths` are their numbers of tokens.
    pub(super) fn new(lengths: Vec<usize>, all: Vec<usize>, seed: u64) -> Self {
        Self { lengths, all, left: Vec::new(), chance: Chance::of(seed, 0) }
    }

    /// Next sequences, with at least `n_tokens` together, or all.
    pub(super) fn next(&mut self, n_tokens: usize) -> Vec<usize> {
        let (mut batch, mut n) = (Vec::new(), 0);
        while n < n_tokens && batch.len() < self.all.len() {
            let Some(at) = self.left.pop() else {
                self.shuffle();
                continue;
            };
            n += self.lengths[at];
            batch.push(at);
        }
        batch
    }

    fn shuffle(&mut self) {
        self.left.clone_from(&self.all);
        for last in (1..self.left.len()).rev() {
            let at = (self.chance.unit() * (last + 1) as f64) as usize;
            self.left.swap(at.min(last), last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sequence_comes_once_before_any_comes_again() {
        let mut batches = Batches::new(vec![300; 10], (0..10).collect(), 1);
        let mut first: Vec<usize> = (0..5).flat_map(|_| batches.next(600)).collect();
        let second: Vec<usize> = (0..5).flat_map(|_| batches.next(600)).collect();
        assert_ne!(first, second);
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
        // Little text is one batch.
        assert_eq!(Batches::new(vec![300], vec![0], 1).next(1024), [0]);
    }
}
