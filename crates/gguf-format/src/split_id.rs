//! Id of a set of parts: `gguf_foundry.split.id`, the same text in each part. It distinguishes the parts of two runs,
//! which may agree in all `split.*` keys and be in one directory after an interrupted rewrite.

use gguf_core::text::hex;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::plan::PlannedFile;
use crate::split_keys::{SPLIT_ID, SPLIT_NO};
use crate::{Metadata, Value};

/// Number of hexadecimal digits of an id.
const ID_CHARS: usize = 32;
/// Number of bytes of a tensor that go into an id.
const BEGINNING_BYTES: usize = 4 << 10;

/// Returns the placeholder of an id until all tensors are written.
pub(crate) fn placeholder() -> String {
    "0".repeat(ID_CHARS)
}

/// Returns the id of the set from a part's metadata.
///
/// It follows the `split.*` keys. An id before them belongs to a set that `llama-gguf-split` merged and split again:
/// that tool keeps unknown keys in the first part, and appends its own.
pub(crate) fn split_id(metadata: &Metadata) -> Option<&Value> {
    let mut keys = metadata.iter().skip_while(|(key, _)| *key != SPLIT_NO);
    keys.find(|(key, _)| *key == SPLIT_ID).map(|(_, value)| value)
}

/// Hashes of the first row of each tensor of a set. They differ if a model was trained further, although its plan is
/// the same.
#[derive(Debug)]
pub(crate) struct FirstRowHashes(Vec<OnceLock<[u8; 32]>>);

impl FirstRowHashes {
    pub(crate) fn of(n_tensors: usize) -> Self {
        Self((0..n_tensors).map(|_| OnceLock::new()).collect())
    }

    pub(crate) fn note(&self, tensor: usize, row: &[u8]) {
        if let Some(beginning) = self.0.get(tensor) {
            let head = row.get(..BEGINNING_BYTES).unwrap_or(row);
            let _ = beginning.set(Sha256::digest(head).into());
        }
    }

    /// Computes the id of the set from its plan (all headers) and its first rows.
    pub(crate) fn id(&self, files: &[PlannedFile]) -> String {
        set_id(files, self.0.iter().map(|beginning| beginning.get().map_or(&[0; 32][..], |hash| &hash[..])))
    }
}

/// Computes the id of a set of files from their headers and hashes of their contents.
pub(crate) fn set_id<'a>(files: &[PlannedFile], contents: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update((file.plan.header.len() as u64).to_le_bytes());
        hash.update(&file.plan.header);
    }
    for content in contents {
        hash.update(content);
    }
    hex(&hash.finalize()[..ID_CHARS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_counts_behind_the_keys_of_parts_only() {
        let mut metadata = Metadata::new();
        metadata.set("general.name", "m");
        metadata.set(SPLIT_ID, "old");
        assert_eq!(split_id(&metadata), None);
        metadata.set(SPLIT_NO, 0u16);
        assert_eq!(split_id(&metadata), None);
        metadata.remove(SPLIT_ID);
        metadata.set(SPLIT_ID, "new");
        metadata.set("my.key", 1u32);
        assert_eq!(split_id(&metadata).and_then(Value::as_str), Some("new"));
    }
}
