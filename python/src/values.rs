//! Metadata values as Python's objects.

use gguf_foundry::gguf::{Array, Value};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Numbers, booleans, texts and lists of these. A text that is not UTF-8 comes as bytes.
pub(crate) fn object(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::U8(v) => v.into_py_any(py),
        Value::I8(v) => v.into_py_any(py),
        Value::U16(v) => v.into_py_any(py),
        Value::I16(v) => v.into_py_any(py),
        Value::U32(v) => v.into_py_any(py),
        Value::I32(v) => v.into_py_any(py),
        Value::F32(v) => v.into_py_any(py),
        Value::Bool(v) => v.into_py_any(py),
        Value::U64(v) => v.into_py_any(py),
        Value::I64(v) => v.into_py_any(py),
        Value::F64(v) => v.into_py_any(py),
        Value::String(v) => text(py, v),
        Value::Array(v) => list(py, v),
    }
}

/// The type of a value in words: `u32`, `arr[str]`.
pub(crate) fn type_name(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("arr[{}]", array.element_type()),
        other => other.value_type().to_string(),
    }
}

fn text(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into_py_any(py),
        Err(_) => PyBytes::new(py, bytes).into_py_any(py),
    }
}

fn list(py: Python<'_>, array: &Array) -> PyResult<Py<PyAny>> {
    match array {
        // A vector of bytes would come as `bytes`, which is not what the other numbers come as.
        Array::U8(v) => v.iter().map(|&v| u32::from(v)).collect::<Vec<_>>().into_py_any(py),
        Array::I8(v) => v.into_py_any(py),
        Array::U16(v) => v.into_py_any(py),
        Array::I16(v) => v.into_py_any(py),
        Array::U32(v) => v.into_py_any(py),
        Array::I32(v) => v.into_py_any(py),
        Array::F32(v) => v.into_py_any(py),
        Array::Bool(v) => v.into_py_any(py),
        Array::U64(v) => v.into_py_any(py),
        Array::I64(v) => v.into_py_any(py),
        Array::F64(v) => v.into_py_any(py),
        Array::String(v) => v.iter().map(|v| text(py, v)).collect::<PyResult<Vec<_>>>()?.into_py_any(py),
        // The reader bounds how deep arrays nest.
        Array::Array(v) => v.iter().map(|v| list(py, v)).collect::<PyResult<Vec<_>>>()?.into_py_any(py),
    }
}
