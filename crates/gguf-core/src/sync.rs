//! Locks of threads that may have panicked.

use std::sync::{LockResult, PoisonError};

/// Access to what a lock guards even if a thread panicked while it held the lock. The panic itself is passed on where the
/// thread is joined; values here are either replaced whole or only read for a report.
pub trait Unpoisoned {
    /// Guard or value of the lock.
    type Inner;

    /// Returns the guard or value, poisoned or not.
    fn unpoisoned(self) -> Self::Inner;
}

impl<G> Unpoisoned for LockResult<G> {
    type Inner = G;

    fn unpoisoned(self) -> G {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}
