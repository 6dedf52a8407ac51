//! Engine speed compared with its limit: plain `gemm` on the same shapes and threads, alternating. Prints GFLOP/s of
//! both, their ratio, and the engine's time by operation, for types of weights. (`lab/peers/bench_mixers.py` measures
//! other kinds of layers.)
//!
//! As a test everything runs once, on small shapes.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints for its reader"
)]

mod ceiling;
mod model;
#[path = "../../tests/testkit/mod.rs"]
mod testkit;
mod types;

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    types::run(is_bench, n_threads);
}
