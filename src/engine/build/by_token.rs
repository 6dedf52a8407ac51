//! Builds tables that choose experts by the token.

use crate::core::Shape;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{Matrix, Vector};

impl Builder<'_> {
    /// The table of a layer's experts by token, `[n_vocab, n_used]`, in so many first layers as the file says.
    pub(super) fn experts_by_token(
        &mut self,
        layer: usize,
        n_used: usize,
    ) -> Result<Option<Matrix>, EngineError> {
        if layer >= self.keys.count("hash_layer_count")?.unwrap_or(0) {
            return Ok(None);
        }
        let name = format!("blk.{layer}.ffn_gate_tid2eid");
        let n_vocab = self.tensors.shape("token_embd.weight").map_or(0, Shape::n_rows);
        let n_vocab = usize::try_from(n_vocab).unwrap_or(usize::MAX);
        let table = self.tensors.bare_matrix(&name, n_vocab, n_used)?;
        let missing = || EngineError::MissingTensor { tensor: format!("{name}.weight") };
        table.map(Some).ok_or_else(missing)
    }

    /// What is added to the scores where a layer chooses its experts by them.
    pub(super) fn select_bias(
        &mut self,
        layer: usize,
        n_experts: usize,
    ) -> Result<Option<Vector>, EngineError> {
        let name = format!("blk.{layer}.exp_probs_b");
        // Some converters leave the suffix out.
        match self.tensors.vector(&format!("{name}.bias"), n_experts)? {
            None => self.tensors.vector(&name, n_experts),
            found => Ok(found),
        }
    }
}
