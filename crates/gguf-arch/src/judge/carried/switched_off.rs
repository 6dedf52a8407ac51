//! Parts that a configuration switches off although the checkpoint has their tensors. The file contains them, and a
//! runtime uses them, whereas transformers ignores them.

use crate::judge::carried::CarriedCheck;
use crate::mapping::{OutputSpec, TensorContent};

/// Attributes, and endings of the names of the GGUF tensors that they enable.
const SWITCHES: &[(&[&str], &[&str])] = &[
    (
        &["attention_bias", "qkv_bias", "use_qkv_bias"],
        &["attn_qkv.bias", "attn_q.bias", "attn_k.bias", "attn_v.bias"],
    ),
    (&["enable_moe_block"], &["ffn_down_exps.weight"]),
    (&["lm_head_bias"], &["output.bias"]),
    (&["mamba_conv_bias", "use_conv_bias"], &["ssm_conv1d.bias"]),
    (&["mlp_bias"], &["ffn_up.bias", "ffn_down.bias"]),
    (&["qk_layernorm", "use_qk_norm"], &["attn_q_norm.weight"]),
    (&["use_bias"], &["attn_qkv.bias", "attn_q.bias", "ffn_up.bias"]),
    (&["use_expert_bias"], &["exp_probs_b.bias"]),
];

impl CarriedCheck<'_, '_> {
    pub(super) fn switched_off(&mut self, outputs: &[OutputSpec]) {
        for (names, parts) in SWITCHES {
            // Zeros that the card adds change nothing.
            let is_part = |output: &OutputSpec| {
                !matches!(output.content, TensorContent::Fill { .. })
                    && parts.iter().any(|part| {
                        output.name.rsplit_once(part).is_some_and(|(head, _)| head.ends_with('.'))
                    })
            };
            if !outputs.iter().any(is_part) {
                continue;
            }
            for name in *names {
                let is_known = self.attributes.is_some_and(|known| known.default_of(name).is_some());
                if is_known && self.effective(name).is_some_and(|value| value == false) {
                    self.lose_anyway(name, false.into(), true.into());
                }
            }
        }
        self.values_of_keys(outputs);
    }

    /// Checks layers with full attention that use their keys as values although the checkpoint has values of their own.
    fn values_of_keys(&mut self, outputs: &[OutputSpec]) {
        const NAME: &str = "attention_k_eq_v";
        let is_on = self.given(NAME).is_some_and(|value| *value == true);
        let Some(layer_types) = self.effective("layer_types").filter(|_| is_on) else { return };
        let has_values =
            |layer: usize| outputs.iter().any(|output| output.name == format!("blk.{layer}.attn_v.weight"));
        let mut layers = layer_types.as_array().into_iter().flatten().enumerate();
        if layers.any(|(layer, kind)| kind == "full_attention" && has_values(layer)) {
            self.lose_anyway(NAME, true.into(), false.into());
        }
    }
}
