//! What tells the parts of one set from those of another: `gguf_foundry.split.id`, the same text in each part. Parts of two
//! runs may agree in all that `split.*` says, and lie side by side after a rewrite that was interrupted.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::gguf::split::SPLIT_NO;
use crate::gguf::writer::PlannedFile;
use crate::gguf::{Metadata, Value};

/// The key.
pub(crate) const SPLIT_ID: &str = "gguf_foundry.split.id";
/// Digits of an id.
const ID_CHARS: usize = 32;
/// Bytes of a tensor that go into an id.
const BEGINNING_BYTES: usize = 4 << 10;

/// What stands for an id until all tensors are written.
pub(crate) fn placeholder() -> String {
    "0".repeat(ID_CHARS)
}

/// The id that a part's metadata give its set.
///
/// It stands behind the `split.*` keys, where parts have it. One before them was the id of a set that `llama-gguf-split`
/// has merged and split again: that tool keeps keys it does not know, in the first part, and adds its own at the end.
pub(crate) fn split_id(metadata: &Metadata) -> Option<&Value> {
    let mut keys = metadata.iter().skip_while(|(key, _)| *key != SPLIT_NO);
    keys.find(|(key, _)| *key == SPLIT_ID).map(|(_, value)| value)
}

/// How each tensor of a set begins. A model that was trained further has the plan of the one before, and differs here.
#[derive(Debug)]
pub(crate) struct Beginnings(Vec<OnceLock<[u8; 32]>>);

impl Beginnings {
    pub(crate) fn of(n_tensors: usize) -> Self {
        Self((0..n_tensors).map(|_| OnceLock::new()).collect())
    }

    /// Takes note of the first row of a tensor.
    pub(crate) fn note(&self, tensor: usize, row: &[u8]) {
        if let Some(beginning) = self.0.get(tensor) {
            let head = row.get(..BEGINNING_BYTES).unwrap_or(row);
            let _ = beginning.set(Sha256::digest(head).into());
        }
    }

    /// The id of the set: its plan, which is all headers, and its beginnings.
    pub(crate) fn id(&self, files: &[PlannedFile]) -> String {
        set_id(files, self.0.iter().map(|beginning| beginning.get().map_or(&[0; 32][..], |hash| &hash[..])))
    }
}

/// The id of a set of files: their headers, and hashes of what they hold.
pub(crate) fn set_id<'a>(files: &[PlannedFile], contents: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update((file.plan.header.len() as u64).to_le_bytes());
        hash.update(&file.plan.header);
    }
    for content in contents {
        hash.update(content);
    }
    let digest = hash.finalize();
    digest.iter().take(ID_CHARS / 2).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
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
