//! FastLLM files: the container, the meaning of its codes, and the conversion to GGUF.

mod blocks;
mod cases;
mod convert;
mod hostile;
mod tokens;
