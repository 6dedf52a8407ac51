//! Masks: the keys that a query sees.

/// Set of keys that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All earlier keys and the query's own.
    Causal,
    /// The last n of them, including the query's own.
    Window(usize),
    /// Earlier keys of the same block of n positions, including the query's own.
    Chunked(usize),
    /// All keys.
    Full,
    /// Keys at most n / 2 positions away, on both sides.
    Symmetric(usize),
}

impl Mask {
    /// Returns the first key that the query at `position` sees.
    pub(crate) fn first_key(self, position: usize) -> usize {
        match self {
            Self::Causal | Self::Full => 0,
            Self::Symmetric(n) => position.saturating_sub(n / 2),
            Self::Window(n) => (position + 1).saturating_sub(n),
            Self::Chunked(n) => position - position % n.max(1),
        }
    }

    /// Returns the position after the last key, of `n_keys`, that the query at `position` sees.
    pub(crate) fn end_key(self, position: usize, n_keys: usize) -> usize {
        match self {
            Self::Causal | Self::Window(_) | Self::Chunked(_) => position + 1,
            Self::Full => n_keys,
            Self::Symmetric(n) => position.saturating_add(n / 2 + 1).min(n_keys),
        }
    }

    /// Returns true if the mask has no window and no blocks.
    pub(crate) fn is_global(self) -> bool {
        matches!(self, Self::Causal | Self::Full)
    }
}
