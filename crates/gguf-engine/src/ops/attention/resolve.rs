//! Resolution of softmax attention: heads, projections, norms and scale.

use crate::exec::mask::Mask;
use crate::exec::weights::{Matrix, Norm, NormFormula};
use crate::ops::Mixer;
use crate::ops::attention::{Attention, HeadNorm, HeadSpan, KvSource, Temperature};
use crate::ops::output_gate::OutputGate;
use crate::ops::relative::RelativeBias;
use crate::ops::switched::SwitchedAttention;
use crate::resolve::resolver::Resolver;
use crate::resolve::rope::is_large;
use crate::{EngineError, Result};
use gguf_arch::graph::{AttnScale, Positions, QkNorm};

/// Numbers and widths of a layer's heads, and the rows and columns of their projections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) dk: usize,
    pub(crate) dv: usize,
    pub(crate) q_rows: usize,
    pub(crate) k_rows: usize,
    pub(crate) v_rows: usize,
    pub(crate) out_cols: usize,
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

/// Resolves attention: no mixer in layers without query heads, one matrix in layers without key-value heads.
pub(crate) fn mixer(b: &mut Resolver<'_>, layer: usize) -> Result<Mixer> {
    let n_heads = b
        .keys
        .layer_count("attention.head_count", layer)?
        .ok_or_else(|| b.keys.missing("attention.head_count"))?;
    let n_kv_heads = b.keys.layer_count("attention.head_count_kv", layer)?.unwrap_or(n_heads);
    if n_heads == 0 {
        return Ok(Mixer::None);
    }
    if n_kv_heads == 0 {
        let name = format!("blk.{layer}.attn_output");
        return Ok(Mixer::Linear(b.tensors.need_matrix(&name, b.n_embd, b.n_embd)?));
    }
    let heads = head_shape(b, n_heads, n_kv_heads, b.mask(layer)?)?;
    Attention::resolve(b, layer, heads).map(|attention| Mixer::Attention(Box::new(attention)))
}

impl Attention {
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize, heads: HeadShape) -> Result<Attention> {
        let HeadShape { n_heads, n_kv_heads, dk, dv, .. } = heads;
        b.limit_to_indexed(layer)?;
        let mask = b.mask(layer)?;
        let kv = KvSource::resolve(b, layer, mask)?;
        let Projections { q, k, v, out } = projections(b, layer, heads, kv)?;
        let switched = SwitchedAttention::resolve(b, layer, [&q, &k, &v, &out])?;
        let rope = b.rope(layer, mask, dk)?;
        let norms = qk_norms(b, layer, heads, rope)?;
        let sinks = b.tensors.vector(&format!("blk.{layer}.attn_sinks.weight"), n_heads)?;
        let clamp = b.keys.number("attention.clamp_kqv")?.filter(|&c| c > 0.0).map(|c| c as f32);
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
            norm_after_rope: b.features.attention.qk_norm != QkNorm::BeforeRope,
            rope,
            rope_2d: b.built.positions == Positions::Rope2d,
            scale: attention_scale(b, heads, rope)? as f32,
            cap: b.cap(b.features.attention.cap, "attn_logit_softcapping")?,
            mask,
            clamp,
            sinks,
            alibi: alibi(b, n_heads)?,
            relative: RelativeBias::resolve(b, layer, n_heads)?,
            temperature: Temperature::resolve(b, rope)?,
            v_norm: b.features.attention.v_norm.then(|| b.free_norm()),
            kv,
            gate: OutputGate::resolve(b, layer, n_heads, heads.out_cols)?,
            sub_norm: {
                let (formula, eps) = (b.formula(), b.eps);
                b.tensors.norm(&format!("blk.{layer}.attn_sub_norm"), heads.out_cols, formula, eps)?
            },
            out_scale: b.keys.nonzero("attention.value_scale")?.map(|scale| scale as f32),
            switched,
        })
    }
}

/// Returns the widths of a layer's heads, and the rows and columns of their projections.
pub(crate) fn head_shape(
    b: &Resolver<'_>,
    n_heads: usize,
    n_kv_heads: usize,
    mask: Mask,
) -> Result<HeadShape> {
    if !n_heads.is_multiple_of(n_kv_heads) {
        let found = format!("{n_heads} and {n_kv_heads}");
        return Err(b.keys.unknown("attention.head_count", "a multiple of head_count_kv", &found));
    }
    let width = |key: &str| {
        // Windowed layers may have their own head widths.
        let local = if matches!(mask, Mask::Causal | Mask::Full) {
            None
        } else {
            b.keys.count(&format!("{key}_swa"))?
        };
        let found = local.or(b.keys.count(key)?).filter(|&n| n > 0);
        Ok::<_, EngineError>(found.unwrap_or(b.n_embd / n_heads))
    };
    let (dk, dv) = (width("attention.key_length")?, width("attention.value_length")?);
    let product = |a: usize, b: usize| a.checked_mul(b).filter(|&n| n > 0);
    let (Some(q_rows), Some(k_rows), Some(v_rows), Some(out_cols)) =
        (product(n_heads, dk), product(n_kv_heads, dk), product(n_kv_heads, dv), product(n_heads, dv))
    else {
        let expected = "heads that divide the width";
        return Err(b.keys.unknown("attention.head_count", expected, "a width of 0"));
    };
    if b.features.attention.gated_q && dk != dv {
        let found = format!("{dv}, not {dk}");
        return Err(b.keys.unknown("attention.value_length", "the width of a query and its gate", &found));
    }
    let q_rows = if b.features.attention.gated_q { q_rows.saturating_mul(2) } else { q_rows };
    Ok(HeadShape { n_heads, n_kv_heads, dk, dv, q_rows, k_rows, v_rows, out_cols })
}

fn projections(b: &mut Resolver<'_>, layer: usize, heads: HeadShape, kv: KvSource) -> Result<Projections> {
    let at = |name: &str| format!("blk.{layer}.{name}");
    let n_embd = b.n_embd;
    let HeadShape { q_rows, k_rows, v_rows, out_cols, .. } = heads;
    // Queries, keys and values of a layer that has them as one matrix.
    let joined = |b: &mut Resolver<'_>, layer: usize| {
        let name = format!("blk.{layer}.attn_qkv");
        if !b.tensors.has(&format!("{name}.weight")) {
            return Ok::<_, EngineError>(None);
        }
        let n_rows = q_rows.saturating_add(k_rows).saturating_add(v_rows);
        let all = b.tensors.need_matrix(&name, n_rows, n_embd)?;
        Ok(Some((all.rows(0, q_rows), all.rows(q_rows, k_rows), all.rows(q_rows + k_rows, v_rows))))
    };
    let (q, k, v) = if let Some(all) = joined(b, layer)? {
        all
    } else {
        let q = b.tensors.need_matrix(&at("attn_q"), q_rows, n_embd)?;
        let source = match kv {
            KvSource::From(source) => {
                // Some files have projections here that the model does not use.
                for name in ["attn_k.weight", "attn_v.weight"] {
                    let _ = b.tensors.claim(&at(name));
                }
                source
            }
            KvSource::Own | KvSource::Kept => layer,
        };
        if let Some((_, k, v)) = joined(b, source)? {
            (q, k, v)
        } else {
            let of = |name: &str| format!("blk.{source}.{name}");
            let k = b.tensors.need_matrix(&of("attn_k"), k_rows, n_embd)?;
            // Values may be the keys before their norm and rotation; such models also norm their values.
            let is_shared = b.features.attention.v_norm && !b.tensors.has(&of("attn_v.weight"));
            let v = if is_shared && k_rows == v_rows {
                k.clone()
            } else {
                b.tensors.need_matrix(&of("attn_v"), v_rows, n_embd)?
            };
            (q, k, v)
        }
    };
    let out = b.tensors.need_matrix(&at("attn_output"), n_embd, out_cols)?;
    Ok(Projections { q, k, v, out })
}

fn qk_norms(b: &mut Resolver<'_>, layer: usize, heads: HeadShape, rope: Option<usize>) -> Result<HeadNorms> {
    match b.features.attention.qk_norm {
        QkNorm::FreeAfterRope => {
            let norm = Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: b.eps };
            // The larger of two models has no such norms; only the number of experts distinguishes them.
            let n_experts = b.keys.count("expert_count")?.unwrap_or(0);
            let without =
                b.features.attention.qk_norm_not_at_experts.iter().any(|&n| n as usize == n_experts);
            let norm = rope.filter(|_| !without).map(|_| HeadNorm { norm, span: HeadSpan::Head });
            Ok(HeadNorms { q: norm.clone(), k: norm })
        }
        QkNorm::ScaledAfterRope => {
            let free = Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: b.eps };
            let name = format!("blk.{layer}.attn_q_norm.weight");
            let factors = b.need_vector(&name, heads.n_heads)?;
            let q = Norm { weight: Some(factors), ..free.clone() };
            Ok(HeadNorms {
                q: Some(HeadNorm { norm: q, span: HeadSpan::HeadFactor }),
                k: Some(HeadNorm { norm: free, span: HeadSpan::Head }),
            })
        }
        QkNorm::BeforeRope | QkNorm::AfterRope => Ok(HeadNorms {
            q: HeadNorm::resolve(b, &format!("blk.{layer}.attn_q_norm"), heads.n_heads, heads.dk)?,
            k: HeadNorm::resolve(b, &format!("blk.{layer}.attn_k_norm"), heads.n_kv_heads, heads.dk)?,
        }),
    }
}

impl HeadNorm {
    /// Resolves the norm of q or k; the shape of its weight decides what it spans.
    pub(crate) fn resolve(
        b: &mut Resolver<'_>,
        name: &str,
        n_heads: usize,
        dk: usize,
    ) -> Result<Option<HeadNorm>> {
        let weight = format!("{name}.weight");
        let Some(shape) = b.tensors.shape(&weight) else { return Ok(None) };
        let dims = shape.dims();
        let (len, span) = if dims.len() == 2 && dims[0] as usize == n_heads && n_heads > 1 {
            (n_heads * dk, HeadSpan::HeadRows)
        } else if shape.n_elems() == dk as u64 {
            (dk, HeadSpan::Head)
        } else {
            (n_heads * dk, HeadSpan::Projection)
        };
        let eps = b.features.attention.qk_norm_eps.map_or(b.eps, |eps| eps as f32);
        let norm = b.tensors.norm(name, len, b.built.qk_norm, eps)?;
        Ok(norm.map(|norm| HeadNorm { norm, span }))
    }
}

/// Returns the factor of the scores: the key `attention.scale`, else the card's rule.
pub(crate) fn attention_scale(b: &Resolver<'_>, heads: HeadShape, rope: Option<usize>) -> Result<f64> {
    if let Some(scale) = b.keys.number("attention.scale")?.filter(|&s| s > 0.0) {
        return Ok(scale);
    }
    let HeadShape { n_heads, dk, dv, .. } = heads;
    let rsqrt = |n: usize| 1.0 / (n as f64).sqrt();
    Ok(match &b.features.attention.scale {
        AttnScale::Dk => rsqrt(dk),
        AttnScale::Dv => rsqrt(dv),
        AttnScale::InvDk => 1.0 / dk as f64,
        AttnScale::One => 1.0,
        AttnScale::OutputScale => {
            let scale = b.keys.nonzero("attention.output_scale")?;
            scale.ok_or_else(|| b.keys.missing("attention.output_scale"))?
        }
        AttnScale::Rot => rsqrt(rope.and_then(|at| b.ropes.get(at)).map_or(dk, |rope| rope.n_dims)),
        AttnScale::EmbdOverHeadsAt(depths) => {
            if depths.iter().any(|&depth| depth as usize == b.n_layers) {
                (b.n_embd as f64 / n_heads as f64).powf(-0.5)
            } else {
                rsqrt(dk)
            }
        }
    })
}

impl Temperature {
    /// Resolves the factor of queries by position: by the card's rule, else by the file's keys.
    pub(crate) fn resolve(b: &Resolver<'_>, rope: Option<usize>) -> Result<Option<Temperature>> {
        if let Some(rule) = b.features.attention.temperature {
            let growth = b.keys.number("attention.temperature_scale")?.unwrap_or(rule.growth);
            let length = b.keys.count("attention.temperature_length")?.unwrap_or(rule.length as usize);
            let is_on = rope.is_none() && growth != 0.0;
            return Ok(is_on.then_some(Temperature { growth, length: length.max(1), first: 1 }));
        }
        let Some(growth) = b.keys.nonzero("attention.temperature_scale")? else { return Ok(None) };
        let length = match b.keys.count("attention.temperature_length")? {
            Some(n) => Some(n),
            None => b.keys.count("rope.scaling.original_context_length")?,
        };
        let length = length.filter(|&n| n > 0);
        let length = length.ok_or_else(|| b.keys.missing("attention.temperature_length"))?;
        Ok(Some(Temperature { growth, length, first: 0 }))
    }
}

/// Largest penalty of ALiBi per position of distance, as an exponent of 1/2 (Press et al. 2022), if the file has no key.
const MAX_ALIBI_BIAS: f64 = 8.0;

/// Returns the slopes of ALiBi, if the model has it.
pub(crate) fn alibi(b: &Resolver<'_>, n_heads: usize) -> Result<Option<Vec<f32>>> {
    let bias = match b.built.positions {
        Positions::Alibi => b.keys.nonzero("attention.max_alibi_bias")?.unwrap_or(MAX_ALIBI_BIAS),
        Positions::AlibiKey => match b.keys.nonzero("attention.max_alibi_bias")? {
            Some(bias) => bias,
            None => return Ok(None),
        },
        Positions::ByDepth if is_large(b.n_layers) => MAX_ALIBI_BIAS,
        Positions::ByDepth
        | Positions::None
        | Positions::Rope
        | Positions::Rope2d
        | Positions::Learned
        | Positions::Relative => return Ok(None),
    };
    Ok(Some(alibi_slopes(n_heads, bias)))
}

/// Returns the slopes of ALiBi (Press et al. 2022), also for head counts that are not powers of two.
pub(crate) fn alibi_slopes(n_heads: usize, max_bias: f64) -> Vec<f32> {
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

impl KvSource {
    /// Resolves the source of a layer's keys and values. The last layers of some models use those of the last earlier
    /// layer with the same mask.
    pub(crate) fn resolve(b: &Resolver<'_>, layer: usize, mask: Mask) -> Result<KvSource> {
        if !b.features.attention.kv_share {
            return Ok(KvSource::Own);
        }
        let key = "attention.shared_kv_layers";
        let n_shared = b.keys.count(key)?.unwrap_or(0);
        let first = b.n_layers.checked_sub(n_shared).filter(|&first| first > 0);
        let first = first
            .ok_or_else(|| b.keys.unknown(key, "fewer layers than the model has", &n_shared.to_string()))?;
        if layer < first {
            return Ok(KvSource::Own);
        }
        for earlier in (0..first).rev() {
            if b.mask(earlier)? == mask {
                return Ok(KvSource::From(earlier));
            }
        }
        Err(b.keys.unknown(key, "an earlier layer of the same kind for each", &n_shared.to_string()))
    }
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
