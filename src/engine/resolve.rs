//! Resolution of a graph: a card's features, a file's keys and its tensors, read once. Operations resolve themselves with
//! what is here; running a plan never looks at metadata again.

pub(super) mod activation;
pub(super) mod builder;
pub(super) mod features;
pub(super) mod keys;
mod mask;
pub(super) mod rope;
pub(super) mod tensors;
