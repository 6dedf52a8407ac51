//! Parts of a verdict, which runs keep for each other.

use gguf_foundry::verify::{Thresholds, VerificationPart, combine_parts};
use sha2::{Digest, Sha256};

use super::bundle::{self, accepted};

/// Number of bytes of a part before those that its checksum covers.
const HEAD_BYTES: usize = 48;

/// Reads a part of a verdict, with a matching checksum.
pub(super) fn verdict_part(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if let Some((head, rest)) = bytes.split_at_mut_checked(HEAD_BYTES) {
        head[HEAD_BYTES - 32..].copy_from_slice(&Sha256::digest(rest));
    }
    let path = bundle::file("fuzz.part", &bytes);
    let _ = accepted(VerificationPart::is_one(&path));
    let Some(part) = accepted(VerificationPart::open(&path)) else { return false };
    let Some(combined) = accepted(combine_parts(vec![part], Thresholds::default())) else { return false };
    let _ = combined.report.verdict;
    true
}
