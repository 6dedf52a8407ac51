//! Logits after the last token of each prompt.

use crate::options::longer_than_trained;
use crate::{Model, PromptSource, VerifyError};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, EngineOptions, ModelKind, TokenChunk};

/// Maximum bytes of the logits of a group: enough for full batches of short prompts, whatever the budget.
const MOST_LOGIT_BYTES: u64 = 256 << 20;

/// Computes the logits after the last token of every prompt, and calls `each` with the prompt's index and its logits.
///
/// # Errors
/// As [`crate::verify`], and a graph that cannot be built.
pub fn last_logits(
    model: &Model<'_>,
    prompts: &[PromptSource],
    options: &EngineOptions,
    progress: &dyn Progress,
    mut each: impl FnMut(usize, &[f32]) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    // A model that is not run has no vocabulary either, which would be told instead.
    let plan = model.plan()?;
    let encoded = model.encode_all(prompts)?;
    if plan.kind == ModelKind::Encoder {
        return Err(VerifyError::NoPredictions);
    }
    let engine = Engine::new(plan, model.source, *options)?;
    let longest = encoded.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    if let Some(message) = longer_than_trained(engine.plan(), longest, "a prompt") {
        progress.warn(&message);
    }
    // The logits of a group may take a quarter of the budget, but no more than is useful.
    let row_bytes = (engine.plan().n_vocab as u64).saturating_mul(4).max(1);
    let rows_bytes = (engine.options().elastic_bytes() / 4).min(MOST_LOGIT_BYTES);
    let mut most_rows = (rows_bytes / row_bytes).clamp(1, encoded.len().max(1) as u64);
    let mut limit = engine.group_tokens_with_taken(most_rows.saturating_mul(row_bytes), longest)?;
    // Logits of more prompts than fit in a group would only take the group's memory.
    let n_all: usize = encoded.iter().map(|prompt| prompt.tokens.len()).sum();
    while most_rows > 1
        && (limit as u64).saturating_mul(encoded.len() as u64) < most_rows.saturating_mul(n_all as u64)
    {
        most_rows /= 2;
        limit = engine.group_tokens_with_taken(most_rows.saturating_mul(row_bytes), longest)?;
    }
    // Every batch decodes the weights anyway: a group of several batches would only hold more tokens.
    let limit = limit.min(engine.batch_tokens_at_most()).max(longest);
    let mut chunks = Vec::new();
    let mut first = 0;
    let mut n_tokens = 0;
    for (at, prompt) in encoded.iter().enumerate() {
        let n = prompt.tokens.len();
        chunks.push(TokenChunk { tokens: prompt.tokens.clone(), rows: n.saturating_sub(1)..n, n_source: 0 });
        n_tokens += n;
        let next = encoded.get(at + 1).map(|next| n_tokens.saturating_add(next.tokens.len()));
        if next.is_none_or(|next| next > limit) || chunks.len() as u64 >= most_rows {
            let hidden = engine.forward(&chunks, progress, None)?;
            let logits = engine.logits(&hidden, progress)?;
            let mut rows = logits.chunks(engine.plan().n_vocab.max(1));
            for (offset, chunk) in chunks.iter().enumerate() {
                let row = if chunk.tokens.is_empty() { &[] } else { rows.next().unwrap_or(&[]) };
                each(first + offset, row)?;
            }
            first = at + 1;
            chunks.clear();
            n_tokens = 0;
        }
    }
    Ok(())
}
