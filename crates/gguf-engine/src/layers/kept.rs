//! What a whole model keeps of a sequence, and how wide it computes.

use std::collections::BTreeMap;

use crate::layers::graph::GraphPlan;
use crate::layers::layer::LayerPlan;
use crate::ops::kept::{Kept, KeptBySequence, KeptRows};
use crate::ops::mixer::MixerOp;

impl LayerPlan {
    fn kept(&self) -> Kept {
        let mixer = self.mixer.op().map(MixerOp::kept).unwrap_or_default();
        mixer.and(Kept::state(self.ffn.remembered()))
    }
}

impl GraphPlan {
    /// Returns what a runtime that keeps keys, values and states keeps of a sequence. Of an encoder-decoder model it is
    /// what the decoder keeps of its own tokens.
    pub fn kept(&self) -> KeptBySequence {
        let mut found = KeptBySequence::default();
        let mut rows: BTreeMap<KeptRows, usize> = BTreeMap::new();
        for layer in &self.layers {
            let kept = layer.kept();
            kept.rows.iter().for_each(|kind| *rows.entry(*kind).or_default() += 1);
            found.n_states += usize::from(kept.state > 0);
            found.state = found.state.saturating_add(kept.state as u64);
            found.n_shared += usize::from(layer.mixer.is_shared());
        }
        found.rows = rows.into_iter().collect();
        found
    }

    /// Returns the number of values that a runtime computes with at once for each token of a step: the widest part of a
    /// layer, or the logits. An estimate, since it depends on the order in which a runtime computes.
    pub fn work_width(&self) -> u64 {
        let width = self.stream_width() as u64;
        let widest = self.layers.iter().map(|layer| layer.ffn.width() as u64).max().unwrap_or(0);
        (self.n_vocab as u64 + width).max(3 * width + 2 * widest)
    }
}
