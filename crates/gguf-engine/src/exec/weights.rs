//! Weights: vectors, matrices and norms of a plan, and the decoding of their rows to f32.

use crate::exec::workers::lend;
use crate::{EngineError, Result};
use gguf_blocks::dequantize;
use gguf_core::TensorSource;
use gguf_core::simd::SimdLevel;

/// Consecutive elements of a tensor that is small enough to be kept decoded: a bias, or a norm's weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// Index of the tensor in its source.
    pub tensor: usize,
    /// First element.
    pub first: usize,
    /// Number of elements.
    pub len: usize,
}

/// Rows of a matrix tensor that are multiplied with activations: `y = scale * (W x) + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Index of the tensor in its source.
    pub tensor: usize,
    /// First row used.
    pub first_row: usize,
    /// Number of rows used: the width of `y`.
    pub n_rows: usize,
    /// Number of columns: the width of `x`.
    pub n_cols: usize,
    /// Bias that is added to the product.
    pub bias: Option<Vector>,
    /// Factor of the product, one value, applied before the bias.
    pub scale: Option<Vector>,
    /// Expert of a stacked tensor that the rows belong to.
    pub expert: Option<usize>,
}

impl Matrix {
    /// Returns rows `first .. first + n` as a matrix.
    pub(crate) fn rows(&self, first: usize, n: usize) -> Self {
        let bias = self.bias.as_ref().map(|b| Vector { tensor: b.tensor, first: b.first + first, len: n });
        Self { first_row: self.first_row + first, n_rows: n, bias, ..self.clone() }
    }
}

/// Formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormFormula {
    /// RMS norm, `x / sqrt(mean(x²) + eps)`.
    Rms,
    /// Layer norm, `(x - mean) / sqrt(variance + eps)`.
    Layer,
}

/// Norm of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// Formula.
    pub formula: NormFormula,
    /// Factors after normalizing.
    pub weight: Option<Vector>,
    /// Bias that is added after the weight.
    pub bias: Option<Vector>,
    /// Term inside the root.
    pub eps: f32,
}

/// Reader and decoder of a model's tensors.
#[derive(Clone, Copy)]
pub struct WeightReader<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) level: SimdLevel,
}

/// Norm whose vectors are in memory.
#[derive(Clone, Debug)]
pub(crate) struct LoadedNorm {
    pub(crate) formula: NormFormula,
    pub(crate) weight: Option<Vec<f32>>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) eps: f32,
}

impl<'a> WeightReader<'a> {
    /// Returns a reader of a source's tensors.
    pub fn new(source: &'a dyn TensorSource, level: SimdLevel) -> Self {
        Self { source, level }
    }

    /// Returns the bytes of `n_rows` rows of a tensor.
    pub(crate) fn row_bytes(&self, tensor: usize, n_rows: usize) -> Result<usize> {
        let meta = &self.source.tensors()[tensor];
        let bytes = meta.row_bytes().and_then(|row| row.checked_mul(n_rows as u64));
        bytes
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| EngineError::Blocks { tensor: meta.name.clone(), ty: meta.ty })
    }

    /// Decodes rows `first .. first + n` into `out`, which is exactly as long.
    pub fn rows(
        &self,
        tensor: usize,
        first: usize,
        n: usize,
        bytes: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<()> {
        let meta = &self.source.tensors()[tensor];
        let encoded = self.encoded(tensor, first, n, bytes)?;
        dequantize(meta.ty, self.level, encoded, out)
            .map_err(|source| EngineError::Decode { tensor: meta.name.clone(), source })
    }

    /// Returns the bytes of rows `first .. first + n`, read into `bytes` if they cannot be borrowed.
    fn encoded<'b>(
        &'b self,
        tensor: usize,
        first: usize,
        n: usize,
        bytes: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        if let Some(borrowed) = self.source.borrow_rows(tensor, first as u64, n as u64) {
            return Ok(borrowed);
        }
        let buffer = lend(bytes, self.row_bytes(tensor, n)?);
        self.source.read_rows(tensor, first as u64, buffer)?;
        Ok(buffer)
    }

    /// Returns a vector, decoded.
    pub(crate) fn vector(&self, vector: &Vector) -> Result<Vec<f32>> {
        let meta = &self.source.tensors()[vector.tensor];
        let n_cols = usize::try_from(meta.shape.n_cols()).unwrap_or(usize::MAX).max(1);
        let first_row = vector.first / n_cols;
        let end_row = (vector.first + vector.len).div_ceil(n_cols);
        let mut all = vec![0.0; (end_row - first_row) * n_cols];
        self.rows(vector.tensor, first_row, end_row - first_row, &mut Vec::new(), &mut all)?;
        let skip = vector.first - first_row * n_cols;
        all.truncate(skip + vector.len);
        all.drain(..skip);
        Ok(all)
    }

    /// Returns the name of a vector's tensor.
    pub(crate) fn name(&self, vector: &Vector) -> String {
        self.source.tensors()[vector.tensor].name.clone()
    }

    /// Returns a vector, decoded, if there is one.
    pub(crate) fn optional(&self, vector: Option<&Vector>) -> Result<Option<Vec<f32>>> {
        vector.map(|vector| self.vector(vector)).transpose()
    }

    /// Loads the weight and bias of a norm.
    pub(crate) fn norm(&self, norm: &Norm) -> Result<LoadedNorm> {
        Ok(LoadedNorm {
            formula: norm.formula,
            weight: self.optional(norm.weight.as_ref())?,
            bias: self.optional(norm.bias.as_ref())?,
            eps: norm.eps,
        })
    }

    /// Prefetches the pages of tensors that will be read next, by touching them if they are mapped.
    pub(crate) fn touch(&self, tensors: &[usize], stop: &dyn Fn() -> bool) {
        const PAGE: usize = 4096;
        const STEP_BYTES: u64 = 1 << 20;
        for &tensor in tensors {
            let meta = &self.source.tensors()[tensor];
            let n_rows = meta.shape.n_rows();
            let step = (STEP_BYTES / meta.row_bytes().unwrap_or(STEP_BYTES).max(1)).max(1);
            let mut row = 0;
            while row < n_rows && !stop() {
                let n = step.min(n_rows - row);
                let Some(bytes) = self.source.borrow_rows(tensor, row, n) else { break };
                let sum = bytes.iter().step_by(PAGE).fold(0u8, |sum, &byte| sum ^ byte);
                std::hint::black_box(sum);
                row += n;
            }
        }
    }

    /// Tells the source that the tensors' rows are no longer needed.
    pub(crate) fn release(&self, tensors: &[usize]) {
        for &tensor in tensors {
            self.source.release_rows(tensor, 0, self.source.tensors()[tensor].shape.n_rows());
        }
    }
}
