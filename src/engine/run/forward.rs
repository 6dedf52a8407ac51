//! Streaming: all chunks of a group go through one layer before the next layer is read, so that every weight is
//! decoded once for the whole group.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::core::TensorSource;
use crate::core::progress::{Progress, Silent};
use crate::core::simd::SimdLevel;
use crate::engine::EngineError;
use crate::engine::ops::head::Hidden;
use crate::engine::ops::rope::RopeTables;
use crate::engine::ops::stream_mix::MixRows;
use crate::engine::ops::{math, matmul};
use crate::engine::plan::{Ffn, Footprint, GraphPlan, LayerPlan, Norm, Streams};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::buffers::{Buffer, Buffers};
use crate::engine::run::carried::Carried;
use crate::engine::run::observer::Observer;
use crate::engine::run::panel;
use crate::engine::run::runner::Runner;
use crate::engine::run::stacks::{Memory, Split, Stack, give_memory};
use crate::engine::run::timings::{Clock, WorkKind};
use crate::engine::run::weights::WeightReader;
use crate::engine::run::workers::Workers;

/// Tokens of an inner batch at most: decoding a weight costs as much as multiplying it with some fifty tokens.
const BATCH_TOKENS: usize = 8192;
/// The same for layers of experts, each of which sees only a part of the tokens.
const BATCH_TOKENS_MOE: usize = 32768;

/// How a run may use the machine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Threads.
    pub n_threads: usize,
    /// Bytes that activations may take.
    pub memory_bytes: u64,
    /// Bytes of these that the program holds already. Groups are smaller by them; they keep no chunk from being run.
    pub held_bytes: u64,
    /// Vector instructions of decoders and of the loops around products, whose kernels choose their own.
    pub level: SimdLevel,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            n_threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: 1 << 30,
            held_bytes: 0,
            level: SimdLevel::detect(),
        }
    }
}

impl EngineOptions {
    /// Bytes that are left of the budget for what may be larger or smaller.
    #[must_use]
    pub fn elastic_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.held_bytes)
    }
}

/// Tokens that see one another, and which of their predictions are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenChunk {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Rows whose hidden state is wanted; row `i` predicts token `i + 1`.
    pub rows: Range<usize>,
    /// Tokens at the front that the encoder of a model of two stacks reads; the others are its decoder's. None for
    /// models of one stack.
    pub n_source: usize,
}

/// A model that can be run.
pub struct Engine<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) plan: GraphPlan,
    pub(crate) options: EngineOptions,
    pub(crate) workers: Workers,
    pub(crate) clock: Clock,
    spill_dir: Option<PathBuf>,
}

impl<'a> Engine<'a> {
    /// Prepares a run of `plan` over the tensors it was made from.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(
        plan: GraphPlan,
        source: &'a dyn TensorSource,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        matmul::prepare();
        let workers = Workers::new(options.n_threads)?;
        Ok(Self { source, plan, options, workers, clock: Clock::default(), spill_dir: None })
    }

    /// The same engine, whose runs over whole chunks keep hidden states in files without names in `dir`: the system writes
    /// them out where it needs the room. What a run then takes of memory: [`Engine::unspilled_bytes`].
    #[must_use]
    pub fn spilling(self, dir: &Path) -> Self {
        Self { spill_dir: Some(dir.to_owned()), ..self }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &GraphPlan {
        &self.plan
    }

    /// Buffers as a run of this engine has them.
    pub(crate) fn buffers(&self) -> Buffers {
        Buffers::in_dir(self.spill_dir.as_deref())
    }

    /// The options of the run.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Thread time spent so far, by kind of work; what is missing to wall time times threads is waiting.
    #[must_use]
    pub fn timings(&self) -> [(WorkKind, Duration); WorkKind::ALL.len()] {
        self.clock.read()
    }

    /// Runs `work` with the threads of the engine serving rayon's parallel iterators: for who looks on.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.workers.install(work)
    }

    fn is_moe(&self) -> bool {
        self.plan.layers.iter().any(|layer| matches!(layer.ffn, Ffn::Moe(_) | Ffn::Both(_)))
    }

    /// Bytes per token: what stays between layers, and what a batch needs inside one.
    fn token_bytes(&self) -> (u64, u64) {
        let n_embd = self.plan.n_embd;
        let inner = self.plan.all_layers().map(|layer| layer.floats_per_token(n_embd)).max().unwrap_or(0);
        // Between layers: the residual stream, the hidden state of a scored row, what layers hand on.
        let carried = self.plan.carried_floats() + self.plan.handed_floats();
        // Several streams become one after all layers.
        let end = self.plan.streams.as_ref().map_or(0, |streams| n_embd + streams.end_floats());
        let kept = 2 * self.plan.stream_width() + carried + end;
        (4 * kept as u64, 4 * inner as u64)
    }

    /// Bytes that do not grow with tokens: panels and tiles of every thread.
    fn fixed_bytes(&self, chunk_len: usize) -> u64 {
        let layers = self.plan.all_layers();
        let widest = layers.clone().map(LayerPlan::widest).max().unwrap_or(0).max(self.plan.n_embd);
        let widest = widest.max(self.plan.streams.as_ref().map_or(0, Streams::widest));
        let (shared, thread) = panel::buffer_bytes(widest);
        let mixers = layers.flat_map(|layer| {
            let cross = layer.cross.as_ref().map(|cross| &*cross.attention as &dyn Footprint);
            layer.mixer.footprint().into_iter().chain(cross)
        });
        let mixer = mixers.map(|mixer| mixer.thread_bytes(chunk_len));
        let per_thread = thread.saturating_add(mixer.max().unwrap_or(0)) as u64;
        per_thread.saturating_mul(self.workers.n_threads() as u64).saturating_add(shared as u64)
    }

    /// Tokens of a batch at most: a group of so many, or of a multiple, decodes no weight of a layer more often than
    /// a larger one.
    #[must_use]
    pub fn batch_tokens_at_most(&self) -> usize {
        if self.is_moe() { BATCH_TOKENS_MOE } else { BATCH_TOKENS }
    }

    fn batch_tokens(&self, budget: u64, chunk_len: usize) -> usize {
        let (_, inner) = self.token_bytes();
        let most = self.batch_tokens_at_most();
        let fitting = usize::try_from(budget / 2 / inner.max(1)).unwrap_or(usize::MAX);
        fitting.min(most).max(chunk_len)
    }

    /// Tokens that one group may have within the memory budget, for chunks of at most `chunk_len`; a model that is
    /// run in lock-step with this one takes its own share.
    ///
    /// # Errors
    /// [`EngineError::Memory`] if not even one chunk fits.
    pub fn group_tokens(&self, chunk_len: usize) -> Result<usize, EngineError> {
        self.group_tokens_beside(0, chunk_len)
    }

    /// [`Engine::group_tokens`] when some bytes of the budget are taken already. A single chunk may take all of it.
    ///
    /// # Errors
    /// As [`Engine::group_tokens`].
    pub fn group_tokens_beside(&self, taken_bytes: u64, chunk_len: usize) -> Result<usize, EngineError> {
        let (kept, inner) = self.token_bytes();
        let budget_bytes = self.options.memory_bytes;
        let fixed = self.fixed_bytes(chunk_len);
        let needed_bytes = fixed.saturating_add((kept + inner).saturating_mul(chunk_len as u64));
        if needed_bytes > budget_bytes {
            return Err(EngineError::Memory { budget_bytes, needed_bytes, tokens: chunk_len });
        }
        let budget = self.options.elastic_bytes().max(needed_bytes) - fixed;
        let batch = self.batch_tokens(budget, chunk_len) as u64;
        let left =
            budget.saturating_sub(taken_bytes).saturating_sub(batch.saturating_mul(inner)) / kept.max(1);
        Ok(usize::try_from(left).unwrap_or(usize::MAX).max(chunk_len))
    }

    /// Numbers of chunks, in their order, that may run together within the memory budget: each group decodes every weight of
    /// a layer once.
    ///
    /// # Errors
    /// As [`Engine::group_tokens`].
    pub(crate) fn groups(&self, chunks: &[TokenChunk]) -> Result<Vec<usize>, EngineError> {
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        Ok(counts(chunks, self.group_tokens(longest)?.min(self.batch_tokens_at_most())))
    }

    /// Bytes of weights that a run over these chunks decodes, head included.
    #[must_use]
    pub fn work_bytes(&self, chunks: &[TokenChunk]) -> u64 {
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        self.work_bytes_in(self.counts(chunks, longest).len())
    }

    /// Chunks of the batches that the memory budget allows.
    fn counts(&self, chunks: &[TokenChunk], longest: usize) -> Vec<usize> {
        let budget = self.options.elastic_bytes().saturating_sub(self.fixed_bytes(longest));
        counts(chunks, self.batch_tokens(budget, longest))
    }

    /// Bytes of weights that a run in so many batches decodes, head included.
    #[must_use]
    pub fn work_bytes_in(&self, n_batches: usize) -> u64 {
        let size = |&tensor: &usize| self.source.tensors()[tensor].n_bytes().unwrap_or(0);
        let layers: u64 = self.plan.all_layers().flat_map(|layer| &layer.tensors).map(size).sum();
        layers.saturating_mul(n_batches as u64).saturating_add(self.head_bytes())
    }

    /// Bytes of the head's weights: what is decoded of a model whose hidden states are known.
    #[must_use]
    pub fn head_bytes(&self) -> u64 {
        self.source.tensors()[self.plan.head.tensor].n_bytes().unwrap_or(0)
    }

    /// Runs chunks through the whole graph and returns the final normed hidden states of their wanted rows.
    ///
    /// # Errors
    /// Token ids outside the vocabulary, unreadable weights, cancellation.
    pub fn forward(
        &self,
        chunks: &[TokenChunk],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden, EngineError> {
        self.stacks(chunks, None, progress, observer)
    }

    /// [`Engine::forward`] in the batches that the caller chooses, of `batches[i]` chunks each, so that what an observer
    /// sees at once depends neither on threads nor on the memory budget. What a run takes: [`Engine::run_bytes`].
    ///
    /// # Errors
    /// As [`Engine::forward`]; [`EngineError::Stopped`].
    ///
    /// # Panics
    /// If the batches do not hold all chunks.
    pub fn forward_in(
        &self,
        batches: &[usize],
        chunks: &[TokenChunk],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden, EngineError> {
        assert_eq!(batches.iter().sum::<usize>(), chunks.len(), "chunks of all batches");
        self.stacks(chunks, Some(batches), progress, observer)
    }

    /// Bytes that [`Engine::forward_in`] takes at most, beside the weights: for `n_tokens` in all, `batch_tokens` in the
    /// largest batch, `chunk_len` in the longest chunk.
    #[must_use]
    pub fn run_bytes(&self, n_tokens: usize, batch_tokens: usize, chunk_len: usize) -> u64 {
        let (kept, inner) = self.token_bytes();
        let batch = inner.saturating_mul(batch_tokens as u64);
        kept.saturating_mul(n_tokens as u64).saturating_add(batch).saturating_add(self.fixed_bytes(chunk_len))
    }

    /// The part of [`Engine::run_bytes`] that stays in memory when hidden states are kept in files: what layers hand on,
    /// the experts of each token, the buffers of threads.
    #[must_use]
    pub fn unspilled_bytes(&self, n_tokens: usize, chunk_len: usize) -> u64 {
        let plan = &self.plan;
        let floats = plan.carried_floats() + plan.handed_floats();
        let used = |layer: &LayerPlan| match &layer.ffn {
            Ffn::Moe(moe) => moe.n_used,
            Ffn::Both(both) => both.moe.n_used,
            _ => 0,
        };
        let n_used = plan.all_layers().map(used).max().unwrap_or(0);
        // Choices by token and by expert, and as they are handed to who looks on.
        let routes = if n_used > 0 { 48 * n_used + 64 } else { 0 };
        let per_token = (4 * floats + routes) as u64;
        per_token.saturating_mul(n_tokens as u64).saturating_add(self.fixed_bytes(chunk_len))
    }

    /// Runs chunks through all stacks of the model.
    fn stacks(
        &self,
        chunks: &[TokenChunk],
        batches: Option<&[usize]>,
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden, EngineError> {
        let plan = &self.plan;
        let n_before = plan.encoder.as_ref().map_or(0, |encoder| encoder.layers.len());
        let stack = Stack { layers: &plan.layers, final_norm: plan.final_norm.as_ref(), n_before };
        let Some(encoder) = &plan.encoder else {
            if chunks.iter().any(|chunk| chunk.n_source > 0) {
                return Err(EngineError::NoSource);
            }
            return self.run(stack, (chunks, batches), Memory::default(), progress, observer);
        };
        let Split { sources, answers, cuts } = Split::of(chunks)?;
        let first = Stack { layers: &encoder.layers, final_norm: encoder.final_norm.as_ref(), n_before: 0 };
        let states = self.run(first, (&sources, batches), Memory::default(), progress, observer)?.states;
        self.run(stack, (&answers, batches), Memory { states, cuts }, progress, observer)
    }

    /// Runs chunks through one stack of layers.
    fn run(
        &self,
        stack: Stack<'_>,
        (chunks, counts): (&[TokenChunk], Option<&[usize]>),
        memory: Memory,
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden, EngineError> {
        let plan = &self.plan;
        let weights = WeightReader { source: self.source, level: self.options.level };
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        plan.check_length(longest)?;
        let mut run = Runner {
            plan,
            weights,
            workers: &self.workers,
            progress,
            observer,
            clock: &self.clock,
            // Behind a prefix of no tokens the positions start with 1.
            ropes: RopeTables::new(plan, weights, longest + usize::from(plan.prefix.is_some()))?,
            layer: AtomicUsize::new(0),
            memory: memory.states,
            buffers: self.buffers(),
            carried: Carried::default(),
            past: None,
        };
        let mut x = run.begin(chunks)?;
        let width = plan.stream_width();
        let run = run;
        let mut batches = match counts {
            Some(counts) => placed(chunks, counts),
            None => placed(chunks, &self.counts(chunks, longest)),
        };
        give_memory(&mut batches, &memory.cuts);
        if let Some(prefix) = plan.prefix {
            prefix.place(chunks, &mut batches)?;
        }
        for (at, layer) in stack.layers.iter().enumerate() {
            run.layer.store(at, Ordering::Relaxed);
            let next = stack.layers.get(at + 1).map_or(&[][..], |next| &next.tensors);
            // An observer sees all rows of all layers; else the last layer computes only what is wanted.
            let is_last = at + 1 == stack.layers.len();
            if is_last && observer.is_none() && !layer.ffn.looks_back() {
                let mut rest = chunks;
                for (_, batch) in &mut batches {
                    let (own, later) = rest.split_at(batch.cuts.len() - 1);
                    *batch = std::mem::take(batch).narrowed(own.iter().map(|chunk| chunk.rows.clone()));
                    rest = later;
                }
            }
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                // The next layer's pages come in while this one computes.
                // Without a thread for that they come when they are needed.
                let ahead = std::thread::Builder::new();
                let _ = ahead.spawn_scoped(scope, || weights.touch(next, &|| done.load(Ordering::Relaxed)));
                let result = batches.iter().enumerate().try_for_each(|(number, (tokens, batch))| {
                    observer.inspect(|observer| observer.enter(stack.n_before + at, number));
                    run.layer(layer, batch, &mut x[tokens.start * width..tokens.end * width])
                });
                done.store(true, Ordering::Relaxed);
                result
            })?;
            run.buffers.check()?;
            weights.release(&layer.tensors);
            if observer.is_some_and(|observer| observer.leave(stack.n_before + at).is_break()) {
                return Err(EngineError::Stopped);
            }
        }
        run.finish(chunks, batches, &x, stack.final_norm)
    }

    /// [`Engine::forward`] without progress or observer.
    ///
    /// # Errors
    /// As [`Engine::forward`].
    pub fn hidden(&self, chunks: &[TokenChunk]) -> Result<Hidden, EngineError> {
        self.forward(chunks, &Silent, None)
    }
}

/// Chunks of batches of at most `limit` tokens (but whole chunks).
fn counts(chunks: &[TokenChunk], limit: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut first = 0;
    while first < chunks.len() {
        let mut end = first;
        let mut n_tokens = 0;
        while end < chunks.len() && (end == first || n_tokens + chunks[end].tokens.len() <= limit) {
            n_tokens += chunks[end].tokens.len();
            end += 1;
        }
        counts.push(end - first);
        first = end;
    }
    counts
}

/// Batches of so many chunks each: their tokens and their places.
fn placed(chunks: &[TokenChunk], counts: &[usize]) -> Vec<(Range<usize>, ChunkBatch)> {
    let (mut rest, mut start) = (chunks, 0);
    let batch = |&n: &usize| {
        let (own, later) = rest.split_at(n);
        rest = later;
        let n_tokens: usize = own.iter().map(|chunk| chunk.tokens.len()).sum();
        let mut batch = ChunkBatch::new(own.iter().map(|chunk| chunk.tokens.len()));
        batch.start = start;
        start += n_tokens;
        (batch.start..start, batch)
    };
    counts.iter().map(batch).collect()
}

impl Runner<'_> {
    /// What goes into the first layer: the residual stream, or several of them; and what later layers look up.
    pub(super) fn begin(&mut self, chunks: &[TokenChunk]) -> Result<Buffer, EngineError> {
        let plan = self.plan;
        let mut x = self.clock.time(WorkKind::Embed, || self.embed(chunks))?;
        if plan.needs_tokens() {
            self.carried.tokens = chunks.iter().flat_map(|chunk| &chunk.tokens).copied().collect();
        }
        if plan.needs_start() {
            self.carried.start = x.to_vec();
        }
        if let Some(switch) = &plan.switch {
            self.carried.slots = match self.past {
                None => chunks.iter().flat_map(|chunk| switch.slots(&chunk.tokens)).collect(),
                Some(past) => {
                    let places = past.sequences.iter().zip(&past.before);
                    places.flat_map(|(&at, &n)| switch.slots(&past.tokens[at]).into_iter().skip(n)).collect()
                }
            };
        }
        if let Some(held) = &plan.held {
            let n_tokens = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
            self.carried.hold(&self.weights.vector(&held.start)?, n_tokens);
        }
        if let Some(streams) = &plan.streams {
            let streams = self.open_streams(streams, &x);
            self.give([std::mem::replace(&mut x, streams)]);
        }
        if let Some(altup) = &plan.altup {
            let streams = self.spread(altup, &x)?;
            self.give([std::mem::replace(&mut x, streams)]);
        }
        Ok(x)
    }

    /// The residual stream before the first layer.
    fn embed(&self, chunks: &[TokenChunk]) -> Result<Buffer, EngineError> {
        let plan = self.plan;
        let n_embd = plan.n_embd;
        let vocabulary = plan.embedding.n_rows;
        let n_tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let mut x = self.take(n_tokens * n_embd);
        let token_type = self.weights.optional(plan.token_types.as_ref())?;
        let norm = plan.embed_norm.as_ref().map(|norm| self.weights.norm(norm)).transpose()?;
        let mut rows = x.chunks_mut(n_embd);
        let (mut bytes, mut scratch) = (Vec::new(), vec![0.0; n_embd]);
        for (prompt, chunk) in chunks.iter().enumerate() {
            let before = self.past.map_or(0, |past| past.before[prompt]);
            for (at, (&token, row)) in chunk.tokens.iter().zip(&mut rows).enumerate() {
                let position = before + at;
                let own = plan.switch.as_ref().map_or(token, |switch| switch.substitute(token));
                let at = usize::try_from(own).ok().filter(|&at| at < vocabulary);
                let at = at.ok_or(EngineError::Token { prompt, token, vocabulary })?;
                self.weights.rows(plan.embedding.tensor, at, 1, &mut bytes, row)?;
                math::scale_and_cap(self.weights.level, row, plan.embed_scale, None);
                if let Some(token_type) = &token_type {
                    math::add_scaled(self.weights.level, row, token_type, 1.0);
                }
                if let Some(positions) = &plan.positions {
                    self.weights.rows(positions.tensor, position, 1, &mut bytes, &mut scratch)?;
                    math::add_scaled(self.weights.level, row, &scratch, 1.0);
                }
                if let Some(norm) = &norm {
                    scratch.copy_from_slice(row);
                    norm.row(self.weights.level, &scratch, row);
                }
            }
        }
        self.slot("embedding", &x, n_embd);
        Ok(x)
    }

    /// The wanted rows after the final norm.
    pub(super) fn finish(
        &self,
        chunks: &[TokenChunk],
        batches: Vec<(Range<usize>, ChunkBatch)>,
        x: &[f32],
        norm: Option<&Norm>,
    ) -> Result<Hidden, EngineError> {
        let (n_embd, width) = (self.plan.n_embd, self.plan.stream_width());
        let mut rest = chunks;
        let narrow = |(tokens, batch): (Range<usize>, ChunkBatch)| {
            let (own, later) = rest.split_at(batch.cuts.len() - 1);
            rest = later;
            let is_whole = batch.is_whole();
            let rows = own.iter().map(|chunk| chunk.rows.clone());
            (tokens, is_whole, if is_whole { batch.narrowed(rows) } else { batch })
        };
        let batches: Vec<(Range<usize>, bool, ChunkBatch)> = batches.into_iter().map(narrow).collect();
        let mut states = self.take(batches.iter().map(|(_, _, batch)| batch.n_wanted() * width).sum());
        let mut left = &mut states[..];
        for (tokens, is_whole, batch) in &batches {
            let (rows, later) = std::mem::take(&mut left).split_at_mut(batch.n_wanted() * width);
            left = later;
            let x = &x[tokens.start * width..tokens.end * width];
            if *is_whole {
                batch.copy_wanted(x, width, rows);
            } else {
                rows.copy_from_slice(&x[..rows.len()]);
            }
            if let Some(score) = &self.plan.final_mix {
                let mixed = self.mix_streams(score, batch, MixRows::Wanted, rows)?;
                rows.copy_from_slice(&mixed);
                self.give([mixed]);
            }
        }
        if let Some(altup) = &self.plan.altup {
            states = self.collapse(altup, &states)?;
        }
        if let Some(streams) = &self.plan.streams {
            states = self.close_streams(streams, &states)?;
        }
        if let Some(norm) = norm {
            let mut normed = self.take(states.len());
            self.norm_rows(&self.weights.norm(norm)?, &states, &mut normed, n_embd);
            self.give([std::mem::replace(&mut states, normed)]);
        }
        self.buffers.check()?;
        self.slot("final", &states, n_embd);
        Ok(Hidden { n_rows: states.len() / n_embd, states })
    }
}
