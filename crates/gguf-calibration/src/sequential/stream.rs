//! Weights of the quantized stream: solved tensors are read as they will be in the file.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::solved::SolvedBlocks;
use gguf_blocks::quantize_rows;
use gguf_core::simd::SimdLevel;
use gguf_core::sync::Unpoisoned;
use gguf_core::{GgmlType, SourceError, TensorMeta, TensorSource};
use gguf_engine::WeightReader;
use gguf_quantization::SolvedRows;

/// Importance of a matrix's columns, by tensor and matrix.
type ColumnImportance = BTreeMap<(usize, u64), Vec<f32>>;

/// Model whose tensors have their target types. Rows that are not solved (yet) are quantized as they are read, with the
/// importance of their matrix if it is known.
pub(super) struct QuantizedStream<'a> {
    inner: &'a dyn TensorSource,
    tensors: Vec<TensorMeta>,
    level: SimdLevel,
    blocks: &'a SolvedBlocks,
    importance: Mutex<ColumnImportance>,
}

impl<'a> QuantizedStream<'a> {
    /// Wraps a model so that its tensors have these types; types of tensors that it does not have are ignored.
    pub(super) fn new(
        inner: &'a dyn TensorSource,
        types: &BTreeMap<String, GgmlType>,
        level: SimdLevel,
        blocks: &'a SolvedBlocks,
    ) -> Self {
        let typed = |meta: &TensorMeta| {
            let ty = types.get(&meta.name).copied().unwrap_or(meta.ty);
            TensorMeta { ty, ..meta.clone() }
        };
        let tensors = inner.tensors().iter().map(typed).collect();
        Self { inner, tensors, level, blocks, importance: Mutex::default() }
    }

    /// Returns true if the tensor gets another type than it has.
    pub(super) fn is_changed(&self, tensor: usize) -> bool {
        self.tensors[tensor].ty != self.inner.tensors()[tensor].ty
    }

    /// Sets the importance of the columns of a matrix that has no solver.
    pub(super) fn tell(&self, tensor: usize, matrix: u64, importance: Vec<f32>) {
        let mut known = self.importance.lock().unpoisoned();
        known.insert((tensor, matrix), importance);
    }

    fn quantize(
        &self,
        tensor: usize,
        matrix: u64,
        first_row: u64,
        out: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let meta = &self.tensors[tensor];
        let n_cols = usize::try_from(meta.shape.n_cols())?;
        let n_rows = out.len() as u64 / meta.row_bytes().unwrap_or(1).max(1);
        let n_rows = usize::try_from(n_rows)?;
        let mut floats = vec![0.0; n_rows * n_cols];
        let reader = WeightReader::new(self.inner, self.level);
        reader.rows(tensor, usize::try_from(first_row)?, n_rows, &mut Vec::new(), &mut floats)?;
        let known = self.importance.lock().unpoisoned();
        let own = known.get(&(tensor, matrix)).cloned();
        drop(known);
        let needs = meta.ty.info().imatrix == gguf_core::ImatrixNeed::Required;
        let own = own.or_else(|| needs.then(|| vec![1.0; n_cols]));
        quantize_rows(meta.ty, self.level, n_cols, &floats, own.as_deref(), out)?;
        Ok(())
    }
}

impl TensorSource for QuantizedStream<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        if !self.is_changed(tensor) {
            return self.inner.read_rows(tensor, first_row, out);
        }
        let meta = &self.tensors[tensor];
        let dims = meta.shape.dims();
        let per_matrix = dims.len().checked_sub(2).map_or(1, |at| dims[at]).max(1);
        let row_bytes = usize::try_from(meta.row_bytes().unwrap_or(0)).unwrap_or(0).max(1);
        let (mut row, mut rest) = (first_row, out);
        while !rest.is_empty() {
            let matrix = row / per_matrix;
            let left = usize::try_from((matrix + 1) * per_matrix - row).unwrap_or(usize::MAX);
            let n = left.saturating_mul(row_bytes).min(rest.len());
            let (own, later) = std::mem::take(&mut rest).split_at_mut(n);
            if self.blocks.has(&meta.name, matrix) {
                self.blocks.read(&meta.name, row, own)?;
            } else {
                self.quantize(tensor, matrix, row, own)
                    .map_err(|source| SourceError { tensor: meta.name.clone(), source })?;
            }
            row += (n / row_bytes) as u64;
            rest = later;
        }
        Ok(())
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        (!self.is_changed(tensor)).then(|| self.inner.borrow_rows(tensor, first_row, n_rows))?
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.inner.release_rows(tensor, first_row, n_rows);
    }
}
