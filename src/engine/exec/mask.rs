//! Masks: the keys that a query sees.

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All earlier keys and its own.
    Causal,
    /// Of those the last n, its own included.
    Window(usize),
    /// Of those the ones in the same block of n positions.
    Chunked(usize),
    /// All keys.
    Full,
    /// Those at most half of n positions away, to both sides.
    Symmetric(usize),
}

impl Mask {
    /// First key that the query at `position` sees.
    #[must_use]
    pub fn first_key(self, position: usize) -> usize {
        match self {
            Self::Causal | Self::Full => 0,
            Self::Symmetric(n) => position.saturating_sub(n / 2),
            Self::Window(n) => (position + 1).saturating_sub(n),
            Self::Chunked(n) => position - position % n.max(1),
        }
    }

    /// Position behind the last key, of `n_keys`, that the query at `position` sees.
    #[must_use]
    pub fn end_key(self, position: usize, n_keys: usize) -> usize {
        match self {
            Self::Causal | Self::Window(_) | Self::Chunked(_) => position + 1,
            Self::Full => n_keys,
            Self::Symmetric(n) => position.saturating_add(n / 2 + 1).min(n_keys),
        }
    }

    /// True if no window narrows what is seen.
    #[must_use]
    pub fn is_global(self) -> bool {
        matches!(self, Self::Causal | Self::Full)
    }
}
