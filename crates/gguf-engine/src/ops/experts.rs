//! Experts of a mixture: each runs once, over the tokens that chose it.

use rayon::prelude::*;

use crate::Result;
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::timings::WorkKind;
use crate::exec::workers::Tasks;
use crate::ops::dense::Dense;
use gguf_arch::graph::Weigh;

/// Number of tokens that one task routes, gathers or scatters.
const TOKENS_PER_TASK: usize = 64;

/// Choice of an expert by a token, with the expert's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpertChoice {
    pub(crate) token: u32,
    pub(crate) weight: f32,
}

impl ExpertChoice {
    /// Returns the factors of the expert's input and output.
    pub(crate) fn factors(self, weigh: Weigh) -> (f32, f32) {
        match weigh {
            Weigh::After => (1.0, self.weight),
            Weigh::Before => (self.weight, 1.0),
        }
    }
}

/// Adds the weighted outputs of experts for the rows of `x` that chose them.
pub(crate) fn add_experts(
    cx: &Context<'_>,
    weigh: Weigh,
    experts: &[Dense],
    chosen: &[Vec<ExpertChoice>],
    x: &[f32],
    out: &mut [f32],
) -> Result<()> {
    for (expert, choices) in experts.iter().zip(chosen) {
        // The weights of an expert that no token chose are not read.
        if !choices.is_empty() {
            add_expert(cx, weigh, expert, choices, x, out)?;
        }
    }
    Ok(())
}

/// Adds the output of an expert for the tokens that chose it, `w E(x)` or `E(w x)`.
pub(crate) fn add_expert(
    cx: &Context<'_>,
    weigh: Weigh,
    expert: &Dense,
    choices: &[ExpertChoice],
    x: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let (level, n_embd) = (cx.weights.level, expert.up.n_cols);
    let mut rows = cx.take(choices.len() * n_embd);
    cx.workers.install(|| {
        let tasks = rows.par_chunks_mut(TOKENS_PER_TASK * n_embd);
        tasks.zip(choices.par_chunks(TOKENS_PER_TASK)).run(&|(rows, choices)| {
            cx.clock.time(WorkKind::Route, || {
                for (row, choice) in rows.chunks_mut(n_embd).zip(choices) {
                    row.copy_from_slice(&x[choice.token as usize * n_embd..][..n_embd]);
                    let (factor, _) = choice.factors(weigh);
                    math::scale_and_cap(level, row, factor, None);
                }
            });
        });
    });
    let mut results = cx.take(choices.len() * n_embd);
    expert.run(cx, &rows, choices.len(), &mut results)?;
    cx.workers.install(|| {
        // Choices ascend by token: each task owns some tokens and finds their choices.
        out.par_chunks_mut(TOKENS_PER_TASK * n_embd).enumerate().run(&|(task, out)| {
            let tokens = task * TOKENS_PER_TASK..task * TOKENS_PER_TASK + out.len() / n_embd;
            let at = |token: usize| choices.partition_point(|c| (c.token as usize) < token);
            let own = at(tokens.start)..at(tokens.end);
            cx.clock.time(WorkKind::Route, || {
                for (row, choice) in results[own.start * n_embd..].chunks(n_embd).zip(&choices[own]) {
                    let token = choice.token as usize - tokens.start;
                    let out = &mut out[token * n_embd..][..n_embd];
                    let (_, factor) = choice.factors(weigh);
                    math::add_scaled(level, out, row, factor);
                }
            });
        });
    });
    cx.give([rows, results]);
    Ok(())
}
