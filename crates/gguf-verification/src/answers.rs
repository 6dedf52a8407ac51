//! Text for encoder-decoder models: the encoder reads the first part of each chunk, the decoder predicts the rest.

use crate::Window;
use gguf_engine::GraphPlan;

/// Cuts every window where its wanted rows begin, but not before the middle. As in training, the decoder starts with
/// the token that the file names. It replaces the first token of the decoder's part, which is not scored.
pub fn cut_sources(plan: &GraphPlan, windows: &mut Vec<Window>) {
    let Some(encoder) = &plan.encoder else { return };
    for window in windows.iter_mut() {
        let chunk = &mut window.chunk;
        let from = chunk.rows.start.max(chunk.tokens.len() / 2).max(1).min(chunk.rows.end);
        let n_left = from - chunk.rows.start.min(from);
        window.targets.drain(..n_left.min(window.targets.len()));
        chunk.rows.start = from;
        window.scored.start = window.scored.start.max(from).min(window.scored.end);
        chunk.n_source = from;
        if let (Some(start), Some(first)) = (encoder.start, chunk.tokens.get_mut(from)) {
            *first = start;
        }
    }
    // A single token cannot be split.
    windows.retain(|window| window.chunk.n_source < window.chunk.tokens.len());
}
