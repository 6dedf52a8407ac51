//! From a card's features, a file's metadata and its tensors to a [`GraphPlan`](crate::engine::GraphPlan): everything about
//! a graph that does not depend on tokens.

mod arch_keys;
mod attention;
mod builder;
pub(crate) mod claims;
mod features;
mod ffn;
mod layer;
mod rope;
#[cfg(test)]
mod tests;
