//! Layers, stacks and runs: the wiring of operations, and the order in which chunks of tokens go through them.

mod altup;
pub(super) mod continued;
pub(super) mod encoder;
mod ends;
pub(super) mod forward;
pub(super) mod gradient;
pub(super) mod graph;
mod hyper;
mod kept;
pub(super) mod layer;
mod layer_run;
mod plain;
mod post_ln;
mod repeat;
pub(super) mod run_memory;
mod runtime_keys;
mod stacks;
pub(super) mod stage;
#[cfg(test)]
mod tests;
