//! A checkpoint becomes a GGUF file: plan from headers, then stream.

pub mod metadata;
pub mod model_card;
pub mod naming;
