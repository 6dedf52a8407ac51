//! Engine speed compared with its limit: plain `gemm` on the same shapes and threads, alternating. Prints GFLOP/s of
//! both, their ratio, and the engine's time by operation, first for types of weights, then for mixers and experts.
//!
//! `cargo bench --bench engine` runs all, `cargo bench --bench engine -- mamba2 kda` only the named ones. As a test
//! everything runs once, on small shapes.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints for its reader"
)]

mod cases;
mod ceiling;
mod mixers;
mod model;
#[path = "../../tests/testkit/mod.rs"]
mod testkit;
mod types;

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let names: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| name == wanted);
    let n_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if is_wanted("types") {
        types::run(is_bench, n_threads);
    }
    println!("\nmixers and experts: weights in F16, one chunk, {n_threads} threads; medians");
    for case in cases::all(if is_bench { 1 } else { 8 }) {
        if is_wanted(case.name) {
            for n_tokens in if is_bench { [512, 4096] } else { [16, 48] } {
                mixers::run(&case, n_tokens, if is_bench { 3 } else { 1 }, n_threads);
            }
        }
    }
}
