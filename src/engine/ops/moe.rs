//! Routed experts: all tokens are routed first, then every expert runs once over the tokens that chose it.

use rayon::prelude::*;

use crate::arch::graph::{GroupScoreName, RouterSelect, Weigh};
use crate::engine::EngineError;
use crate::engine::ops::ffn::FfnInputs;
use crate::engine::ops::math;
use crate::engine::ops::product::Product;
use crate::engine::plan::{Dense, GatingFunction, Matrix, Moe, RouterSource};
use crate::engine::run::batch::ChunkBatch;
use crate::engine::run::runner::Runner;
use crate::engine::run::timings::WorkKind;

/// Tokens that one task routes, gathers or scatters.
const TOKENS_PER_TASK: usize = 64;

/// A token's use of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ExpertChoice {
    pub(super) token: u32,
    pub(super) weight: f32,
}

impl ExpertChoice {
    /// Factors of what the expert reads and of what it makes of it.
    fn factors(self, weigh: Weigh) -> (f32, f32) {
        match weigh {
            Weigh::After => (1.0, self.weight),
            Weigh::Before => (self.weight, 1.0),
        }
    }
}

impl Runner<'_> {
    /// Routed and shared experts of `x` into `out`.
    ///
    /// Experts add to a token in the order of their index, not of their rank: the sum differs from rank order in the
    /// last bits only, and does not depend on threads.
    pub(crate) fn moe(
        &self,
        moe: &Moe,
        inputs: FfnInputs<'_>,
        batch: &ChunkBatch,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (x, n_tokens) = (inputs.input, batch.n_wanted());
        let chosen = self.choose(moe, inputs, batch)?;
        match &moe.shared {
            None => out.fill(0.0),
            Some(shared) => {
                self.dense(shared, x, n_tokens, out)?;
                if let Some(gate) = &moe.shared_gate {
                    self.gate_rows(gate, x, n_tokens, out)?;
                }
            }
        }
        match &moe.latent {
            None => self.add_experts(moe.weigh, &moe.experts, &chosen, x, out)?,
            Some(latent) => {
                let experts = (moe.weigh, &moe.experts[..]);
                self.add_latent_experts(latent, experts, &chosen, (x, n_tokens), out)?;
            }
        }
        if let Some(adjugates) = &moe.adjugates {
            self.add_adjugates(adjugates, &chosen, x, out)?;
        }
        if let Some(factor) = moe.sum_scale {
            self.scale_rows(out, factor);
        }
        Ok(())
    }

    /// Adds what experts make of the rows of `x` that chose them, times their weights.
    pub(super) fn add_experts(
        &self,
        weigh: Weigh,
        experts: &[Dense],
        chosen: &[Vec<ExpertChoice>],
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        for (expert, choices) in experts.iter().zip(chosen) {
            // An expert that nobody chose is not even read.
            if !choices.is_empty() {
                self.add_expert(weigh, expert, choices, x, out)?;
            }
        }
        Ok(())
    }

    /// Which tokens use which expert: for every expert its choices, ascending by token.
    fn choose(
        &self,
        moe: &Moe,
        inputs: FfnInputs<'_>,
        batch: &ChunkBatch,
    ) -> Result<Vec<Vec<ExpertChoice>>, EngineError> {
        let (n_experts, n_tokens) = (moe.experts.len(), batch.n_wanted());
        let mut logits = self.take(n_tokens * n_experts);
        self.router_logits(moe, inputs, n_tokens, &mut logits)?;
        let select_bias = self.weights.optional(moe.select_bias.as_ref())?;
        let by_token = match &moe.by_token {
            Some(table) => Some(self.experts_by_token(table, n_experts, batch)?),
            None => None,
        };
        let mut routes: Vec<Vec<(usize, f32)>> = self.workers.install(|| {
            let rows = logits.par_chunks(n_experts);
            match &by_token {
                Some(experts) => {
                    let experts = experts.par_chunks(moe.n_used);
                    rows.zip(experts)
                        .map(|(l, experts)| weighed(moe, &probabilities(moe, l), experts))
                        .collect()
                }
                None => rows.map(|l| route(moe, l, select_bias.as_deref())).collect(),
            }
        });
        self.give([logits]);
        if let Some(observer) = self.observer {
            observer.routes(self.weights.source, &moe.router, &mut routes);
        }
        let mut chosen = vec![Vec::new(); n_experts];
        for (token, route) in routes.into_iter().enumerate() {
            for (expert, weight) in route {
                chosen[expert].push(ExpertChoice { token: token as u32, weight });
            }
        }
        Ok(chosen)
    }

    /// The router's logits, of what it reads.
    fn router_logits(
        &self,
        moe: &Moe,
        inputs: FfnInputs<'_>,
        n_tokens: usize,
        logits: &mut [f32],
    ) -> Result<(), EngineError> {
        let n_embd = moe.router.n_cols;
        match (moe.router_source, &moe.router_norm) {
            (RouterSource::Input, _) => {
                self.products(inputs.input, n_tokens, vec![Product::plain(&moe.router, logits)])
            }
            (RouterSource::Entry, _) => {
                self.products(inputs.entry, n_tokens, vec![Product::plain(&moe.router, logits)])
            }
            (RouterSource::Stream, norm) => {
                let mut scaled = self.take(n_tokens * n_embd);
                match norm {
                    Some(norm) => {
                        self.norm_rows(&self.weights.norm(norm)?, inputs.stream, &mut scaled, n_embd);
                    }
                    None => scaled.copy_from_slice(&inputs.stream[..n_tokens * n_embd]),
                }
                self.scale_rows(&mut scaled, (n_embd as f32).sqrt().recip());
                self.products(&scaled, n_tokens, vec![Product::plain(&moe.router, logits)])?;
                self.give([scaled]);
                Ok(())
            }
        }
    }

    /// Multiplies each row of `out` by the logistic function of the row's gate.
    fn gate_rows(
        &self,
        gate: &Matrix,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut gates = self.take(n_tokens);
        self.products(x, n_tokens, vec![Product::plain(gate, &mut gates)])?;
        for (row, gate) in out.chunks_mut(gate.n_cols).zip(&*gates) {
            let gate = 1.0 / (1.0 + (-gate).exp());
            for y in row.iter_mut() {
                *y *= gate;
            }
        }
        self.give([gates]);
        Ok(())
    }

    /// Adds what an expert makes of the tokens that chose it, `w E(x)` or `E(w x)`.
    pub(super) fn add_expert(
        &self,
        weigh: Weigh,
        expert: &Dense,
        choices: &[ExpertChoice],
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let (level, n_embd) = (self.weights.level, expert.up.n_cols);
        let mut rows = self.take(choices.len() * n_embd);
        self.workers.install(|| {
            let tasks = rows.par_chunks_mut(TOKENS_PER_TASK * n_embd);
            tasks.zip(choices.par_chunks(TOKENS_PER_TASK)).for_each(|(rows, choices)| {
                self.clock.time(WorkKind::Route, || {
                    for (row, choice) in rows.chunks_mut(n_embd).zip(choices) {
                        row.copy_from_slice(&x[choice.token as usize * n_embd..][..n_embd]);
                        let (factor, _) = choice.factors(weigh);
                        math::scale_and_cap(level, row, factor, None);
                    }
                });
            });
        });
        let mut results = self.take(choices.len() * n_embd);
        self.dense(expert, &rows, choices.len(), &mut results)?;
        self.workers.install(|| {
            // Choices ascend by token: each task owns some tokens and finds their choices.
            out.par_chunks_mut(TOKENS_PER_TASK * n_embd).enumerate().for_each(|(task, out)| {
                let tokens = task * TOKENS_PER_TASK..task * TOKENS_PER_TASK + out.len() / n_embd;
                let at = |token: usize| choices.partition_point(|c| (c.token as usize) < token);
                let own = at(tokens.start)..at(tokens.end);
                self.clock.time(WorkKind::Route, || {
                    for (row, choice) in results[own.start * n_embd..].chunks(n_embd).zip(&choices[own]) {
                        let token = choice.token as usize - tokens.start;
                        let out = &mut out[token * n_embd..][..n_embd];
                        let (_, factor) = choice.factors(weigh);
                        math::add_scaled(level, out, row, factor);
                    }
                });
            });
        });
        self.give([rows, results]);
        Ok(())
    }
}

/// The experts of one token with their weights, best first; ties go to the lower index.
fn route(moe: &Moe, logits: &[f32], select_bias: Option<&[f32]>) -> Vec<(usize, f32)> {
    if moe.gating == GatingFunction::Sparsemixer {
        return sparsemixer(logits, moe.near);
    }
    let probabilities = probabilities(moe, logits);
    let mut scores = match moe.select {
        RouterSelect::Probs => probabilities.clone(),
        RouterSelect::Logits => logits.to_vec(),
    };
    if let Some(bias) = select_bias {
        scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
    }
    if let Some(groups) = moe.groups {
        let size = scores.len() / groups.n;
        let value = |group: &[f32]| {
            let ranked = best(group, 2);
            match groups.score {
                GroupScoreName::Max => ranked.first().map_or(0.0, |&at| group[at]),
                GroupScoreName::Sum2 => ranked.iter().map(|&at| group[at]).sum(),
            }
        };
        let values: Vec<f32> = scores.chunks(size).map(value).collect();
        let kept = best(&values, groups.used);
        for (group, scores) in scores.chunks_mut(size).enumerate() {
            if !kept.contains(&group) {
                scores.fill(groups.fill);
            }
        }
    }
    weighed(moe, &probabilities, &best(&scores, moe.n_used))
}

/// The chosen experts with their weights.
fn weighed(moe: &Moe, probabilities: &[f32], chosen: &[usize]) -> Vec<(usize, f32)> {
    let mut weights: Vec<f32> = chosen.iter().map(|&at| probabilities[at]).collect();
    if moe.gating == GatingFunction::SoftmaxWeight {
        weights = softmax(&weights);
    }
    weigh_chosen(moe, &mut weights);
    chosen.iter().copied().zip(weights).collect()
}

/// What the experts weigh before those that are not chosen drop out.
fn probabilities(moe: &Moe, logits: &[f32]) -> Vec<f32> {
    match moe.gating {
        GatingFunction::Softmax => softmax(logits),
        GatingFunction::Sigmoid => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
        GatingFunction::SoftmaxWeight | GatingFunction::Sparsemixer => logits.to_vec(),
        GatingFunction::SqrtSoftplus => {
            let softplus = |l: f32| if l > 20.0 { l } else { l.exp().ln_1p() };
            logits.iter().map(|&l| softplus(l).sqrt()).collect()
        }
    }
}

/// Normalizes and scales the weights of the chosen.
fn weigh_chosen(moe: &Moe, weights: &mut [f32]) {
    if moe.normalize {
        let sum: f32 = weights.iter().sum::<f32>() + 1e-20;
        for w in weights.iter_mut() {
            *w /= sum;
        }
    }
    if let Some(scale) = moe.scale {
        for w in weights.iter_mut() {
            *w *= scale;
        }
    }
}

/// Two experts: the best, weighed by softmax among the experts near it, then the best of the others in the same way
/// (Liu et al. 2023, as Phi-3.5-MoE applies it outside of training).
fn sparsemixer(logits: &[f32], near: f32) -> Vec<(usize, f32)> {
    let mut left = logits.to_vec();
    let mut chosen = Vec::with_capacity(2);
    for _ in 0..2.min(logits.len()) {
        let Some(&top) = best(&left, 1).first() else { break };
        let peak = left[top];
        // Distance is measured on all logits, those already chosen are out.
        let gate = |(&l, &rest): (&f32, &f32)| {
            let is_near = (peak - l) / l.abs().max(peak) <= near;
            if is_near { rest } else { f32::NEG_INFINITY }
        };
        let gates: Vec<f32> = logits.iter().zip(&left).map(gate).collect();
        chosen.push((top, softmax(&gates)[top]));
        left[top] = f32::NEG_INFINITY;
    }
    chosen
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|&l| f64::from(l - peak).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| (p / sum) as f32).collect()
}

/// Indices of the `n` largest values, largest first, ties by index.
fn best(values: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(n);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::ExpertGroups;

    fn moe(n_used: usize, gating: GatingFunction) -> Moe {
        let router =
            Matrix { tensor: 0, first_row: 0, n_rows: 4, n_cols: 1, bias: None, scale: None, expert: None };
        Moe {
            router,
            experts: Vec::new(),
            n_used,
            by_token: None,
            gating,
            select: RouterSelect::Probs,
            select_bias: None,
            groups: None,
            normalize: false,
            scale: None,
            weigh: Weigh::After,
            adjugates: None,
            shared: None,
            shared_gate: None,
            near: 0.02,
            sum_scale: None,
            router_source: RouterSource::Input,
            router_norm: None,
            latent: None,
        }
    }

    #[test]
    fn normalized_softmax_is_softmax_over_the_chosen() {
        let logits = [0.5, 2.0, -1.0, 1.5];
        let normalized = route(&Moe { normalize: true, ..moe(2, GatingFunction::Softmax) }, &logits, None);
        let late = route(&moe(2, GatingFunction::SoftmaxWeight), &logits, None);
        assert_eq!(normalized.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 3]);
        for (a, b) in normalized.iter().zip(&late) {
            assert_eq!(a.0, b.0);
            assert!((a.1 - b.1).abs() < 1e-6);
        }
        let plain = route(&moe(2, GatingFunction::Softmax), &logits, None);
        assert!(plain.iter().map(|c| c.1).sum::<f32>() < 0.95);
    }

    #[test]
    fn the_bias_selects_and_never_weighs() {
        let bias = [5.0, 0.0, 0.0, 0.0];
        let chosen = route(&moe(1, GatingFunction::Sigmoid), &[-1.0, 2.0, 0.0, 0.0], Some(&bias));
        assert_eq!(chosen[0].0, 0);
        assert!((chosen[0].1 - 0.268_941_4).abs() < 1e-6);
    }

    #[test]
    fn logits_select_where_probabilities_are_all_the_same() {
        // Both are 1 in f32.
        let logits = [0.0, 40.0, 50.0, -1.0];
        let by = |select| route(&Moe { select, ..moe(1, GatingFunction::Sigmoid) }, &logits, None);
        assert_eq!(by(RouterSelect::Probs), [(1, 1.0)]);
        assert_eq!(by(RouterSelect::Logits), [(2, 1.0)]);
    }

    #[test]
    fn a_weight_is_applied_once_before_or_after() {
        let choice = ExpertChoice { token: 0, weight: 0.25 };
        assert_eq!(choice.factors(Weigh::After), (1.0, 0.25));
        assert_eq!(choice.factors(Weigh::Before), (0.25, 1.0));
    }

    #[test]
    fn the_sparse_mixer_weighs_among_near_experts() {
        // 2.0 and 1.97 are near (0.015), 1.0 is not; of the rest 1.97 is best, and 2.0 is out though it is near.
        let chosen = sparsemixer(&[1.0, 2.0, 1.97, -3.0], 0.02);
        assert_eq!(chosen.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 2]);
        let weight = 1.0 / (1.0 + (-0.03f32).exp());
        assert!((chosen[0].1 - weight).abs() < 1e-6 && (chosen[1].1 - 1.0).abs() < 1e-6, "{chosen:?}");
    }

    #[test]
    fn the_root_of_softplus_is_a_gating() {
        let chosen = route(&moe(1, GatingFunction::SqrtSoftplus), &[0.0, 3.0, 25.0, -1.0], None);
        assert_eq!(chosen, [(2, 5.0)]);
    }

    #[test]
    fn only_kept_groups_are_eligible_and_ties_go_low() {
        let groups = ExpertGroups { n: 2, used: 1, score: GroupScoreName::Sum2, fill: 0.0 };
        let grouped = Moe { groups: Some(groups), ..moe(2, GatingFunction::Sigmoid) };
        let chosen = route(&grouped, &[3.0, -3.0, 1.0, 1.0], None);
        assert_eq!(chosen.iter().map(|c| c.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(best(&[1.0, 2.0, 2.0], 2), [1, 2]);
    }
}
