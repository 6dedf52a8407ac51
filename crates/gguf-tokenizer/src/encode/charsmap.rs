//! SentencePiece's precompiled character map: replacements of texts.
//!
//! # Layout
//! A little-endian `u32` n, n bytes of a double array of little-endian `u32` units (Darts-clone), then the
//! replacements, each terminated by a NUL. Bits 0-7 and 31 of a unit are its label. Bit 8 is set if a value is attached
//! to it, bit 9 if its offset is in units of 256; the rest is the offset. Bits 0-30 of a value unit are the offset of a
//! replacement.

use super::EncodeError;
use gguf_core::little_endian::u32s;

/// Maximum length of a source text in bytes. Real maps stay below 20; a damaged double array may contain a cycle.
const MAX_KEY_BYTES: usize = 256;
/// Maximum length of a replacement in bytes: an untrusted map must not lengthen a text without bounds. Unicode's
/// longest is 33.
const MAX_REPLACEMENT_BYTES: usize = 256;

/// A parsed map.
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Parses the map.
    ///
    /// # Errors
    /// A map that is truncated, or has a replacement that is too long.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, EncodeError> {
        let broken = |reason| EncodeError::Charsmap { offset: bytes.len(), reason };
        let (head, rest) = bytes
            .split_first_chunk::<4>()
            .ok_or_else(|| broken("ends within the size of the double array"))?;
        let n_bytes = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        let (units, replacements) =
            rest.split_at_checked(n_bytes).ok_or_else(|| broken("ends within the double array"))?;
        let mut offset = 4 + n_bytes;
        for replacement in replacements.split(|byte| *byte == 0) {
            if replacement.len() > MAX_REPLACEMENT_BYTES {
                return Err(EncodeError::Charsmap {
                    offset,
                    reason: "a replacement is longer than 256 bytes",
                });
            }
            offset += replacement.len() + 1;
        }
        let units = u32s(units).collect();
        Ok(Self { units, replacements: replacements.to_vec() })
    }

    /// Returns the replacement of the longest prefix of `text` that has one, and the length of that prefix in bytes.
    pub(super) fn replace(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (n_before, byte) in text.iter().take(MAX_KEY_BYTES).enumerate() {
            at ^= usize::from(*byte);
            // A position outside the array, like a wrong label, ends the search.
            let Some(unit) = self.units.get(at).filter(|unit| **unit & 0x8000_00ff == u32::from(*byte))
            else {
                break;
            };
            if *byte == 0 {
                break;
            }
            at ^= offset(*unit);
            if unit >> 8 & 1 == 1
                && let Some(value) = self.units.get(at)
            {
                found = Some(((value & 0x7fff_ffff) as usize, n_before + 1));
            }
        }
        let (place, n_bytes) = found?;
        let from = self.replacements.get(place..)?;
        Some((from.split(|byte| *byte == 0).next()?, n_bytes))
    }
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}
