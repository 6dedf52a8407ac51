//! Experts beside the routed ones, each of which some of them share.

use crate::engine::plan::Dense;

/// Small experts that come with the routed ones (GroveMoE, Wu et al. 2025).
#[derive(Clone, Debug, PartialEq)]
pub struct Adjugates {
    /// One for each group of routed experts, in order.
    pub experts: Vec<Dense>,
    /// Routed experts of a group.
    pub per_group: usize,
    /// Factor of what they add.
    pub scale: f32,
}
