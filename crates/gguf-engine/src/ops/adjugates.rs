//! Adjugate experts of GroveMoE (Wu et al. 2025): small experts, each shared by a group of routed experts.
//!
//! `out += s Σ w_e A_g(x)` over the experts `e` that a token chose, with their groups `g`.

use crate::Result;
use crate::exec::context::Context;
use crate::ops::dense::Dense;
use crate::ops::experts::{ExpertChoice, add_expert};
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::Weigh;

/// Adjugate experts of a layer (GroveMoE, Wu et al. 2025).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Adjugates {
    /// Experts, one for each group of routed experts, in order.
    pub experts: Vec<Dense>,
    /// Number of routed experts of a group.
    pub per_group: usize,
    /// Factor of the output that the experts add.
    pub scale: f32,
}

impl Adjugates {
    /// Adds `s Σ w_e A_g(x)` to `out`, over the experts `e` that a token chose, with their groups `g`. `x` is the input
    /// of the experts; both are `[n_tokens, n_embd]` (GroveMoE's `modeling_grove_moe.py`, `forward small`).
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        chosen: &[Vec<ExpertChoice>],
        x: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        for (expert, group) in self.experts.iter().zip(chosen.chunks(self.per_group)) {
            let choices = joined(group, self.scale);
            if !choices.is_empty() {
                add_expert(cx, Weigh::After, expert, &choices, x, out)?;
            }
        }
        Ok(())
    }
}

/// Joins the choices of a group's experts into choices of the expert that they share: a token that chose several counts
/// once, with the sum of their weights. Ascending by token, as the choices of each expert are.
fn joined(group: &[Vec<ExpertChoice>], scale: f32) -> Vec<ExpertChoice> {
    let mut choices = group.concat();
    choices.sort_by_key(|choice| choice.token);
    choices.dedup_by(|later, first| {
        let is_same = later.token == first.token;
        if is_same {
            first.weight += later.weight;
        }
        is_same
    });
    for choice in &mut choices {
        choice.weight *= scale;
    }
    choices
}

impl Adjugates {
    /// Resolves the adjugate experts of a layer, if it has any.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize, n_experts: usize) -> Result<Option<Adjugates>> {
        // Weights that multiply inputs cannot be summed before the expert: the tensors are then not used.
        let is_after = b.features.moe.weigh == Weigh::After;
        if !is_after || !b.tensors.has(&format!("blk.{layer}.ffn_up_chexps.weight")) {
            return Ok(None);
        }
        let per_group = b.keys.need_count("experts_per_group")?;
        if !n_experts.is_multiple_of(per_group) {
            let expected = "a divisor of expert_count";
            return Err(b.keys.unknown("experts_per_group", expected, &per_group.to_string()));
        }
        let key = "expert_group_scale";
        let scale = b.keys.number(key)?.ok_or_else(|| b.keys.missing(key))?;
        let experts = Dense::experts(b, layer, "chexps", n_experts / per_group, b.n_embd)?;
        Ok(Some(Adjugates { experts, per_group, scale: scale as f32 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_chose_two_of_a_group_uses_what_they_share_once() {
        let choice = |(token, weight)| ExpertChoice { token, weight };
        let group = [vec![(1, 0.5), (4, 0.25)], vec![(0, 1.0), (4, 0.5)]];
        let group = group.map(|choices| choices.into_iter().map(choice).collect::<Vec<_>>());
        assert_eq!(joined(&group, 0.5), [(0, 0.5), (1, 0.25), (4, 0.375)].map(choice));
        assert!(joined(&[Vec::new(), Vec::new()], 0.5).is_empty());
    }
}
