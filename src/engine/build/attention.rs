//! Builds the mixer of a layer: heads, projections, norms, scale, mask.

use crate::arch::graph::{AttnScale, QkNorm, WindowPattern};
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::features::{PositionRule, Sight};
use crate::engine::build::rope::is_large;
use crate::engine::plan::{
    Attention, HeadNorm, HeadSpan, KvSource, Mask, Matrix, Mixer, Norm, NormFormula, Temperature,
};

/// Numbers and widths of a layer's heads, and the rows that they add up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadShape {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) dk: usize,
    pub(super) dv: usize,
    pub(super) q_rows: usize,
    pub(super) k_rows: usize,
    pub(super) v_rows: usize,
    pub(super) out_cols: usize,
}

struct Projections {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    out: Matrix,
}

struct HeadNorms {
    q: Option<HeadNorm>,
    k: Option<HeadNorm>,
}

impl Builder<'_> {
    /// Attention; in layers without heads of some kind less than that.
    pub(super) fn attention_mixer(&mut self, layer: usize) -> Result<Mixer, EngineError> {
        let n_heads = self
            .keys
            .layer_count("attention.head_count", layer)?
            .ok_or_else(|| self.keys.missing("attention.head_count"))?;
        let n_kv_heads = self.keys.layer_count("attention.head_count_kv", layer)?.unwrap_or(n_heads);
        if n_heads == 0 {
            return Ok(Mixer::None);
        }
        if n_kv_heads == 0 {
            let name = format!("blk.{layer}.attn_output");
            return Ok(Mixer::Linear(self.tensors.need_matrix(&name, self.n_embd, self.n_embd)?));
        }
        let heads = self.heads(n_heads, n_kv_heads, self.mask(layer)?)?;
        self.attention(layer, heads).map(|attention| Mixer::Attention(Box::new(attention)))
    }

    fn attention(&mut self, layer: usize, heads: HeadShape) -> Result<Attention, EngineError> {
        let HeadShape { n_heads, n_kv_heads, dk, dv, .. } = heads;
        self.limit_to_indexed(layer)?;
        let mask = self.mask(layer)?;
        let kv = self.kv_source(layer, mask)?;
        let Projections { q, k, v, out } = self.projections(layer, heads, kv)?;
        let switched = self.switched_attention(layer, [&q, &k, &v, &out])?;
        let rope = self.rope(layer, mask, dk)?;
        let norms = self.qk_norms(layer, heads, rope)?;
        let sinks = self.tensors.vector(&format!("blk.{layer}.attn_sinks.weight"), n_heads)?;
        let clamp = self.keys.number("attention.clamp_kqv")?.filter(|&c| c > 0.0).map(|c| c as f32);
        Ok(Attention {
            q,
            k,
            v,
            out,
            n_heads,
            n_kv_heads,
            dk,
            dv,
            q_norm: norms.q,
            k_norm: norms.k,
            norm_after_rope: self.features.qk_norm != QkNorm::BeforeRope,
            rope,
            rope_2d: self.built.positions == PositionRule::Rope2d,
            scale: self.attention_scale(heads, rope)? as f32,
            cap: self.cap(self.features.attn_cap, "attn_logit_softcapping")?,
            mask,
            clamp,
            sinks,
            alibi: self.alibi(n_heads)?,
            relative: self.relative(layer, n_heads)?,
            temperature: self.temperature(rope)?,
            v_norm: self.features.v_norm.then(|| self.free_norm()),
            kv,
            gate: self.output_gate(layer, n_heads, heads.out_cols)?,
            sub_norm: {
                let (formula, eps) = (self.formula(), self.eps);
                self.tensors.norm(&format!("blk.{layer}.attn_sub_norm"), heads.out_cols, formula, eps)?
            },
            out_scale: self.keys.nonzero("attention.value_scale")?.map(|scale| scale as f32),
            switched,
        })
    }

    pub(super) fn heads(
        &self,
        n_heads: usize,
        n_kv_heads: usize,
        mask: Mask,
    ) -> Result<HeadShape, EngineError> {
        if !n_heads.is_multiple_of(n_kv_heads) {
            let found = format!("{n_heads} and {n_kv_heads}");
            return Err(self.keys.unknown("attention.head_count", "a multiple of head_count_kv", &found));
        }
        let width = |key: &str| {
            // Windowed layers may have heads of their own width.
            let local = if matches!(mask, Mask::Causal | Mask::Full) {
                None
            } else {
                self.keys.count(&format!("{key}_swa"))?
            };
            let found = local.or(self.keys.count(key)?).filter(|&n| n > 0);
            Ok::<_, EngineError>(found.unwrap_or(self.n_embd / n_heads))
        };
        let (dk, dv) = (width("attention.key_length")?, width("attention.value_length")?);
        let product = |a: usize, b: usize| a.checked_mul(b).filter(|&n| n > 0);
        let (Some(q_rows), Some(k_rows), Some(v_rows), Some(out_cols)) =
            (product(n_heads, dk), product(n_kv_heads, dk), product(n_kv_heads, dv), product(n_heads, dv))
        else {
            let expected = "heads that divide the width";
            return Err(self.keys.unknown("attention.head_count", expected, "a width of 0"));
        };
        if self.features.gated_q && dk != dv {
            let found = format!("{dv}, not {dk}");
            return Err(self.keys.unknown(
                "attention.value_length",
                "the width of a query and its gate",
                &found,
            ));
        }
        let q_rows = if self.features.gated_q { q_rows.saturating_mul(2) } else { q_rows };
        Ok(HeadShape { n_heads, n_kv_heads, dk, dv, q_rows, k_rows, v_rows, out_cols })
    }

    fn projections(
        &mut self,
        layer: usize,
        heads: HeadShape,
        kv: KvSource,
    ) -> Result<Projections, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let HeadShape { q_rows, k_rows, v_rows, out_cols, .. } = heads;
        let (q, k, v) = if self.tensors.has(&at("attn_qkv.weight")) {
            let n_rows = q_rows.saturating_add(k_rows).saturating_add(v_rows);
            let all = self.tensors.need_matrix(&at("attn_qkv"), n_rows, n_embd)?;
            (all.rows(0, q_rows), all.rows(q_rows, k_rows), all.rows(q_rows + k_rows, v_rows))
        } else {
            let q = self.tensors.need_matrix(&at("attn_q"), q_rows, n_embd)?;
            let source = match kv {
                KvSource::From(source) => {
                    // Some files have projections here that the model does not use.
                    for name in ["attn_k.weight", "attn_v.weight"] {
                        let _ = self.tensors.claim(&at(name));
                    }
                    source
                }
                KvSource::Own | KvSource::Kept => layer,
            };
            let of = |name: &str| format!("blk.{source}.{name}");
            let k = self.tensors.need_matrix(&of("attn_k"), k_rows, n_embd)?;
            // Values may be the keys before their norm and rotation; such models norm their values too.
            let is_shared = self.features.v_norm && !self.tensors.has(&of("attn_v.weight"));
            let v = if is_shared && k_rows == v_rows {
                k.clone()
            } else {
                self.tensors.need_matrix(&of("attn_v"), v_rows, n_embd)?
            };
            (q, k, v)
        };
        let out = self.tensors.need_matrix(&at("attn_output"), n_embd, out_cols)?;
        Ok(Projections { q, k, v, out })
    }

    /// The size of windows: the file's key, of which 0 means none, else the card's.
    pub(super) fn window_size(&self) -> Result<Option<usize>, EngineError> {
        let size = self.keys.count("attention.sliding_window")?;
        Ok(size.or(self.features.window_size.map(|n| n as usize)).filter(|&n| n > 0))
    }

    pub(super) fn mask(&self, layer: usize) -> Result<Mask, EngineError> {
        let size = self.window_size()?;
        let is_full = self.built.sight == Sight::Full;
        let global = if is_full { Mask::Full } else { Mask::Causal };
        let (Some(size), Some(mask)) = (size, self.built.window) else { return Ok(global) };
        let window = mask(size);
        if is_full != matches!(window, Mask::Symmetric(_)) {
            let expected = if is_full { "true with this window" } else { "false with this window" };
            return Err(self.keys.unknown("attention.causal", expected, &(!is_full).to_string()));
        }
        let pattern_key = "attention.sliding_window_pattern";
        let windowed = match (self.keys.get(pattern_key), self.features.window_pattern) {
            (Some(value), _) if value.as_array().is_some() => {
                self.keys.layer_flag(pattern_key, layer)?.unwrap_or(false)
            }
            (Some(_), rule) => {
                let period = self.keys.count(pattern_key)?.unwrap_or(0);
                let rule = rule.unwrap_or(WindowPattern::DenseLast(0));
                rule.with_period(u32::try_from(period).unwrap_or(u32::MAX)).is_windowed(layer)
            }
            (None, Some(rule)) => rule.is_windowed(layer),
            (None, None) => true,
        };
        Ok(if windowed { window } else { global })
    }

    fn qk_norms(
        &mut self,
        layer: usize,
        heads: HeadShape,
        rope: Option<usize>,
    ) -> Result<HeadNorms, EngineError> {
        match self.features.qk_norm {
            QkNorm::FreeAfterRope => {
                let norm = Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: self.eps };
                // The larger of two models has no such norms, and only the number of experts tells them apart.
                let n_experts = self.keys.count("expert_count")?.unwrap_or(0);
                let without = self.features.qk_norm_not_at_experts.iter().any(|&n| n as usize == n_experts);
                let norm = rope.filter(|_| !without).map(|_| HeadNorm { norm, span: HeadSpan::Head });
                Ok(HeadNorms { q: norm.clone(), k: norm })
            }
            QkNorm::ScaledAfterRope => {
                let free = Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: self.eps };
                let name = format!("blk.{layer}.attn_q_norm.weight");
                let factors = self.need_vector(&name, heads.n_heads)?;
                let q = Norm { weight: Some(factors), ..free.clone() };
                Ok(HeadNorms {
                    q: Some(HeadNorm { norm: q, span: HeadSpan::HeadFactor }),
                    k: Some(HeadNorm { norm: free, span: HeadSpan::Head }),
                })
            }
            QkNorm::BeforeRope | QkNorm::AfterRope => Ok(HeadNorms {
                q: self.head_norm(&format!("blk.{layer}.attn_q_norm"), heads.n_heads, heads.dk)?,
                k: self.head_norm(&format!("blk.{layer}.attn_k_norm"), heads.n_kv_heads, heads.dk)?,
            }),
        }
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
        let eps = self.features.qk_norm_eps.map_or(self.eps, |eps| eps as f32);
        let norm = self.tensors.norm(name, len, self.built.qk_norm, eps)?;
        Ok(norm.map(|norm| HeadNorm { norm, span }))
    }

    pub(super) fn attention_scale(&self, heads: HeadShape, rope: Option<usize>) -> Result<f64, EngineError> {
        if let Some(scale) = self.keys.number("attention.scale")?.filter(|&s| s > 0.0) {
            return Ok(scale);
        }
        let HeadShape { n_heads, dk, dv, .. } = heads;
        let rsqrt = |n: usize| 1.0 / (n as f64).sqrt();
        Ok(match &self.features.attn_scale {
            AttnScale::Dk => rsqrt(dk),
            AttnScale::Dv => rsqrt(dv),
            AttnScale::InvDk => 1.0 / dk as f64,
            AttnScale::One => 1.0,
            AttnScale::OutputScale => {
                let scale = self.keys.nonzero("attention.output_scale")?;
                scale.ok_or_else(|| self.keys.missing("attention.output_scale"))?
            }
            AttnScale::Rot => rsqrt(rope.and_then(|at| self.ropes.get(at)).map_or(dk, |rope| rope.n_dims)),
            AttnScale::EmbdOverHeadsAt(depths) => {
                if depths.iter().any(|&depth| depth as usize == self.n_layers) {
                    (self.n_embd as f64 / n_heads as f64).powf(-0.5)
                } else {
                    rsqrt(dk)
                }
            }
        })
    }

    pub(super) fn temperature(&self, rope: Option<usize>) -> Result<Option<Temperature>, EngineError> {
        if let Some(rule) = self.features.temperature {
            let growth = self.keys.number("attention.temperature_scale")?.unwrap_or(rule.growth);
            let length = self.keys.count("attention.temperature_length")?.unwrap_or(rule.length as usize);
            let is_on = rope.is_none() && growth != 0.0;
            return Ok(is_on.then_some(Temperature { growth, length: length.max(1), first: 1 }));
        }
        let Some(growth) = self.keys.nonzero("attention.temperature_scale")? else { return Ok(None) };
        let length = match self.keys.count("attention.temperature_length")? {
            Some(n) => Some(n),
            None => self.keys.count("rope.scaling.original_context_length")?,
        };
        let length = length.filter(|&n| n > 0);
        let length = length.ok_or_else(|| self.keys.missing("attention.temperature_length"))?;
        Ok(Some(Temperature { growth, length, first: 0 }))
    }

    fn alibi(&self, n_heads: usize) -> Result<Option<Vec<f32>>, EngineError> {
        let bias = match self.built.positions {
            PositionRule::Alibi => {
                self.keys.nonzero("attention.max_alibi_bias")?.unwrap_or(self.features.alibi_bias)
            }
            PositionRule::AlibiKey => match self.keys.nonzero("attention.max_alibi_bias")? {
                Some(bias) => bias,
                None => return Ok(None),
            },
            PositionRule::ByDepth if is_large(self.n_layers) => self.features.alibi_bias,
            PositionRule::ByDepth
            | PositionRule::None
            | PositionRule::Rope
            | PositionRule::Rope2d
            | PositionRule::Learned
            | PositionRule::Relative => return Ok(None),
        };
        Ok(Some(alibi_slopes(n_heads, bias)))
    }
}

/// Slopes of ALiBi (Press et al. 2022), for head counts that are not powers of two as well.
pub(super) fn alibi_slopes(n_heads: usize, max_bias: f64) -> Vec<f32> {
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
