//! Routed experts.

use crate::arch::graph::{GroupScoreName, RouterSelect, Weigh};
use crate::engine::plan::{Adjugates, Dense, LatentExperts, Matrix, Norm, RouterSource, Vector};

/// Function that makes the router's logits probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatingFunction {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each.
    Sigmoid,
    /// Selected by logits, softmax over the selected.
    SoftmaxWeight,
    /// Each of two is weighed among the experts near it (Liu et al. 2023).
    Sparsemixer,
    /// Root of `ln(1 + e^l)`.
    SqrtSoftplus,
}

/// Experts in groups of which only some are eligible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub n: usize,
    /// ExpertGroups kept.
    pub used: usize,
    /// Score of a group.
    pub score: GroupScoreName,
    /// Score of experts outside the kept groups.
    pub fill: f32,
}

/// Routed experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Scores the experts, a row each.
    pub router: Matrix,
    /// Experts, in order.
    pub experts: Vec<Dense>,
    /// Experts used per token.
    pub n_used: usize,
    /// Experts of each token, a row of ids; without it the router chooses.
    pub by_token: Option<Matrix>,
    /// Function of the router's logits.
    pub gating: GatingFunction,
    /// What the experts are selected by, before the bias.
    pub select: RouterSelect,
    /// Added to the scores for selection only.
    pub select_bias: Option<Vector>,
    /// ExpertGroups.
    pub groups: Option<ExpertGroups>,
    /// WeightReader of the chosen are divided by their sum.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: Option<f32>,
    /// Whether an expert's weight multiplies what it reads or what it makes of it.
    pub weigh: Weigh,
    /// Experts that the routed ones share.
    pub adjugates: Option<Adjugates>,
    /// Experts that every token uses.
    pub shared: Option<Dense>,
    /// Logistic gate of the shared experts.
    pub shared_gate: Option<Matrix>,
    /// Relative distance within which sparsemixer sees experts as near one another.
    pub near: f32,
    /// Factor of the sum of routed and shared experts.
    pub sum_scale: Option<f32>,
    /// What the router reads.
    pub router_source: RouterSource,
    /// Norm of the stream, if the router reads that.
    pub router_norm: Option<Norm>,
    /// The way to the experts' space, if that is narrower than the stream.
    pub latent: Option<LatentExperts>,
}
