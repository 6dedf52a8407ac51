//! Builds the feed-forward of a layer: dense, or experts with their router.

use crate::arch::graph::{
    Gating, GroupScore, GroupScoreName, NormTopk, ResidualRule, RouterInput, SharedCombine,
};
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::extras::{FfnPart, LayerActivation};
use crate::engine::plan::{
    Activation, Dense, DenseAndMoe, ExpertGroups, Ffn, GatedActivation, GatingFunction, Moe, Norm,
    RouterSource,
};

/// Names of the tensors of a dense feed-forward, and its width where a key tells it.
struct DenseNames {
    gate: String,
    up: String,
    down: String,
    width: Option<usize>,
}

impl Builder<'_> {
    pub(super) fn ffn(&mut self, layer: usize) -> Result<Ffn, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        if let Some(mix) = self.channel_mix(layer)? {
            return Ok(Ffn::ChannelMix(Box::new(mix)));
        }
        if self.tensors.has(&at("ffn_gate_inp.weight")) {
            if self.tensors.has(&at("ffn_up.weight")) {
                return self.dense_and_moe(layer).map(|both| Ffn::Both(Box::new(both)));
            }
            return self.moe(layer).map(|moe| Ffn::Moe(Box::new(moe)));
        }
        let width = self.keys.layer_count("feed_forward_length", layer)?.filter(|&n| n > 0);
        if width.is_none() && !self.tensors.has(&at("ffn_up.weight")) {
            return Ok(Ffn::None);
        }
        let names = DenseNames { gate: at("ffn_gate"), up: at("ffn_up"), down: at("ffn_down"), width };
        let dense = self.dense(layer, &names)?;
        let switched = self.switched_dense(layer, &dense)?;
        Ok(Ffn::Dense(Dense { switched, ..dense }))
    }

    /// A dense feed-forward beside experts: both read the stream, each through its own norm where it has one.
    fn dense_and_moe(&mut self, layer: usize) -> Result<DenseAndMoe, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        // The width of the dense branch has no key: the tensor says it.
        let names = DenseNames { gate: at("ffn_gate"), up: at("ffn_up"), down: at("ffn_down"), width: None };
        let moe_from_entry = self.features.residual == ResidualRule::Arctic;
        let moe_pre = match self.norm(&at("pre_ffw_norm_2"))? {
            None if moe_from_entry => Some(self.need_norm(&at("ffn_norm_exps"))?),
            other => other,
        };
        Ok(DenseAndMoe {
            dense: self.dense(layer, &names)?,
            dense_post: self.norm(&at("post_ffw_norm_1"))?,
            moe: self.moe(layer)?,
            moe_pre,
            moe_from_entry,
            moe_post: self.norm(&at("post_ffw_norm_2"))?,
            scale: match self.features.shared_combine {
                SharedCombine::Add => 1.0,
                SharedCombine::HalfSum => 0.5,
                SharedCombine::SumOverSqrt2 => std::f32::consts::FRAC_1_SQRT_2,
            },
        })
    }

    /// Width of the input of the matrices `name.weight`.
    pub(super) fn n_cols(&self, name: &str) -> Result<usize, EngineError> {
        let tensor = format!("{name}.weight");
        match self.tensors.shape(&tensor) {
            Some(shape) => Ok(usize::try_from(shape.n_cols()).unwrap_or(usize::MAX)),
            None => Err(EngineError::MissingTensor { tensor }),
        }
    }

    fn dense(&mut self, layer: usize, names: &DenseNames) -> Result<Dense, EngineError> {
        let n_embd = self.n_embd;
        let cols = self.n_cols(&names.down)?;
        // T5: GELU with a gate, the card's activation without one.
        let is_gated =
            self.features.ffn_gated_if_present && self.tensors.has(&format!("{}.weight", names.gate));
        let kind = if is_gated {
            LayerActivation::Gated(GatedActivation::GegluTanh)
        } else {
            self.activation(layer, FfnPart::Dense)?
        };
        // The width of shared experts has no key in some files, and Qwen 1 counts gate and up together in its key:
        // the tensor says it, and the key must agree.
        let width = match names.width {
            None => cols,
            Some(both) if matches!(kind, LayerActivation::Gated(_)) && cols.checked_mul(2) == Some(both) => {
                cols
            }
            Some(width) => width,
        };
        let (act, up) = match kind {
            LayerActivation::Plain(act) => {
                (Activation::Plain(act), self.tensors.need_matrix(&names.up, width, n_embd)?)
            }
            LayerActivation::Gated(act) => {
                let (gate, up) = match self.tensors.matrix(&names.gate, width, n_embd)? {
                    Some(gate) => (gate, self.tensors.need_matrix(&names.up, width, n_embd)?),
                    None => {
                        let n_rows = width.saturating_mul(2);
                        let both = self.tensors.need_matrix(&names.up, n_rows, n_embd)?;
                        (both.rows(0, width), both.rows(width, width))
                    }
                };
                (Activation::Gated { act, gate }, up)
            }
        };
        let down = self.tensors.need_matrix(&names.down, n_embd, width)?;
        let (formula, eps) = (self.formula(), self.eps);
        let sub_norm = self.tensors.norm(&format!("blk.{layer}.ffn_sub_norm"), width, formula, eps)?;
        // A scale that is not finite stands for a layer that keeps its whole gate.
        let sparsity = self.keys.layer_number("activation_sparsity_scale", layer)?;
        let sparsity = sparsity.filter(|scale| scale.is_finite()).map(|scale| scale as f32);
        Ok(Dense { act, up, down, sub_norm, sparsity, switched: None })
    }

    fn moe(&mut self, layer: usize) -> Result<Moe, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let n_experts = self.keys.need_count("expert_count")?;
        let n_used = self
            .keys
            .layer_count("expert_used_count", layer)?
            .filter(|&k| k > 0)
            .ok_or_else(|| self.keys.missing("expert_used_count"))?;
        if n_used > n_experts {
            let expected = "at most expert_count";
            return Err(self.keys.unknown("expert_used_count", expected, &n_used.to_string()));
        }
        let router = match self.features.router_input {
            RouterInput::RmsScaled => self.tensors.bare_matrix(&at("ffn_gate_inp"), n_experts, n_embd)?,
            RouterInput::Normed | RouterInput::Raw => {
                self.tensors.matrix(&at("ffn_gate_inp"), n_experts, n_embd)?
            }
        };
        let router =
            router.ok_or_else(|| EngineError::MissingTensor { tensor: at("ffn_gate_inp.weight") })?;
        let latent = self.latent_experts(layer)?;
        let width = latent.as_ref().map_or(n_embd, |latent| latent.down.n_rows);
        let experts = self.experts(layer, "exps", n_experts, width)?;
        let adjugates = self.adjugates(layer, n_experts)?;
        let gating = self.gating()?;
        let normalize = match self.features.norm_topk {
            NormTopk::Always(normalize) => normalize,
            NormTopk::Named(_) => self.keys.flag("expert_weights_norm")?.unwrap_or(false),
        };
        let shared = if self.tensors.has(&at("ffn_up_shexp.weight")) {
            let [gate, up, down] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(at);
            Some(self.dense(layer, &DenseNames { gate, up, down, width: None })?)
        } else {
            None
        };
        let by_token = self.experts_by_token(layer, n_used)?;
        let select_bias = if by_token.is_some() { None } else { self.select_bias(layer, n_experts)? };
        if gating == GatingFunction::Sparsemixer && n_used != 2 {
            return Err(self.keys.unknown("expert_used_count", "2 (sparsemixer)", &n_used.to_string()));
        }
        let router_source = match self.features.router_input {
            RouterInput::Normed => RouterSource::Input,
            RouterInput::Raw => RouterSource::Entry,
            RouterInput::RmsScaled => RouterSource::Stream,
        };
        let router_norm = if router_source == RouterSource::Stream {
            let weight = self.tensors.vector(&at("ffn_gate_inp.scale"), n_embd)?;
            Some(Norm { weight, ..self.free_norm() })
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
            select: self.features.router_select,
            select_bias,
            groups: self.expert_groups(n_experts, gating)?,
            normalize,
            scale: self.keys.nonzero("expert_weights_scale")?.map(|s| s as f32),
            weigh: self.features.weigh,
            adjugates,
            shared,
            shared_gate: self.tensors.matrix(&at("ffn_gate_inp_shexp"), 1, n_embd)?,
            // Twice the jitter of training.
            near: 2.0 * self.keys.number("router_jitter_noise")?.unwrap_or(0.01) as f32,
            sum_scale: match self.features.shared_combine {
                SharedCombine::HalfSum if has_shared => Some(0.5),
                SharedCombine::Add | SharedCombine::HalfSum | SharedCombine::SumOverSqrt2 => None,
            },
            router_source,
            router_norm,
            latent,
        })
    }

    /// The experts whose tensors' names end in `ending`, in order, of rows of `n_embd`.
    pub(super) fn experts(
        &mut self,
        layer: usize,
        ending: &str,
        n_experts: usize,
        n_embd: usize,
    ) -> Result<Vec<Dense>, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}_{ending}");
        let width = self.n_cols(&at("ffn_down"))?;
        let down = self.tensors.experts(&at("ffn_down"), n_experts, n_embd, width)?;
        let fused = self.tensors.has(&format!("{}.weight", at("ffn_gate_up")));
        let inner: Vec<_> = match self.activation(layer, FfnPart::Experts)? {
            LayerActivation::Plain(act) => {
                let up = self.tensors.experts(&at("ffn_up"), n_experts, width, n_embd)?;
                up.into_iter().map(|up| (Activation::Plain(act), up)).collect()
            }
            LayerActivation::Gated(act) if fused => {
                let n_rows = width.saturating_mul(2);
                let both = self.tensors.experts(&at("ffn_gate_up"), n_experts, n_rows, n_embd)?;
                let halves = both.iter().map(|m| (m.rows(0, width), m.rows(width, width)));
                halves.map(|(gate, up)| (Activation::Gated { act, gate }, up)).collect()
            }
            LayerActivation::Gated(act) => {
                let up = self.tensors.experts(&at("ffn_up"), n_experts, width, n_embd)?;
                let gate = self.tensors.experts(&at("ffn_gate"), n_experts, width, n_embd)?;
                gate.into_iter().zip(up).map(|(gate, up)| (Activation::Gated { act, gate }, up)).collect()
            }
        };
        Ok(inner
            .into_iter()
            .zip(down)
            .map(|((act, up), down)| Dense { act, up, down, sub_norm: None, sparsity: None, switched: None })
            .collect())
    }

    fn gating(&self) -> Result<GatingFunction, EngineError> {
        match self.keys.count("expert_gating_func")? {
            None | Some(0) => Ok(self.built.gating),
            Some(1) => Ok(GatingFunction::Softmax),
            Some(2) => Ok(GatingFunction::Sigmoid),
            Some(3) => Ok(GatingFunction::SoftmaxWeight),
            Some(4) => Ok(GatingFunction::SqrtSoftplus),
            Some(other) => Err(self.keys.unknown("expert_gating_func", "1, 2, 3 or 4", &other.to_string())),
        }
    }

    fn expert_groups(
        &self,
        n_experts: usize,
        gating: GatingFunction,
    ) -> Result<Option<ExpertGroups>, EngineError> {
        let Some(n) = self.keys.count("expert_group_count")?.filter(|&n| n > 1) else { return Ok(None) };
        if !n_experts.is_multiple_of(n) {
            let expected = "a divisor of expert_count";
            return Err(self.keys.unknown("expert_group_count", expected, &n.to_string()));
        }
        let used = self.keys.count("expert_group_used_count")?.unwrap_or(n).clamp(1, n);
        let score = match self.features.group_score {
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
        Ok(Some(ExpertGroups { n, used, score, fill: self.features.group_fill as f32 }))
    }
}
