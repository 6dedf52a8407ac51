//! Counting of memory: a run over weights of 0 that skips products and heads, and records what it would need.

use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_core::{SourceError, TensorMeta, TensorSource};

/// Weights of 0 with the names, types and shapes of a model's tensors.
pub(crate) struct ZeroWeights<'a>(pub(crate) &'a [TensorMeta]);

impl TensorSource for ZeroWeights<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        self.0
    }

    fn read_rows(&self, _: usize, _: u64, out: &mut [u8]) -> Result<(), SourceError> {
        out.fill(0);
        Ok(())
    }
}

/// Records of a run that only counts its memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryCount {
    widest: AtomicUsize,
}

impl MemoryCount {
    /// Records a product with a matrix of `n_cols` columns.
    pub(crate) fn product(&self, n_cols: usize) {
        self.widest.fetch_max(n_cols, Ordering::Relaxed);
    }

    /// Returns the columns of the widest matrix of all products.
    pub(crate) fn widest(&self) -> usize {
        self.widest.load(Ordering::Relaxed)
    }
}
