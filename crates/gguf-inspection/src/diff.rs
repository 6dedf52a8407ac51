//! Comparison of two GGUF files: metadata, tensors, and distances of the decoded values.

mod data;

use serde::Serialize;

use crate::show::TypedValue;
use crate::summary::endian_name;
use data::TensorPair;
use gguf_blocks::QuantError;
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_format::{GgufFile, Metadata, Value};

pub use data::DataDiff;

/// All differences between two files, `a` and `b`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff<'a> {
    /// True if nothing differs.
    #[serde(rename = "equal")]
    pub is_equal: bool,
    /// Differences of the files themselves.
    pub layout: Vec<LayoutDiff>,
    /// Keys that differ, in the order of the first file, then those that only the second has.
    pub keys: Vec<KeyDiff<'a>>,
    /// True if the common keys are in another order.
    #[serde(rename = "key_order_differs")]
    pub key_order: bool,
    /// Tensors that differ, in the order of the first file, then those that only the second has.
    pub tensors: Vec<TensorDiff<'a>>,
    /// True if the common tensors are in another order.
    #[serde(rename = "tensor_order_differs")]
    pub tensor_order: bool,
}

/// A property of the files that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayoutDiff {
    /// Name of the property: `version`, `byte order`, `alignment` or `parts`.
    pub what: &'static str,
    /// Its text in the first file.
    pub a: String,
    /// Its text in the second file.
    pub b: String,
}

/// A key that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyDiff<'a> {
    /// The key.
    pub key: &'a str,
    /// Value in the first file; null if the key is missing there.
    pub a: Option<TypedValue<'a>>,
    /// Value in the second file; null if the key is missing there.
    pub b: Option<TypedValue<'a>>,
    /// Index of the first element that differs, if both values are arrays.
    pub first_element: Option<usize>,
}

/// A tensor that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorDiff<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Form in the first file; null if the tensor is missing there.
    pub a: Option<TensorForm<'a>>,
    /// Form in the second file; null if the tensor is missing there.
    pub b: Option<TensorForm<'a>>,
    /// Distance of the decoded values; null if they are not compared: the tensor is in one file only, the shapes
    /// differ by more than outer dimensions of 1, or the comparison leaves out the data.
    pub data: Option<DataDiff>,
}

/// Type and shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TensorForm<'a> {
    /// Type of the tensor.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Shape, outermost dimension first.
    pub shape: &'a Shape,
}

/// Reasons why two files cannot be compared.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DiffError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("tensor `{}`: {error}", gguf_core::text::escape(tensor))]
    Decode { tensor: String, error: QuantError },
    #[error("interrupted")]
    Cancelled,
}

/// Compares two models, each in one or more files; without `data`, only metadata, names, types and shapes.
pub fn diff<'a>(
    a: &'a GgufFile,
    b: &'a GgufFile,
    data: bool,
    level: SimdLevel,
    progress: &dyn Progress,
) -> Result<Diff<'a>, DiffError> {
    if data {
        progress.begin("comparing", a.tensor_bytes());
    }
    let compared = tensors(a, b, data, level, progress);
    if data {
        progress.end();
    }
    let (layout, keys, tensors) = (layout(a, b), diff_keys(a.metadata(), b.metadata()), compared?);
    let key_order = common_keys(a, b) != common_keys(b, a);
    let tensor_order = common_tensors(a, b) != common_tensors(b, a);
    let is_equal = layout.is_empty() && keys.is_empty() && tensors.is_empty() && !key_order && !tensor_order;
    Ok(Diff { is_equal, layout, keys, key_order, tensors, tensor_order })
}

/// Returns the keys that another file has, too, in the order of the file.
fn common_keys<'a>(file: &'a GgufFile, other: &GgufFile) -> Vec<&'a str> {
    file.metadata().iter().map(|(key, _)| key).filter(|key| other.metadata().contains(key)).collect()
}

/// Returns the tensors that another file has, too, in the order of the file.
fn common_tensors<'a>(file: &'a GgufFile, other: &GgufFile) -> Vec<&'a str> {
    let names = file.tensors().iter().map(|tensor| tensor.name.as_str());
    names.filter(|name| other.tensor_index(name).is_some()).collect()
}

fn layout(a: &GgufFile, b: &GgufFile) -> Vec<LayoutDiff> {
    let property = |what, text: fn(&GgufFile) -> String| LayoutDiff { what, a: text(a), b: text(b) };
    let all = [
        property("version", |file| file.version().to_string()),
        property("byte order", |file| endian_name(file.endian()).to_owned()),
        property("alignment", |file| file.alignment().to_string()),
        property("parts", |file| file.parts().len().to_string()),
    ];
    all.into_iter().filter(|property| property.a != property.b).collect()
}

/// Returns true if two values are bitwise equal: NaN equals NaN, 0.0 does not equal -0.0.
fn same_value(a: &Value, b: &Value) -> bool {
    use gguf_format::Array;
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::Array(Array::F32(a)), Value::Array(Array::F32(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        }
        (Value::Array(Array::F64(a)), Value::Array(Array::F64(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        }
        (a, b) => a == b,
    }
}

/// Compares keys: those that differ, in the order of the first, then those that only the second has.
pub fn diff_keys<'a>(a: &'a Metadata, b: &'a Metadata) -> Vec<KeyDiff<'a>> {
    let mut out = Vec::new();
    for (key, value) in a.iter() {
        let other = b.get(key);
        if !other.is_some_and(|other| same_value(value, other)) {
            out.push(KeyDiff::of(key, Some(value), other));
        }
    }
    for (key, value) in b.iter().filter(|(key, _)| !a.contains(key)) {
        out.push(KeyDiff::of(key, None, Some(value)));
    }
    out
}

impl<'a> KeyDiff<'a> {
    fn of(key: &'a str, a: Option<&'a Value>, b: Option<&'a Value>) -> Self {
        let first_element = match (a, b) {
            (Some(Value::Array(a)), Some(Value::Array(b))) => {
                let n = a.len().min(b.len());
                (0..n).find(|&index| a.get(index) != b.get(index)).or((a.len() != b.len()).then_some(n))
            }
            _ => None,
        };
        Self { key, a: a.map(TypedValue::whole), b: b.map(TypedValue::whole), first_element }
    }
}

fn tensors<'a>(
    a: &'a GgufFile,
    b: &'a GgufFile,
    data: bool,
    level: SimdLevel,
    progress: &dyn Progress,
) -> Result<Vec<TensorDiff<'a>>, DiffError> {
    let form = |tensor: &'a TensorMeta| Some(TensorForm { ty: tensor.ty, shape: &tensor.shape });
    let mut out = Vec::new();
    for (index, tensor) in a.tensors().iter().enumerate() {
        let name = tensor.name.as_str();
        let Some(other) = b.tensor_index(name) else {
            out.push(TensorDiff { name, a: form(tensor), b: None, data: None });
            continue;
        };
        let same_shape = tensor.shape == b.tensors()[other].shape;
        let same_rows = tensor.shape.of_ggml() == b.tensors()[other].shape.of_ggml();
        let same_type = tensor.ty == b.tensors()[other].ty;
        let values = if data && same_rows {
            TensorPair { a, b, tensor: index, other, level, progress }.compare(same_type)?
        } else {
            None
        };
        if !same_shape || !same_type || values.is_some() {
            out.push(TensorDiff { name, a: form(tensor), b: form(&b.tensors()[other]), data: values });
        }
    }
    for tensor in b.tensors().iter().filter(|tensor| a.tensor_index(&tensor.name).is_none()) {
        out.push(TensorDiff { name: &tensor.name, a: None, b: form(tensor), data: None });
    }
    Ok(out)
}
