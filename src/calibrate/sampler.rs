//! Text that a model writes itself: the best text to calibrate with where there is no other, since it is what the model
//! will be asked to go on with.
//!
//! A third of the sequences begins as an answer to an empty turn of the user, written out by the chat template; a third
//! with the token that texts begin with; a third with that and one ordinary token, each as likely. A sequence is one
//! window: it ends with a token that ends a text or a turn, or at its length, and another begins in its place.

mod chance;
mod starts;

use crate::calibrate::CalibrateError;
use crate::calibrate::sampler::chance::Chance;
use crate::calibrate::sampler::starts::{Form, Starts};
use crate::core::progress::Progress;
use crate::engine::{Continuation, Engine, EngineOptions, TokenChunk};
use crate::verify::{Model, Window};

/// Sequences that are written together, at most: so many that reading weights costs little beside using them.
const SEQUENCES: usize = 96;
/// Tokens of a sequence, unless the model takes less: fewer sequences are written together rather than shorter ones.
const LEAST_LENGTH: usize = 64;
/// Bytes that sequences may remember together; more if the model is larger. It does not follow the memory budget, so that
/// the text does not either.
const LEAST_ROOM: u64 = 512 << 20;
/// Tokens that a new sequence should still be able to come to before all that is wanted is there.
const WORTH_A_START: usize = 16;

/// What a model shall write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfText {
    /// Tokens in all, about: the last step may bring some more.
    pub n_tokens: usize,
    /// Tokens of a sequence at most.
    pub n_ctx: usize,
    /// The same seed, model and options give the same text.
    pub seed: u64,
    /// What logits are divided by before a token is drawn from the whole distribution.
    pub temperature: f32,
}

impl Default for SelfText {
    fn default() -> Self {
        Self { n_tokens: 32_768, n_ctx: 512, seed: 0, temperature: 1.0 }
    }
}

/// What a model has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenText {
    /// A sequence each, in the order in which they began. Scored are the tokens that were drawn.
    pub windows: Vec<Window>,
    /// What the user should know: forms of beginnings that the model has not.
    pub notes: Vec<String>,
}

/// What is known before anything is written.
struct Ready {
    starts: Starts,
    layout: Layout,
    capacity: usize,
    needed_bytes: u64,
}

/// How many sequences are written together, and how long they may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    n_sequences: usize,
    length: usize,
}

impl Layout {
    /// Follows the text that is wanted and the model, never the machine: `bytes` is what a sequence of a length
    /// remembers.
    fn new(
        n_tokens: usize,
        most: usize,
        room: u64,
        bytes: impl Fn(usize) -> Result<u64, CalibrateError>,
    ) -> Result<Self, CalibrateError> {
        let least = LEAST_LENGTH.min(most);
        let mut length = n_tokens.div_ceil(SEQUENCES).clamp(least, most);
        let fitting = |length: usize| -> Result<usize, CalibrateError> {
            Ok(usize::try_from(room / bytes(length)?.max(1)).unwrap_or(usize::MAX))
        };
        while length > least && fitting(length)? < SEQUENCES {
            length = (length - length.div_ceil(8)).max(least);
        }
        let wanted = n_tokens.div_ceil(length).clamp(1, SEQUENCES);
        Ok(Self { n_sequences: fitting(length)?.clamp(1, wanted), length })
    }
}

/// A sequence that is being written.
struct Writing {
    number: usize,
    chance: Chance,
    /// Tokens that it began with.
    n_given: usize,
    /// Tokens at which it ends.
    limit: usize,
    /// What it takes next.
    next: Vec<u32>,
}

impl SelfText {
    /// Lets the model write. What it computes is remembered from token to token, and one reading of the weights serves a
    /// token of each of about a hundred sequences.
    ///
    /// # Exactness
    /// The same tokens for every number of threads and every memory budget, on machines with the same vector instructions.
    ///
    /// # Errors
    /// [`EngineError::NotContinued`](crate::engine::EngineError::NotContinued) for models that cannot go on token by token;
    /// [`CalibrateError::SelfMemory`] with the smallest budget that is enough; logits that are not finite, unreadable
    /// weights, cancellation.
    pub fn write(
        &self,
        model: &Model<'_>,
        options: EngineOptions,
        progress: &dyn Progress,
    ) -> Result<WrittenText, CalibrateError> {
        let engine = Engine::new(model.plan()?, model.source, options)?;
        let Ready { starts, layout, capacity, needed_bytes } = self.ready(model, &engine)?;
        let budget_bytes = options.memory_bytes;
        if needed_bytes > budget_bytes {
            return Err(CalibrateError::SelfMemory { budget_bytes, needed_bytes });
        }
        let weights = engine.work_bytes_in(1);
        let n_steps = self.n_tokens.div_ceil(layout.n_sequences) as u64;
        progress.begin("writing text to calibrate with", weights.saturating_mul(n_steps));
        progress.units("token", self.n_tokens as u64);
        let going = engine.continuation(layout.n_sequences, capacity, budget_bytes - needed_bytes)?;
        let mut desk =
            Desk { text: self, starts: &starts, layout, capacity, going, slots: Vec::new(), n_begun: 0 };
        let windows = desk.write(&engine, progress)?;
        progress.end();
        let notes = starts.notes;
        Ok(WrittenText { windows, notes })
    }

    /// The smallest memory budget that is enough to write it.
    ///
    /// # Errors
    /// As [`SelfText::write`], but for the budget.
    pub fn needed_bytes(&self, model: &Model<'_>, options: EngineOptions) -> Result<u64, CalibrateError> {
        let engine = Engine::new(model.plan()?, model.source, options)?;
        Ok(self.ready(model, &engine)?.needed_bytes)
    }

    fn ready(&self, model: &Model<'_>, engine: &Engine<'_>) -> Result<Ready, CalibrateError> {
        let plan = engine.plan();
        let limits = [plan.n_ctx_train, plan.chunk_limit, plan.positions.as_ref().map(|p| p.n_rows)];
        let most = limits.into_iter().flatten().fold(self.n_ctx, usize::min).max(2);
        let room = engine.work_bytes_in(1).max(LEAST_ROOM);
        let layout = Layout::new(self.n_tokens, most, room, |n| Ok(engine.remembered_bytes(n)?))?;
        let starts = Starts::of(model, plan, most / 2)?;
        // Beginnings that are long already leave room for as much again as half a sequence.
        let capacity = layout.length.max(starts.longest() + layout.length / 2).min(most);
        let step_tokens = layout.n_sequences.saturating_mul(starts.longest());
        let needed_bytes = engine.continuation_bytes(layout.n_sequences, capacity, step_tokens)?;
        Ok(Ready { starts, layout, capacity, needed_bytes })
    }
}

/// Where sequences are written.
struct Desk<'d, 'a> {
    text: &'d SelfText,
    starts: &'d Starts,
    layout: Layout,
    capacity: usize,
    going: Continuation<'d, 'a>,
    /// One for each place; none where nothing is written any more.
    slots: Vec<Option<Writing>>,
    /// Sequences that have begun.
    n_begun: usize,
}

impl Desk<'_, '_> {
    fn begin(&mut self) -> Writing {
        let number = self.n_begun;
        self.n_begun += 1;
        let mut chance = Chance::of(self.text.seed, number as u64);
        let next = self.starts.tokens(Form::of(number), &mut chance);
        let n_given = next.len();
        let limit = self.layout.length.max(n_given + self.layout.length / 2).min(self.capacity);
        Writing { number, chance, n_given, limit, next }
    }

    fn write(&mut self, engine: &Engine<'_>, progress: &dyn Progress) -> Result<Vec<Window>, CalibrateError> {
        let mut windows = Vec::new();
        let mut n_closed = 0;
        for _ in 0..self.layout.n_sequences {
            let writing = self.begin();
            self.slots.push(Some(writing));
        }
        loop {
            let lists: Vec<&[u32]> =
                self.slots.iter().map(|slot| slot.as_ref().map_or(&[][..], |own| &own.next)).collect();
            let hidden = self.going.step(&lists, progress)?;
            let active = self.slots.iter_mut().flatten();
            let draws: Vec<f64> = active.map(|own| own.chance.unit()).collect();
            let drawn = engine.draw(&hidden, &draws, self.text.temperature, progress)?;
            let mut drawn = drawn.into_iter();
            for own in self.slots.iter_mut().flatten() {
                own.next.clear();
                own.next.extend(drawn.next());
            }
            let open = |(at, slot): (usize, &Option<Writing>)| {
                slot.as_ref().map_or(0, |own| self.going.tokens(at).len() + own.next.len())
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

    /// Closes a sequence that has ended and returns its tokens.
    fn close(&mut self, at: usize, is_done: bool, windows: &mut Vec<Window>) -> usize {
        let Some(own) = &self.slots[at] else { return 0 };
        let before = self.going.tokens(at);
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
        self.going.restart(at);
        n_tokens
    }

    /// Begins sequences where others have ended, unless little is missing.
    fn refill(&mut self, n_closed: usize) {
        let places = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        let n_open: usize = places.map(|(at, _)| self.going.tokens(at).len()).sum();
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

    fn layout(n_tokens: usize, most: usize, room: u64, per_token: u64) -> (usize, usize) {
        let layout = Layout::new(n_tokens, most, room, |n| Ok(per_token * n as u64)).unwrap();
        (layout.n_sequences, layout.length)
    }

    #[test]
    fn sequences_are_many_then_long_then_fewer() {
        assert_eq!(layout(32_768, 512, 1 << 40, 1000), (96, 342));
        assert_eq!(layout(1 << 20, 512, 1 << 40, 1000), (96, 512));
        // Little text: fewer sequences of a length that says something.
        assert_eq!(layout(640, 512, 1 << 40, 1000), (10, 64));
        assert_eq!(layout(640, 16, 1 << 40, 1000), (40, 16));
        // Little room: shorter ones, and then fewer.
        let (n, length) = layout(32_768, 512, 1 << 29, 46_080);
        assert!(n == 96 && (100..=121).contains(&length), "{n} {length}");
        assert_eq!(layout(32_768, 512, 1 << 29, 1 << 20), (8, 64));
        assert_eq!(layout(32_768, 512, 0, 1 << 20), (1, 64));
    }
}
