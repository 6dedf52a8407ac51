//! The two states of a model whose stacks run in turn: before a stack runs, `x = x + h` for the stream `x` and the held
//! state `h`; if the other stack ran before, `h` becomes what `x` was (HRM-Text: `z_L = L(z_H + z_L)`, `z_H = H(z_H + z_L)`).

use crate::engine::plan::StackEntry;
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// Enters a run of a stack with the stream of a batch.
    pub(crate) fn enter_stack(&self, entry: StackEntry, batch: &ChunkBatch, x: &mut [f32]) {
        let first = batch.start * self.plan.n_embd;
        self.carried.with_held(first..first + x.len(), |held| enter(entry, x, held));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_take_turns_as_in_the_nested_loops() {
        // Stacks that double what they read.
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
