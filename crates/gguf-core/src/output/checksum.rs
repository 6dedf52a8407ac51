//! Checksum of journals and of names that are shortened.

/// Returns the FNV-1a checksum: detects damage, but is no protection against attacks.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
