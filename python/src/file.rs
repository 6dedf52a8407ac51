//! An open GGUF file.

use std::path::PathBuf;

use gguf_foundry::core::bytes::Endian;
use gguf_foundry::core::{TensorMeta, TensorSource};
use gguf_foundry::gguf::GgufFile;
use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::exception;
use crate::{blocks, values};

/// Name, shape, type, part, offset and bytes of a tensor.
type Row = (String, Vec<u64>, &'static str, usize, u64, u64);

/// A GGUF model, all parts of a split one. The files are mapped: what is read is paged in, no more.
#[pyclass(frozen, module = "gguf_foundry._native")]
pub(crate) struct File {
    file: GgufFile,
}

#[pymethods]
impl File {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file = py.detach(|| GgufFile::open(&path)).map_err(|error| exception(&error))?;
        Ok(Self { file })
    }

    /// Version of the format, `little` or `big`, alignment and bytes of all files.
    fn layout(&self) -> (u32, &'static str, u64, u64) {
        let endian = match self.file.endian() {
            Endian::Little => "little",
            Endian::Big => "big",
        };
        (self.file.version(), endian, self.file.alignment(), self.file.file_bytes())
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.file.paths()
    }

    /// Keys and values in file order.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (key, value) in self.file.metadata().iter() {
            dict.set_item(key, values::object(py, value)?)?;
        }
        Ok(dict)
    }

    /// Keys and the types of their values.
    fn metadata_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (key, value) in self.file.metadata().iter() {
            dict.set_item(key, values::type_name(value))?;
        }
        Ok(dict)
    }

    /// The tensors in file order; shapes are outermost first.
    fn tensors(&self) -> Vec<Row> {
        let row = |(index, meta): (usize, &TensorMeta)| {
            let place = self.file.place(index);
            let shape = meta.shape.dims().to_vec();
            (meta.name.clone(), shape, meta.ty.name(), place.part, place.offset, place.n_bytes)
        };
        self.file.tensors().iter().enumerate().map(row).collect()
    }

    /// Rows of a tensor as blocks, little-endian whatever the file is.
    fn blocks<'py>(
        &self,
        py: Python<'py>,
        tensor: usize,
        first_row: u64,
        n_rows: u64,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let meta = self.rows(tensor, first_row, n_rows)?;
        let blocks = py.detach(|| self.read(meta, tensor, first_row, n_rows))?;
        Ok(PyArray1::from_vec(py, blocks))
    }

    /// Rows of a tensor as floats.
    fn floats<'py>(
        &self,
        py: Python<'py>,
        tensor: usize,
        first_row: u64,
        n_rows: u64,
        n_threads: usize,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let meta = self.rows(tensor, first_row, n_rows)?;
        let floats = py.detach(|| {
            let blocks = self.read(meta, tensor, first_row, n_rows)?;
            blocks::floats(meta.ty, &blocks, n_threads).map_err(|error| exception(&error))
        })?;
        Ok(PyArray1::from_vec(py, floats))
    }
}

impl File {
    /// The tensor, if it has these rows.
    fn rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> PyResult<&TensorMeta> {
        let meta = self.file.tensors().get(tensor);
        let meta = meta.ok_or_else(|| PyIndexError::new_err(format!("no tensor {tensor}")))?;
        let all = meta.shape.n_rows();
        if first_row.checked_add(n_rows).is_none_or(|end| end > all) {
            let message = format!("`{}`: rows {first_row} + {n_rows} of {all}", meta.name);
            return Err(PyIndexError::new_err(message));
        }
        Ok(meta)
    }

    fn read(&self, meta: &TensorMeta, tensor: usize, first_row: u64, n_rows: u64) -> PyResult<Vec<u8>> {
        let n_bytes = meta.row_bytes().and_then(|bytes| usize::try_from(bytes.checked_mul(n_rows)?).ok());
        let n_bytes = n_bytes
            .ok_or_else(|| PyValueError::new_err(format!("`{}` does not fit into memory", meta.name)))?;
        let mut blocks = vec![0; n_bytes];
        self.file.read_rows(tensor, first_row, &mut blocks).map_err(|error| exception(&error))?;
        Ok(blocks)
    }
}
