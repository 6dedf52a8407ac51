//! Features of a card, narrowed to those that the engine implements: each key of the vocabulary is resolved here, read
//! unchanged while other parts are resolved, or refused by name.

use std::fmt::Debug;

use crate::exec::activation::{GatedActivation, PlainActivation};
use crate::exec::mask::Mask;
use crate::exec::weights::NormFormula;
use crate::{EngineError, Result};
use gguf_arch::graph::{
    AttentionFeatures, Extra, FfnKind, Gating, GraphFeatures, GraphKind, MaskKind, MoeFeatures, NormKind,
    Positions, ResidualRule, RouterInput, WindowFeatures, WindowKind,
};

/// Kind of a model's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Logits of the next token.
    Decoder,
    /// Vectors or scores of texts; there is no next token to predict. Tokens see one another, except in decoders that
    /// were trained to score texts.
    Encoder,
    /// Logits of masked tokens, which see all other tokens.
    Diffusion,
}

/// Function that turns the router's logits into probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatingFunction {
    /// Softmax over all experts.
    Softmax,
    /// Logistic function of each logit.
    Sigmoid,
    /// Selection by logits, then a softmax over the selected experts.
    SoftmaxWeight,
    /// Sparsemixer: two experts, each weighted among the experts with logits near its own (Liu et al. 2023).
    Sparsemixer,
    /// Root of `ln(1 + e^l)`.
    SqrtSoftplus,
}

/// Activation, before its tensors are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ActivationKind {
    /// Activation of the up projection alone.
    Plain(PlainActivation),
    /// Activation of a gate, times the up projection.
    Gated(GatedActivation),
    /// xIELU with the layer's parameters.
    Xielu,
    /// SiTU with the model's parameters.
    Situ,
}

/// Constructor of a window's mask from its size.
pub(crate) type WindowMask = fn(usize) -> Mask;

/// Features for which the vocabulary has more values than the engine implements.
pub(crate) struct BuiltFeatures {
    pub(crate) kind: ModelKind,
    pub(crate) wiring: ResidualRule,
    pub(crate) positions: Positions,
    /// Later keys that a query sees.
    pub(crate) sight: MaskKind,
    /// Mask of a windowed layer, by the size of the window.
    pub(crate) window: Option<WindowMask>,
    pub(crate) qk_norm: NormFormula,
    pub(crate) ffn: ActivationKind,
    pub(crate) experts: ActivationKind,
    /// Gating function if the file does not declare one.
    pub(crate) gating: GatingFunction,
}

/// Architecture of a card, named in refusals.
struct CardArch<'a> {
    arch: &'a str,
}

impl CardArch<'_> {
    fn unbuilt<T>(&self, feature: &'static str, value: &dyn Debug) -> Result<T> {
        let (arch, value) = (self.arch.to_owned(), spelled(value));
        Err(EngineError::Unsupported { arch, feature, value })
    }

    fn activation(kind: FfnKind) -> ActivationKind {
        use ActivationKind::{Gated, Plain};
        match kind {
            FfnKind::Swiglu => Gated(GatedActivation::Swiglu),
            FfnKind::GegluTanh => Gated(GatedActivation::GegluTanh),
            FfnKind::GegluErf => Gated(GatedActivation::GegluErf),
            FfnKind::Reglu => Gated(GatedActivation::Reglu),
            FfnKind::SwigluOai => Gated(GatedActivation::SwigluOai),
            FfnKind::GeluTanh => Plain(PlainActivation::GeluTanh),
            FfnKind::GeluErf => Plain(PlainActivation::GeluErf),
            FfnKind::Relu => Plain(PlainActivation::Relu),
            FfnKind::Relu2 => Plain(PlainActivation::Relu2),
            FfnKind::Xielu => ActivationKind::Xielu,
            FfnKind::Situ => ActivationKind::Situ,
        }
    }

    fn window(window: WindowKind) -> Option<WindowMask> {
        match window {
            WindowKind::None => None,
            WindowKind::Sliding => Some(Mask::Window),
            WindowKind::Chunked => Some(Mask::Chunked),
            WindowKind::Symmetric => Some(Mask::Symmetric),
        }
    }
}

impl BuiltFeatures {
    /// Applies the file's declaration whether tokens see only earlier ones. A decoder declared not causal is an
    /// encoder.
    pub(crate) fn see(&mut self, is_causal: Option<bool>) {
        self.sight = match (self.sight, is_causal) {
            (MaskKind::Causal, Some(false)) => MaskKind::Full,
            (MaskKind::Full, Some(true)) => MaskKind::Causal,
            (sight, _) => sight,
        };
        if self.kind == ModelKind::Decoder && self.sight == MaskKind::Full {
            self.kind = ModelKind::Encoder;
        }
    }

    /// Narrows the features of architecture `arch`.
    ///
    /// # Errors
    /// [`EngineError::NoGraph`] for a card that describes no graph, [`EngineError::Unsupported`] for the first feature
    /// that is not implemented.
    pub(crate) fn of(arch: &str, features: &GraphFeatures) -> Result<Self> {
        let card = CardArch { arch };
        // Without `..`: a new key must be added to one of the two groups.
        #[rustfmt::skip]
        let GraphFeatures {
            kind, residual, positions, ffn, extras,
            window: WindowFeatures {
                kind: window, pattern: _, size: _, rope: _, rope_base: _, global_rope: _
            },
            attention: AttentionFeatures {
                mask, qk_norm_kind, scale: _, cap: _, qk_norm: _, qk_norm_eps: _, qk_norm_not_at_experts: _,
                temperature: _, v_norm: _, gated_q: _, kv_share: _, gate: _,
            },
            moe: MoeFeatures {
                gating, router_input, act: experts_act, norm_topk: _, select: _, group_score: _, group_fill: _,
                weigh: _, shared: _,
            },
            // Every value of these is implemented.
            norm: _, norms: _, embed_norm: _, embed_scale: _, residual_scale: _, rope: _, mixer: _,
            ffn_gated_if_present: _, ffn_limit: _, head: _, unused: _,
        } = features;
        let kind = match kind {
            GraphKind::Encoder => ModelKind::Encoder,
            GraphKind::Diffusion => ModelKind::Diffusion,
            GraphKind::Decoder | GraphKind::Encdec => ModelKind::Decoder,
            GraphKind::None(reason) => {
                return Err(EngineError::NoGraph { arch: arch.to_owned(), reason: reason.clone() });
            }
        };
        let has = |extra| extras.contains(&extra);
        // AltUp streams are implemented for layers of two serial branches, followed by layer embeddings only.
        let is_alone =
            !(has(Extra::OutScale) || has(Extra::StartScale) || has(Extra::Loops) || has(Extra::Cycles));
        if has(Extra::Altup) && !is_alone {
            return card.unbuilt("extras", extras);
        }
        if (has(Extra::Altup) || has(Extra::Laurel)) && *residual != ResidualRule::Serial {
            return card.unbuilt("residual", residual);
        }
        if *residual == ResidualRule::Hyper {
            if !extras.is_empty() {
                return card.unbuilt("extras with streams", extras);
            }
            // With hyper-connections the stream before the layer is more than one row.
            if *router_input == RouterInput::Raw {
                return card.unbuilt("moe.router_input with streams", router_input);
            }
        }
        Ok(Self {
            kind,
            wiring: *residual,
            positions: *positions,
            sight: *mask,
            window: CardArch::window(*window),
            qk_norm: match qk_norm_kind {
                NormKind::Rms => NormFormula::Rms,
                NormKind::Layer => NormFormula::Layer,
                NormKind::RmsFree | NormKind::LayerFree | NormKind::RmsByKey => {
                    return card.unbuilt("attention.qk_norm_kind", qk_norm_kind);
                }
            },
            ffn: CardArch::activation(*ffn),
            experts: CardArch::activation(experts_act.unwrap_or(*ffn)),
            gating: match gating {
                Gating::Softmax => GatingFunction::Softmax,
                Gating::Sigmoid => GatingFunction::Sigmoid,
                Gating::SoftmaxWeight => GatingFunction::SoftmaxWeight,
                Gating::Sparsemixer => GatingFunction::Sparsemixer,
            },
        })
    }
}

/// Returns a value as cards spell it: the words of a variant's name in lower case, joined by underscores.
fn spelled(value: &dyn Debug) -> String {
    let mut text = String::new();
    for letter in format!("{value:?}").chars() {
        if letter.is_uppercase() && text.ends_with(|before: char| before.is_alphanumeric()) {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(text: &str) -> Result<BuiltFeatures, String> {
        let features = GraphFeatures::from_toml(&text.parse().unwrap()).unwrap();
        BuiltFeatures::of("x", &features).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_built_is_refused_by_the_name_it_has_in_the_card() {
        for (text, expected) in [
            ("attention.qk_norm_kind = 'rms_free'", "attention.qk_norm_kind = rms_free"),
            ("residual = 'hyper'\nextras = ['loops']", "extras with streams = [loops]"),
        ] {
            let error = built(text).err().unwrap_or_default();
            assert_eq!(error, format!("card `x`: `{expected}` is not built yet"), "{text}");
        }
    }

    #[test]
    fn experts_have_the_activation_of_the_rest_unless_the_card_says_else() {
        let features = built("ffn = 'relu2'").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(features.experts, ActivationKind::Plain(PlainActivation::Relu2));
        let features = built("ffn = 'relu2'\nmoe.act = 'reglu'").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(features.experts, ActivationKind::Gated(GatedActivation::Reglu));
    }
}
