//! Reading, writing, split files, malformed files.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test stops by panicking, and prints for its reader"
)]

mod build;
mod hostile;
mod properties;
mod roundtrip;
mod split;
mod writer;
