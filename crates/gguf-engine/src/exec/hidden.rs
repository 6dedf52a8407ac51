//! Final hidden states of a run.

use std::ops::Range;

use crate::exec::buffers::Buffer;

/// Final hidden states of the wanted rows, `[n_rows, n_embd]`.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    pub(crate) n_rows: usize,
    pub(crate) states: Buffer,
}

impl Hidden {
    /// Returns these states, `[n_rows, n_embd]`.
    pub fn new(states: Vec<f32>, n_embd: usize) -> Self {
        Self { n_rows: states.len() / n_embd.max(1), states: states.into() }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns a copy of some rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let n_embd = self.states.len().checked_div(self.n_rows).unwrap_or(0);
        let states = self.states.get(rows.start * n_embd..rows.end * n_embd).unwrap_or_default();
        Self::new(states.to_vec(), n_embd)
    }

    /// Appends the rows of `later`.
    pub fn append(&mut self, later: &Self) {
        self.n_rows += later.n_rows;
        self.states.extend(&later.states);
    }

    /// Returns the states, row by row.
    pub fn states(&self) -> &[f32] {
        &self.states
    }
}
