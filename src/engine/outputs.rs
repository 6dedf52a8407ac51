//! What is made of hidden states: logits folded into scores and divergences, next tokens, vectors of texts.

mod draw;
mod embeddings;
pub(super) mod fold;
mod head;
mod pair;
pub(super) mod rows;
