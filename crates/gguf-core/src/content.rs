//! Record of the content of a tensor: nothing read yet, only zeros, or other values.

use std::sync::atomic::{AtomicU8, Ordering};

/// Only zeros were read. The initial state 0 means that nothing was read.
const ZEROS: u8 = 1;
const VALUES: u8 = 2;

/// Records whether anything but zeros was read; several threads may note at once.
#[derive(Debug, Default)]
pub struct Content(AtomicU8);

impl Content {
    /// Records a piece that was read. `has_values` is called only until a value other than zero is found.
    pub fn note(&self, has_values: impl FnOnce() -> bool) {
        if self.0.load(Ordering::Relaxed) != VALUES {
            let found = if has_values() { VALUES } else { ZEROS };
            self.0.fetch_max(found, Ordering::Relaxed);
        }
    }

    /// Returns true if something was read, and all of it was zeros.
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
