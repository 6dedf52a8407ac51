//! Material of the engine's own tests, which include it: models of some kilobytes, and formulas in f64.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "whoever includes this uses a part of it")]

pub mod formulas;
pub mod models;

pub use gguf_testkit::noise;
