//! What stages hand to one another: tensors in GGML types, named, ordered, readable by row.

use crate::core::{ElementType, GgmlType, Shape};

/// Name, shape and type of one tensor of a GGUF file, existing or planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Name in the file.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Block type.
    pub ty: GgmlType,
}

impl TensorMeta {
    /// Bytes of one row; `None` if rows are not whole blocks.
    #[must_use]
    pub fn row_bytes(&self) -> Option<u64> {
        self.ty.row_bytes(self.shape.n_cols())
    }

    /// Bytes of the tensor; `None` if rows are not whole blocks or the product overflows.
    #[must_use]
    pub fn n_bytes(&self) -> Option<u64> {
        self.row_bytes()?.checked_mul(self.shape.n_rows())
    }
}

/// An ordered set of tensors that can be read in pieces: a GGUF file, or a conversion that has not been written.
///
/// Reading is positioned and takes `&self`, so many threads can read at once.
pub trait TensorSource: Sync {
    /// The tensors, in file order.
    fn tensors(&self) -> &[TensorMeta];

    /// Reads whole rows `first_row .. first_row + n` of a tensor into `out`, where `n = out.len() / row_bytes`.
    ///
    /// # Errors
    /// I/O errors and errors of the stage behind the source, named with the tensor.
    ///
    /// # Panics
    /// If the range lies outside the tensor: callers plan from [`TensorSource::tensors`].
    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// The bytes of rows `first_row .. first_row + n_rows` where they already lie in memory as the format stores
    /// them (a mapped little-endian file); `None` where they must be read or computed.
    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let _ = (tensor, first_row, n_rows);
        None
    }

    /// Tells the source that these rows will not be read again soon, so that mapped pages can be dropped.
    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        let _ = (tensor, first_row, n_rows);
    }
}

/// Why a [`TensorSource`] could not deliver rows.
#[derive(Debug, thiserror::Error)]
#[error("tensor `{}`: {source}", crate::core::text::escape(tensor))]
pub struct SourceError {
    /// The tensor that was read.
    pub tensor: String,
    /// What went wrong behind the source.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Name, shape and element type of one tensor of a checkpoint, before any conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightMeta {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Shape,
    /// Element type.
    pub ty: ElementType,
}

/// The tensors of a checkpoint, readable by element range: safetensors shards, a PyTorch archive, or a layer that
/// dequantizes another source as it is read.
///
/// Elements are delivered in row-major order and little-endian, whatever the container stores.
pub trait WeightSource: Sync {
    /// The tensors, in the order of the checkpoint (by name within a shard, shards in order).
    fn weights(&self) -> &[WeightMeta];

    /// Reads elements `first .. first + n` of a weight into `out`, where `n = out.len() / element bytes`.
    ///
    /// # Errors
    /// I/O errors and errors of the layer behind the source, named with the tensor.
    ///
    /// # Panics
    /// If the range lies outside the tensor: callers plan from [`WeightSource::weights`].
    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// All bytes of a weight where they lie in memory in the promised order (a mapped file); else `None`.
    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        let _ = weight;
        None
    }

    /// Tells the source that these elements will not be read again soon, so that mapped pages can be dropped.
    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        let _ = (weight, first, n);
    }
}
