//! Stack entry of models whose two stacks of layers run in turn (HRM-Text: `z_L = L(z_H + z_L)`, `z_H = H(z_H + z_L)`).
//!
//! Before a stack runs, `x = x + h` for the stream `x` and the held state `h`. If the other stack ran before, `h`
//! becomes the previous `x`.

use crate::Result;
use crate::exec::batch::{ChunkBatch, TokenChunk};
use crate::exec::buffers::Buffer;
use crate::exec::context::Context;
use crate::exec::weights::Vector;
use crate::ops::model_extra::ModelExtraOp;
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::Extra;

/// Second state of the model, in addition to the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldState {
    /// Its row before the first layer, the same for all tokens.
    pub start: Vector,
}

impl ModelExtraOp for HeldState {
    fn resolve(b: &mut Resolver<'_>) -> Result<Option<HeldState>> {
        if !has_cycles(b) {
            return Ok(None);
        }
        if b.keys.flag("hrm.prefix_lm")?.unwrap_or(false) {
            let text = "the model is trained to see its prompts whole: here all text is read as its answers";
            b.warnings.push(text.to_owned());
        }
        Ok(Some(HeldState { start: b.need_vector("hrm.z_l_init", b.n_embd)? }))
    }

    fn begin(&self, cx: &mut Context<'_>, chunks: &[TokenChunk], x: Buffer) -> Result<Buffer> {
        let n_tokens = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        cx.carried.hold(&cx.weights.vector(&self.start)?, n_tokens);
        Ok(x)
    }
}

/// Change of the stream and the held state before the first layer of a run of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEntry {
    /// Another run of the same stack: the held state is added to the stream.
    Again,
    /// Run of the other stack: the held state is added to the stream, and the previous stream becomes the held state.
    Turn,
}

/// Enters a run of a stack with the stream of a batch.
pub(crate) fn enter_stack(cx: &Context<'_>, entry: StackEntry, batch: &ChunkBatch, x: &mut [f32]) {
    let first = batch.start * cx.n_embd;
    cx.carried.with_held(first..first + x.len(), |held| enter(entry, x, held));
}

fn enter(entry: StackEntry, x: &mut [f32], held: &mut [f32]) {
    for (x, held) in x.iter_mut().zip(held) {
        let sum = *x + *held;
        if entry == StackEntry::Turn {
            *held = *x;
        }
        *x = sum;
    }
}

const STACK: &str = "hrm.layers_per_stack";

/// Number of layers of a stack, and of runs of each stack.
#[derive(Clone, Copy)]
pub(crate) struct Cycles {
    pub(crate) n_stack: usize,
    /// Number of runs of the high stack.
    pub(crate) high: usize,
    /// Number of runs of the low stack before each run of the high one.
    pub(crate) low: usize,
}

/// Returns true if the model's stacks run in turn.
pub(crate) fn has_cycles(b: &Resolver<'_>) -> bool {
    b.features.extras.contains(&Extra::Cycles)
}

/// Reads the cycles of the two stacks, and checks that `block_count` is the number of layers that run.
pub(crate) fn cycles(b: &Resolver<'_>) -> Result<Cycles> {
    let n_stack = b.keys.need_count(STACK)?;
    let (high, low) = (b.keys.need_count("hrm.h_cycles")?, b.keys.need_count("hrm.l_cycles")?);
    let n_runs = low.checked_add(1).and_then(|n| n.checked_mul(high));
    let n_layers = n_runs.and_then(|n| n.checked_mul(n_stack));
    let found = b.keys.need_count("block_count")?;
    if n_layers != Some(found) || found > 1 << 16 {
        let expected =
            "hrm.layers_per_stack times hrm.h_cycles times one more than hrm.l_cycles, at most 65536";
        return Err(b.keys.unknown("block_count", expected, &found.to_string()));
    }
    Ok(Cycles { n_stack, high, low })
}

/// Returns the number of layers of the two stacks.
pub(crate) fn n_cycled_layers(b: &Resolver<'_>) -> Result<usize> {
    cycles(b).map(|cycles| 2 * cycles.n_stack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_turns_as_in_the_nested_loops() {
        // Each stack doubles its input.
        let (mut high, mut low) = (3.0f32, 0.5f32);
        let (mut x, mut held) = ([high], [low]);
        for _ in 0..2 {
            for turn in 0..3 {
                let sum = 2.0 * (high + low);
                *(if turn < 2 { &mut low } else { &mut high }) = sum;
                let entry = if turn == 1 { StackEntry::Again } else { StackEntry::Turn };
                enter(entry, &mut x, &mut held);
                x[0] *= 2.0;
                assert_eq!(x[0], sum);
            }
        }
        assert_eq!((x, held), ([high], [low]));
    }
}
