//! Tests of `gguf`: reading, writing, split files, malformed files.

mod build;
mod endian;
mod hostile;
mod many_parts;
mod properties;
mod roundtrip;
mod sets;
mod shares;
mod split;
mod writer;
