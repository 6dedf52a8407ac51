//! Builds the way to experts in a narrower space.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::LatentExperts;

/// Names of the tensors and of the key with the width.
struct Names {
    down: &'static str,
    norm: &'static str,
    up: &'static str,
    width: &'static str,
}

/// What families call them.
const NAMES: [Names; 2] = [
    Names { down: "ffn_latent_down", norm: "ffn_latent_norm", up: "ffn_latent_up", width: "moe_latent_size" },
    Names {
        down: "ffn_routed_down",
        norm: "ffn_routed_norm",
        up: "ffn_routed_up",
        width: "expert_latent_length",
    },
];

impl Builder<'_> {
    /// The way to the experts' space, of layers whose experts have one of their own.
    pub(super) fn latent_experts(&mut self, layer: usize) -> Result<Option<LatentExperts>, EngineError> {
        let at = |name: &str| format!("blk.{layer}.{name}");
        let found = NAMES.iter().find(|names| {
            [names.down, names.up].iter().any(|name| self.tensors.has(&at(&format!("{name}.weight"))))
        });
        let Some(names) = found else { return Ok(None) };
        let width = self.keys.need_count(names.width)?;
        Ok(Some(LatentExperts {
            down: self.tensors.need_matrix(&at(names.down), width, self.n_embd)?,
            norm: self.norm_of(&at(names.norm), width)?,
            up: self.tensors.need_matrix(&at(names.up), self.n_embd, width)?,
        }))
    }
}
