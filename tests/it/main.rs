//! Integration tests: one binary, a folder for each module of the library and for what spans all of them.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod cli;
mod convert;
mod diffusion;
mod fuzz;
mod gguf;
mod hostile_corpus;
mod inspect;
mod job;
#[cfg(unix)]
mod outputs;
mod quantize;
#[cfg(all(unix, feature = "remote"))]
mod remote;
mod repository;
mod support;
#[path = "../testkit/mod.rs"]
mod testkit;
mod verify;
