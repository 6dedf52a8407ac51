//! Resolution of a graph from a card's features, a file's keys and its tensors, which are read once. Operations resolve
//! themselves with this module; running a plan never reads metadata.

pub(super) mod activation;
pub(super) mod features;
pub(super) mod keys;
mod mask;
pub(super) mod resolver;
pub(super) mod rope;
pub(super) mod tensors;
