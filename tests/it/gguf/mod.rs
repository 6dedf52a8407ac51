//! Tests of `gguf`: reading, writing, split files, malformed files.

mod build;
mod hostile;
mod properties;
mod roundtrip;
mod split;
mod writer;
