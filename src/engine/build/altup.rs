//! Builds streams that layers compute by turns, and residuals of low rank.

use crate::arch::graph::Extra;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{AltUp, Laurel, LayerAltUp};

/// Streams of a token at most: a factor of all memory that tokens take.
const MOST_STREAMS: usize = 64;

impl Builder<'_> {
    /// The streams of the model, if it has several.
    pub(super) fn altup(&mut self) -> Result<Option<AltUp>, EngineError> {
        let Some(n) = self.n_streams()? else { return Ok(None) };
        let key = "altup.active_idx";
        let active = self.keys.count(key)?.ok_or_else(|| self.keys.missing(key))?;
        if active >= n {
            return Err(self.keys.unknown(key, "less than altup.num_inputs", &active.to_string()));
        }
        let n_embd = self.n_embd;
        let entry = self.tensors.experts("altup_proj", n - 1, n_embd, n_embd)?;
        let exit = self.tensors.experts("altup_unembd_proj", n - 1, n_embd, n_embd)?;
        Ok(Some(AltUp { n, active, entry, exit }))
    }

    fn n_streams(&self) -> Result<Option<usize>, EngineError> {
        if !self.features.extras.contains(&Extra::Altup) {
            return Ok(None);
        }
        let key = "altup.num_inputs";
        let n = self.keys.need_count(key)?;
        if !(2..=MOST_STREAMS).contains(&n) {
            return Err(self.keys.unknown(key, "2 to 64", &n.to_string()));
        }
        Ok(Some(n))
    }

    /// How a layer moves the streams along.
    pub(super) fn layer_altup(&mut self, layer: usize) -> Result<Option<LayerAltUp>, EngineError> {
        let Some(n) = self.n_streams()? else { return Ok(None) };
        let at = |name: &str| format!("blk.{layer}.altup_{name}");
        let n_embd = self.n_embd;
        Ok(Some(LayerAltUp {
            router_norm: self.need_norm(&at("router_norm"))?,
            router: self.tensors.need_matrix(&at("router"), n, n_embd)?,
            predict: self.tensors.need_matrix(&at("predict_coef"), n * n, n)?,
            correct: self.tensors.need_matrix(&at("correct_coef"), n, n)?,
            correct_scale: self.need_vector(&at("correct_scale.weight"), n_embd)?,
        }))
    }

    /// The residual of low rank of a layer; its tensor says the rank.
    pub(super) fn laurel(&mut self, layer: usize) -> Result<Option<Laurel>, EngineError> {
        if !self.features.extras.contains(&Extra::Laurel) {
            return Ok(None);
        }
        let at = |name: &str| format!("blk.{layer}.laurel_{name}");
        let rank = self.n_cols(&at("r"))?;
        Ok(Some(Laurel {
            left: self.tensors.need_matrix(&at("l"), rank, self.n_embd)?,
            right: self.tensors.need_matrix(&at("r"), self.n_embd, rank)?,
            post: self.need_norm(&at("post_norm"))?,
        }))
    }
}
