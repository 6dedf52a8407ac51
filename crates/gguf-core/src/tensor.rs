//! Tensors as exchanged between stages: in GGML types, named, ordered, readable by row.

use crate::{ElementType, GgmlType, Shape};

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
    pub fn row_bytes(&self) -> Option<u64> {
        self.ty.row_bytes(self.shape.n_cols())
    }

    /// Bytes of the tensor; `None` if rows are not whole blocks or the product overflows.
    pub fn n_bytes(&self) -> Option<u64> {
        self.row_bytes()?.checked_mul(self.shape.n_rows())
    }
}

/// An ordered set of tensors that can be read in pieces: a GGUF file, or a conversion that has not been written.
///
/// Reading is positioned and takes `&self`, so many threads can read at once.
pub trait TensorSource: Sync {
    /// Returns the tensors, in file order.
    fn tensors(&self) -> &[TensorMeta];

    /// Reads whole rows `first_row .. first_row + n` of a tensor into `out`, where `n = out.len() / row_bytes`.
    ///
    /// # Errors
    /// I/O errors and errors of the stage that feeds the source, named with the tensor.
    ///
    /// # Panics
    /// If the range is outside the tensor: callers plan from [`TensorSource::tensors`].
    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// Returns the bytes of rows `first_row .. first_row + n_rows` if they are already in memory as the format stores
    /// them (a mapped little-endian file); `None` if they must be read or computed.
    fn borrow_rows(&self, tensor: usize, first_row: u64, n_rows: u64) -> Option<&[u8]> {
        let _ = (tensor, first_row, n_rows);
        None
    }

    /// Announces that a tensor will be read, after those announced before it, so that remote data can be fetched in
    /// advance. Sources of local files ignore it.
    fn expect(&self, tensor: usize) {
        let _ = tensor;
    }

    /// Tells the source that these rows will not be read again soon, so that mapped pages can be dropped.
    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        let _ = (tensor, first_row, n_rows);
    }
}

/// Error of a [`TensorSource`] that could not deliver rows.
#[derive(Debug, thiserror::Error)]
#[error("tensor `{}`: {source}", crate::text::escape(tensor))]
pub struct SourceError {
    /// Name of the tensor that was read.
    pub tensor: String,
    /// Cause of the error.
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

/// A GGML type that holds a weight of a quantized checkpoint without requantizing it.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// Type of the blocks.
    pub ty: GgmlType,
    /// Largest relative error of any scale or minimum after it is rounded to the block's format; 0 if every value is
    /// kept exactly.
    pub scale_error: f32,
    /// Factor on the whole weight that the block type cannot hold; it is stored in a companion tensor (`.scale`).
    pub scale: Option<f32>,
    /// Factor on the input that belongs to the weight (`.input_scale`).
    pub input_scale: Option<f32>,
    /// Replaces both factors if the matrices of a stack have factors of their own.
    pub stack: Option<StackFactors>,
    /// True if the checkpoint declares that it multiplies the weight with activations that are not quantized.
    pub float_activations: bool,
}

/// Factors of the matrices of a stack: one after the other, all matrices of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct StackFactors {
    /// Elements of one matrix.
    pub n_elems: u64,
    /// [`Packing::scale`] of each matrix.
    pub scales: Vec<f32>,
    /// [`Packing::input_scale`] of each matrix; empty if there are none.
    pub input_scales: Vec<f32>,
}

impl Packing {
    /// Creates a packing whose type keeps every value.
    pub fn exact(ty: GgmlType) -> Self {
        Self::rounded(ty, 0.0)
    }

    /// Creates a packing whose block type keeps the codes and rounds scales by at most `scale_error`.
    pub fn rounded(ty: GgmlType, scale_error: f32) -> Self {
        Self { ty, scale_error, scale: None, input_scale: None, stack: None, float_activations: false }
    }

    /// Returns true if every value is kept exactly.
    pub fn is_exact(&self) -> bool {
        self.scale_error == 0.0
    }
}

/// The tensors of a checkpoint, readable by element range: safetensors shards, a PyTorch archive, or a layer that
/// dequantizes another source as it is read.
///
/// Elements are delivered in row-major order and little-endian, whatever the container stores.
pub trait WeightSource: Sync {
    /// Returns the tensors, in the order of the checkpoint (by name within a shard, shards in order).
    fn weights(&self) -> &[WeightMeta];

    /// Reads elements `first .. first + n` of a weight into `out`, where `n = out.len() / element bytes`.
    ///
    /// # Errors
    /// I/O errors and errors of the layer that feeds the source, named with the tensor.
    ///
    /// # Panics
    /// If the range is outside the tensor: callers plan from [`WeightSource::weights`].
    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// Returns the source that holds a weight as it is here, and the weight's index there: the methods below ask it.
    fn origin(&self, weight: usize) -> Option<(&dyn WeightSource, usize)> {
        let _ = weight;
        None
    }

    /// Returns all bytes of a weight if they are in memory in the promised order (a mapped file), else `None`.
    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        self.origin(weight).and_then(|(source, at)| source.borrow(at))
    }

    /// Returns the GGML types that hold this weight without going through F32, best first: block types that keep its
    /// integer codes, and narrow float types that hold all its values. Empty for a weight that is already plain floats.
    /// May read the weight's scales and zero points, and also its codes if those do not decide it.
    fn packings(&self, weight: usize) -> Result<Vec<Packing>, SourceError> {
        self.origin(weight).map_or(Ok(Vec::new()), |(source, at)| source.packings(at))
    }

    /// Returns the element type of the codes that a weight is decoded from; `None` for a weight that is already plain
    /// floats.
    fn code_type(&self, weight: usize) -> Option<ElementType> {
        self.origin(weight).and_then(|(source, at)| source.code_type(at))
    }

    /// Reads elements `first ..` of a weight as blocks of a type that [`WeightSource::packings`] lists; `first` and the
    /// number of elements are whole blocks. The default is for sources without packings: calling it is a bug.
    ///
    /// # Panics
    /// If the weight has no such packing, or the range is outside it.
    fn read_packed(
        &self,
        weight: usize,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let Some((source, at)) = self.origin(weight) else {
            panic!("weight {weight} has no packing as {ty}")
        };
        source.read_packed(at, ty, first, out)
    }

    /// Announces that a weight will be read, after those announced before it, like [`TensorSource::expect`] for a
    /// tensor.
    fn expect(&self, weight: usize) {
        if let Some((source, at)) = self.origin(weight) {
            source.expect(at);
        }
    }

    /// Tells the source that these elements will not be read again soon, so that mapped pages can be dropped.
    fn release_elems(&self, weight: usize, first: u64, n: u64) {
        if let Some((source, at)) = self.origin(weight) {
            source.release_elems(at, first, n);
        }
    }
}
