//! Builds the experts that routed ones share.

use crate::arch::graph::Weigh;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::Adjugates;

impl Builder<'_> {
    /// The experts that the routed ones of a layer share, if it has such.
    pub(super) fn adjugates(
        &mut self,
        layer: usize,
        n_experts: usize,
    ) -> Result<Option<Adjugates>, EngineError> {
        // Weights that multiply inputs cannot be summed before the expert: then nothing uses the tensors.
        let is_after = self.features.weigh == Weigh::After;
        if !is_after || !self.tensors.has(&format!("blk.{layer}.ffn_up_chexps.weight")) {
            return Ok(None);
        }
        let per_group = self.keys.need_count("experts_per_group")?;
        if !n_experts.is_multiple_of(per_group) {
            let expected = "a divisor of expert_count";
            return Err(self.keys.unknown("experts_per_group", expected, &per_group.to_string()));
        }
        let key = "expert_group_scale";
        let scale = self.keys.number(key)?.ok_or_else(|| self.keys.missing(key))?;
        let experts = self.experts(layer, "chexps", n_experts / per_group, self.n_embd)?;
        Ok(Some(Adjugates { experts, per_group, scale: scale as f32 }))
    }
}
