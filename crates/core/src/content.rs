//! What was read of a tensor: nothing yet, zeros alone, or more.

use std::sync::atomic::{AtomicU8, Ordering};

/// Nothing was read at 0.
const ZEROS: u8 = 1;
const VALUES: u8 = 2;

/// Notes, from several threads at once, whether anything but zeros was read.
#[derive(Debug, Default)]
pub struct Content(AtomicU8);

impl Content {
    /// Takes note of something that was read. `has_values` is asked only as long as nothing but zeros was found.
    pub fn note(&self, has_values: impl FnOnce() -> bool) {
        if self.0.load(Ordering::Relaxed) != VALUES {
            let found = if has_values() { VALUES } else { ZEROS };
            self.0.fetch_max(found, Ordering::Relaxed);
        }
    }

    /// True if something was read, and all of it was zeros.
    #[must_use]
    pub fn is_all_zero(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ZEROS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_read_is_not_all_zero() {
        let content = Content::default();
        assert!(!content.is_all_zero());
        content.note(|| false);
        assert!(content.is_all_zero());
        content.note(|| true);
        content.note(|| panic!("asked after the answer is known"));
        assert!(!content.is_all_zero());
    }
}
