//! Tests of `gguf2hf`.
