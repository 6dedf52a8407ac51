//! Builds gated short convolutions.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::ShortConv;

impl Builder<'_> {
    pub(super) fn shortconv(&mut self, layer: usize) -> Result<ShortConv, EngineError> {
        let at = |name: &str| format!("blk.{layer}.shortconv.{name}");
        let n_embd = self.n_embd;
        let n_taps = self.keys.need_count("shortconv.l_cache")?;
        let [b, c, x] = self.cut(&at("in_proj"), [n_embd; 3], n_embd)?;
        let conv = self.conv(&at("conv"), n_embd, n_taps)?;
        let out = self.tensors.need_matrix(&at("out_proj"), n_embd, n_embd)?;
        Ok(ShortConv { b, c, x, conv, out })
    }
}
