//! The `norms` of a graph: names of a layer's norms, and their epsilons.

use serde::Deserialize;

/// Norms of the layers and of the end, by the names of their tensors.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NormsFeatures {
    /// Keys of the norm's epsilon; the first present one is read. Empty: the keys that `norm` implies.
    pub eps: Vec<String>,
    /// Epsilon of the norms after the branches, if it differs from that of the other norms.
    pub post_eps: Option<f64>,
    pub pre_ffn: String,
    pub post_attn: String,
    pub post_ffn: String,
    /// Norm after the last layer.
    pub output: String,
}

impl Default for NormsFeatures {
    fn default() -> Self {
        Self {
            eps: Vec::new(),
            post_eps: None,
            pre_ffn: "ffn_norm".to_owned(),
            post_attn: "post_attention_norm".to_owned(),
            post_ffn: "post_ffw_norm".to_owned(),
            output: "output_norm".to_owned(),
        }
    }
}
