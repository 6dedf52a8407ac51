//! Resolution of a layer's mask, and of the longest chunk for which the mask alone limits what queries see.

use crate::Result;
use crate::exec::mask::Mask;
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::{MaskKind, WindowPattern};

impl Resolver<'_> {
    /// Returns the size of windows: the file's key, where 0 means no window, else the card's number.
    pub(crate) fn window_size(&self) -> Result<Option<usize>> {
        let size = self.keys.count("attention.sliding_window")?;
        Ok(size.or(self.features.window.size.map(|n| n as usize)).filter(|&n| n > 0))
    }

    /// Returns the mask of a layer, by the window and its pattern over layers.
    pub(crate) fn mask(&self, layer: usize) -> Result<Mask> {
        let size = self.window_size()?;
        let is_full = self.built.sight == MaskKind::Full;
        let global = if is_full { Mask::Full } else { Mask::Causal };
        let (Some(size), Some(mask)) = (size, self.built.window) else { return Ok(global) };
        let window = mask(size);
        if is_full != matches!(window, Mask::Symmetric(_)) {
            let expected = if is_full { "true with this window" } else { "false with this window" };
            return Err(self.keys.unknown("attention.causal", expected, &(!is_full).to_string()));
        }
        let pattern_key = "attention.sliding_window_pattern";
        let windowed = match (self.keys.get(pattern_key), self.features.window.pattern) {
            (Some(value), _) if value.as_array().is_some() => {
                self.keys.layer_flag(pattern_key, layer)?.unwrap_or(false)
            }
            (Some(_), rule) => {
                let period = self.keys.count(pattern_key)?.unwrap_or(0);
                let rule = rule.unwrap_or(WindowPattern::DenseLast(0));
                rule.with_period(u32::try_from(period).unwrap_or(u32::MAX)).is_windowed(layer)
            }
            (None, Some(rule)) => rule.is_windowed(layer),
            (None, None) => true,
        };
        Ok(if windowed { window } else { global })
    }

    /// Limits chunks to the number of keys that a layer's indexer selects. Up to that length the layer attends to all
    /// keys; longer chunks are not run.
    pub(crate) fn limit_to_indexed(&mut self, layer: usize) -> Result<()> {
        if !self.tensors.has_under(&format!("blk.{layer}.indexer.")) {
            return Ok(());
        }
        // Some indexers pool keys. Keys that do not fill a pool are seen only if this flag is set.
        let tail = "attention.indexer.kpool_select_tail";
        let pools = self.keys.count("attention.indexer.kpool")?.is_some_and(|n| n > 1);
        if pools && !self.keys.flag(tail)?.unwrap_or(false) {
            let expected = "true, as keys that fill no pool are not seen else, which is not built";
            return Err(self.keys.unknown(tail, expected, "false"));
        }
        // Some indexers select whole blocks of keys.
        let block = self.keys.count("attention.indexer.block_size")?.filter(|&n| n > 0).unwrap_or(1);
        let n_keys = self.keys.need_count("attention.indexer.top_k")?.saturating_mul(block);
        self.chunk_limit = Some(self.chunk_limit.map_or(n_keys, |limit| limit.min(n_keys)));
        Ok(())
    }
}
