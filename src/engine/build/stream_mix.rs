//! Builds the mixes of kept streams that branches read.

use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{Norm, StreamMix, Wiring};

/// After how many layers a stream is kept; without it or at zero branches read the stream alone.
const PERIOD: &str = "attn_res.block_size";

impl Builder<'_> {
    /// The mixes of a layer's branches.
    pub(super) fn stream_mix(
        &mut self,
        layer: usize,
        wiring: Wiring,
    ) -> Result<Option<StreamMix>, EngineError> {
        let Some(period) = self.keys.count(PERIOD)?.filter(|&n| n > 0) else { return Ok(None) };
        if wiring != Wiring::Serial {
            return Err(self.keys.unknown(PERIOD, "0 in a graph that is not serial", &period.to_string()));
        }
        Ok(Some(StreamMix {
            mixer: self.stream_score(&format!("blk.{layer}.attn_res_score"))?,
            ffn: self.stream_score(&format!("blk.{layer}.ffn_res_score"))?,
            keeps: layer.is_multiple_of(period),
        }))
    }

    /// The mix behind the last layer.
    pub(super) fn final_mix(&mut self) -> Result<Option<Norm>, EngineError> {
        match self.keys.count(PERIOD)?.filter(|&n| n > 0) {
            Some(_) => self.stream_score("output_res_score").map(Some),
            None => Ok(None),
        }
    }

    fn stream_score(&mut self, name: &str) -> Result<Norm, EngineError> {
        let norm = self.norm(name)?;
        norm.ok_or_else(|| EngineError::MissingTensor { tensor: format!("{name}.weight") })
    }
}
