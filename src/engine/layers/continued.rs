//! Runs that go on step by step: many sequences take their next tokens together, and what they looked at before is
//! remembered, so that a step reads every weight once for all of them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::core::progress::Progress;
use crate::engine::EngineError;
use crate::engine::exec::batch::{ChunkBatch, TokenChunk};
use crate::engine::exec::buffers::{Buffer, Buffers};
use crate::engine::exec::carried::Carried;
use crate::engine::exec::context::Context;
use crate::engine::exec::hidden::Hidden;
use crate::engine::exec::past::Past;
use crate::engine::exec::rope::RopeTables;
use crate::engine::exec::weights::WeightReader;
use crate::engine::layers::ends::{begin, finish};
use crate::engine::layers::forward::Engine;
use crate::engine::layers::graph::GraphPlan;
use crate::engine::layers::run::run_layer;

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
            ropes: RopeTables::new(&plan.ropes, weights, n_ctx)?,
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
        let mut run = Context {
            n_embd: engine.plan().n_embd,
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
        let hidden = step(&mut run, engine.plan(), &chunks, self.releases);
        let Context { ropes, buffers, .. } = run;
        (self.ropes, self.buffers) = (ropes, buffers);
        hidden
    }
}

/// Runs the chunks of a step through all layers.
fn step(
    cx: &mut Context<'_>,
    plan: &GraphPlan,
    chunks: &[TokenChunk],
    releases: bool,
) -> Result<Hidden, EngineError> {
    let Some(past) = cx.past else { return Err(EngineError::Stopped) };
    let positions = chunks.iter().zip(&past.before);
    let positions = positions.map(|(chunk, &before)| before..before + chunk.tokens.len());
    let mut batch = ChunkBatch::continued(positions, past.capacity);
    let mut x = begin(cx, plan, chunks)?;
    let cx = &*cx;
    let layers = &plan.layers;
    for (at, layer) in layers.iter().enumerate() {
        cx.layer.store(at, Ordering::Relaxed);
        if at + 1 == layers.len() && !layer.ffn.looks_back() {
            batch = batch.narrowed(chunks.iter().map(|chunk| chunk.rows.clone()));
        }
        let next = layers.get(at + 1).map_or(&[][..], |next| &next.tensors);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Pages that were let go come in while the layer before computes.
            if releases {
                let touch = || cx.weights.touch(next, &|| done.load(Ordering::Relaxed));
                let _ = std::thread::Builder::new().spawn_scoped(scope, touch);
            }
            let result = run_layer(cx, plan, layer, &batch, &mut x);
            done.store(true, Ordering::Relaxed);
            result
        })?;
        if releases {
            cx.weights.release(&layer.tensors);
        }
    }
    let hidden = finish(cx, plan, chunks, vec![(0..batch.n_tokens(), batch)], &x, plan.final_norm.as_ref());
    cx.give([x]);
    hidden
}
