//! Builds the mixers of Mamba and Mamba 2.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{Mamba, Mamba2, Norm, NormFormula};

/// Under the root of Mamba's norms without weights, of which no key tells (Falcon Mamba's `mixer_rms_eps`).
const FREE_NORM_EPS: f32 = 1e-6;

/// What all mixers with a state per value read.
pub(super) struct StateSizes {
    /// Values that have a state.
    pub(super) inner: usize,
    /// Values of a state.
    pub(super) n_states: usize,
    /// Tokens that the convolution before the scan sees.
    pub(super) n_taps: usize,
}

impl Builder<'_> {
    pub(super) fn state_sizes(&self) -> Result<StateSizes, EngineError> {
        Ok(StateSizes {
            inner: self.keys.need_count("ssm.inner_size")?,
            n_states: self.keys.need_count("ssm.state_size")?,
            n_taps: self.keys.need_count("ssm.conv_kernel")?,
        })
    }

    pub(super) fn mamba(&mut self, layer: usize) -> Result<Mamba, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let StateSizes { inner, n_states, n_taps } = self.state_sizes()?;
        let rank = self.keys.need_count("ssm.time_step_rank")?;
        let [x, z] = self.cut(&at("ssm_in"), [inner, inner], n_embd)?;
        let [step_in, b, c] = self.cut(&at("ssm_x"), [rank, n_states, n_states], inner)?;
        let is_normed = self.keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false);
        let free = Norm { formula: NormFormula::Rms, weight: None, bias: None, eps: FREE_NORM_EPS };
        let mut norm = |name: &str, len: usize| -> Result<Option<Norm>, EngineError> {
            Ok(self.norm_of(&at(name), len)?.or_else(|| is_normed.then(|| free.clone())))
        };
        let (step_norm, b_norm, c_norm) =
            (norm("ssm_dt_norm", rank)?, norm("ssm_b_norm", n_states)?, norm("ssm_c_norm", n_states)?);
        Ok(Mamba {
            x,
            z,
            conv: self.conv(&at("ssm_conv1d"), inner, n_taps)?,
            step_in,
            b,
            c,
            step_norm,
            b_norm,
            c_norm,
            step: self.tensors.need_matrix(&at("ssm_dt"), inner, rank)?,
            a: self.need_vector(&at("ssm_a"), inner.saturating_mul(n_states))?,
            d: self.need_vector(&at("ssm_d"), inner)?,
            out: self.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            n_states,
        })
    }

    pub(super) fn mamba2(&mut self, layer: usize) -> Result<Mamba2, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let StateSizes { inner, n_states, n_taps } = self.state_sizes()?;
        // The key of Mamba's rank holds the number of heads.
        let n_heads = self.divisor("ssm.time_step_rank", inner)?;
        let n_groups = self.divisor("ssm.group_count", n_heads)?;
        let width = n_groups.saturating_mul(n_states).saturating_mul(2).saturating_add(inner);
        let [z, xbc, step] = self.cut(&at("ssm_in"), [inner, width, n_heads], n_embd)?;
        Ok(Mamba2 {
            z,
            xbc,
            step,
            conv: self.conv(&at("ssm_conv1d"), width, n_taps)?,
            step_bias: self.need_vector(&at("ssm_dt.bias"), n_heads)?,
            step_min: self.keys.number("ssm.time_step_min")?.unwrap_or(0.0) as f32,
            a: self.need_vector(&at("ssm_a"), n_heads)?,
            d: self.need_vector(&at("ssm_d"), n_heads)?,
            norm: self.norm_of(&at("ssm_norm"), inner)?,
            out: self.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            n_heads,
            head_dim: inner / n_heads,
            n_groups,
            n_states,
        })
    }
}
