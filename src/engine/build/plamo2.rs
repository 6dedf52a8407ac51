//! Builds the state-space mixer of PLaMo 2.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::mamba::StateSizes;
use crate::engine::plan::{Norm, Plamo2};

impl Builder<'_> {
    pub(super) fn plamo2(&mut self, layer: usize) -> Result<Plamo2, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let n_embd = self.n_embd;
        let StateSizes { inner, n_states, n_taps } = self.state_sizes()?;
        // The key of Mamba's rank holds the number of heads; the rank has none.
        let n_heads = self.divisor("ssm.time_step_rank", inner)?;
        let rank = self.n_cols(&at("ssm_dt"))?;
        // All heads share one group, which files of this mixer count as none.
        if let Some(n) = self.keys.count("ssm.group_count")?.filter(|&n| n > 1) {
            return Err(self.keys.unknown("ssm.group_count", "0 or 1", &n.to_string()));
        }
        let [b, c, step_in] = self.cut(&at("ssm_x"), [n_states, n_states, rank], inner)?;
        let mut norm = |name: &str, len: usize| -> Result<Norm, EngineError> {
            let found = self.norm_of(&at(name), len)?;
            found.ok_or_else(|| EngineError::MissingTensor { tensor: at(name) })
        };
        let (b_norm, c_norm) = (norm("ssm_b_norm", n_states)?, norm("ssm_c_norm", n_states)?);
        let step_norm = norm("ssm_dt_norm", rank)?;
        Ok(Plamo2 {
            zx: self.tensors.need_matrix(&at("ssm_in"), inner.saturating_mul(2), n_embd)?,
            conv: self.conv(&at("ssm_conv1d"), inner, n_taps)?,
            b,
            c,
            step_in,
            b_norm,
            c_norm,
            step_norm,
            step: self.tensors.need_matrix(&at("ssm_dt"), n_heads, rank)?,
            a: self.need_vector(&at("ssm_a"), n_heads)?,
            d: self.need_vector(&at("ssm_d"), n_heads)?,
            out: self.tensors.need_matrix(&at("ssm_out"), n_embd, inner)?,
            n_heads,
            head_dim: inner / n_heads,
            n_states,
        })
    }
}
