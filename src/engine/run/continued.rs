//! Runs that go on step by step: many sequences take their next tokens together, and what they looked at before is
//! remembered, so that a step reads every weight once for all of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::engine::ops::head::Hidden;
use crate::engine::ops::rope::RopeTables;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::{Buffer, Buffers};
use crate::engine::run::carried::Carried;
use crate::engine::run::forward::{Engine, TokenChunk};
use crate::engine::run::past::Past;
use crate::engine::run::runner::Runner;
use crate::engine::run::weights::WeightReader;

/// Sequences that go on from step to step.
///
/// A step gives the states that one run over the whole sequences gives, but for the order in which some sums are formed.
/// Where rotations depend on the length of a chunk, they are those of sequences as long as there is room for.
///
/// # Exactness
/// The same bits for every number of threads, on machines with the same vector instructions.
pub struct Continuation<'e, 'a> {
    engine: &'e Engine<'a>,
    past: Past,
    ropes: RopeTables,
    buffers: Buffers,
    /// Pages of weights are let go after use: all of them are more than the memory budget.
    releases: bool,
}

impl<'a> Engine<'a> {
    /// Makes room for sequences of at most `n_ctx` tokens, which have not begun. The memory is taken as they grow;
    /// [`Engine::continuation_bytes`] says how much that may be. Beside it up to `kept_bytes` of weights stay decoded.
    ///
    /// # Errors
    /// [`EngineError::NotContinued`] for graphs that only run over whole chunks; `n_ctx` longer than the graph is defined
    /// for; unreadable weights.
    pub fn continuation(
        &self,
        n_sequences: usize,
        n_ctx: usize,
        kept_bytes: u64,
    ) -> Result<Continuation<'_, 'a>, EngineError> {
        let plan = self.plan();
        plan.remembered(n_ctx)?;
        let weights = WeightReader { source: self.source, level: self.options.level };
        Ok(Continuation {
            engine: self,
            past: Past::new(n_sequences, n_ctx, kept_bytes),
            ropes: RopeTables::new(plan, weights, n_ctx)?,
            buffers: Buffers::default(),
            releases: self.work_bytes_in(1) > self.options.memory_bytes,
        })
    }

    /// Bytes that a sequence of `n_ctx` tokens remembers.
    ///
    /// # Errors
    /// As [`Engine::continuation`].
    pub fn remembered_bytes(&self, n_ctx: usize) -> Result<u64, EngineError> {
        Ok((self.plan().remembered(n_ctx)? as u64).saturating_mul(4))
    }

    /// Bytes that [`Engine::continuation`] takes at most, beside the weights: what is remembered, a step of at most
    /// `step_tokens` over all sequences, and the logits that a token of each is drawn from.
    ///
    /// # Errors
    /// As [`Engine::continuation`].
    pub fn continuation_bytes(
        &self,
        n_sequences: usize,
        n_ctx: usize,
        step_tokens: usize,
    ) -> Result<u64, EngineError> {
        let logits = 4 * self.plan().n_vocab as u64;
        let per_sequence = self.remembered_bytes(n_ctx)?.saturating_add(logits);
        let run = self.run_bytes(step_tokens, step_tokens, n_ctx);
        Ok(per_sequence.saturating_mul(n_sequences as u64).saturating_add(run))
    }
}

impl Continuation<'_, '_> {
    /// Tokens of a sequence so far.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn tokens(&self, sequence: usize) -> &[u32] {
        &self.past.tokens[sequence]
    }

    /// Bytes that all sequences remember, from the first step on; the system gives them as sequences grow.
    #[must_use]
    pub fn remembered_bytes(&self) -> u64 {
        4 * self.past.n_floats() as u64
    }

    /// Forgets a sequence, so that another begins in its place.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn restart(&mut self, sequence: usize) {
        self.past.tokens[sequence].clear();
    }

    /// Gives every sequence its next tokens, one or several, or none if it waits, and returns the final normed state of
    /// the last token of each that got some, in their order. After an error nothing can be gone on with.
    ///
    /// # Errors
    /// [`EngineError::SequenceTooLong`]; as [`Engine::forward`].
    ///
    /// # Panics
    /// If there are not as many lists of tokens as sequences.
    pub fn step(&mut self, next: &[&[u32]], progress: &dyn Progress) -> Result<Hidden, EngineError> {
        let past = &mut self.past;
        assert_eq!(next.len(), past.tokens.len(), "tokens of every sequence");
        (past.sequences, past.before) = (Vec::new(), Vec::new());
        let mut chunks = Vec::new();
        for (sequence, (own, tokens)) in past.tokens.iter_mut().zip(next).enumerate() {
            if tokens.is_empty() {
                continue;
            }
            let before = own.len();
            let n_tokens = before.saturating_add(tokens.len());
            if n_tokens > past.capacity {
                let limit = past.capacity;
                return Err(EngineError::SequenceTooLong { sequence, tokens: n_tokens, limit });
            }
            past.sequences.push(sequence);
            past.before.push(before);
            own.extend_from_slice(tokens);
            let rows = tokens.len() - 1..tokens.len();
            chunks.push(TokenChunk { tokens: tokens.to_vec(), rows, n_source: 0 });
        }
        past.rewind();
        let engine = self.engine;
        let mut run = Runner {
            plan: engine.plan(),
            weights: WeightReader { source: engine.source, level: engine.options.level },
            workers: &engine.workers,
            progress,
            observer: None,
            clock: &engine.clock,
            ropes: std::mem::take(&mut self.ropes),
            layer: AtomicUsize::new(0),
            memory: Buffer::default(),
            buffers: std::mem::take(&mut self.buffers),
            carried: Carried::default(),
            past: Some(&self.past),
        };
        let hidden = run.step(&chunks, self.releases);
        let Runner { ropes, buffers, .. } = run;
        (self.ropes, self.buffers) = (ropes, buffers);
        hidden
    }
}

impl Runner<'_> {
    /// Runs the chunks of a step through all layers.
    fn step(&mut self, chunks: &[TokenChunk], releases: bool) -> Result<Hidden, EngineError> {
        let Some(past) = self.past else { return Err(EngineError::Stopped) };
        let positions = chunks.iter().zip(&past.before);
        let positions = positions.map(|(chunk, &before)| before..before + chunk.tokens.len());
        let mut batch = ChunkBatch::continued(positions, past.capacity);
        let mut x = self.begin(chunks)?;
        let run = &*self;
        let layers = &run.plan.layers;
        for (at, layer) in layers.iter().enumerate() {
            run.layer.store(at, Ordering::Relaxed);
            if at + 1 == layers.len() && !layer.ffn.looks_back() {
                batch = batch.narrowed(chunks.iter().map(|chunk| chunk.rows.clone()));
            }
            let next = layers.get(at + 1).map_or(&[][..], |next| &next.tensors);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                // Pages that were let go come in while the layer before computes.
                if releases {
                    let touch = || run.weights.touch(next, &|| done.load(Ordering::Relaxed));
                    let _ = std::thread::Builder::new().spawn_scoped(scope, touch);
                }
                let result = run.layer(layer, &batch, &mut x);
                done.store(true, Ordering::Relaxed);
                result
            })?;
            if releases {
                run.weights.release(&layer.tensors);
            }
        }
        let hidden = run.finish(chunks, vec![(0..batch.n_tokens(), batch)], &x, run.plan.final_norm.as_ref());
        run.give([x]);
        hidden
    }
}
