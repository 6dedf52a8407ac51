//! Outputs computed from hidden states: scores and divergences of logits, next tokens, and vectors of texts.

mod draw;
mod embeddings;
pub(super) mod fold;
pub(super) mod head;
mod pair;
pub(super) mod rows;
