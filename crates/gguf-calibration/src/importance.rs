//! Importance of the columns on the calibration text: a run of the unquantized model that nothing else reads.

use std::path::Path;

use crate::memory::Needs;
use crate::{CalibrateError, CalibrationText, Result};
use gguf_core::progress::Progress;
use gguf_engine::{Engine, EngineOptions, Ffn, GraphPlan, TokenChunk};
use gguf_format::ImatrixSums;
use gguf_verification::{Model, SumCollector, Window};

/// Maximum tokens of a batch of whole windows. It is large enough that decoding weights costs little compared with the
/// products.
const BATCH_TOKENS: usize = 2048;
/// Maximum tokens of a batch for mixtures of experts, where each expert sees only a part of the tokens.
const BATCH_TOKENS_MOE: usize = 8192;

/// Runs the model over the whole text and sums the squares of its matrices' inputs, as llama-imatrix counts them.
///
/// # Exactness
/// The bits are the same for every number of threads and every memory budget, given the same vector instructions.
///
/// # Errors
/// A graph that cannot be built, too little memory, activations that are not finite.
pub(super) fn importance(
    model: &Model<'_>,
    text: &CalibrationText,
    options: EngineOptions,
    dir: &Path,
    progress: &dyn Progress,
) -> Result<ImatrixSums> {
    let engine = Engine::new(model.plan()?, model.source, options)?;
    let engine =
        if needs(&engine, text).spills(&options, text.n_tokens())? { engine.spilling(dir) } else { engine };
    let windows = text.kinds.iter().flat_map(|kind| &kind.windows);
    let chunk = |window: &Window| TokenChunk { rows: 0..0, ..window.chunk.clone() };
    let chunks: Vec<TokenChunk> = windows.map(chunk).collect();
    let counts = batches(text.lengths(), batch_tokens(engine.plan()));
    let work = engine.work_bytes_in(counts.len()).saturating_sub(engine.head_bytes());
    progress.begin("running the model", work);
    progress.units("token", text.n_tokens() as u64);
    let collector = SumCollector::new(options.level);
    engine.forward_in(&counts, &chunks, progress, Some(&collector))?;
    progress.end();
    let tensors = collector.into_sums();
    if let Some((name, _)) = tensors.iter().find(|(_, own)| own.sums.iter().any(|sum| !sum.is_finite())) {
        return Err(CalibrateError::NonFinite { tensor: name.clone() });
    }
    Ok(text.importance(tensors))
}

/// Number of windows of each batch: as many as have at most `limit` tokens together, and at least one.
fn batches(lengths: impl Iterator<Item = usize>, limit: usize) -> Vec<usize> {
    let (mut counts, mut n_tokens) = (Vec::new(), 0);
    for length in lengths {
        match counts.last_mut().filter(|_| n_tokens + length <= limit) {
            Some(count) => (*count, n_tokens) = (*count + 1, n_tokens + length),
            None => {
                counts.push(1);
                n_tokens = length;
            }
        }
    }
    counts
}

fn batch_tokens(plan: &GraphPlan) -> usize {
    let has_experts = |ffn: &Ffn| ffn.moe().is_some();
    let is_moe = plan.layers.iter().any(|layer| has_experts(&layer.ffn));
    if is_moe { BATCH_TOKENS_MOE } else { BATCH_TOKENS }
}

/// Memory for a run over the whole text: activations of all windows, which pass a layer before the next one begins.
pub(super) fn needs(engine: &Engine<'_>, text: &CalibrationText) -> Needs {
    let longest = text.longest();
    let batch = batch_tokens(engine.plan()).max(longest);
    let n_tokens = text.n_tokens();
    let all_bytes = engine.run_bytes(n_tokens, batch, longest);
    let least_bytes = engine.unspilled_bytes(n_tokens, longest);
    Needs { all_bytes, least_bytes, spilled_bytes: all_bytes.saturating_sub(least_bytes) }
}

#[cfg(test)]
mod tests {
    use super::batches;

    #[test]
    fn a_batch_takes_whole_windows_up_to_its_limit() {
        assert_eq!(batches([4, 4, 4, 9, 1, 1].into_iter(), 8), [2, 1, 1, 2]);
        assert_eq!(batches([].into_iter(), 8), [0; 0]);
    }
}
