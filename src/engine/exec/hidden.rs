//! Final hidden states of a run.

use crate::engine::exec::buffers::Buffer;

/// Final hidden states of the wanted rows, `[n_rows, n_embd]`.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    pub(crate) n_rows: usize,
    pub(crate) states: Buffer,
}

impl Hidden {
    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Appends the rows of `later`.
    pub(crate) fn append(&mut self, later: &Self) {
        self.n_rows += later.n_rows;
        self.states.extend(&later.states);
    }

    /// Returns the states, row by row.
    #[must_use]
    pub fn states(&self) -> &[f32] {
        &self.states
    }
}
