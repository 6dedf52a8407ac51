//! SentencePiece's precompiled character map: which text replaces which.
//!
//! # Layout
//! A little-endian `u32` n, n bytes of a double array of little-endian `u32` units (Darts-clone), then the
//! replacements, each ended by a NUL. A unit's bits 0-7 and 31 are its label, bit 8 says that a value hangs below it,
//! bit 9 that its offset is in units of 256, the rest is the offset. A value unit's bits 0-30 are the place of a replacement.

use super::EncodeError;
use crate::core::little_endian::u32s;

/// Longest source text, in bytes. Real maps stay below 20; a damaged double array can be a circle.
const MAX_KEY_BYTES: usize = 256;
/// Longest replacement, in bytes: a stranger's map must not blow a text up without bounds. Unicode's longest is 33.
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
    /// A map that is cut off, or has a replacement that is too long.
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

    /// The replacement of the longest beginning of `text` that has one, and the length of that beginning in bytes.
    pub(super) fn replace(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (n_before, byte) in text.iter().take(MAX_KEY_BYTES).enumerate() {
            at ^= usize::from(*byte);
            // A place outside of the array, like a wrong label, is a way that leads nowhere.
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
