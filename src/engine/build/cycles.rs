//! Builds models whose two stacks of layers run in turn: the low one some times, then the high one once, and so on.

use crate::arch::graph::Extra;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::plan::{HeldState, LayerPlan, StackEntry};

const STACK: &str = "hrm.layers_per_stack";

/// Layers of a stack, and how often each runs.
#[derive(Clone, Copy)]
struct Cycles {
    n_stack: usize,
    /// Runs of the high stack.
    high: usize,
    /// Runs of the low stack before each of the high one.
    low: usize,
}

impl Builder<'_> {
    pub(super) fn has_cycles(&self) -> bool {
        self.features.extras.contains(&Extra::Cycles)
    }

    /// `block_count` counts the layers that run.
    fn cycles(&self) -> Result<Cycles, EngineError> {
        let n_stack = self.keys.need_count(STACK)?;
        let (high, low) = (self.keys.need_count("hrm.h_cycles")?, self.keys.need_count("hrm.l_cycles")?);
        let n_runs = low.checked_add(1).and_then(|n| n.checked_mul(high));
        let n_layers = n_runs.and_then(|n| n.checked_mul(n_stack));
        let found = self.keys.need_count("block_count")?;
        if n_layers != Some(found) || found > 1 << 16 {
            let expected =
                "hrm.layers_per_stack times hrm.h_cycles times one more than hrm.l_cycles, at most 65536";
            return Err(self.keys.unknown("block_count", expected, &found.to_string()));
        }
        Ok(Cycles { n_stack, high, low })
    }

    /// Layers of the two stacks.
    pub(super) fn n_cycled_layers(&self) -> Result<usize, EngineError> {
        self.cycles().map(|cycles| 2 * cycles.n_stack)
    }

    /// The state beside the stream, of models that have one.
    pub(super) fn held_state(&mut self) -> Result<Option<HeldState>, EngineError> {
        if !self.has_cycles() {
            return Ok(None);
        }
        if self.keys.flag("hrm.prefix_lm")?.unwrap_or(false) {
            let text = "the model is trained to see its prompts whole: here all text is read as its answers";
            self.warnings.push(text.to_owned());
        }
        Ok(Some(HeldState { start: self.need_vector("hrm.z_l_init", self.n_embd)? }))
    }

    /// The layers as they run; the low stack comes first in the file. Each run ends with a norm, the last one with the
    /// model's.
    pub(super) fn cycled(&mut self, layers: &[LayerPlan]) -> Result<Vec<LayerPlan>, EngineError> {
        let Cycles { n_stack, high, low } = self.cycles()?;
        let norm = match self.features.final_norm.as_str() {
            "none" => None,
            name => Some(self.need_norm(name)?),
        };
        let (low_stack, high_stack) = layers.split_at(n_stack.min(layers.len()));
        let mut all = Vec::new();
        for cycle in 0..high {
            for turn in 0..=low {
                let stack = if turn < low { low_stack } else { high_stack };
                let first = all.len();
                all.extend_from_slice(stack);
                let is_again = turn > 0 && turn < low;
                if let Some(layer) = all.get_mut(first) {
                    layer.extras.entry = Some(if is_again { StackEntry::Again } else { StackEntry::Turn });
                }
                let is_last = cycle + 1 == high && turn == low;
                if let Some(layer) = all.last_mut().filter(|_| !is_last) {
                    layer.extras.exit_norm.clone_from(&norm);
                }
            }
        }
        Ok(all)
    }
}
