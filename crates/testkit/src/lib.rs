//! Material of tests of several crates: noise, and weights and tensors in memory.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "tests read it, and a fault in it is a fault of the test"
)]

pub mod memory;
pub mod noise;
