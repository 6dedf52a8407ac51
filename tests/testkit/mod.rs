//! Material of tests: noise, tensors in memory, models of some kilobytes, checkpoints.
//!
//! `tests/it` and the benchmarks include this folder; the engine's own tests include its models and formulas. It uses
//! only what the crates export.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "whoever includes this uses a part of it")]

pub mod checkpoints;
pub mod formulas;
pub mod judged;
pub mod models;

pub use gguf_testkit::{memory, noise};
