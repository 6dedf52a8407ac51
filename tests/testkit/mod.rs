//! Material of tests: noise, tensors in memory, models of some kilobytes, checkpoints, folders.
//!
//! The unit tests of the library, `tests/it` and the benchmarks include this folder, other crates its `noise` alone. It
//! uses only what the library exports.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "whoever includes this uses a part of it")]

pub mod checkpoints;
pub mod formulas;
pub mod judged;
pub mod models;

pub use gguf_testkit::{memory, noise};
