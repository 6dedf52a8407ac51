//! Sources whose tensors come in several types at once, one for each kind of output.

use gguf_core::{SourceError, TensorMeta, TensorSource};

/// Tensors that are read once and given in one or several types: the variants of a tensor.
pub trait VariantSource: Sync {
    /// Number of tensors.
    fn n_tensors(&self) -> usize;

    /// Returns the variants of a tensor, at least one. Their shapes are equal.
    fn variants(&self, tensor: usize) -> &[TensorMeta];

    /// Reads whole rows from `first_row` on in all variants. Each buffer has the bytes of the same number of rows.
    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [Vec<u8>]) -> Result<(), SourceError>;

    /// Returns the bytes of rows of a tensor with a single variant, as [`TensorSource::borrow_rows`].
    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let _ = (tensor, first_row, n_rows);
        None
    }

    /// Announces that a tensor will be read, as [`TensorSource::expect`].
    fn expect(&self, tensor: usize) {
        let _ = tensor;
    }

    /// Tells the source that rows will not be read again soon, as [`TensorSource::release_rows`].
    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        let _ = (tensor, first_row, n_rows);
    }
}

pub(super) struct SingleVariant<'a>(pub(super) &'a dyn TensorSource);

impl VariantSource for SingleVariant<'_> {
    fn n_tensors(&self) -> usize {
        self.0.tensors().len()
    }

    fn variants(&self, tensor: usize) -> &[TensorMeta] {
        std::slice::from_ref(&self.0.tensors()[tensor])
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [Vec<u8>]) -> Result<(), SourceError> {
        self.0.read_rows(tensor, first_row, &mut out[0])
    }

    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        self.0.borrow_rows(tensor, first_row, n_rows)
    }

    fn expect(&self, tensor: usize) {
        self.0.expect(tensor);
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.0.release_rows(tensor, first_row, n_rows);
    }
}
