//! The older container: consecutive pickles, then the storages.
//!
//! # Layout
//! Five pickles: the number 0x1950a86a20f9469cfc6c; 1001; a dictionary that describes the machine; the object, which
//! refers to storages by key; the list of keys. Then for each key the number of elements (`i64`) and the elements.
//! Counts and elements are always little-endian, whatever the dictionary declares: big-endian machines convert while
//! they write.

use std::collections::HashMap;

use crate::pickle::{self, Pickle, Value};
use crate::torch::error::{TorchError, elem_bytes};
use crate::torch::storage::{self, StorageId};
use crate::torch::zip_archive::FileRange;
use gguf_core::limits::Limits;
use gguf_core::ranged::Bytes;

const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const VERSION: i64 = 1001;

/// Reads all pickles and finds the storages.
pub(super) fn read<B: Bytes + ?Sized>(
    file: &B,
    limits: &Limits,
) -> Result<(Pickle, HashMap<String, FileRange>), TorchError> {
    let mut at = 0;
    let mut next = || {
        let offset = at;
        // A pickle longer than the limit is cut there, and then reads as truncated.
        let n_bytes = file.n_bytes().saturating_sub(at).min(limits.pickle_bytes);
        let pickle = pickle::read(&file.get(at, n_bytes)?.unwrap_or_default(), at)?;
        at += pickle.end() as u64;
        Ok::<_, TorchError>((pickle, offset))
    };
    let (magic, _) = next()?;
    if !matches!(magic.get(magic.root()), Value::Long(bytes) if **bytes == MAGIC) {
        return Err(TorchError::Magic);
    }
    let (version, offset) = next()?;
    if version.int(version.root()) != Some(VERSION) {
        return Err(TorchError::Version { offset });
    }
    let (machine, offset) = next()?;
    if !matches!(machine.get(machine.root()), Value::Map(_)) {
        return Err(part(&machine, offset, "a dictionary about the machine"));
    }
    let (object, _) = next()?;
    let (keys, offset) = next()?;
    let list = keys.items(keys.root()).ok_or_else(|| part(&keys, offset, "a list of storages"))?;

    let described = described(&object)?;
    let mut storages = HashMap::with_capacity(list.len());
    for &key in list {
        let key =
            storage::key_text(&keys, key).ok_or_else(|| part(&keys, offset, "a list of storage keys"))?;
        let Some(id) = described.get(&key) else { return Err(TorchError::StorageUnclear { key }) };
        let (extent, end) = storage(file, at, id)?;
        at = end;
        if storages.insert(key.clone(), extent).is_some() {
            return Err(TorchError::StorageUnclear { key });
        }
    }
    Ok((object, storages))
}

fn part(pickle: &Pickle, offset: u64, expected: &'static str) -> TorchError {
    TorchError::Part { offset, expected, found: pickle.get(pickle.root()).kind() }
}

/// Returns all storages that the object refers to.
///
/// Storages of values that are not weights are included: their sizes determine the start of the next storage.
fn described(object: &Pickle) -> Result<HashMap<String, StorageId>, TorchError> {
    let mut described: HashMap<String, StorageId> = HashMap::new();
    for value in object.values() {
        let Value::Persistent(id) = value else { continue };
        let id = StorageId::of_tuple(object, *id).map_err(TorchError::Storage)?;
        if let Some(other) = described.get(&id.key) {
            if (other.ty, other.n_elems) != (id.ty, id.n_elems) {
                return Err(TorchError::StorageUnclear { key: id.key });
            }
        } else {
            described.insert(id.key.clone(), id);
        }
    }
    Ok(described)
}

/// Returns the extent of the storage whose element count is at `offset`, and the offset of the next storage.
fn storage<B: Bytes + ?Sized>(file: &B, offset: u64, id: &StorageId) -> Result<(FileRange, u64), TorchError> {
    const COUNT_BYTES: u64 = 8;
    let truncated =
        |wanted, present| TorchError::StorageTruncated { offset, key: id.key.clone(), wanted, present };
    let left = file.n_bytes().saturating_sub(offset);
    let count = file.get(offset, COUNT_BYTES)?;
    let count = count.as_ref().and_then(|count| count.first_chunk().copied());
    let found = i64::from_le_bytes(count.ok_or_else(|| truncated(COUNT_BYTES, left))?);
    if u64::try_from(found) != Ok(id.n_elems) {
        let (key, expected) = (id.key.clone(), id.n_elems);
        return Err(TorchError::StorageCount { offset, key, expected, found });
    }
    let n_bytes = id.n_elems.saturating_mul(elem_bytes(id.ty) as u64);
    let (data, left) = (offset + COUNT_BYTES, left - COUNT_BYTES);
    if n_bytes > left {
        return Err(truncated(n_bytes, left));
    }
    Ok((FileRange { offset: data, n_bytes }, data + n_bytes))
}
