//! Builds gated delta nets.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{DeltaGates, DeltaNet};

impl Builder<'_> {
    pub(super) fn delta_net(&mut self, layer: usize) -> Result<DeltaNet, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let inner = self.keys.need_count("ssm.inner_size")?;
        let dk = self.keys.need_count("ssm.state_size")?;
        let n_taps = self.keys.need_count("ssm.conv_kernel")?;
        let n_heads = self.divisor("ssm.time_step_rank", inner)?;
        let n_key_heads = self.divisor("ssm.group_count", n_heads)?;
        let dv = inner / n_heads;
        let width = n_key_heads.saturating_mul(dk).saturating_mul(2).saturating_add(inner);
        let packed = self.tensors.matrix(&at("ssm_ba"), n_heads.saturating_mul(2), n_embd)?;
        let gates = match packed {
            Some(matrix) => DeltaGates::Packed(matrix),
            None => DeltaGates::Apart {
                beta: self.tensors.need_matrix(&at("ssm_beta"), n_heads, n_embd)?,
                alpha: self.tensors.need_matrix(&at("ssm_alpha"), n_heads, n_embd)?,
            },
        };
        let norm = self.norm_of(&at("ssm_norm"), dv)?;
        Ok(DeltaNet {
            qkv: self.tensors.need_matrix(&at("attn_qkv"), width, n_embd)?,
            conv: self.conv(&at("ssm_conv1d"), width, n_taps)?,
            z: self.tensors.need_matrix(&at("attn_gate"), inner, n_embd)?,
            gates,
            step_bias: self.need_vector(&at("ssm_dt.bias"), n_heads)?,
            a: self.need_vector(&at("ssm_a"), n_heads)?,
            norm: norm.ok_or_else(|| EngineError::MissingTensor { tensor: at("ssm_norm.weight") })?,
            out: self.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            gate: self.features.gdn_gate,
            n_heads,
            n_key_heads,
            dk,
            dv,
        })
    }
}
