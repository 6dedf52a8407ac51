//! Options of a verification.

use crate::windows::Scoring;
use crate::{PromptFile, Thresholds};
use gguf_core::text::escape;
use gguf_engine::{EngineOptions, GraphPlan};
use gguf_format::Imatrix;

/// Options of a verification.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyOptions<'a> {
    /// Options of the engine.
    pub engine: EngineOptions,
    /// Options for cutting and scoring the prompts.
    pub scoring: Scoring,
    /// Files of the prompts, which share the chunks; if empty, all prompts count as one file.
    pub files: &'a [PromptFile],
    /// Limits; unset ones take a default if there is a baseline.
    pub thresholds: Thresholds,
    /// Importance matrix that the model was quantized with, if it is known.
    pub importance: Option<&'a Imatrix>,
    /// True to stop before any arithmetic.
    pub structure_only: bool,
    /// True to stop after the weights were compared with the baseline's; the architecture needs no graph then.
    pub weights_only: bool,
}

/// Returns a warning if `what` has more tokens than the model was trained on.
pub(super) fn longer_than_trained(plan: &GraphPlan, n_tokens: usize, what: &str) -> Option<String> {
    let trained = plan.n_ctx_train.filter(|&n| n > 0)?;
    (n_tokens > trained).then(|| {
        format!(
            "{what} of {n_tokens} tokens: the model was trained on {trained} (`{}.context_length`)",
            escape(&plan.arch)
        )
    })
}
