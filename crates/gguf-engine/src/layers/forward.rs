//! Engine: all chunks of a group go through one layer before the next layer is read, so that every weight is decoded
//! once for the whole group.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::BufferPool;
use crate::exec::carried::Carried;
use crate::exec::context::Context;
use crate::exec::hidden::Hidden;
use crate::exec::observer::Observer;
use crate::exec::rope::RopeTables;
use crate::exec::timings::{Clock, WorkKind};
use crate::exec::weights::WeightReader;
use crate::exec::workers::Workers;
use crate::exec::{matmul, panel};
use crate::layers::ends::{begin, finish};
use crate::layers::graph::GraphPlan;
use crate::layers::layer_run::run_layer;
use crate::layers::run_memory::RunMemory;
use crate::layers::stacks::{LayerStack, Memory, SplitChunks, StackInput, give_memory};
use crate::ops::mixer::MixerOp;
use crate::ops::moe::Moe;
use crate::{EngineError, Result};
use gguf_core::TensorSource;
use gguf_core::progress::{Progress, Silent};
use gguf_core::simd::SimdLevel;

/// Largest number of tokens of an inner batch: decoding a weight costs as much as multiplying it with about fifty
/// tokens.
const BATCH_TOKENS: usize = 8192;
/// Largest number of tokens of an inner batch in models with experts, each of which gets only a part of the tokens.
const BATCH_TOKENS_MOE: usize = 32768;

/// Resources that a run may use.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Number of threads.
    pub n_threads: usize,
    /// Bytes that activations may take.
    pub memory_bytes: u64,
    /// Part of `memory_bytes` that the program holds already. Groups are smaller by it; a single chunk still runs.
    pub held_bytes: u64,
    /// Vector instructions of decoders and of the loops around products. The products' kernels choose their own.
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
    /// Returns the bytes of the budget that are left for uses of flexible size.
    pub fn elastic_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.held_bytes)
    }
}

/// Model that can be run.
pub struct Engine<'a> {
    /// Source of the weights.
    pub source: &'a dyn TensorSource,
    pub(crate) plan: GraphPlan,
    pub(crate) options: EngineOptions,
    pub(crate) workers: Workers,
    pub(crate) clock: Clock,
    memory: RunMemory,
    spill_dir: Option<PathBuf>,
}

impl<'a> Engine<'a> {
    /// Prepares runs of `plan` over the tensors that it was resolved from.
    pub fn new(plan: GraphPlan, source: &'a dyn TensorSource, options: EngineOptions) -> Result<Self> {
        matmul::prepare();
        let workers = Workers::new(options.n_threads)?;
        let memory = RunMemory::count(&plan, source.tensors(), &workers, options.level)?;
        Ok(Self { source, plan, options, workers, clock: Clock::default(), memory, spill_dir: None })
    }

    /// Returns the engine with its hidden states kept in unnamed files in `dir`, for runs over whole chunks. The system
    /// writes them to disk when it needs memory. [`Engine::unspilled_bytes`] is what a run then takes of memory.
    pub fn spilling(self, dir: &Path) -> Self {
        Self { spill_dir: Some(dir.to_owned()), ..self }
    }

    /// Returns the columns of the widest matrix, at least the width of the residual stream.
    pub fn widest(&self) -> usize {
        self.memory.widest
    }

    /// Returns the plan.
    pub fn plan(&self) -> &GraphPlan {
        &self.plan
    }

    /// Returns the buffers for a run of this engine.
    pub fn buffers(&self) -> BufferPool {
        BufferPool::in_dir(self.spill_dir.as_deref())
    }

    /// Returns the options of runs.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Returns the thread time spent so far, by kind of work; the rest of wall time times threads is waiting.
    pub fn timings(&self) -> [(WorkKind, Duration); WorkKind::ALL.len()] {
        self.clock.read()
    }

    /// Runs `work` with rayon's parallel iterators on the engine's threads, for observers.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.workers.install(work)
    }

    fn is_moe(&self) -> bool {
        self.plan.layers.iter().any(|layer| layer.ffn.moe().is_some())
    }

    pub(crate) fn weights(&self) -> WeightReader<'_> {
        WeightReader::new(self.source, self.options.level)
    }

    /// Returns the bytes per token that stay between layers, and those that a batch needs inside a layer.
    fn token_bytes(&self) -> (u64, u64) {
        let RunMemory { streams, carried, inner, .. } = self.memory;
        let inner = 4 * inner + self.route_bytes();
        (4 * (streams + carried) as u64, inner as u64)
    }

    /// Returns the largest number of bytes of a token's routes to experts.
    fn route_bytes(&self) -> usize {
        let moes = self.plan.all_layers().filter_map(|layer| layer.ffn.moe());
        moes.map(Moe::route_bytes).max().unwrap_or(0)
    }

    /// Returns the bytes that do not grow with tokens: panels, and tiles of every thread.
    fn fixed_bytes(&self, chunk_len: usize) -> u64 {
        let (shared, thread) = panel::buffer_bytes(self.memory.widest);
        let mixers = self.plan.all_layers().flat_map(|layer| {
            let cross = layer.cross.as_ref().map(|cross| &*cross.attention as &dyn MixerOp);
            layer.mixer.op().into_iter().chain(cross)
        });
        let mixer = mixers.map(|mixer| mixer.thread_bytes(chunk_len));
        let per_thread = thread.saturating_add(mixer.max().unwrap_or(0)) as u64;
        per_thread.saturating_mul(self.workers.n_threads() as u64).saturating_add(shared as u64)
    }

    /// Returns the largest number of tokens of a batch. A group of this size, or of a multiple, decodes no weight of a
    /// layer more often than a larger one.
    pub fn batch_tokens_at_most(&self) -> usize {
        if self.is_moe() { BATCH_TOKENS_MOE } else { BATCH_TOKENS }
    }

    fn batch_tokens(&self, budget: u64, chunk_len: usize) -> usize {
        let (_, inner) = self.token_bytes();
        let most = self.batch_tokens_at_most();
        let fitting = usize::try_from(budget / 2 / inner.max(1)).unwrap_or(usize::MAX);
        fitting.min(most).max(chunk_len)
    }

    /// Returns the number of tokens of a group that fits in the memory budget, for chunks of at most `chunk_len`. A
    /// model that is run in lock-step with this one takes its own share.
    ///
    /// # Errors
    /// [`EngineError::Memory`] if not even one chunk fits.
    pub fn group_tokens(&self, chunk_len: usize) -> Result<usize> {
        self.group_tokens_with_taken(0, chunk_len)
    }

    /// Returns [`Engine::group_tokens`] if `taken_bytes` of the budget are taken already. A single chunk may take all
    /// of it.
    pub fn group_tokens_with_taken(&self, taken_bytes: u64, chunk_len: usize) -> Result<usize> {
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

    /// Returns the numbers of consecutive chunks that run together within the memory budget: each group decodes every
    /// weight of a layer once.
    pub fn groups(&self, chunks: &[TokenChunk]) -> Result<Vec<usize>> {
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        Ok(counts(chunks, self.group_tokens(longest)?.min(self.batch_tokens_at_most())))
    }

    /// Returns the bytes of weights that a run over these chunks decodes, including the head.
    pub fn work_bytes(&self, chunks: &[TokenChunk]) -> u64 {
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        self.work_bytes_in(self.counts(chunks, longest).len())
    }

    /// Returns the numbers of chunks of the batches that the memory budget allows.
    fn counts(&self, chunks: &[TokenChunk], longest: usize) -> Vec<usize> {
        let budget = self.options.elastic_bytes().saturating_sub(self.fixed_bytes(longest));
        counts(chunks, self.batch_tokens(budget, longest))
    }

    /// Returns the bytes of weights that a run in `n_batches` batches decodes, including the head.
    pub fn work_bytes_in(&self, n_batches: usize) -> u64 {
        let size = |&tensor: &usize| self.source.tensors()[tensor].n_bytes().unwrap_or(0);
        let layers: u64 = self.plan.all_layers().flat_map(|layer| &layer.tensors).map(size).sum();
        layers.saturating_mul(n_batches as u64).saturating_add(self.head_bytes())
    }

    /// Returns the bytes of the head's weights, all that is decoded if hidden states are known already.
    pub fn head_bytes(&self) -> u64 {
        self.source.tensors()[self.plan.head.tensor].n_bytes().unwrap_or(0)
    }

    /// Runs chunks through the whole graph and returns the final normed hidden states of their wanted rows.
    ///
    /// # Errors
    /// If a token id is outside the vocabulary, if weights cannot be read, or if the run is cancelled.
    pub fn forward(
        &self,
        chunks: &[TokenChunk],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden> {
        self.stacks(chunks, None, progress, observer)
    }

    /// Runs chunks as [`Engine::forward`] in batches of the caller's choice, of `batches[i]` chunks each. What an
    /// observer sees at once then depends neither on threads nor on the memory budget. [`Engine::run_bytes`] is the
    /// memory of a run.
    ///
    /// # Errors
    /// See [`Engine::forward`]; also [`EngineError::Stopped`].
    ///
    /// # Panics
    /// If the batches do not hold exactly all chunks.
    pub fn forward_in(
        &self,
        batches: &[usize],
        chunks: &[TokenChunk],
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden> {
        assert_eq!(batches.iter().sum::<usize>(), chunks.len(), "chunks of all batches");
        self.stacks(chunks, Some(batches), progress, observer)
    }

    /// Returns the largest number of bytes of [`Engine::forward_in`] in addition to the weights, for `n_tokens` in all,
    /// `batch_tokens` in the largest batch and `chunk_len` in the longest chunk.
    pub fn run_bytes(&self, n_tokens: usize, batch_tokens: usize, chunk_len: usize) -> u64 {
        let (kept, inner) = self.token_bytes();
        let batch = inner.saturating_mul(batch_tokens as u64);
        kept.saturating_mul(n_tokens as u64).saturating_add(batch).saturating_add(self.fixed_bytes(chunk_len))
    }

    /// Returns the part of [`Engine::run_bytes`] that stays in memory if hidden states are kept in files: values kept
    /// for later layers, the experts of each token, and the buffers of threads.
    pub fn unspilled_bytes(&self, n_tokens: usize, chunk_len: usize) -> u64 {
        let per_token = (4 * self.memory.carried + self.route_bytes()) as u64;
        per_token.saturating_mul(n_tokens as u64).saturating_add(self.fixed_bytes(chunk_len))
    }

    /// Runs chunks through all stacks of the model.
    fn stacks(
        &self,
        chunks: &[TokenChunk],
        batches: Option<&[usize]>,
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden> {
        let plan = &self.plan;
        let n_before = plan.encoder.as_ref().map_or(0, |encoder| encoder.layers.len());
        let stack = LayerStack { layers: &plan.layers, final_norm: plan.final_norm.as_ref(), n_before };
        let Some(encoder) = &plan.encoder else {
            if chunks.iter().any(|chunk| chunk.n_source > 0) {
                return Err(EngineError::NoSource);
            }
            let input = StackInput { chunks, batches, memory: Memory::default() };
            return self.run(stack, input, progress, observer);
        };
        let SplitChunks { sources, answers, cuts } = SplitChunks::of(chunks)?;
        let first =
            LayerStack { layers: &encoder.layers, final_norm: encoder.final_norm.as_ref(), n_before: 0 };
        let input = StackInput { chunks: &sources, batches, memory: Memory::default() };
        let states = self.run(first, input, progress, observer)?.states;
        let input = StackInput { chunks: &answers, batches, memory: Memory { states, cuts } };
        self.run(stack, input, progress, observer)
    }

    /// Runs chunks through one stack of layers.
    fn run(
        &self,
        stack: LayerStack<'_>,
        input: StackInput<'_>,
        progress: &dyn Progress,
        observer: Option<&dyn Observer>,
    ) -> Result<Hidden> {
        let StackInput { chunks, batches: counts, memory } = input;
        let plan = &self.plan;
        let weights = self.weights();
        let longest = chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0);
        plan.check_length(longest)?;
        let n_positions = plan.extras().map(|extra| extra.n_positions(longest)).fold(longest, usize::max);
        let mut run = Context {
            n_embd: plan.n_embd,
            weights,
            workers: &self.workers,
            progress,
            observer,
            clock: &self.clock,
            ropes: RopeTables::new(&plan.ropes, weights, n_positions)?,
            layer: AtomicUsize::new(0),
            memory: memory.states,
            buffers: self.buffers(),
            carried: Carried::default(),
            past: None,
            count: None,
        };
        let mut x = begin(&mut run, plan, chunks)?;
        let width = plan.stream_width();
        let run = run;
        let mut batches = match counts {
            Some(counts) => placed(chunks, counts),
            None => placed(chunks, &self.counts(chunks, longest)),
        };
        give_memory(&mut batches, &memory.cuts);
        for extra in plan.extras() {
            extra.set_positions(chunks, &mut batches)?;
        }
        for (at, layer) in stack.layers.iter().enumerate() {
            run.layer.store(at, Ordering::Relaxed);
            let next = stack.layers.get(at + 1).map_or(&[][..], |next| &next.tensors);
            // An observer sees all rows of all layers; without one, the last layer computes only the wanted rows.
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
                // The next layer's pages are read while this one computes. If no thread can be started for that, they
                // are read when they are needed.
                let ahead = std::thread::Builder::new();
                let _ = ahead.spawn_scoped(scope, || weights.touch(next, &|| done.load(Ordering::Relaxed)));
                let result = batches.iter().enumerate().try_for_each(|(number, (tokens, batch))| {
                    observer.inspect(|observer| observer.enter(stack.n_before + at, number));
                    run_layer(&run, layer, batch, &mut x[tokens.start * width..tokens.end * width])
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
        finish(&run, plan, chunks, batches, &x, stack.final_norm)
    }

    /// Runs chunks as [`Engine::forward`], without progress or observer.
    pub fn hidden(&self, chunks: &[TokenChunk]) -> Result<Hidden> {
        self.forward(chunks, &Silent, None)
    }
}

/// Returns the numbers of chunks of batches of at most `limit` tokens; a batch has at least one whole chunk.
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

/// Returns batches of `counts[i]` chunks each, with the ranges of their tokens.
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
