//! Execution of a plan: chunks of tokens go through a layer at a time, each weight is decoded once, panel by panel.

pub(super) mod graph;
pub(super) mod panel;
pub(super) mod stream;
pub(super) mod timings;
pub(super) mod weights;
pub(super) mod workers;
