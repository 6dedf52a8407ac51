//! The `moe` of a graph: router and experts.

use serde::Deserialize;

use super::FfnKind;

names! {
    /// Router function, if the file does not declare one.
    Gating { Softmax, Sigmoid, SoftmaxWeight, Sparsemixer }
    /// Rule that scores a group of experts.
    GroupScoreName { Sum2, Max }
    /// Position of the multiplication by the router's weight: after or before the expert.
    Weigh { After, Before }
    RouterInput { Normed, Raw, RmsScaled }
    /// Quantity by which the router selects experts.
    RouterSelect { Probs, Logits }
    /// Combination of shared and routed experts.
    SharedCombine { Add, HalfSum, SumOverSqrt2 }
    /// Named values of the rule for normalized router weights.
    NormTopkName { Key }
}

/// Normalization of the chosen experts' weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum NormTopk {
    /// A constant of the architecture.
    Always(bool),
    /// Value of the key `expert_weights_norm`; false if absent.
    Named(NormTopkName),
}

impl Default for NormTopk {
    fn default() -> Self {
        Self::Always(false)
    }
}

/// Rule that scores groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum GroupScore {
    /// One rule for all gating functions.
    Named(GroupScoreName),
    /// `max` under this gating function, else the other rule.
    ByGating {
        /// Gating function that uses `max`.
        max_if: Gating,
        /// Rule of the other gating functions.
        #[serde(rename = "else")]
        otherwise: GroupScoreName,
    },
}

impl Default for GroupScore {
    fn default() -> Self {
        Self::Named(GroupScoreName::Sum2)
    }
}

/// Router and experts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MoeFeatures {
    pub gating: Gating,
    pub norm_topk: NormTopk,
    pub select: RouterSelect,
    pub router_input: RouterInput,
    pub group_score: GroupScore,
    /// Score of experts outside the kept groups: 0 or negative infinity.
    pub group_fill: f64,
    pub weigh: Weigh,
    /// Activation of the experts, if it is not `ffn`.
    pub act: Option<FfnKind>,
    pub shared: SharedCombine,
}
