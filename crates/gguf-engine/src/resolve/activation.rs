//! Resolution of a feed-forward network's activation and its parameters.

use crate::exec::activation::{GatedActivation, PlainActivation, Xielu};
use crate::resolve::features::ActivationKind;
use crate::resolve::resolver::Resolver;
use crate::{EngineError, Result};
use gguf_arch::graph::FfnLimit;

/// Feed-forward network of a layer that an activation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FfnPart {
    /// Dense, or shared experts.
    Dense,
    /// Routed experts.
    Experts,
}

/// Activation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LayerActivation {
    /// Activation of the up projection alone.
    Plain(PlainActivation),
    /// Activation of a gate, times the up projection.
    Gated(GatedActivation),
}

impl Resolver<'_> {
    /// Returns the activation of a layer's feed-forward network, with the layer's parameters.
    pub(crate) fn activation(&self, layer: usize, part: FfnPart) -> Result<LayerActivation> {
        let kind = match part {
            FfnPart::Dense => self.built.ffn,
            FfnPart::Experts => self.built.experts,
        };
        Ok(match kind {
            ActivationKind::Plain(act) => LayerActivation::Plain(act),
            ActivationKind::Gated(GatedActivation::Swiglu) => {
                LayerActivation::Gated(self.swiglu(layer, part)?)
            }
            ActivationKind::Gated(act) => LayerActivation::Gated(act),
            ActivationKind::Xielu => LayerActivation::Plain(PlainActivation::Xielu(self.xielu(layer)?)),
            ActivationKind::Situ => {
                let beta = self.keys.nonzero("activation.situ_beta")?;
                let beta = beta.ok_or_else(|| self.keys.missing("activation.situ_beta"))? as f32;
                let linear_beta = self.keys.number("activation.situ_linear_beta")?.unwrap_or(0.0) as f32;
                LayerActivation::Gated(GatedActivation::Situ { beta, linear_beta })
            }
        })
    }

    /// Returns SwiGLU of a layer, with the layer's limit if the card has one.
    pub(crate) fn swiglu(&self, layer: usize, part: FfnPart) -> Result<GatedActivation> {
        /// Limits up to this value mean no limit.
        const NONE: f64 = 1e-6;
        let key = match part {
            FfnPart::Dense => "swiglu_clamp_shexp",
            FfnPart::Experts => "swiglu_clamp_exp",
        };
        let limit = match self.features.ffn_limit {
            FfnLimit::None => None,
            FfnLimit::Before | FfnLimit::After => {
                self.keys.layer_number(key, layer)?.filter(|&limit| limit > NONE).map(|limit| limit as f32)
            }
        };
        Ok(match (limit, self.features.ffn_limit) {
            (None, _) | (_, FfnLimit::None) => GatedActivation::Swiglu,
            (Some(limit), FfnLimit::Before) => GatedActivation::SwigluLimitBefore(limit),
            (Some(limit), FfnLimit::After) => GatedActivation::SwigluLimitAfter(limit),
        })
    }

    /// Returns the parameters of a layer's xIELU. The file stores them as they are trained: the factors are made of
    /// their softplus.
    pub(crate) fn xielu(&self, layer: usize) -> Result<Xielu> {
        let number = |key| {
            let found = self.keys.global_layer_number(key, layer)?;
            found.ok_or_else(|| EngineError::MissingKey { key: key.to_owned() })
        };
        let softplus = |x: f64| if x > 20.0 { x } else { x.exp().ln_1p() };
        let beta = number("xielu.beta")?;
        Ok(Xielu {
            positive: softplus(number("xielu.alpha_p")?) as f32,
            negative: (beta + softplus(number("xielu.alpha_n")?)) as f32,
            beta: beta as f32,
            eps: number("xielu.eps")? as f32,
        })
    }
}
