//! Panels of weights that stay decoded from step to step, within a memory budget. A step of a continued run has few
//! tokens, so that decoding for each step would take as long as computing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::exec::panel::Panel;
use gguf_core::sync::Unpoisoned;

/// Identity of panels: tensor, first row and number of rows of each side.
type PanelKey = Vec<(usize, usize, usize)>;

/// Decoded panels, the first ones that fit in the budget.
#[derive(Debug, Default)]
pub(crate) struct KeptPanels {
    budget_bytes: u64,
    kept: Mutex<PanelStore>,
}

#[derive(Debug, Default)]
struct PanelStore {
    n_bytes: u64,
    panels: BTreeMap<PanelKey, Arc<Vec<f32>>>,
}

fn key(panels: &[Panel<'_>]) -> PanelKey {
    let sides = panels.iter().flat_map(|panel| {
        panel.sides().map(|matrix| (matrix.tensor, matrix.first_row + panel.first, panel.n))
    });
    sides.collect()
}

impl KeptPanels {
    /// Returns an empty set with a budget of bytes.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, kept: Mutex::default() }
    }

    /// Returns the weights of panels, if they were kept.
    pub(crate) fn get(&self, panels: &[Panel<'_>]) -> Option<Arc<Vec<f32>>> {
        if self.budget_bytes == 0 {
            return None;
        }
        let kept = self.kept.lock().unpoisoned();
        kept.panels.get(&key(panels)).cloned()
    }

    /// Returns memory for values to keep, if the budget holds them.
    pub(crate) fn reserve(&self, len: usize) -> Option<Vec<f32>> {
        let mut kept = self.kept.lock().unpoisoned();
        let n_bytes = kept.n_bytes.saturating_add(4 * len as u64);
        if n_bytes > self.budget_bytes {
            return None;
        }
        kept.n_bytes = n_bytes;
        drop(kept);
        Some(vec![0.0; len])
    }

    /// Keeps the weights of panels in memory from [`KeptPanels::reserve`].
    pub(crate) fn keep(&self, panels: &[Panel<'_>], weights: Vec<f32>) -> Arc<Vec<f32>> {
        let weights = Arc::new(weights);
        let mut kept = self.kept.lock().unpoisoned();
        kept.panels.insert(key(panels), Arc::clone(&weights));
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::weights::Matrix;

    #[test]
    fn what_there_is_room_for_is_kept() {
        let matrix = |tensor| Matrix {
            tensor,
            first_row: 0,
            n_rows: 4,
            n_cols: 5,
            bias: None,
            scale: None,
            expert: None,
        };
        let (first, second) = (matrix(1), matrix(2));
        let panel = |weight, first| Panel { weight, gate: None, first, n: 2 };
        let blocks = [[panel(&first, 0)], [panel(&first, 2)], [panel(&second, 0)]];
        let kept = KeptPanels::new(80);
        for (at, block) in blocks.iter().enumerate() {
            assert_eq!(kept.get(block), None, "{at}");
            let memory = kept.reserve(10);
            assert_eq!(memory.is_some(), at < 2, "{at}");
            if let Some(mut weights) = memory {
                weights.fill(at as f32);
                kept.keep(block, weights);
            }
        }
        assert_eq!(*kept.get(&blocks[0]).unwrap(), [0.0; 10]);
        assert_eq!(*kept.get(&blocks[1]).unwrap(), [1.0; 10]);
        assert_eq!(kept.get(&blocks[2]), None);
        assert_eq!(kept.get(&[panel(&first, 0), panel(&first, 2)]), None);
    }
}
