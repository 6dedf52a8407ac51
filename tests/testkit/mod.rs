//! Material of tests: models of some kilobytes.
//!
//! `tests/it` and the benchmarks include this folder; the engine's own tests include its models and formulas. It uses
//! only what the crates export.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    reason = "whoever includes this uses a part of it"
)]

pub mod formulas;
pub mod judged;
pub mod models;
pub mod tiny;

pub use gguf_testkit::{checkpoints, memory, noise};
