//! FastLLM files: the container, what its codes mean, and the way to GGUF.

mod blocks;
mod cases;
mod convert;
mod hostile;
mod tokens;
pub mod writer;
