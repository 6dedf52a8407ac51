//! Builds Kimi delta attention and lightning attention.

use crate::engine::EngineError;
use crate::engine::build::attention::alibi_slopes;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{Kda, Lightning, LowRank};

impl Builder<'_> {
    /// Heads of a layer that has no key-value heads.
    fn state_heads(&self, layer: usize) -> Result<usize, EngineError> {
        let key = "attention.head_count";
        let found = self.keys.layer_count(key, layer)?.filter(|&n| n > 0);
        found.ok_or_else(|| self.keys.missing(key))
    }

    /// A gate of one matrix, or of two with few values between.
    fn gate(&mut self, first: &str, second: &str, width: usize, rank: usize) -> Result<LowRank, EngineError> {
        let n_embd = self.n_embd;
        let second = self.tensors.matrix(second, width, rank)?;
        let n_rows = if second.is_some() { rank } else { width };
        Ok(LowRank { first: self.tensors.need_matrix(first, n_rows, n_embd)?, second })
    }

    pub(super) fn kda(&mut self, layer: usize) -> Result<Kda, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let n_heads = self.state_heads(layer)?;
        let head_dim = self.keys.need_count("kda.head_dim")?;
        let n_taps = self.keys.need_count("ssm.conv_kernel")?;
        let inner = n_heads.saturating_mul(head_dim);
        let [q, k, v] = if self.tensors.has(&at("attn_qkv.weight")) {
            self.cut(&at("attn_qkv"), [inner; 3], n_embd)?
        } else {
            let mut matrix = |name| self.tensors.need_matrix(&at(name), inner, n_embd);
            [matrix("attn_q")?, matrix("attn_k")?, matrix("attn_v")?]
        };
        let mut conv = |name| self.conv(&at(name), inner, n_taps);
        let convs = [conv("ssm_conv1d_q")?, conv("ssm_conv1d_k")?, conv("ssm_conv1d_v")?];
        // A file that names a bound says beside it that the gate is the bounded one.
        if self.keys.flag("kda.safe_gate")? == Some(false) {
            return Err(self.keys.unknown("kda.safe_gate", "true", "false"));
        }
        let gate = if self.tensors.has(&at("ssm_g.weight")) { "ssm_g" } else { "ssm_g_a" };
        let norm = self.norm_of(&at("ssm_norm"), head_dim)?;
        Ok(Kda {
            q,
            k,
            v,
            convs,
            forget: self.gate(&at("ssm_f_a"), &at("ssm_f_b"), inner, head_dim)?,
            forget_bias: self.need_vector(&at("ssm_dt.bias"), inner)?,
            a: self.need_vector(&at("ssm_a"), n_heads)?,
            bound: self.keys.nonzero("kda.gate_lower_bound")?.map(|bound| bound as f32),
            beta: self.tensors.need_matrix(&at("ssm_beta"), n_heads, n_embd)?,
            gate: self.gate(&at(gate), &at("ssm_g_b"), inner, head_dim)?,
            norm: norm.ok_or_else(|| EngineError::MissingTensor { tensor: at("ssm_norm.weight") })?,
            out: self.tensors.need_matrix(&at("attn_output"), n_embd, inner)?,
            n_heads,
            head_dim,
        })
    }

    pub(super) fn lightning(&mut self, layer: usize) -> Result<Lightning, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let n_heads = self.state_heads(layer)?;
        let key = self.keys.count("attention.key_length")?.filter(|&n| n > 0);
        let head_dim = key.unwrap_or(n_embd / n_heads);
        let inner = n_heads.saturating_mul(head_dim);
        // Heads forget less the deeper their layer is.
        let depth = layer as f64 / (self.n_layers as f64 - 1.0).max(1.0);
        let factor = (1.0 - depth + 1e-5) as f32;
        let norm = self.norm_of(&at("attn_norm_2"), inner)?;
        Ok(Lightning {
            qkv: self.tensors.need_matrix(&at("attn_qkv"), inner.saturating_mul(3), n_embd)?,
            gate: self.tensors.need_matrix(&at("attn_gate"), inner, n_embd)?,
            norm: norm.ok_or_else(|| EngineError::MissingTensor { tensor: at("attn_norm_2.weight") })?,
            out: self.tensors.need_matrix(&at("attn_output"), n_embd, inner)?,
            n_heads,
            head_dim,
            slopes: alibi_slopes(n_heads, 8.0).into_iter().map(|slope| slope * factor).collect(),
        })
    }
}
