//! From a card's features, a file's metadata and its tensors to a [`GraphPlan`](crate::engine::GraphPlan): everything about
//! a graph that does not depend on tokens.

pub(super) mod hparams;
pub(super) mod layers;
pub(super) mod model;
pub(super) mod tensors;
