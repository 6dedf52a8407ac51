//! Outputs computed from hidden states: scores and divergences of logits, next tokens, and vectors of texts.

mod draw;
mod embeddings;
pub(super) mod fold;
mod head;
mod pair;
pub(super) mod rows;
