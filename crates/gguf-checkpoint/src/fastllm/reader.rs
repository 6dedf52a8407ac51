//! Reader of the primitive values of an `.flm` file: integers, counts, strings, and pairs of strings.

use std::collections::HashSet;

use crate::fastllm::error::{FlmError, FlmSection};
use gguf_core::bytes::Cursor;

/// Reader of the format's primitive values; errors name the current section.
pub(super) struct FlmReader<'a> {
    pub(super) cursor: Cursor<'a>,
    pub(super) section: FlmSection,
}

impl<'a> FlmReader<'a> {
    pub(super) fn int(&mut self) -> Result<i32, FlmError> {
        let section = self.section;
        self.cursor.i32().map_err(|source| FlmError::Truncated { section, source })
    }

    /// Reads a count of items of at least `unit` bytes each.
    ///
    /// The count is checked against the rest of the file, so allocations are bounded by the file and not by the
    /// count. For items that begin with a length, `unit` is the size of that length, so that a wrong length is
    /// reported itself.
    pub(super) fn count(&mut self, what: &'static str, unit: u64) -> Result<u64, FlmError> {
        let (section, offset) = (self.section, self.cursor.offset());
        let found = self.int()?;
        let left = self.cursor.left();
        let count = u64::try_from(found).map_err(|_| FlmError::Negative { section, offset, what, found })?;
        if count.checked_mul(unit).is_none_or(|n_bytes| n_bytes > left) {
            return Err(FlmError::CannotFit { section, offset, what, found, left });
        }
        Ok(count)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], FlmError> {
        let section = self.section;
        let n = self.count("string length", 1)?;
        self.cursor.take(n).map_err(|source| FlmError::Truncated { section, source })
    }

    pub(super) fn text(&mut self) -> Result<String, FlmError> {
        let (section, offset) = (self.section, self.cursor.offset());
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let offset = offset + 4 + error.valid_up_to() as u64;
            FlmError::NotUtf8 { section, offset }
        })?;
        Ok(text.to_owned())
    }

    pub(super) fn pairs(&mut self) -> Result<Vec<(String, String)>, FlmError> {
        let mut pairs = Vec::new();
        let mut seen = HashSet::new();
        for _ in 0..self.count("entry count", 4)? {
            let key = self.text()?;
            if !seen.insert(key.clone()) {
                return Err(FlmError::DuplicateKey { section: self.section, key });
            }
            pairs.push((key, self.text()?));
        }
        Ok(pairs)
    }
}
