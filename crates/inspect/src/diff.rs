//! Comparison of two GGUF files: metadata, tensors, and distances of the decoded values.

use rayon::prelude::*;

use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use gguf_format::{GgufFile, Value};
use gguf_quant::{QuantError, dequantize};

/// Number of elements that each thread decodes at a time.
const CHUNK_ELEMS: u64 = 1 << 18;

/// A key that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyDiff {
    /// The key.
    pub key: String,
    /// Value in the first file.
    pub a: Option<Value>,
    /// Value in the second file.
    pub b: Option<Value>,
}

impl KeyDiff {
    /// Returns the index of the first element that differs; `None` if the values are not both arrays.
    #[must_use]
    pub fn first_element(&self) -> Option<usize> {
        match (&self.a, &self.b) {
            (Some(Value::Array(a)), Some(Value::Array(b))) => {
                let n = a.len().min(b.len());
                (0..n).find(|&index| a.get(index) != b.get(index)).or((a.len() != b.len()).then_some(n))
            }
            _ => None,
        }
    }
}

/// Distance of the decoded values of a tensor in two files.
///
/// NaN equals NaN.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct DataDiff {
    /// Number of elements.
    pub n_elems: u64,
    /// Number of elements that differ.
    pub n_differing: u64,
    /// Number of elements that are not finite in one file and differ in the other; the other statistics exclude them.
    pub n_non_finite: u64,
    /// Largest `|a - b|`.
    pub max_abs: f64,
    /// Index of the element with the largest `|a - b|`, in row-major order.
    pub max_abs_at: u64,
    /// Largest `|a - b| / max(|a|, |b|)`.
    pub max_rel: f64,
    sum_a2: f64,
    sum_d2: f64,
}

impl DataDiff {
    /// Returns the root mean square of `a - b`.
    #[must_use]
    pub fn rms(&self) -> f64 {
        if self.n_elems == 0 { 0.0 } else { (self.sum_d2 / self.n_elems as f64).sqrt() }
    }

    /// Returns the root of the sum of `(a - b)²` over that of `a²`; 0 if both are zero.
    #[must_use]
    pub fn relative_rms(&self) -> f64 {
        if self.sum_d2 == 0.0 { 0.0 } else { (self.sum_d2 / self.sum_a2).sqrt() }
    }

    fn add(&mut self, index: u64, a: f32, b: f32) {
        self.n_elems += 1;
        if a == b || (a.is_nan() && b.is_nan()) {
            let a = if a.is_finite() { f64::from(a) } else { 0.0 };
            self.sum_a2 += a * a;
            return;
        }
        self.n_differing += 1;
        if !a.is_finite() || !b.is_finite() {
            self.n_non_finite += 1;
            return;
        }
        let (a, b) = (f64::from(a), f64::from(b));
        let abs = (a - b).abs();
        if abs > self.max_abs {
            self.max_abs = abs;
            self.max_abs_at = index;
        }
        self.max_rel = self.max_rel.max(abs / a.abs().max(b.abs()));
        self.sum_a2 += a * a;
        self.sum_d2 += abs * abs;
    }

    /// Merges the statistics of a later chunk.
    fn join(mut self, later: Self) -> Self {
        if later.max_abs > self.max_abs {
            self.max_abs = later.max_abs;
            self.max_abs_at = later.max_abs_at;
        }
        self.max_rel = self.max_rel.max(later.max_rel);
        self.n_elems += later.n_elems;
        self.n_differing += later.n_differing;
        self.n_non_finite += later.n_non_finite;
        self.sum_a2 += later.sum_a2;
        self.sum_d2 += later.sum_d2;
        self
    }
}

/// A tensor that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDiff {
    /// Name of the tensor.
    pub name: String,
    /// Type and shape in the first file.
    pub a: Option<(GgmlType, Shape)>,
    /// Type and shape in the second file.
    pub b: Option<(GgmlType, Shape)>,
    /// Comparison of the values, if the tensor is in both files with the same shape.
    pub data: Option<DataDiff>,
}

/// All differences between two files.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Diff {
    /// Differences of version, byte order or alignment: name, value in the first file, value in the second.
    pub layout: Vec<(&'static str, String, String)>,
    /// Keys that differ, in the order of the first file, then those that only the second has.
    pub keys: Vec<KeyDiff>,
    /// True if the common keys are in another order.
    pub key_order: bool,
    /// Tensors that differ, in the order of the first file, then those that only the second has.
    pub tensors: Vec<TensorDiff>,
    /// True if the common tensors are in another order.
    pub tensor_order: bool,
}

impl Diff {
    /// True if nothing differs.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        *self == Self::default()
    }
}

/// Reasons why two files cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// Rows could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Rows could not be decoded.
    #[error("tensor `{}`: {error}", gguf_core::text::escape(tensor))]
    Decode {
        /// The tensor.
        tensor: String,
        /// Error of the decoder.
        error: QuantError,
    },
    /// The run was cancelled.
    #[error("interrupted")]
    Cancelled,
}

/// Compares two models, each in one or more files; without `data`, only metadata, names, types and shapes.
///
/// # Errors
/// See [`DiffError`].
pub fn diff(
    a: &GgufFile,
    b: &GgufFile,
    data: bool,
    level: SimdLevel,
    progress: &dyn Progress,
) -> Result<Diff, DiffError> {
    let mut out = Diff { layout: layout(a, b), keys: keys(a, b), ..Diff::default() };
    let names = |file: &GgufFile, other: &GgufFile| -> Vec<String> {
        file.metadata()
            .iter()
            .map(|(key, _)| key.to_owned())
            .filter(|key| other.metadata().contains(key))
            .collect()
    };
    out.key_order = names(a, b) != names(b, a);
    let names = |file: &GgufFile, other: &GgufFile| -> Vec<String> {
        let names = file.tensors().iter().map(|tensor| tensor.name.clone());
        names.filter(|name| other.tensor_index(name).is_some()).collect()
    };
    out.tensor_order = names(a, b) != names(b, a);

    if data {
        progress.begin("comparing", a.tensor_bytes());
    }
    let compared = tensors(a, b, data, level, progress);
    if data {
        progress.end();
    }
    out.tensors = compared?;
    Ok(out)
}

fn layout(a: &GgufFile, b: &GgufFile) -> Vec<(&'static str, String, String)> {
    let all = [
        ("version", a.version().to_string(), b.version().to_string()),
        (
            "byte order",
            crate::summary::endian_name(a.endian()).to_owned(),
            crate::summary::endian_name(b.endian()).to_owned(),
        ),
        ("alignment", a.alignment().to_string(), b.alignment().to_string()),
        ("parts", a.parts().len().to_string(), b.parts().len().to_string()),
    ];
    all.into_iter().filter(|(_, a, b)| a != b).collect()
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

fn keys(a: &GgufFile, b: &GgufFile) -> Vec<KeyDiff> {
    let mut out = Vec::new();
    for (key, value) in a.metadata().iter() {
        let other = b.metadata().get(key);
        if !other.is_some_and(|other| same_value(value, other)) {
            out.push(KeyDiff { key: key.to_owned(), a: Some(value.clone()), b: other.cloned() });
        }
    }
    for (key, value) in b.metadata().iter().filter(|(key, _)| !a.metadata().contains(key)) {
        out.push(KeyDiff { key: key.to_owned(), a: None, b: Some(value.clone()) });
    }
    out
}

fn tensors(
    a: &GgufFile,
    b: &GgufFile,
    data: bool,
    level: SimdLevel,
    progress: &dyn Progress,
) -> Result<Vec<TensorDiff>, DiffError> {
    let facts = |tensor: &TensorMeta| Some((tensor.ty, tensor.shape.clone()));
    let mut out = Vec::new();
    for (index, tensor) in a.tensors().iter().enumerate() {
        let name = tensor.name.clone();
        let Some(other) = b.tensor_index(&name) else {
            out.push(TensorDiff { name, a: facts(tensor), b: None, data: None });
            continue;
        };
        let same_shape = tensor.shape == b.tensors()[other].shape;
        let same_type = tensor.ty == b.tensors()[other].ty;
        let values = if data && same_shape {
            TensorPair { a, b, tensor: index, other, level, progress }.compare(same_type)?
        } else {
            None
        };
        if !same_shape || !same_type || values.is_some() {
            out.push(TensorDiff { name, a: facts(tensor), b: facts(&b.tensors()[other]), data: values });
        }
    }
    for tensor in b.tensors().iter().filter(|tensor| a.tensor_index(&tensor.name).is_none()) {
        out.push(TensorDiff { name: tensor.name.clone(), a: None, b: facts(tensor), data: None });
    }
    Ok(out)
}

/// A tensor that both files have in the same shape.
struct TensorPair<'a> {
    a: &'a GgufFile,
    b: &'a GgufFile,
    tensor: usize,
    other: usize,
    level: SimdLevel,
    progress: &'a dyn Progress,
}

impl TensorPair<'_> {
    /// Compares the tensor; `None` if the bytes are the same.
    fn compare(&self, same_type: bool) -> Result<Option<DataDiff>, DiffError> {
        let shape = &self.a.tensors()[self.tensor].shape;
        let (n_rows, n_cols) = (shape.n_rows(), shape.n_cols());
        if shape.n_elems() == 0 {
            return Ok((!same_type).then(DataDiff::default));
        }
        let step = (CHUNK_ELEMS / n_cols).max(1);
        let chunks = (0..n_rows.div_ceil(step))
            .into_par_iter()
            .map(|chunk| (chunk * step, step.min(n_rows - chunk * step)));
        if same_type {
            let differs = chunks.clone().map_init(PairBuffers::default, |buffers, (first, n)| {
                self.read(buffers, first, n)?;
                Ok(buffers.bytes_a != buffers.bytes_b)
            });
            // Stops at the first chunk that differs (or fails, which then shows below).
            if !differs.any(|found: Result<bool, DiffError>| found.unwrap_or(true)) {
                let place = self.a.place(self.tensor);
                self.progress.advance(place.n_bytes);
                return Ok(None);
            }
        }
        let parts: Vec<DataDiff> = chunks
            .map_init(PairBuffers::default, |buffers, (first, n)| self.measure(buffers, first, n))
            .collect::<Result<_, _>>()?;
        // Merged in order, so that sums do not depend on threads.
        Ok(parts.into_iter().reduce(DataDiff::join))
    }

    fn read(&self, buffers: &mut PairBuffers, first: u64, n_rows: u64) -> Result<(), DiffError> {
        if self.progress.is_cancelled() {
            return Err(DiffError::Cancelled);
        }
        read(self.a, self.tensor, first, n_rows, &mut buffers.bytes_a)?;
        read(self.b, self.other, first, n_rows, &mut buffers.bytes_b)?;
        self.a.release_rows(self.tensor, first, n_rows);
        self.b.release_rows(self.other, first, n_rows);
        Ok(())
    }

    fn measure(&self, buffers: &mut PairBuffers, first: u64, n_rows: u64) -> Result<DataDiff, DiffError> {
        self.read(buffers, first, n_rows)?;
        self.decode(self.a, self.tensor, n_rows, &buffers.bytes_a, &mut buffers.a)?;
        self.decode(self.b, self.other, n_rows, &buffers.bytes_b, &mut buffers.b)?;
        let mut diff = DataDiff::default();
        let n_cols = self.a.tensors()[self.tensor].shape.n_cols();
        for (index, (&a, &b)) in (first * n_cols..).zip(buffers.a.iter().zip(&buffers.b)) {
            diff.add(index, a, b);
        }
        self.progress.advance(buffers.bytes_a.len() as u64);
        Ok(diff)
    }

    fn decode(
        &self,
        file: &GgufFile,
        tensor: usize,
        n_rows: u64,
        bytes: &[u8],
        out: &mut Vec<f32>,
    ) -> Result<(), DiffError> {
        let meta = &file.tensors()[tensor];
        // A chunk is one row, which is mapped, or at most `CHUNK_ELEMS`.
        out.resize((n_rows * meta.shape.n_cols()) as usize, 0.0);
        dequantize(meta.ty, self.level, bytes, out)
            .map_err(|error| DiffError::Decode { tensor: meta.name.clone(), error })
    }
}

#[derive(Default)]
struct PairBuffers {
    bytes_a: Vec<u8>,
    bytes_b: Vec<u8>,
    a: Vec<f32>,
    b: Vec<f32>,
}

fn read(
    file: &GgufFile,
    tensor: usize,
    first: u64,
    n_rows: u64,
    out: &mut Vec<u8>,
) -> Result<(), SourceError> {
    let row_bytes = file.tensors()[tensor].row_bytes().unwrap_or(0);
    out.resize((n_rows * row_bytes) as usize, 0);
    file.read_rows(tensor, first, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_measured() {
        let mut diff = DataDiff::default();
        for (index, (a, b)) in
            [(3.0, 3.0), (4.0, 5.0), (-1.0, -1.5), (f32::NAN, f32::NAN), (1.0, f32::INFINITY)]
                .into_iter()
                .enumerate()
        {
            diff.add(index as u64, a, b);
        }
        assert_eq!((diff.n_elems, diff.n_differing, diff.n_non_finite), (5, 3, 1));
        assert_eq!((diff.max_abs, diff.max_abs_at), (1.0, 1));
        assert!((diff.max_rel - 1.0 / 3.0).abs() < 1e-12);
        assert!((diff.relative_rms() - (1.25f64 / 26.0).sqrt()).abs() < 1e-12);
        let mut later = DataDiff::default();
        later.add(9, 0.0, -7.0);
        let joined = diff.join(later);
        assert_eq!((joined.max_abs_at, joined.max_rel, joined.n_elems), (9, 1.0, 6));
    }
}
