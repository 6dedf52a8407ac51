//! Two stacks of layers that run in turn (hierarchical reasoning models; Wang et al. 2025, arXiv 2506.21734): each reads the
//! sum of two states and leaves its own.

use crate::engine::plan::Vector;

/// The state beside the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldState {
    /// Its row before the first layer, for all tokens.
    pub start: Vector,
}

/// What happens to stream and held state before the first layer of a run of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEntry {
    /// The same stack runs again: the held state is added.
    Again,
    /// The other stack runs: the held state is added, and what the stream was is held from now on.
    Turn,
}
