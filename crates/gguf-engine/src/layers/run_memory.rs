//! Memory of a run, counted: the model runs over a few tokens with weights of 0 and without products, and what
//! operations take is added up. So an operation that takes another buffer is counted without a further line.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::{Buffer, BufferPool};
use crate::exec::carried::Carried;
use crate::exec::context::Context;
use crate::exec::count::{MemoryCount, ZeroWeights};
use crate::exec::rope::{Rope, RopeTables};
use crate::exec::timings::Clock;
use crate::exec::weights::WeightReader;
use crate::exec::workers::Workers;
use crate::layers::ends::{begin, finish};
use crate::layers::graph::GraphPlan;
use crate::layers::layer_run::run_layer;
use crate::layers::stacks::LayerStack;
use crate::ops::model_extra::ModelExtraOp;
use gguf_core::TensorMeta;
use gguf_core::progress::Silent;
use gguf_core::simd::SimdLevel;

/// Largest number of tokens of the counted run. Buffers are proportional to tokens, or to groups of at most so many.
const TOKENS: usize = 128;
/// Largest number of floats of a buffer of the counted run, unless one token needs more: a file may declare any width.
const BUFFER_FLOATS: usize = 1 << 24;

/// Memory of a run, in addition to the weights and to the buffers of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunMemory {
    /// Floats per token that are in memory between layers: streams, and the hidden states of wanted rows.
    pub(crate) streams: usize,
    /// Floats per token that layers keep for later layers.
    pub(crate) carried: usize,
    /// Largest number of floats per token of a batch inside layers.
    pub(crate) inner: usize,
    /// Columns of the widest matrix.
    pub(crate) widest: usize,
}

impl RunMemory {
    /// Counts the memory of runs of `plan`, whose tensors are `tensors`.
    pub(crate) fn count(
        plan: &GraphPlan,
        tensors: &[TensorMeta],
        workers: &Workers,
        level: SimdLevel,
    ) -> Result<Self> {
        let weights = ZeroWeights(tensors);
        let counted = |stack| count_stack(plan, stack, WeightReader::new(&weights, level), workers);
        let n_before = plan.encoder.as_ref().map_or(0, |encoder| encoder.layers.len());
        let decoder = LayerStack { layers: &plan.layers, final_norm: plan.final_norm.as_ref(), n_before };
        let mut memory = counted(decoder)?;
        if let Some(encoder) = &plan.encoder {
            let stack =
                LayerStack { layers: &encoder.layers, final_norm: encoder.final_norm.as_ref(), n_before: 0 };
            memory = memory.most(counted(stack)?);
        }
        memory.widest = memory.widest.max(plan.n_embd);
        Ok(memory)
    }

    /// Returns the larger figures of both.
    fn most(self, other: Self) -> Self {
        Self {
            streams: self.streams.max(other.streams),
            carried: self.carried.max(other.carried),
            inner: self.inner.max(other.inner),
            widest: self.widest.max(other.widest),
        }
    }
}

/// Counts the memory of a run through one stack. Chunks of encoder-decoder models have as many tokens for the encoder
/// as for the decoder, and each of both is counted as if the other had none.
fn count_stack(
    plan: &GraphPlan,
    stack: LayerStack<'_>,
    weights: WeightReader<'_>,
    workers: &Workers,
) -> Result<RunMemory> {
    let n_tokens = counted_tokens(plan, stack, weights.source.tensors());
    let token = plan.extras().find_map(ModelExtraOp::busiest_token).unwrap_or(0);
    let chunks = [TokenChunk { tokens: vec![token; n_tokens], rows: 0..n_tokens, n_source: 0 }];
    let (count, clock) = (MemoryCount::default(), Clock::default());
    // Divisors of angles have no influence on memory.
    let plain = |rope: &Rope| Rope { factors: None, long_factors: None, ..rope.clone() };
    let ropes: Vec<Rope> = plan.ropes.iter().map(plain).collect();
    let n_positions = plan.extras().map(|extra| extra.n_positions(n_tokens)).fold(n_tokens, usize::max);
    let ropes = RopeTables::new(&ropes, weights, n_positions)?;
    let has_memory = plan.encoder.is_some() && stack.n_before > 0;
    let mut cx = Context {
        n_embd: plan.n_embd,
        weights,
        workers,
        progress: &Silent,
        observer: None,
        clock: &clock,
        ropes,
        layer: AtomicUsize::new(0),
        memory: Buffer::from(vec![0.0; if has_memory { n_tokens * plan.n_embd } else { 0 }]),
        buffers: BufferPool::default(),
        carried: Carried::default(),
        past: None,
        count: Some(&count),
    };
    let mut x = begin(&mut cx, plan, &chunks)?;
    let mut batch = ChunkBatch::new([n_tokens]);
    if has_memory {
        batch.memory = vec![0, n_tokens];
    }
    let begun = cx.buffers.n_floats();
    for (at, layer) in stack.layers.iter().enumerate() {
        cx.layer.store(at, Ordering::Relaxed);
        run_layer(&cx, layer, &batch, &mut x)?;
    }
    let inner = cx.buffers.n_floats() - begun;
    let carried = cx.carried.n_floats() + batch.carried.get().map_or(0, Vec::len);
    // The end takes buffers for all tokens at once; those of layers are too short for it.
    cx.buffers = BufferPool::default();
    finish(&cx, plan, &chunks, vec![(0..n_tokens, batch)], &x, stack.final_norm)?;
    let streams = begun + cx.buffers.n_floats();
    let per_token = |n: usize| n.div_ceil(n_tokens);
    Ok(RunMemory {
        streams: per_token(streams),
        carried: per_token(carried),
        inner: per_token(inner),
        widest: count.widest(),
    })
}

/// Returns the number of tokens of the counted run of a stack: few for wide models, so that counting takes less than
/// the run that it is for.
fn counted_tokens(plan: &GraphPlan, stack: LayerStack<'_>, tensors: &[TensorMeta]) -> usize {
    let width = |&tensor: &usize| {
        let shape = &tensors[tensor].shape;
        usize::try_from(shape.n_cols().max(shape.n_rows())).unwrap_or(usize::MAX)
    };
    let widths = stack.layers.iter().flat_map(|layer| &layer.tensors).map(width);
    let widest = widths.fold(plan.stream_width(), usize::max).max(1);
    let limits = [plan.positions.as_ref().map(|positions| positions.n_rows), plan.chunk_limit];
    limits.into_iter().flatten().fold(TOKENS.min(BUFFER_FLOATS / widest), usize::min).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::models::TinyModel;
    use gguf_core::TensorSource;

    const N_EMBD: usize = 8;
    const N_HEADS: usize = 2;
    const HEAD: usize = 6;
    const INNER: usize = 40;

    fn model(n_experts: usize) -> TinyModel {
        let sizes = [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", N_EMBD),
            ("attention.head_count", N_HEADS),
            ("attention.key_length", HEAD),
            ("attention.value_length", HEAD),
            ("expert_count", n_experts),
            ("expert_used_count", 2),
        ];
        let mut model = TinyModel::new("x", &sizes, 1e-5);
        model.add(&[
            ("token_embd.weight", &[16, N_EMBD]),
            ("output_norm.weight", &[N_EMBD]),
            ("blk.0.attn_norm.weight", &[N_EMBD]),
            ("blk.0.attn_q.weight", &[N_HEADS * HEAD, N_EMBD]),
            ("blk.0.attn_k.weight", &[N_HEADS * HEAD, N_EMBD]),
            ("blk.0.attn_v.weight", &[N_HEADS * HEAD, N_EMBD]),
            ("blk.0.attn_output.weight", &[N_EMBD, N_HEADS * HEAD]),
            ("blk.0.ffn_norm.weight", &[N_EMBD]),
        ]);
        if n_experts == 0 {
            model.add(&[
                ("blk.0.ffn_gate.weight", &[INNER, N_EMBD]),
                ("blk.0.ffn_up.weight", &[INNER, N_EMBD]),
                ("blk.0.ffn_down.weight", &[N_EMBD, INNER]),
            ]);
        } else {
            model.add(&[
                ("blk.0.ffn_gate_inp.weight", &[n_experts, N_EMBD]),
                ("blk.0.ffn_gate_exps.weight", &[n_experts, INNER, N_EMBD]),
                ("blk.0.ffn_up_exps.weight", &[n_experts, INNER, N_EMBD]),
                ("blk.0.ffn_down_exps.weight", &[n_experts, N_EMBD, INNER]),
            ]);
        }
        model
    }

    fn count(model: &TinyModel) -> RunMemory {
        let plan = model.plan("").unwrap();
        let workers = Workers::new(2).unwrap();
        RunMemory::count(&plan, model.tensors.tensors(), &workers, SimdLevel::detect()).unwrap()
    }

    #[test]
    fn buffers_of_a_layer_are_those_that_its_operations_hold_at_once() {
        let memory = count(&model(0));
        // The input of the mixer, the branch, the input of the feed-forward; queries, keys, values and their mix. The
        // feed-forward takes its inner rows, and reuses the other buffers.
        let expected = 3 * N_EMBD + 4 * N_HEADS * HEAD + INNER - N_HEADS * HEAD;
        assert_eq!(memory, RunMemory { streams: 2 * N_EMBD, carried: 0, inner: expected, widest: INNER });
    }

    #[test]
    fn a_wide_model_is_counted_over_few_tokens() {
        let counted = |n_embd: usize| {
            let mut model = TinyModel::new("x", &[("block_count", 1), ("embedding_length", n_embd)], 1e-5);
            model.metadata.set("x.context_length", 64u32);
            model.metadata.set("x.attention.head_count", 0u32);
            model.add(&[
                ("token_embd.weight", &[1, n_embd]),
                ("output_norm.weight", &[n_embd]),
                ("blk.0.ffn_norm.weight", &[n_embd]),
                ("blk.0.ffn_gate.weight", &[2, n_embd]),
                ("blk.0.ffn_up.weight", &[2, n_embd]),
                ("blk.0.ffn_down.weight", &[n_embd, 2]),
            ]);
            let plan = model.plan("").unwrap();
            let stack = LayerStack { layers: &plan.layers, final_norm: None, n_before: 0 };
            (counted_tokens(&plan, stack, model.tensors.tensors()), count(&model))
        };
        let (few, many) = (counted(1 << 18), counted(8));
        assert_eq!((few.0, many.0), (64, TOKENS));
        let floats_of = |memory: RunMemory, n_embd: usize| (memory.inner - 2) / n_embd;
        assert_eq!(floats_of(few.1, 1 << 18), floats_of(many.1, 8));
    }

    #[test]
    fn experts_are_counted_as_if_every_token_chose_the_same() {
        let memory = count(&model(5));
        // In addition, the gathered rows of an expert and their output, in buffers of the attention; its scores.
        let least = 3 * N_EMBD + 4 * N_HEADS * HEAD + INNER - N_HEADS * HEAD;
        assert!((least..least + 3 * N_EMBD).contains(&memory.inner), "{memory:?}");
        assert_eq!(memory.widest, INNER);
    }
}
