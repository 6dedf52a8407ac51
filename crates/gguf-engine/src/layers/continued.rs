//! Runs that continue step by step: many sequences get their next tokens together. Keys, values and states of earlier
//! tokens are kept, so that a step reads every weight once for all sequences.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::{Buffer, BufferPool};
use crate::exec::carried::Carried;
use crate::exec::context::Context;
use crate::exec::hidden::Hidden;
use crate::exec::past::Past;
use crate::exec::rope::RopeTables;
use crate::layers::ends::{begin, finish};
use crate::layers::forward::Engine;
use crate::layers::graph::GraphPlan;
use crate::layers::layer_run::run_layer;
use crate::{EngineError, Result};
use gguf_core::progress::Progress;

/// Sequences that continue from step to step.
///
/// The states of a step equal those of one run over the whole sequences, except for the order in which some sums are
/// formed. Rotations that depend on the length of a chunk are those of sequences of `n_ctx` tokens.
///
/// # Exactness
/// The bits are the same for every number of threads, on machines with the same vector instructions.
pub struct Continuation<'e, 'a> {
    engine: &'e Engine<'a>,
    past: Past,
    ropes: RopeTables,
    buffers: BufferPool,
    /// True if pages of weights are released after use, because all of them exceed the memory budget.
    releases: bool,
}

impl<'a> Engine<'a> {
    /// Returns `n_sequences` sequences that have not begun, of at most `n_ctx` tokens each. Memory is taken as they
    /// grow, up to [`Engine::continuation_bytes`]. In addition, up to `kept_bytes` of weights stay decoded.
    ///
    /// # Errors
    /// [`EngineError::NotContinued`] for graphs that only run over whole chunks; if `n_ctx` is longer than the graph is
    /// defined for; if weights cannot be read.
    pub fn continuation(
        &self,
        n_sequences: usize,
        n_ctx: usize,
        kept_bytes: u64,
    ) -> Result<Continuation<'_, 'a>> {
        let plan = self.plan();
        plan.remembered(n_ctx)?;
        let weights = self.weights();
        Ok(Continuation {
            engine: self,
            past: Past::new(n_sequences, n_ctx, kept_bytes),
            ropes: RopeTables::new(&plan.ropes, weights, n_ctx)?,
            buffers: BufferPool::default(),
            releases: self.work_bytes_in(1) > self.options.memory_bytes,
        })
    }

    /// Returns the bytes that a sequence of `n_ctx` tokens keeps.
    pub fn remembered_bytes(&self, n_ctx: usize) -> Result<u64> {
        Ok((self.plan().remembered(n_ctx)? as u64).saturating_mul(4))
    }

    /// Returns the largest number of bytes of [`Engine::continuation`] in addition to the weights: the kept values, a
    /// step of at most `step_tokens` over all sequences, and the logits from which each sequence's next token is drawn.
    pub fn continuation_bytes(&self, n_sequences: usize, n_ctx: usize, step_tokens: usize) -> Result<u64> {
        let logits = 4 * self.plan().n_vocab as u64;
        let per_sequence = self.remembered_bytes(n_ctx)?.saturating_add(logits);
        let run = self.run_bytes(step_tokens, step_tokens, n_ctx);
        Ok(per_sequence.saturating_mul(n_sequences as u64).saturating_add(run))
    }
}

impl Continuation<'_, '_> {
    /// Returns the tokens of a sequence so far.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn tokens(&self, sequence: usize) -> &[u32] {
        &self.past.tokens[sequence]
    }

    /// Returns the bytes that all sequences keep, from the first step on; the system maps them as sequences grow.
    pub fn remembered_bytes(&self) -> u64 {
        4 * self.past.n_floats() as u64
    }

    /// Clears a sequence, so that another can begin in its place.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn restart(&mut self, sequence: usize) {
        self.past.tokens[sequence].clear();
    }

    /// Gives every sequence its next tokens: one, several, or none if it waits. Returns the final normed state of the
    /// last token of each sequence that got tokens, in order. After an error the sequences cannot be continued.
    ///
    /// # Errors
    /// [`EngineError::SequenceTooLong`]; otherwise the same as [`Engine::forward`].
    ///
    /// # Panics
    /// If the number of token lists differs from the number of sequences.
    pub fn step(&mut self, next: &[&[u32]], progress: &dyn Progress) -> Result<Hidden> {
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
            weights: engine.weights(),
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
            count: None,
        };
        let hidden = step(&mut run, engine.plan(), &chunks, self.releases);
        let Context { ropes, buffers, .. } = run;
        (self.ropes, self.buffers) = (ropes, buffers);
        hidden
    }
}

/// Runs the chunks of a step through all layers.
fn step(cx: &mut Context<'_>, plan: &GraphPlan, chunks: &[TokenChunk], releases: bool) -> Result<Hidden> {
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
            // Released pages are read again while the layer before computes.
            if releases {
                let touch = || cx.weights.touch(next, &|| done.load(Ordering::Relaxed));
                let _ = std::thread::Builder::new().spawn_scoped(scope, touch);
            }
            let result = run_layer(cx, layer, &batch, &mut x);
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
