//! Text that a model writes itself. It is the best calibration text if there is no other, since the model will be asked
//! to continue such text.
//!
//! A third of the sequences begins as an answer to an empty user turn, rendered by the chat template. A third begins
//! with the token that starts a text. A third begins with that token and one ordinary token, drawn uniformly. A
//! sequence is one window. It ends with a token that ends a text or a turn, or at its maximum length; then another
//! begins in its place.

pub(super) mod chance;
mod starts;

use serde::Serialize;

use crate::sampler::chance::Chance;
use crate::sampler::starts::{StartForm, Starts};
use crate::{CalibrateError, Result};
use gguf_core::progress::Progress;
use gguf_engine::{Continuation, Engine, EngineOptions, TokenChunk};
use gguf_verification::{Model, Window};

/// Maximum sequences that are written together: enough that reading weights costs little compared with using them.
pub(super) const SEQUENCES: usize = 96;
/// Minimum length of a sequence, unless the model allows less: fewer sequences are preferred to shorter ones.
pub(super) const LEAST_LENGTH: usize = 64;
/// Minimum bytes for the states of all sequences; larger models get more. It does not depend on the memory budget, so
/// that the text does not either.
const LEAST_STATE_BYTES: u64 = 512 << 20;
/// Tokens that a new sequence should be able to reach before all the text is written.
const WORTH_A_START: usize = 16;

/// Options of the text that a model writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SelfText {
    /// Approximate number of tokens in total: the last step may add some more.
    pub n_tokens: usize,
    /// Maximum tokens of a sequence.
    pub n_ctx: usize,
    /// Seed of the draws. The same seed, model and options give the same text.
    pub seed: u64,
    /// Divisor of the logits before a token is drawn from the whole distribution.
    pub temperature: f32,
}

impl Default for SelfText {
    fn default() -> Self {
        Self { n_tokens: 32_768, n_ctx: 512, seed: 0, temperature: 1.0 }
    }
}

/// Text that a model has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenText {
    /// One window per sequence, in the order in which they began. The tokens that were drawn are scored.
    pub windows: Vec<Window>,
    /// Notes for the user: forms of beginnings that the model does not have.
    pub notes: Vec<String>,
}

/// Layout and memory, computed before anything is written.
struct SamplingPlan {
    starts: Starts,
    layout: SequenceLayout,
    capacity: usize,
    needed_bytes: u64,
}

/// Number of sequences that are written together, and their maximum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SequenceLayout {
    n_sequences: usize,
    length: usize,
}

impl SequenceLayout {
    /// Chooses the layout from the wanted text and the model, never from the machine. `bytes` is the size of the state
    /// of a sequence of a given length.
    fn new(
        n_tokens: usize,
        most: usize,
        state_bytes: u64,
        bytes: impl Fn(usize) -> Result<u64>,
    ) -> Result<Self> {
        let least = LEAST_LENGTH.min(most);
        let mut length = n_tokens.div_ceil(SEQUENCES).clamp(least, most);
        let fitting = |length: usize| -> Result<usize> {
            Ok(usize::try_from(state_bytes / bytes(length)?.max(1)).unwrap_or(usize::MAX))
        };
        while length > least && fitting(length)? < SEQUENCES {
            length = (length - length.div_ceil(8)).max(least);
        }
        let wanted = n_tokens.div_ceil(length).clamp(1, SEQUENCES);
        Ok(Self { n_sequences: fitting(length)?.clamp(1, wanted), length })
    }
}

/// A sequence that is being written.
struct OpenSequence {
    number: usize,
    chance: Chance,
    /// Number of tokens that it began with.
    n_given: usize,
    /// Number of tokens at which it ends.
    limit: usize,
    /// Tokens of the next step.
    next: Vec<u32>,
}

impl SelfText {
    /// Lets the model write. The states of earlier tokens are kept, and each pass over the weights computes one token
    /// for up to 96 sequences.
    ///
    /// # Exactness
    /// The tokens are the same for every number of threads and every memory budget, given the same vector instructions.
    ///
    /// # Errors
    /// [`EngineError::NotContinued`](gguf_engine::EngineError::NotContinued) for models that cannot continue token by
    /// token; [`CalibrateError::SelfMemory`] with the smallest budget that is enough; logits that are not finite,
    /// unreadable weights, cancellation.
    pub fn write(
        &self,
        model: &Model<'_>,
        options: EngineOptions,
        progress: &dyn Progress,
    ) -> Result<WrittenText> {
        let engine = Engine::new(model.plan()?, model.source, options)?;
        let SamplingPlan { starts, layout, capacity, needed_bytes } = self.ready(model, &engine)?;
        let budget_bytes = options.memory_bytes;
        if needed_bytes > budget_bytes {
            return Err(CalibrateError::SelfMemory { budget_bytes, needed_bytes });
        }
        let weights = engine.work_bytes_in(1);
        let n_steps = self.n_tokens.div_ceil(layout.n_sequences) as u64;
        progress.begin("writing text to calibrate with", weights.saturating_mul(n_steps));
        progress.units("token", self.n_tokens as u64);
        let continuation = engine.continuation(layout.n_sequences, capacity, budget_bytes - needed_bytes)?;
        let mut state = SamplerState {
            text: self,
            starts: &starts,
            layout,
            capacity,
            continuation,
            slots: Vec::new(),
            n_begun: 0,
        };
        let windows = state.write(&engine, progress)?;
        progress.end();
        let notes = starts.notes;
        Ok(WrittenText { windows, notes })
    }

    /// Smallest memory budget that is enough to write the text.
    ///
    /// # Errors
    /// As [`SelfText::write`], except for the budget.
    pub fn needed_bytes(&self, model: &Model<'_>, options: EngineOptions) -> Result<u64> {
        let engine = Engine::new(model.plan()?, model.source, options)?;
        Ok(self.ready(model, &engine)?.needed_bytes)
    }

    fn ready(&self, model: &Model<'_>, engine: &Engine<'_>) -> Result<SamplingPlan> {
        let plan = engine.plan();
        let limits = [plan.n_ctx_train, plan.chunk_limit, plan.positions.as_ref().map(|p| p.n_rows)];
        let most = limits.into_iter().flatten().fold(self.n_ctx, usize::min).max(2);
        let state_bytes = engine.work_bytes_in(1).max(LEAST_STATE_BYTES);
        let layout =
            SequenceLayout::new(self.n_tokens, most, state_bytes, |n| Ok(engine.remembered_bytes(n)?))?;
        let starts = Starts::of(model, plan, most / 2)?;
        // Long beginnings still leave space for half a sequence.
        let capacity = layout.length.max(starts.longest() + layout.length / 2).min(most);
        let step_tokens = layout.n_sequences.saturating_mul(starts.longest());
        let needed_bytes = engine.continuation_bytes(layout.n_sequences, capacity, step_tokens)?;
        Ok(SamplingPlan { starts, layout, capacity, needed_bytes })
    }
}

/// State of all sequences that are being written.
struct SamplerState<'d, 'a> {
    text: &'d SelfText,
    starts: &'d Starts,
    layout: SequenceLayout,
    capacity: usize,
    continuation: Continuation<'d, 'a>,
    /// One entry per place; `None` if nothing is written there any more.
    slots: Vec<Option<OpenSequence>>,
    n_begun: usize,
}

impl SamplerState<'_, '_> {
    fn begin(&mut self) -> OpenSequence {
        let number = self.n_begun;
        self.n_begun += 1;
        let mut chance = Chance::of(self.text.seed, number as u64);
        let next = self.starts.tokens(StartForm::of(number), &mut chance);
        let n_given = next.len();
        let limit = self.layout.length.max(n_given + self.layout.length / 2).min(self.capacity);
        OpenSequence { number, chance, n_given, limit, next }
    }

    fn write(&mut self, engine: &Engine<'_>, progress: &dyn Progress) -> Result<Vec<Window>> {
        let mut windows = Vec::new();
        let mut n_closed = 0;
        for _ in 0..self.layout.n_sequences {
            let writing = self.begin();
            self.slots.push(Some(writing));
        }
        loop {
            let lists: Vec<&[u32]> =
                self.slots.iter().map(|slot| slot.as_ref().map_or(&[][..], |own| &own.next)).collect();
            let hidden = self.continuation.step(&lists, progress)?;
            let active = self.slots.iter_mut().flatten();
            let draws: Vec<f64> = active.map(|own| own.chance.unit()).collect();
            let drawn = engine.draw(&hidden, &draws, self.text.temperature, progress)?;
            let mut drawn = drawn.into_iter();
            for own in self.slots.iter_mut().flatten() {
                own.next.clear();
                own.next.extend(drawn.next());
            }
            let open = |(at, slot): (usize, &Option<OpenSequence>)| {
                slot.as_ref().map_or(0, |own| self.continuation.tokens(at).len() + own.next.len())
            };
            let n_open: usize = self.slots.iter().enumerate().map(open).sum();
            let is_done = n_closed + n_open >= self.text.n_tokens;
            for at in 0..self.slots.len() {
                n_closed += self.close(at, is_done, &mut windows);
            }
            if is_done {
                break;
            }
            self.refill(n_closed);
        }
        windows.sort_by_key(|window: &Window| window.prompt);
        Ok(windows)
    }

    /// Closes a sequence if it has ended, and returns its number of tokens, or 0 if it goes on.
    fn close(&mut self, at: usize, is_done: bool, windows: &mut Vec<Window>) -> usize {
        let Some(own) = &self.slots[at] else { return 0 };
        let before = self.continuation.tokens(at);
        let n_tokens = before.len() + own.next.len();
        let ends = own.next.last().is_some_and(|token| self.starts.ends.contains(token));
        if !(is_done || ends || n_tokens >= own.limit) {
            return 0;
        }
        let tokens: Vec<u32> = before.iter().chain(&own.next).copied().collect();
        let rows = own.n_given.saturating_sub(1)..n_tokens.saturating_sub(1);
        windows.push(Window {
            prompt: own.number,
            start: 0,
            targets: tokens[rows.start + 1..].to_vec(),
            chunk: TokenChunk { tokens, rows: rows.clone(), n_source: 0 },
            scored: rows,
        });
        self.slots[at] = None;
        self.continuation.restart(at);
        n_tokens
    }

    /// Begins sequences in place of those that have ended, unless few tokens are missing.
    fn refill(&mut self, n_closed: usize) {
        let places = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        let n_open: usize = places.map(|(at, _)| self.continuation.tokens(at).len()).sum();
        let n_missing = self.text.n_tokens.saturating_sub(n_closed + n_open);
        let most = n_missing.div_ceil(WORTH_A_START).max(1);
        for at in 0..self.slots.len() {
            let n_active = self.slots.iter().flatten().count();
            if self.slots[at].is_none() && n_active < most {
                let writing = self.begin();
                self.slots[at] = Some(writing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(n_tokens: usize, most: usize, state_bytes: u64, per_token: u64) -> (usize, usize) {
        let layout = SequenceLayout::new(n_tokens, most, state_bytes, |n| Ok(per_token * n as u64)).unwrap();
        (layout.n_sequences, layout.length)
    }

    #[test]
    fn sequences_are_many_then_long_then_fewer() {
        assert_eq!(layout(32_768, 512, 1 << 40, 1000), (96, 342));
        assert_eq!(layout(1 << 20, 512, 1 << 40, 1000), (96, 512));
        // Little text: fewer sequences, but none too short to be useful.
        assert_eq!(layout(640, 512, 1 << 40, 1000), (10, 64));
        assert_eq!(layout(640, 16, 1 << 40, 1000), (40, 16));
        // Little memory: shorter sequences, then fewer.
        let (n, length) = layout(32_768, 512, 1 << 29, 46_080);
        assert!(n == 96 && (100..=121).contains(&length), "{n} {length}");
        assert_eq!(layout(32_768, 512, 1 << 29, 1 << 20), (8, 64));
        assert_eq!(layout(32_768, 512, 0, 1 << 20), (1, 64));
    }
}
