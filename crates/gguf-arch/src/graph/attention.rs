//! The `attention` of a graph: words of softmax attention, in every mixer that attends.

use serde::Deserialize;

use super::NormKind;

names! {
    /// Attention mask: the keys that a query sees.
    MaskKind { Causal, Full, Prefix }
    /// Position of the norm of q and k relative to the rotation.
    QkNorm { BeforeRope, AfterRope, FreeAfterRope, ScaledAfterRope }
    /// Gate on the attention output.
    AttnGate { None, Sigmoid, Softplus }
    /// Named values of a soft cap.
    CapName { Off, Key }
}

/// Soft cap: off, read from the file's key, or a default for the absent key.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Cap {
    /// By rule.
    Named(CapName),
    /// Default if the key is absent.
    Number(f64),
}

impl Default for Cap {
    fn default() -> Self {
        Self::Named(CapName::Off)
    }
}

/// Scale of the attention scores if `attention.scale` is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttnScale {
    /// `1/sqrt(dk)`.
    #[default]
    Dk,
    /// `1/sqrt(dv)`.
    Dv,
    /// `1/dk`.
    InvDk,
    /// 1.
    One,
    /// `1/sqrt(rotated dimensions)`.
    Rot,
    /// Value of the key `attention.output_scale`.
    OutputScale,
    /// `1/sqrt(D/H)` in models with one of these numbers of layers, else `dk`.
    EmbdOverHeadsAt(Vec<u32>),
}

/// Factor of the queries: `1 + growth ln(1 + floor((position + 1) / length))`, positions from 0. The keys
/// `attention.temperature_scale` and `attention.temperature_length` override the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemperatureRule {
    /// Increase of the factor per unit of the logarithm.
    pub growth: f64,
    /// Number of positions of a step.
    pub length: u32,
}

/// Softmax attention.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttentionFeatures {
    pub mask: MaskKind,
    pub scale: AttnScale,
    pub cap: Cap,
    pub qk_norm: QkNorm,
    pub qk_norm_kind: NormKind,
    /// Epsilon of `qk_norm`, if it differs from that of the other norms.
    pub qk_norm_eps: Option<f64>,
    /// Expert counts of the models that omit `qk_norm`.
    pub qk_norm_not_at_experts: Vec<u32>,
    /// Position-dependent factor of queries that are not rotated.
    pub temperature: Option<TemperatureRule>,
    pub v_norm: bool,
    pub gated_q: bool,
    pub kv_share: bool,
    pub gate: AttnGate,
}
