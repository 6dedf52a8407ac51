//! Files that runs keep for each other: statistics of a model, and parts of a verdict.

use gguf_foundry::calibrate::Statistics;
use gguf_foundry::verify::{Thresholds, VerificationPart, combine_parts};
use sha2::{Digest, Sha256};

use super::bundle::{self, Directory, accepted};

const FILES: [&str; 4] =
    ["statistics.json", "moments-00000.safetensors", "moments-00001.safetensors", "importance.safetensors"];
/// Number of bytes of a part before those that its checksum covers.
const HEAD_BYTES: usize = 48;

/// Reads everything in statistics.
fn read(statistics: &Statistics) -> bool {
    let _ = (statistics.kinds(), statistics.layer_bytes(), statistics.n_ctx(), statistics.seed());
    let mut are_all_read = true;
    for at in 0..statistics.n_layers() {
        let layer = accepted(statistics.layer(at));
        are_all_read &= layer.as_ref().is_some();
        let Some(Some(layer)) = layer else { continue };
        let weights = vec![1.0; layer.n_kinds()];
        for input in &layer.inputs {
            if let Some(mean) = layer.mean(input, &weights) {
                assert_eq!(mean.h.len(), input.n_cols * input.n_cols);
            }
        }
    }
    are_all_read & accepted(statistics.importance()).is_some()
}

/// Reads a directory of statistics.
pub(super) fn statistics(data: &[u8]) -> bool {
    let dir = Directory::of(&bundle::split(data, &FILES));
    accepted(Statistics::open(dir.path())).is_some_and(|statistics| read(&statistics))
}

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
