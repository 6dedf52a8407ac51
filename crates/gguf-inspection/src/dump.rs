//! The JSON output of llama.cpp's `gguf_dump.py`: the declaration of each key and each tensor, by name.

use std::path::Path;

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::show::ShownValue;
use gguf_core::written::as_path;
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_format::{Array, GgufFile, Value, ValueType};

/// Bytes before the first key: magic, version, tensor count, key count.
const FIXED_BYTES: u64 = 24;

/// Options for the extent of the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpOptions {
    /// True to include the elements of arrays.
    pub has_arrays: bool,
    /// True to include the tensors.
    pub has_tensors: bool,
}

/// Contents of a file in the form of `gguf_dump.py`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileDump<'a> {
    /// Path of the file.
    #[serde(serialize_with = "as_path")]
    pub filename: &'a Path,
    /// Byte order: `LITTLE` or `BIG`.
    pub endian: String,
    /// Declarations of the keys. `GGUF.version`, `GGUF.tensor_count` and `GGUF.kv_count` are the numbers at the start
    /// of the file.
    pub metadata: IndexMap<&'a str, DumpedKey>,
    /// Declarations of the tensors; empty if they are left out.
    pub tensors: IndexMap<&'a str, DumpedTensor>,
}

/// Declaration of a key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DumpedKey {
    /// Index of the key, from 0.
    pub index: usize,
    /// Type of the value: `UINT32`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Offset of the declaration in the header.
    pub offset: u64,
    /// Type of an array's first element, and of the first element in that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_types: Option<Vec<String>>,
    /// The value; of an array only if its elements are included, flattened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Json>,
}

/// Declaration of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DumpedTensor {
    /// Index of the tensor, from 0.
    pub index: usize,
    /// Dimensions, innermost first.
    pub shape: Vec<u64>,
    /// Type of the tensor.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Offset of the declaration in the header, not of the data.
    pub offset: u64,
}

/// Describes the first file, which may be a part of a model.
///
/// # Exactness
/// Members, their names and their values are those of `gguf_dump.py --json` of llama.cpp 0.5.0: numbers of the fixed
/// header as `GGUF.*`, shapes innermost first, 32-bit floats with all their digits, arrays of arrays flattened into
/// one. Floats that JSON cannot represent are strings, and a string that is not UTF-8 is `{"hex": …}`; the script
/// prints no JSON in these cases.
pub fn dump(file: &GgufFile, options: DumpOptions) -> FileDump<'_> {
    let (key_offsets, tensor_offsets) = declared_at(file);
    let counts = [file.tensors().len() as u64, file.metadata().len() as u64];
    let mut metadata = IndexMap::new();
    for (index, (name, ty, offset, number)) in [
        ("GGUF.version", ValueType::U32, 4, u64::from(file.version())),
        ("GGUF.tensor_count", ValueType::U64, 8, counts[0]),
        ("GGUF.kv_count", ValueType::U64, 16, counts[1]),
    ]
    .into_iter()
    .enumerate()
    {
        let value = Some(number.into());
        metadata.insert(name, DumpedKey { index, ty: peer_name(ty), offset, array_types: None, value });
    }
    for ((key, value), offset) in file.metadata().iter().zip(key_offsets) {
        let (index, ty) = (metadata.len(), peer_name(value.value_type()));
        let array_types =
            value.as_array().map(|array| array_types(array).into_iter().map(peer_name).collect());
        let value = match value {
            Value::Array(array) => options.has_arrays.then(|| Json::Array(flat(array))),
            other => Some(number(other)),
        };
        metadata.insert(key, DumpedKey { index, ty, offset, array_types, value });
    }
    let mut tensors = IndexMap::new();
    if options.has_tensors {
        for (index, (tensor, offset)) in file.tensors().iter().zip(tensor_offsets).enumerate() {
            let shape = tensor.shape.dims().iter().rev().copied().collect();
            tensors.insert(tensor.name.as_str(), DumpedTensor { index, shape, ty: tensor.ty, offset });
        }
    }
    let endian = crate::endian_name(file.endian()).to_uppercase();
    FileDump { filename: file.path(), endian, metadata, tensors }
}

/// Returns the offset of the tensor data; in a file without tensors, the offset at which it would begin.
pub fn data_begin(file: &GgufFile) -> u64 {
    file.data_offset().checked_next_multiple_of(file.alignment()).unwrap_or(u64::MAX)
}

/// Returns the offsets in the header of the (first) file at which each key and each tensor is declared.
fn declared_at(file: &GgufFile) -> (Vec<u64>, Vec<u64>) {
    let mut at = FIXED_BYTES;
    let mut next = |n_bytes: u64| {
        let start = at;
        // Values read from a file are no longer than the file.
        at = at.saturating_add(n_bytes);
        start
    };
    let keys = file.metadata().iter().map(|(key, value)| next(8 + key.len() as u64 + 4 + value_bytes(value)));
    let keys: Vec<u64> = keys.collect();
    let tensor_bytes =
        |tensor: &TensorMeta| 8 + tensor.name.len() as u64 + 4 + 8 * tensor.shape.rank() as u64 + 4 + 8;
    let tensors = file.tensors().iter().map(|tensor| next(tensor_bytes(tensor))).collect();
    (keys, tensors)
}

/// Returns the bytes of a value in the file, without its type.
fn value_bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => 8 + text.len() as u64,
        Value::Array(array) => array_bytes(array),
        other => other.value_type().min_bytes(),
    }
}

/// Returns the bytes of an array in the file: element type, count, elements.
fn array_bytes(array: &Array) -> u64 {
    12 + match array {
        Array::String(texts) => texts.iter().map(|text| 8 + text.len() as u64).sum(),
        Array::Array(arrays) => arrays.iter().map(array_bytes).sum(),
        other => other.len() as u64 * other.element_type().min_bytes(),
    }
}

/// Returns the nested element types of an array, each by its first element; an empty array has none.
fn array_types(array: &Array) -> Vec<ValueType> {
    let inner = match array {
        Array::Array(arrays) => arrays.first().map(array_types).unwrap_or_default(),
        _ => Vec::new(),
    };
    let own = (!array.is_empty()).then(|| array.element_type());
    own.into_iter().chain(inner).collect()
}

/// Returns the elements of an array, with nested arrays flattened.
fn flat(array: &Array) -> Vec<Json> {
    match array {
        Array::Array(arrays) => arrays.iter().flat_map(flat).collect(),
        other => (0..other.len()).filter_map(|index| other.get(index)).map(|elem| number(&elem)).collect(),
    }
}

/// Converts a value to JSON, with a 32-bit float as its exact value instead of its shortest digits.
fn number(value: &Value) -> Json {
    match value {
        Value::F32(v) => json!(ShownValue::whole(&Value::F64((*v).into()))),
        other => json!(ShownValue::whole(other)),
    }
}

/// Returns the name of a type in gguf-py.
fn peer_name(ty: ValueType) -> String {
    ty.long_name().to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_below_arrays_are_those_of_first_elements() {
        let inner = Array::U32(vec![1, 2]);
        let nested = Array::Array(vec![inner.clone(), Array::U32(vec![3])]);
        assert_eq!(array_types(&inner), [ValueType::U32]);
        assert_eq!(array_types(&nested), [ValueType::Array, ValueType::U32]);
        assert_eq!(array_types(&Array::Array(Vec::new())), []);
        assert_eq!(flat(&nested), [json!(1), json!(2), json!(3)]);
        assert_eq!(number(&Value::F32(0.1)), json!(f64::from(0.1f32)));
        assert_eq!(peer_name(ValueType::F32), "FLOAT32");
    }
}
