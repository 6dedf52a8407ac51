//! Execution of a plan: chunks of tokens go through a layer at a time, each weight is decoded once, panel by panel.

pub(super) mod batch;
pub(super) mod buffers;
pub(super) mod carried;
pub(super) mod continued;
pub(super) mod forward;
mod hyper;
mod kept;
pub(super) mod observer;
pub(super) mod panel;
pub(super) mod past;
mod post_ln;
pub(super) mod runner;
mod stacks;
pub(super) mod timings;
pub(super) mod weights;
pub(super) mod workers;
