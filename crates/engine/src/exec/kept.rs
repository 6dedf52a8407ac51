//! Panels of weights that stay decoded from step to step, within a memory budget. A step of a continued run has few
//! tokens, so that decoding for each step would take as long as computing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::exec::panel::{DecodedLen, Panel};
use gguf_core::sync::Unpoisoned;

/// Identity of panels: tensor, first row and number of rows of each side.
type PanelKey = Vec<(usize, usize, usize)>;

/// Decoded values of panels.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PanelValues {
    pub(crate) floats: Vec<f32>,
    pub(crate) codes: Vec<i16>,
}

/// Decoded panels, the first ones that fit in the budget.
#[derive(Debug, Default)]
pub(crate) struct KeptPanels {
    budget_bytes: u64,
    kept: Mutex<PanelStore>,
}

#[derive(Debug, Default)]
struct PanelStore {
    n_bytes: u64,
    panels: BTreeMap<PanelKey, Arc<PanelValues>>,
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
    pub(crate) fn get(&self, panels: &[Panel<'_>]) -> Option<Arc<PanelValues>> {
        if self.budget_bytes == 0 {
            return None;
        }
        let kept = self.kept.lock().unpoisoned();
        kept.panels.get(&key(panels)).cloned()
    }

    /// Returns memory for values to keep, if the budget holds them.
    pub(crate) fn reserve(&self, len: DecodedLen) -> Option<PanelValues> {
        let mut kept = self.kept.lock().unpoisoned();
        let n_bytes = kept.n_bytes.saturating_add(len.n_bytes());
        if n_bytes > self.budget_bytes {
            return None;
        }
        kept.n_bytes = n_bytes;
        drop(kept);
        Some(PanelValues { floats: vec![0.0; len.floats], codes: vec![0; len.codes] })
    }

    /// Keeps the weights of panels in memory from [`KeptPanels::reserve`].
    pub(crate) fn keep(&self, panels: &[Panel<'_>], weights: PanelValues) -> Arc<PanelValues> {
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
            let memory = kept.reserve(DecodedLen { floats: 8, codes: 4 });
            assert_eq!(memory.is_some(), at < 2, "{at}");
            if let Some(mut weights) = memory {
                weights.floats.fill(at as f32);
                kept.keep(block, weights);
            }
        }
        assert_eq!(kept.get(&blocks[0]).unwrap().floats, [0.0; 8]);
        assert_eq!(kept.get(&blocks[1]).unwrap().floats, [1.0; 8]);
        assert_eq!(kept.get(&blocks[2]), None);
        assert_eq!(kept.get(&[panel(&first, 0), panel(&first, 2)]), None);
    }
}
