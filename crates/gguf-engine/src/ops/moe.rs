//! Mixture of experts (MoE): `y = Σ_e w_e E_e(x) + shared(x)`. All tokens are routed first; then every expert runs
//! once, over the tokens that chose it.

mod gradient;

use rayon::prelude::*;

use crate::exec::batch::ChunkBatch;
use crate::exec::context::Context;
use crate::exec::product::Product;
use crate::exec::weights::{Matrix, Norm, Vector};
use crate::ops::adjugates::Adjugates;
use crate::ops::by_token::{by_token_table, experts_by_token};
use crate::ops::dense::{Dense, DenseNames, FfnInputs};
use crate::ops::experts::{ExpertChoice, add_experts};
use crate::ops::latent::LatentExperts;
use crate::resolve::features::GatingFunction;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::{
    Gating, GroupScore, GroupScoreName, NormTopk, RouterInput, RouterSelect, SharedCombine, Weigh,
};

/// Groups of experts, of which only some are eligible for a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub n: usize,
    /// Number of groups kept.
    pub used: usize,
    /// Score of a group.
    pub score: GroupScoreName,
    /// Score of experts outside the kept groups.
    pub fill: f32,
}

/// Routed experts of a layer, with the shared ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Router: one row per expert.
    pub router: Matrix,
    /// Experts, in order.
    pub experts: Vec<Dense>,
    /// Number of experts used per token.
    pub n_used: usize,
    /// Table with a row of expert ids per token; without it the router chooses.
    pub(crate) by_token: Option<Matrix>,
    /// Function of the router's logits.
    pub gating: GatingFunction,
    /// Scores by which experts are selected, before the bias.
    pub select: RouterSelect,
    /// Bias of the scores, for selection only.
    pub(crate) select_bias: Option<Vector>,
    /// Groups of experts, if only some of them are eligible for a token.
    pub groups: Option<ExpertGroups>,
    /// True if the weights of the chosen experts are divided by their sum.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: Option<f32>,
    /// Side of an expert that its weight multiplies: the input or the output.
    pub weigh: Weigh,
    /// Small experts, each shared by a group of the routed ones.
    pub(crate) adjugates: Option<Adjugates>,
    /// Experts that every token uses.
    pub shared: Option<Dense>,
    /// Logistic gate of the shared experts.
    pub(crate) shared_gate: Option<Matrix>,
    /// Relative distance between the logits of experts that sparsemixer weights together.
    pub near: f32,
    /// Factor of the sum of routed and shared experts.
    pub(crate) sum_scale: Option<f32>,
    pub(crate) router_source: RouterSource,
    /// Norm of the stream, if the router reads the stream.
    pub(crate) router_norm: Option<Norm>,
    /// Projections to the experts' latent space, if it is narrower than the stream.
    pub latent: Option<LatentExperts>,
}

/// Input of a layer's router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RouterSource {
    /// The experts' input.
    #[default]
    Input,
    /// The residual stream before the layer.
    Entry,
    /// The residual stream before the feed-forward, normalized, times the router's scale.
    Stream,
}

impl Moe {
    /// Returns the bytes of a token's routes: its choices, the tokens of each expert, and a copy for the observer.
    pub(crate) fn route_bytes(&self) -> usize {
        48 * self.n_used + 64
    }

    /// Computes the routed and shared experts of `x` into `out`.
    ///
    /// Experts add to a token in the order of their index, not of their rank. The sum differs from that in rank order
    /// in the last bits only, and does not depend on the number of threads.
    pub(crate) fn run(
        &self,
        cx: &Context<'_>,
        inputs: FfnInputs<'_>,
        batch: &ChunkBatch,
        out: &mut [f32],
    ) -> Result<()> {
        let (x, n_tokens) = (inputs.input, batch.n_wanted());
        let chosen = choose(cx, self, inputs, batch)?;
        match &self.shared {
            None => out.fill(0.0),
            Some(shared) => {
                shared.run(cx, x, n_tokens, out)?;
                if let Some(gate) = &self.shared_gate {
                    gate_rows(cx, gate, x, n_tokens, out)?;
                }
            }
        }
        let routed = |x: &[f32], out: &mut [f32]| add_experts(cx, self.weigh, &self.experts, &chosen, x, out);
        match &self.latent {
            None => routed(x, out)?,
            Some(latent) => latent.run(cx, x, n_tokens, out, routed)?,
        }
        if let Some(adjugates) = &self.adjugates {
            adjugates.run(cx, &chosen, x, out)?;
        }
        if let Some(factor) = self.sum_scale {
            cx.scale_rows(out, factor);
        }
        Ok(())
    }
}

/// Routes the tokens: returns every expert's choices, ascending by token.
pub(crate) fn choose(
    cx: &Context<'_>,
    moe: &Moe,
    inputs: FfnInputs<'_>,
    batch: &ChunkBatch,
) -> Result<Vec<Vec<ExpertChoice>>> {
    let (n_experts, n_tokens) = (moe.experts.len(), batch.n_wanted());
    let mut logits = cx.take(n_tokens * n_experts);
    router_logits(cx, moe, inputs, n_tokens, &mut logits)?;
    let select_bias = cx.weights.optional(moe.select_bias.as_ref())?;
    let by_token = match &moe.by_token {
        Some(table) => Some(experts_by_token(cx, table, n_experts, batch)?),
        None => None,
    };
    let mut routes: Vec<Vec<(usize, f32)>> = cx.workers.install(|| {
        let rows = logits.par_chunks(n_experts);
        match &by_token {
            Some(experts) => {
                let experts = experts.par_chunks(moe.n_used);
                rows.zip(experts).map(|(l, experts)| weighed(moe, &probabilities(moe, l), experts)).collect()
            }
            None => rows.map(|l| route(moe, l, select_bias.as_deref())).collect(),
        }
    });
    cx.give([logits]);
    if let Some(observer) = cx.observer {
        observer.routes(&mut routes);
    }
    let mut chosen = vec![Vec::new(); n_experts];
    for (token, route) in routes.into_iter().enumerate() {
        for (expert, weight) in route {
            chosen[expert].push(ExpertChoice { token: token as u32, weight });
        }
    }
    Ok(chosen)
}

fn router_logits(
    cx: &Context<'_>,
    moe: &Moe,
    inputs: FfnInputs<'_>,
    n_tokens: usize,
    logits: &mut [f32],
) -> Result<()> {
    let n_embd = moe.router.n_cols;
    match (moe.router_source, &moe.router_norm) {
        (RouterSource::Input, _) => {
            cx.products(inputs.input, n_tokens, vec![Product::plain(&moe.router, logits)])
        }
        (RouterSource::Entry, _) => {
            cx.products(inputs.entry, n_tokens, vec![Product::plain(&moe.router, logits)])
        }
        (RouterSource::Stream, norm) => {
            let mut scaled = cx.take(n_tokens * n_embd);
            match norm {
                Some(norm) => {
                    cx.norm_rows(&cx.weights.norm(norm)?, inputs.stream, &mut scaled, n_embd);
                }
                None => scaled.copy_from_slice(&inputs.stream[..n_tokens * n_embd]),
            }
            cx.scale_rows(&mut scaled, (n_embd as f32).sqrt().recip());
            cx.products(&scaled, n_tokens, vec![Product::plain(&moe.router, logits)])?;
            cx.give([scaled]);
            Ok(())
        }
    }
}

/// Multiplies each row of `out` by the logistic function of the row's gate.
fn gate_rows(cx: &Context<'_>, gate: &Matrix, x: &[f32], n_tokens: usize, out: &mut [f32]) -> Result<()> {
    let mut gates = cx.take(n_tokens);
    cx.products(x, n_tokens, vec![Product::plain(gate, &mut gates)])?;
    for (row, gate) in out.chunks_mut(gate.n_cols).zip(&*gates) {
        let gate = 1.0 / (1.0 + (-gate).exp());
        for y in row.iter_mut() {
            *y *= gate;
        }
    }
    cx.give([gates]);
    Ok(())
}

/// Returns the experts of one token with their weights, best first; ties go to the lower index.
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

/// Returns the chosen experts with their weights.
fn weighed(moe: &Moe, probabilities: &[f32], chosen: &[usize]) -> Vec<(usize, f32)> {
    let mut weights: Vec<f32> = chosen.iter().map(|&at| probabilities[at]).collect();
    if moe.gating == GatingFunction::SoftmaxWeight {
        weights = softmax(&weights);
    }
    weigh_chosen(moe, &mut weights);
    chosen.iter().copied().zip(weights).collect()
}

/// Returns the weights of all experts, before the selection.
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

/// Normalizes and scales the weights of the chosen experts.
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

/// Chooses two experts: the best, weighted by a softmax among the experts near it, then the best of the others in the
/// same way (Liu et al. 2023, as Phi-3.5-MoE applies it outside of training).
fn sparsemixer(logits: &[f32], near: f32) -> Vec<(usize, f32)> {
    let mut left = logits.to_vec();
    let mut chosen = Vec::with_capacity(2);
    for _ in 0..2.min(logits.len()) {
        let Some(&top) = best(&left, 1).first() else { break };
        let peak = left[top];
        // Distances are measured on all logits; experts already chosen get no weight.
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

/// Returns the indices of the `n` largest values, largest first, ties by index.
fn best(values: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order.truncate(n);
    order
}

impl Moe {
    /// Resolves the routed and shared experts of a layer.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize) -> Result<Moe> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = b.n_embd;
        let n_experts = b.keys.need_count("expert_count")?;
        let n_used = b
            .keys
            .layer_count("expert_used_count", layer)?
            .filter(|&k| k > 0)
            .ok_or_else(|| b.keys.missing("expert_used_count"))?;
        if n_used > n_experts {
            let expected = "at most expert_count";
            return Err(b.keys.unknown("expert_used_count", expected, &n_used.to_string()));
        }
        let router = match b.features.moe.router_input {
            RouterInput::RmsScaled => b.tensors.bare_matrix(&at("ffn_gate_inp"), n_experts, n_embd)?,
            RouterInput::Normed | RouterInput::Raw => {
                b.tensors.matrix(&at("ffn_gate_inp"), n_experts, n_embd)?
            }
        };
        let router =
            router.ok_or_else(|| EngineError::MissingTensor { tensor: at("ffn_gate_inp.weight") })?;
        let latent = LatentExperts::resolve(b, layer)?;
        let width = latent.as_ref().map_or(n_embd, |latent| latent.down.n_rows);
        let experts = Dense::experts(b, layer, "exps", n_experts, width)?;
        let adjugates = Adjugates::resolve(b, layer, n_experts)?;
        let gating = GatingFunction::of_file(b)?;
        let normalize = match b.features.moe.norm_topk {
            NormTopk::Always(normalize) => normalize,
            NormTopk::Named(_) => b.keys.flag("expert_weights_norm")?.unwrap_or(false),
        };
        let shared = if b.tensors.has(&at("ffn_up_shexp.weight")) {
            let [gate, up, down] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(at);
            Some(Dense::resolve(b, layer, &DenseNames { gate, up, down, width: None })?)
        } else {
            None
        };
        let by_token = by_token_table(b, layer, n_used)?;
        let select_bias = if by_token.is_some() { None } else { select_bias(b, layer, n_experts)? };
        if gating == GatingFunction::Sparsemixer && n_used != 2 {
            return Err(b.keys.unknown("expert_used_count", "2 (sparsemixer)", &n_used.to_string()));
        }
        let router_source = match b.features.moe.router_input {
            RouterInput::Normed => RouterSource::Input,
            RouterInput::Raw => RouterSource::Entry,
            RouterInput::RmsScaled => RouterSource::Stream,
        };
        let router_norm = if router_source == RouterSource::Stream {
            let weight = b.tensors.vector(&at("ffn_gate_inp.scale"), n_embd)?;
            Some(Norm { weight, ..b.free_norm() })
        } else {
            None
        };
        let has_shared = shared.is_some();
        Ok(Moe {
            router,
            experts,
            n_used,
            by_token,
            gating,
            select: b.features.moe.select,
            select_bias,
            groups: ExpertGroups::resolve(b, n_experts, gating)?,
            normalize,
            scale: b.keys.nonzero("expert_weights_scale")?.map(|s| s as f32),
            weigh: b.features.moe.weigh,
            adjugates,
            shared,
            shared_gate: b.tensors.matrix(&at("ffn_gate_inp_shexp"), 1, n_embd)?,
            // This is twice the jitter of training.
            near: 2.0 * b.keys.number("router_jitter_noise")?.unwrap_or(0.01) as f32,
            sum_scale: match b.features.moe.shared {
                SharedCombine::HalfSum if has_shared => Some(0.5),
                SharedCombine::Add | SharedCombine::HalfSum | SharedCombine::SumOverSqrt2 => None,
            },
            router_source,
            router_norm,
            latent,
        })
    }
}

impl GatingFunction {
    /// Reads the function of the router's logits from `expert_gating_func`, or takes the card's.
    pub(crate) fn of_file(b: &Resolver<'_>) -> Result<GatingFunction> {
        match b.keys.count("expert_gating_func")? {
            None | Some(0) => Ok(b.built.gating),
            Some(1) => Ok(GatingFunction::Softmax),
            Some(2) => Ok(GatingFunction::Sigmoid),
            Some(3) => Ok(GatingFunction::SoftmaxWeight),
            Some(4) => Ok(GatingFunction::SqrtSoftplus),
            Some(other) => Err(b.keys.unknown("expert_gating_func", "1, 2, 3 or 4", &other.to_string())),
        }
    }
}

impl ExpertGroups {
    /// Resolves the groups of experts, if there are several.
    pub(crate) fn resolve(
        b: &Resolver<'_>,
        n_experts: usize,
        gating: GatingFunction,
    ) -> Result<Option<ExpertGroups>> {
        let Some(n) = b.keys.count("expert_group_count")?.filter(|&n| n > 1) else { return Ok(None) };
        if !n_experts.is_multiple_of(n) {
            let expected = "a divisor of expert_count";
            return Err(b.keys.unknown("expert_group_count", expected, &n.to_string()));
        }
        let used = b.keys.count("expert_group_used_count")?.unwrap_or(n).clamp(1, n);
        let score = match b.features.moe.group_score {
            GroupScore::Named(score) => score,
            GroupScore::ByGating { max_if, otherwise } => {
                let is_max = match max_if {
                    Gating::Softmax => gating == GatingFunction::Softmax,
                    Gating::Sigmoid => gating == GatingFunction::Sigmoid,
                    Gating::SoftmaxWeight => gating == GatingFunction::SoftmaxWeight,
                    Gating::Sparsemixer => gating == GatingFunction::Sparsemixer,
                };
                if is_max { GroupScoreName::Max } else { otherwise }
            }
        };
        Ok(Some(ExpertGroups { n, used, score, fill: b.features.moe.group_fill as f32 }))
    }
}

/// Claims the bias of the scores that select a layer's experts, if it has one.
fn select_bias(b: &mut Resolver<'_>, layer: usize, n_experts: usize) -> Result<Option<Vector>> {
    let name = format!("blk.{layer}.exp_probs_b");
    // Some converters omit the suffix.
    match b.tensors.vector(&format!("{name}.bias"), n_experts)? {
        None => b.tensors.vector(&name, n_experts),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::moe::ExpertGroups;

    pub(super) fn moe(n_used: usize, gating: GatingFunction) -> Moe {
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
        // Both probabilities are 1 in f32.
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
        // 2.0 and 1.97 are near (0.015), 1.0 is not. Of the others 1.97 is the best; 2.0 is near but already chosen.
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
