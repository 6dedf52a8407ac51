//! Metadata of a quantized file.

use std::path::Path;

use crate::options::{MAX_OVERRIDE_BYTES, Override};
use crate::prune::PrunedLayers;
use crate::{FileType, QuantizeError};
use gguf_format::split::merged_metadata;
use gguf_format::{Array, Imatrix, Metadata, Value};

/// Value of `general.quantization_version`: the generation of block types.
const QUANTIZATION_VERSION: u32 = 2;

const FILE_TYPE: &str = "general.file_type";

pub(crate) struct Changes<'a> {
    /// Value of `general.file_type`.
    pub file_type: u32,
    /// True to change keys in their places, as the quantizer of image models does.
    pub(crate) keeps_order: bool,
    /// Keys set by the user.
    pub overrides: &'a [Override],
    /// Importance matrix that is used, if it has entries.
    pub imatrix: Option<&'a Imatrix>,
    /// Layers that are left out.
    pub pruned: Option<&'a PrunedLayers<'a>>,
    /// Number of layers after pruning.
    pub n_layers: Option<u32>,
}

/// Metadata of the output.
///
/// # Exactness
/// ref: a key that is set moves to the end; strings and keys end at a NUL; strings about the importance matrix are cut
/// at 127 bytes, even within a character.
pub(crate) fn output_metadata(source: &Metadata, changes: &Changes<'_>) -> Result<Metadata, QuantizeError> {
    let mut out = Metadata::new();
    for (key, value) in source.iter() {
        put(&mut out, key.split('\0').next().unwrap_or_default(), without_nul(value));
    }
    let declared = [("general.quantization_version", QUANTIZATION_VERSION), (FILE_TYPE, changes.file_type)];
    for (key, value) in declared {
        if changes.keeps_order {
            out.set(key, value);
        } else {
            put(&mut out, key, Value::U32(value));
        }
    }
    out = merged_metadata(&out);
    if let Some(pruned) = changes.pruned {
        pruned.apply(&mut out);
    }
    for item in changes.overrides {
        put(&mut out, &item.key, item.value_in(source)?);
    }
    if let Some(imatrix) = changes.imatrix {
        if imatrix.path() != Path::new("") {
            put(&mut out, "quantize.imatrix.file", text(path_bytes(imatrix.path())));
        }
        if let Some(dataset) = imatrix.dataset() {
            put(&mut out, "quantize.imatrix.dataset", text(dataset));
        }
        put(&mut out, "quantize.imatrix.entries_count", count(imatrix.entries().len() as i64));
        if imatrix.n_chunks() > 0 {
            put(&mut out, "quantize.imatrix.chunks_count", count(imatrix.n_chunks()));
        }
    }
    if let Some(n_layers) = changes.n_layers {
        let architecture = source.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        put(&mut out, &format!("{architecture}.block_count"), Value::U32(n_layers));
    }
    Ok(out)
}

/// Value of `general.file_type` for a copied source: its own, otherwise a guess.
pub(crate) fn copied_file_type(source: &Metadata, guess: impl FnOnce() -> u32) -> u32 {
    declared_file_type(source).unwrap_or_else(guess)
}

/// Value of `general.file_type`, if it has a meaningful one.
pub(crate) fn declared_file_type(metadata: &Metadata) -> Option<u32> {
    metadata.get(FILE_TYPE).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())
}

/// Value of `general.file_type` for a file type.
pub(crate) fn file_type_id(file_type: FileType, source: &Metadata, guess: impl FnOnce() -> u32) -> u32 {
    match file_type {
        FileType::Copy => copied_file_type(source, guess),
        file_type => file_type.id(),
    }
}

fn put(metadata: &mut Metadata, key: &str, value: Value) {
    metadata.remove(key);
    metadata.set(key, value);
}

fn count(n: i64) -> Value {
    Value::U32(n.unsigned_abs() as u32)
}

fn text(bytes: &[u8]) -> Value {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    Value::String(bytes[..bytes.len().min(MAX_OVERRIDE_BYTES)].to_vec())
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

fn without_nul(value: &Value) -> Value {
    let cut = |bytes: &Vec<u8>| bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
    match value {
        Value::String(bytes) => Value::String(cut(bytes)),
        Value::Array(Array::String(items)) => Value::Array(Array::String(items.iter().map(cut).collect())),
        value => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(metadata: &Metadata) -> Vec<&str> {
        metadata.iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn keys_that_are_set_move_to_the_end() {
        let mut source = Metadata::new();
        source.set("general.file_type", 1u32);
        source.set("general.architecture", "llama");
        source.set("llama.block_count", 4u32);
        source.set("split.no", Value::U16(0));
        source.set("split.count", Value::U16(2));
        source.set("split.tensors.count", 7i32);
        source.set("general.name", "a\0b");
        let overrides = [Override::parse("general.architecture=str:llama").unwrap()];
        let changes = Changes {
            file_type: 15,
            keeps_order: false,
            overrides: &overrides,
            imatrix: None,
            pruned: None,
            n_layers: Some(3),
        };
        let out = output_metadata(&source, &changes).unwrap();
        assert_eq!(
            keys(&out),
            [
                "general.name",
                "general.quantization_version",
                "general.file_type",
                "general.architecture",
                "llama.block_count"
            ]
        );
        assert_eq!(out.get("general.name").and_then(Value::as_str), Some("a"));
        assert_eq!(out.get("llama.block_count"), Some(&Value::U32(3)));
    }

    #[test]
    fn a_copy_keeps_its_file_type() {
        let mut source = Metadata::new();
        assert_eq!(file_type_id(FileType::Copy, &source, || 1025), 1025);
        source.set("general.file_type", 7u32);
        assert_eq!(file_type_id(FileType::Copy, &source, || 1025), 7);
        assert_eq!(file_type_id(FileType::Q4KM, &source, || 1025), 15);
    }
}
