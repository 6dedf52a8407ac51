//! Quantized modules: decoded values against test implementations that read single bits, and damaged checkpoints.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod descriptors;
mod floats;
mod hostile;
mod made;
mod packed;
mod stacks;
mod tools;
mod variants;
