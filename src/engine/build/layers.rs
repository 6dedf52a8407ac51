//! Builds the plan of one layer.

use crate::arch::graph::{
    AttnScale, FfnKind, Gating, GroupScore, NormKind, NormTopk, Positions, QkNorm, ResidualRule, WindowKind,
    WindowPattern,
};
use crate::engine::EngineError;
use crate::engine::build::model::Builder;
use crate::engine::plan::{
    Attention, Dense, Ffn, GatingFunction, Groups, HeadNorm, HeadSpan, Layer, Mask, Matrix, Mixer, Moe,
    NormFormula, Wiring,
};

/// True for activations of a gate and an up projection.
pub(crate) fn is_gated(kind: FfnKind) -> bool {
    matches!(
        kind,
        FfnKind::Swiglu
            | FfnKind::GegluTanh
            | FfnKind::GegluErf
            | FfnKind::Reglu
            | FfnKind::SwigluOai
            | FfnKind::Situ
    )
}

impl Builder<'_> {
    pub(crate) fn layer(
        &mut self,
        layer: usize,
        n_layers: usize,
        residual_scale: f32,
    ) -> Result<Layer, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let features = self.features;
        let wiring = self.wiring(layer)?;
        let mixer = self.mixer(layer, n_layers)?;
        let ffn = self.ffn(layer)?;
        let two_norms = self.tensors.has(&at("attn_norm_2.weight"));
        let own_norms = features.residual != ResidualRule::Post;
        let pre_mixer = match (&mixer, own_norms) {
            (Mixer::None, _) => self.norm(&at("attn_norm"))?,
            (_, false) => None,
            // Falcon's two norms: the mixer reads the second, the feed-forward the first.
            _ if wiring == Wiring::Parallel && two_norms => Some(self.need_norm(&at("attn_norm_2"))?),
            _ => Some(self.need_norm(&at("attn_norm"))?),
        };
        let pre_ffn = match (&ffn, own_norms) {
            (Ffn::None, _) => self.norm(&at(&features.pre_ffn))?,
            (_, false) => None,
            _ if wiring == Wiring::Parallel && two_norms => Some(self.need_norm(&at("attn_norm"))?),
            _ if wiring == Wiring::Parallel => self.norm(&at(&features.pre_ffn))?,
            _ => Some(self.need_norm(&at(&features.pre_ffn))?),
        };
        let post = |this: &mut Self, name: &str| {
            if own_norms && name == features.pre_ffn {
                return Ok(None);
            }
            let mut norm = this.norm(&at(name))?;
            if let (Some(norm), Some(eps)) = (&mut norm, features.post_norm_eps) {
                norm.eps = eps as f32;
            }
            Ok::<_, EngineError>(norm)
        };
        let post_mixer = post(self, &features.post_attn)?;
        let post_ffn = post(self, &features.post_ffn)?;
        let tensors = self.tensors.claimed_under(&at(""));
        Ok(Layer { wiring, pre_mixer, mixer, post_mixer, pre_ffn, ffn, post_ffn, residual_scale, tensors })
    }

    fn wiring(&self, layer: usize) -> Result<Wiring, EngineError> {
        let parallel = match self.features.residual {
            ResidualRule::Parallel | ResidualRule::Parallel2 => true,
            ResidualRule::ParallelKey => self.hparams.flag("use_parallel_residual")?.unwrap_or(true),
            ResidualRule::ParallelIfNoFfnNorm => {
                !self.tensors.has(&format!("blk.{layer}.{}.weight", self.features.pre_ffn))
            }
            _ => false,
        };
        Ok(match (parallel, self.features.residual) {
            (true, _) => Wiring::Parallel,
            (false, ResidualRule::Normed) => Wiring::Normed,
            (false, _) => Wiring::Serial,
        })
    }

    fn mask(&self, layer: usize) -> Result<Mask, EngineError> {
        let features = self.features;
        let key = self.hparams.count("attention.sliding_window")?.filter(|&n| n > 0);
        let size = key.or(features.window_size.map(|n| n as usize));
        let (Some(size), true) = (size, features.window != WindowKind::None) else { return Ok(Mask::Causal) };
        let every = |n: usize| n == 0 || layer % n < n - 1;
        let pattern_key = "attention.sliding_window_pattern";
        let windowed = match (self.hparams.get(pattern_key), features.window_pattern) {
            (Some(value), _) if value.as_array().is_some() => {
                self.hparams.layer_flag(pattern_key, layer)?.unwrap_or(false)
            }
            (Some(_), _) => every(self.hparams.count(pattern_key)?.unwrap_or(0)),
            (None, Some(WindowPattern::DenseLast(n))) => every(n as usize),
            (None, Some(WindowPattern::DenseFirst { dense_first: n })) => {
                n == 0 || !layer.is_multiple_of(n as usize)
            }
            (None, None) => true,
        };
        Ok(match (windowed, features.window) {
            (false, _) | (_, WindowKind::None) => Mask::Causal,
            (true, WindowKind::Sliding) => Mask::Window(size),
            (true, WindowKind::Chunked) => Mask::Chunked(size),
            (true, WindowKind::Symmetric) => {
                return Err(EngineError::Unsupported {
                    arch: self.hparams.arch().to_owned(),
                    feature: "window",
                    value: "symmetric".to_owned(),
                });
            }
        })
    }

    fn mixer(&mut self, layer: usize, n_layers: usize) -> Result<Mixer, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let features = self.features;
        let n_embd = self.n_embd;
        let missing = |this: &Self, name: &str| EngineError::MissingKey { key: this.hparams.key(name) };
        let n_heads = self
            .hparams
            .layer_count("attention.head_count", layer)?
            .ok_or_else(|| missing(self, "attention.head_count"))?;
        let n_kv_heads = self.hparams.layer_count("attention.head_count_kv", layer)?.unwrap_or(n_heads);
        if n_heads == 0 {
            return Ok(Mixer::None);
        }
        if n_kv_heads == 0 {
            return Ok(Mixer::Linear(self.tensors.need_matrix(&at("attn_output"), n_embd, n_embd)?));
        }
        if n_heads % n_kv_heads != 0 {
            let found = format!("{n_heads} and {n_kv_heads}");
            return Err(self.hparams.unknown("attention.head_count", "a multiple of head_count_kv", &found));
        }
        let dk = match self.hparams.count("attention.key_length")? {
            Some(dk) if dk > 0 => dk,
            _ => n_embd / n_heads,
        };
        let dv = match self.hparams.count("attention.value_length")? {
            Some(dv) if dv > 0 => dv,
            _ => n_embd / n_heads,
        };
        let product = |a: usize, b: usize| a.checked_mul(b).filter(|&n| n > 0);
        let sum = |rows: [usize; 3]| rows.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        let (Some(q_rows), Some(k_rows), Some(v_rows), Some(out_cols)) =
            (product(n_heads, dk), product(n_kv_heads, dk), product(n_kv_heads, dv), product(n_heads, dv))
        else {
            return Err(self.hparams.unknown(
                "attention.head_count",
                "heads that divide the width",
                "a width of 0",
            ));
        };
        let (q, k, v) = if self.tensors.has(&at("attn_qkv.weight")) {
            let all = self.tensors.need_matrix(
                &at("attn_qkv"),
                sum([q_rows, k_rows, v_rows]).unwrap_or(usize::MAX),
                n_embd,
            )?;
            (all.rows(0, q_rows), all.rows(q_rows, k_rows), all.rows(q_rows + k_rows, v_rows))
        } else {
            (
                self.tensors.need_matrix(&at("attn_q"), q_rows, n_embd)?,
                self.tensors.need_matrix(&at("attn_k"), k_rows, n_embd)?,
                self.tensors.need_matrix(&at("attn_v"), v_rows, n_embd)?,
            )
        };
        let out = self.tensors.need_matrix(&at("attn_output"), n_embd, out_cols)?;
        let mask = self.mask(layer)?;
        let rope = self.rope(layer, mask, dk)?;
        let after_rope = features.qk_norm != QkNorm::BeforeRope;
        let (q_norm, k_norm) = if features.qk_norm == QkNorm::FreeAfterRope {
            let norm = rope.map(|_| HeadNorm {
                norm: crate::engine::plan::Norm {
                    formula: NormFormula::Rms,
                    weight: None,
                    bias: None,
                    eps: self.eps,
                },
                span: HeadSpan::Head,
            });
            (norm.clone(), norm)
        } else {
            (
                self.head_norm(&at("attn_q_norm"), n_heads, dk)?,
                self.head_norm(&at("attn_k_norm"), n_kv_heads, dk)?,
            )
        };
        let rotated = rope.and_then(|at| self.ropes.get(at)).map_or(dk, |rope| rope.n_dims);
        let key_scale = self.hparams.number("attention.scale")?.filter(|&s| s > 0.0);
        let rsqrt = |n: usize| 1.0 / (n as f64).sqrt();
        let scale = match (key_scale, &features.attn_scale) {
            (Some(scale), _) => scale,
            (None, AttnScale::Dk) => rsqrt(dk),
            (None, AttnScale::Dv) => rsqrt(dv),
            (None, AttnScale::InvDk) => 1.0 / dk as f64,
            (None, AttnScale::One) => 1.0,
            (None, AttnScale::Rot) => rsqrt(rotated),
            (None, AttnScale::EmbdOverHeadsAt(depths)) => {
                if depths.iter().any(|&depth| depth as usize == n_layers) {
                    (n_embd as f64 / n_heads as f64).powf(-0.5)
                } else {
                    rsqrt(dk)
                }
            }
        };
        let temperature = match self.hparams.nonzero("attention.temperature_scale")? {
            Some(a) => {
                let length = match self.hparams.count("attention.temperature_length")? {
                    Some(n) => Some(n),
                    None => self.hparams.count("rope.scaling.original_context_length")?,
                };
                let length = length.filter(|&n| n > 0);
                Some((a, length.ok_or_else(|| missing(self, "attention.temperature_length"))?))
            }
            None => None,
        };
        let alibi = match features.positions {
            Positions::Alibi => {
                let bias = self.hparams.nonzero("attention.max_alibi_bias")?.unwrap_or(features.alibi_bias);
                Some(alibi_slopes(n_heads, bias))
            }
            Positions::ByDepth if n_layers >= 40 => Some(alibi_slopes(n_heads, features.alibi_bias)),
            _ => None,
        };
        let clamp = self.hparams.number("attention.clamp_kqv")?.filter(|&c| c > 0.0).map(|c| c as f32);
        let sinks = self.tensors.vector(&at("attn_sinks.weight"), n_heads)?;
        let cap = self.cap(features.attn_cap, "attn_logit_softcapping")?;
        Ok(Mixer::Attention(Box::new(Attention {
            q,
            k,
            v,
            out,
            n_heads,
            n_kv_heads,
            dk,
            dv,
            q_norm,
            k_norm,
            norm_after_rope: after_rope,
            rope,
            rope_2d: features.positions == Positions::Rope2d,
            scale: scale as f32,
            cap,
            mask,
            clamp,
            sinks,
            alibi,
            temperature,
        })))
    }

    fn head_norm(&mut self, name: &str, n_heads: usize, dk: usize) -> Result<Option<HeadNorm>, EngineError> {
        let weight = format!("{name}.weight");
        let Some(shape) = self.tensors.shape(&weight) else { return Ok(None) };
        let dims = shape.dims();
        let (len, span) = if dims.len() == 2 && dims[0] as usize == n_heads && n_heads > 1 {
            (n_heads * dk, HeadSpan::HeadRows)
        } else if shape.n_elems() == dk as u64 {
            (dk, HeadSpan::Head)
        } else {
            (n_heads * dk, HeadSpan::Projection)
        };
        let formula = match self.features.qk_norm_kind {
            NormKind::Layer | NormKind::LayerFree => NormFormula::Layer,
            NormKind::Rms | NormKind::RmsFree => NormFormula::Rms,
        };
        let norm = self.tensors.norm(name, len, formula, self.eps)?;
        Ok(norm.map(|norm| HeadNorm { norm, span }))
    }

    fn ffn(&mut self, layer: usize) -> Result<Ffn, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        if self.tensors.has(&at("ffn_gate_inp.weight")) {
            if self.tensors.has(&at("ffn_up.weight")) {
                return Err(EngineError::LeftOver { tensors: vec![at("ffn_up.weight")] });
            }
            return self.moe(layer).map(|moe| Ffn::Moe(Box::new(moe)));
        }
        let width = self.hparams.layer_count("feed_forward_length", layer)?.unwrap_or(0);
        if width == 0 && !self.tensors.has(&at("ffn_up.weight")) {
            return Ok(Ffn::None);
        }
        self.dense(&at("ffn_gate"), &at("ffn_up"), &at("ffn_down"), width).map(Ffn::Dense)
    }

    fn dense(&mut self, gate: &str, up: &str, down: &str, width: usize) -> Result<Dense, EngineError> {
        let n_embd = self.n_embd;
        let act = self.features.ffn;
        let down_name = format!("{down}.weight");
        let cols = self.tensors.shape(&down_name).map(|s| usize::try_from(s.n_cols()).unwrap_or(usize::MAX));
        let cols = cols.ok_or(EngineError::MissingTensor { tensor: down_name })?;
        // The width of shared experts has no key in some files, and Qwen 1 counts gate and up together in its key:
        // the tensor says it, and the key must agree.
        let width =
            if width == 0 || (is_gated(act) && cols.checked_mul(2) == Some(width)) { cols } else { width };
        let (gate, up) = if !is_gated(act) {
            (None, self.tensors.need_matrix(up, width, n_embd)?)
        } else if let Some(gate) = self.tensors.matrix(gate, width, n_embd)? {
            (Some(gate), self.tensors.need_matrix(up, width, n_embd)?)
        } else {
            let both = self.tensors.need_matrix(up, width.saturating_mul(2), n_embd)?;
            (Some(both.rows(0, width)), both.rows(width, width))
        };
        let down = self.tensors.need_matrix(down, n_embd, width)?;
        Ok(Dense { act, gate, up, down })
    }

    fn moe(&mut self, layer: usize) -> Result<Moe, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let features = self.features;
        let n_embd = self.n_embd;
        let n_experts = self.hparams.need_count("expert_count")?;
        let missing = |this: &Self, name: &str| EngineError::MissingKey { key: this.hparams.key(name) };
        let n_used = self
            .hparams
            .layer_count("expert_used_count", layer)?
            .filter(|&k| k > 0)
            .ok_or_else(|| missing(self, "expert_used_count"))?;
        if n_used > n_experts {
            return Err(self.hparams.unknown(
                "expert_used_count",
                "at most expert_count",
                &n_used.to_string(),
            ));
        }
        let router = self.tensors.need_matrix(&at("ffn_gate_inp"), n_experts, n_embd)?;
        let act = features.experts_act.unwrap_or(features.ffn);
        let down_name = at("ffn_down_exps.weight");
        let width = self.tensors.shape(&down_name).map(|s| usize::try_from(s.n_cols()).unwrap_or(usize::MAX));
        let width = width.ok_or(EngineError::MissingTensor { tensor: down_name })?;
        let down = self.tensors.experts(&at("ffn_down_exps"), n_experts, n_embd, width)?;
        let (gate, up): (Vec<Option<Matrix>>, Vec<Matrix>) =
            if self.tensors.has(&at("ffn_gate_up_exps.weight")) {
                let both = self.tensors.experts(&at("ffn_gate_up_exps"), n_experts, 2 * width, n_embd)?;
                both.iter().map(|m| (Some(m.rows(0, width)), m.rows(width, width))).unzip()
            } else {
                let up = self.tensors.experts(&at("ffn_up_exps"), n_experts, width, n_embd)?;
                if is_gated(act) {
                    let gate = self.tensors.experts(&at("ffn_gate_exps"), n_experts, width, n_embd)?;
                    (gate.into_iter().map(Some).collect(), up)
                } else {
                    (vec![None; n_experts], up)
                }
            };
        let experts = gate.into_iter().zip(up).zip(down);
        let experts = experts.map(|((gate, up), down)| Dense { act, gate, up, down }).collect();

        let gating = match (self.hparams.count("expert_gating_func")?.unwrap_or(0), features.gating) {
            (1, _) | (0, Gating::Softmax) => GatingFunction::Softmax,
            (2, _) | (0, Gating::Sigmoid) => GatingFunction::Sigmoid,
            (3, _) | (0, Gating::SoftmaxWeight) => GatingFunction::SoftmaxWeight,
            (other, _) => {
                return Err(self.hparams.unknown("expert_gating_func", "1, 2 or 3", &other.to_string()));
            }
        };
        let normalize = match features.norm_topk {
            NormTopk::Always(normalize) => normalize,
            NormTopk::Named(_) => self.hparams.flag("expert_weights_norm")?.unwrap_or(false),
        };
        let groups = match self.hparams.count("expert_group_count")? {
            Some(n) if n > 1 => {
                if n_experts % n != 0 {
                    return Err(self.hparams.unknown(
                        "expert_group_count",
                        "a divisor of expert_count",
                        &n.to_string(),
                    ));
                }
                let used = self.hparams.count("expert_group_used_count")?.unwrap_or(n).clamp(1, n);
                let score = match features.group_score {
                    GroupScore::Named(score) => score,
                    GroupScore::ByGating { max_if: Gating::Softmax, .. }
                        if gating == GatingFunction::Softmax =>
                    {
                        crate::arch::graph::GroupScoreName::Max
                    }
                    GroupScore::ByGating { otherwise, .. } => otherwise,
                };
                Some(Groups { n, used, score, fill: features.group_fill as f32 })
            }
            _ => None,
        };
        let shared = if self.tensors.has(&at("ffn_up_shexp.weight")) {
            Some(self.dense(&at("ffn_gate_shexp"), &at("ffn_up_shexp"), &at("ffn_down_shexp"), 0)?)
        } else {
            None
        };
        Ok(Moe {
            router,
            experts,
            n_used,
            gating,
            select_bias: self.tensors.vector(&at("exp_probs_b.bias"), n_experts)?,
            groups,
            normalize,
            scale: self.hparams.nonzero("expert_weights_scale")?.map(|s| s as f32),
            shared,
            shared_gate: self.tensors.matrix(&at("ffn_gate_inp_shexp"), 1, n_embd)?,
        })
    }
}

/// Slopes of ALiBi (Press et al. 2022), for head counts that are not powers of two as well.
fn alibi_slopes(n_heads: usize, max_bias: f64) -> Vec<f32> {
    let floor_log2 = n_heads.ilog2();
    let n2 = f64::from(1u32 << floor_log2.min(31));
    (0..n_heads)
        .map(|head| {
            let head = head as f64;
            let exponent = if head < n2 {
                -max_bias * (head + 1.0) / n2
            } else {
                -(max_bias / 2.0) * (2.0 * (head - n2) + 1.0) / n2
            };
            exponent.exp2() as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_twelve_heads() {
        let slopes = alibi_slopes(12, 8.0);
        let expected: Vec<f32> =
            (1..=8).map(|i| 0.5f32.powi(i)).chain([0, 1, 2, 3].map(|i| 2f32.powf(-0.5 - i as f32))).collect();
        for (found, expected) in slopes.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-7, "{found} {expected}");
        }
    }
}
