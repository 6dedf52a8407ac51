//! Dense feed-forward network: `down(act(up x))`, or `down(act(gate x) * up x)` with a gate.

mod gradient;

use rayon::prelude::*;

use crate::Result;
use crate::exec::activation::{Activation, GatedActivation};
use crate::exec::context::Context;
use crate::exec::math;
use crate::exec::product::Product;
use crate::exec::timings::WorkKind;
use crate::exec::weights::{Matrix, Norm};
use crate::exec::workers::Tasks;
use crate::resolve::activation::{FfnPart, LayerActivation};
use crate::resolve::resolver::Resolver;
use gguf_core::simd::SimdLevel;

/// Inputs of a feed-forward network, `[n_tokens, n_embd]` each.
#[derive(Clone, Copy)]
pub(crate) struct FfnInputs<'a> {
    /// The stream after the norm before the feed-forward.
    pub(crate) input: &'a [f32],
    /// The stream before the feed-forward.
    pub(crate) stream: &'a [f32],
    /// The stream before the layer; empty unless the layer needs it.
    pub(crate) entry: &'a [f32],
}

/// Dense feed-forward network: `down(act(gate x, up x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// Activation, with the gate if there is one.
    pub act: Activation,
    /// Up projection.
    pub up: Matrix,
    /// Down projection.
    pub down: Matrix,
    /// Norm before the down projection.
    pub(crate) sub_norm: Option<Norm>,
    /// Activation sparsity: only what exceeds the mean of a gate's row by this many standard deviations is kept.
    pub(crate) sparsity: Option<f32>,
}

impl Dense {
    /// Computes `down(norm(act(gate x) * up x))`, or `down(norm(act(up x)))`; most models have no norm there.
    pub(crate) fn run(&self, cx: &Context<'_>, x: &[f32], n_tokens: usize, out: &mut [f32]) -> Result<()> {
        let mut inner = cx.take(n_tokens * self.up.n_rows);
        match (self.sparsity, &self.act) {
            (Some(deviations), Activation::Gated { act, gate }) => {
                let gate = SparseGate { act: *act, matrix: gate, deviations };
                gate.run(cx, &self.up, x, n_tokens, &mut inner)?;
            }
            _ => {
                let product = Product { weight: &self.up, act: Some(&self.act), out: &mut inner };
                cx.products(x, n_tokens, vec![product])?;
            }
        }
        cx.norm_in_place(self.sub_norm.as_ref(), &mut inner, self.up.n_rows)?;
        cx.products(&inner, n_tokens, vec![Product::plain(&self.down, out)])?;
        cx.give([inner]);
        Ok(())
    }
}

/// Gate of which only the values far above the mean of their row are kept.
struct SparseGate<'a> {
    act: GatedActivation,
    matrix: &'a Matrix,
    /// Distance from the mean, in standard deviations.
    deviations: f32,
}

impl SparseGate<'_> {
    /// Computes `act(top(gate x)) * up x` into `inner`.
    fn run(
        &self,
        cx: &Context<'_>,
        up: &Matrix,
        x: &[f32],
        n_tokens: usize,
        inner: &mut [f32],
    ) -> Result<()> {
        let (level, width) = (cx.weights.level, up.n_rows);
        let mut gates = cx.take(n_tokens * width);
        let products = vec![Product::plain(up, inner), Product::plain(self.matrix, &mut gates)];
        cx.products(x, n_tokens, products)?;
        cx.workers.install(|| {
            inner.par_chunks_mut(width).zip(gates.par_chunks_mut(width)).run(&|(inner, gate)| {
                cx.clock.time(WorkKind::Activation, || {
                    gaussian_top(level, gate, self.deviations);
                    math::gated(level, self.act, gate, inner);
                });
            });
        });
        cx.give([gates]);
        Ok(())
    }
}

/// Computes `x = max(x - (mean + deviations std), 0)` with the row's own population standard deviation (Gemma 3n,
/// `_gaussian_topk`).
fn gaussian_top(level: SimdLevel, x: &mut [f32], deviations: f32) {
    let n = x.len() as f64;
    let mean = math::moments(level, x, 0.0).0 / n;
    let std = (math::moments(level, x, mean).1 / n).sqrt();
    let cut = (mean + std * f64::from(deviations)) as f32;
    for x in x.iter_mut() {
        *x = (*x - cut).max(0.0);
    }
}

/// Names of the tensors of a dense feed-forward network, and its width if a key declares it.
pub(crate) struct DenseNames {
    pub(crate) gate: String,
    pub(crate) up: String,
    pub(crate) down: String,
    pub(crate) width: Option<usize>,
}

impl Dense {
    /// Resolves the dense feed-forward network with these tensors.
    pub(crate) fn resolve(b: &mut Resolver<'_>, layer: usize, names: &DenseNames) -> Result<Dense> {
        let n_embd = b.n_embd;
        let cols = b.n_cols(&names.down)?;
        // T5: gated GELU if there is a gate, the card's activation if not.
        let is_gated = b.features.ffn_gated_if_present && b.tensors.has(&format!("{}.weight", names.gate));
        let kind = if is_gated {
            LayerActivation::Gated(GatedActivation::GegluTanh)
        } else {
            b.activation(layer, FfnPart::Dense)?
        };
        // The width of shared experts has no key in some files, and the key of Qwen 1 counts gate and up together. The
        // tensor decides, and the key must agree.
        let width = match names.width {
            None => cols,
            Some(both) if matches!(kind, LayerActivation::Gated(_)) && cols.checked_mul(2) == Some(both) => {
                cols
            }
            Some(width) => width,
        };
        let (act, up) = match kind {
            LayerActivation::Plain(act) => {
                (Activation::Plain(act), b.tensors.need_matrix(&names.up, width, n_embd)?)
            }
            LayerActivation::Gated(act) => {
                let (gate, up) = match b.tensors.matrix(&names.gate, width, n_embd)? {
                    Some(gate) => (gate, b.tensors.need_matrix(&names.up, width, n_embd)?),
                    None => {
                        let n_rows = width.saturating_mul(2);
                        let both = b.tensors.need_matrix(&names.up, n_rows, n_embd)?;
                        (both.rows(0, width), both.rows(width, width))
                    }
                };
                (Activation::Gated { act, gate }, up)
            }
        };
        let down = b.tensors.need_matrix(&names.down, n_embd, width)?;
        let (formula, eps) = (b.formula(), b.eps);
        let sub_norm = b.tensors.norm(&format!("blk.{layer}.ffn_sub_norm"), width, formula, eps)?;
        // A scale that is not finite means that the layer keeps its whole gate.
        let sparsity = b.keys.layer_number("activation_sparsity_scale", layer)?;
        let sparsity = sparsity.filter(|scale| scale.is_finite()).map(|scale| scale as f32);
        Ok(Dense { act, up, down, sub_norm, sparsity })
    }

    /// Resolves the experts whose tensor names end in `ending`, in order, with rows of `n_embd`.
    pub(crate) fn experts(
        b: &mut Resolver<'_>,
        layer: usize,
        ending: &str,
        n_experts: usize,
        n_embd: usize,
    ) -> Result<Vec<Dense>> {
        let at = |name: &str| format!("blk.{layer}.{name}_{ending}");
        let width = b.n_cols(&at("ffn_down"))?;
        let down = b.tensors.experts(&at("ffn_down"), n_experts, n_embd, width)?;
        let fused = b.tensors.has(&format!("{}.weight", at("ffn_gate_up")));
        let inner: Vec<_> = match b.activation(layer, FfnPart::Experts)? {
            LayerActivation::Plain(act) => {
                let up = b.tensors.experts(&at("ffn_up"), n_experts, width, n_embd)?;
                up.into_iter().map(|up| (Activation::Plain(act), up)).collect()
            }
            LayerActivation::Gated(act) if fused => {
                let n_rows = width.saturating_mul(2);
                let both = b.tensors.experts(&at("ffn_gate_up"), n_experts, n_rows, n_embd)?;
                let halves = both.iter().map(|m| (m.rows(0, width), m.rows(width, width)));
                halves.map(|(gate, up)| (Activation::Gated { act, gate }, up)).collect()
            }
            LayerActivation::Gated(act) => {
                let up = b.tensors.experts(&at("ffn_up"), n_experts, width, n_embd)?;
                let gate = b.tensors.experts(&at("ffn_gate"), n_experts, width, n_embd)?;
                gate.into_iter().zip(up).map(|(gate, up)| (Activation::Gated { act, gate }, up)).collect()
            }
        };
        Ok(inner
            .into_iter()
            .zip(down)
            .map(|((act, up), down)| Dense { act, up, down, sub_norm: None, sparsity: None })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_far_above_the_mean_is_left() {
        let row = [0.0f32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 1.0];
        // The mean is 0.4 and the mean of squares 1.0, so the variance is 0.84.
        let mut x = row;
        gaussian_top(SimdLevel::detect(), &mut x, 1.5);
        let cut = 0.4 + 1.5 * 0.84f32.sqrt();
        for (x, from) in x.iter().zip(row) {
            assert!((x - (from - cut).max(0.0)).abs() < 1e-6, "{x} {from}");
        }
        assert_eq!(x.iter().filter(|&&x| x > 0.0).count(), 1);
    }
}
