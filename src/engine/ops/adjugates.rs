//! Experts that routed ones share.

use crate::arch::graph::Weigh;
use crate::engine::EngineError;
use crate::engine::ops::moe::ExpertChoice;
use crate::engine::plan::Adjugates;
use crate::engine::run::runner::Runner;

impl Runner<'_> {
    /// Adds `s Σ w_e A_g(x)` to `out`, over the experts `e` that a token chose, with their groups `g`, of the experts'
    /// input `x`, all `[n_tokens, n_embd]` (GroveMoE's `modeling_grove_moe.py`, `forward small`).
    pub(super) fn add_adjugates(
        &self,
        adjugates: &Adjugates,
        chosen: &[Vec<ExpertChoice>],
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        for (expert, group) in adjugates.experts.iter().zip(chosen.chunks(adjugates.per_group)) {
            let choices = joined(group, adjugates.scale);
            if !choices.is_empty() {
                self.add_expert(Weigh::After, expert, &choices, x, out)?;
            }
        }
        Ok(())
    }
}

/// The choices of a group's experts as choices of the one that they share: a token that chose several counts once, with
/// the sum of their weights. Ascending by token, as those of each expert are.
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
