//! One side of a comparison: rows of one tensor, encoded and decoded.

use gguf_blocks::dequantize;
use gguf_core::scratch::renew;
use gguf_core::simd::SimdLevel;
use gguf_core::{TensorMeta, TensorSource};
use gguf_engine::EngineError;

#[derive(Clone)]
pub(crate) struct TensorReader<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) tensor: usize,
    /// Factors from a separate tensor: one number, or one for each matrix of a stack; empty for 1.
    pub(crate) factors: Vec<f32>,
    pub(crate) level: SimdLevel,
}

impl<'a> TensorReader<'a> {
    pub(crate) fn new(source: &'a dyn TensorSource, tensor: usize, level: SimdLevel) -> Self {
        Self { source, tensor, factors: Vec::new(), level }
    }

    pub(crate) fn meta(&self) -> &'a TensorMeta {
        &self.source.tensors()[self.tensor]
    }

    pub(crate) fn n_rows(&self) -> u64 {
        self.meta().shape.n_rows()
    }

    /// Number of columns; an error if a row does not fit into memory.
    pub(crate) fn n_cols(&self) -> Result<usize, EngineError> {
        usize::try_from(self.meta().shape.n_cols()).map_err(|_| self.not_blocks())
    }

    /// Number of bytes of `n` rows.
    pub(crate) fn n_bytes(&self, n: u64) -> Result<usize, EngineError> {
        let bytes = self.meta().row_bytes().and_then(|row| row.checked_mul(n));
        bytes.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| self.not_blocks())
    }

    fn not_blocks(&self) -> EngineError {
        let meta = self.meta();
        EngineError::Blocks { tensor: meta.name.clone(), ty: meta.ty }
    }

    /// Returns rows `first .. first + n` as they are stored; uses `buffer` if the source does not lend them.
    pub(crate) fn bytes<'b>(
        &self,
        first: u64,
        n: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], EngineError>
    where
        'a: 'b,
    {
        if let Some(lent) = self.source.borrow_rows(self.tensor, first, n) {
            return Ok(lent);
        }
        renew(buffer, self.n_bytes(n)?);
        self.source.read_rows(self.tensor, first, buffer)?;
        Ok(buffer)
    }

    pub(crate) fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), EngineError> {
        let meta = self.meta();
        dequantize(meta.ty, self.level, bytes, out)
            .map_err(|source| EngineError::Decode { tensor: meta.name.clone(), source })
    }

    /// Decodes rows `first .. first + n`, without the factors.
    pub(crate) fn floats(
        &self,
        first: u64,
        n: u64,
        buffer: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let n_elems = usize::try_from(n).ok().and_then(|n| n.checked_mul(self.n_cols().ok()?));
        let bytes = self.bytes(first, n, buffer)?;
        // The bytes of the rows are in memory: the values are a small multiple of them.
        renew(out, n_elems.ok_or_else(|| self.not_blocks())?);
        self.decode(bytes, out)
    }

    pub(crate) fn factor(&self, row: u64) -> f32 {
        let per_matrix = (self.n_rows() / (self.factors.len() as u64).max(1)).max(1);
        let matrix = usize::try_from(row / per_matrix).unwrap_or(usize::MAX);
        self.factors.get(matrix).copied().unwrap_or(1.0)
    }
}
