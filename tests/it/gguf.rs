//! Tests of `gguf`.
