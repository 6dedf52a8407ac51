//! The interface that every method implements: a weight that is stored as codes.

use std::ops::Range;

use crate::rectangle::Rectangle;
use crate::{DequantError, Result};
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType, Packing, Shape, SourceError, WeightMeta, WeightSource, scratch};

/// The inner source of the layer, with the vector instructions to use.
#[derive(Clone, Copy)]
pub(super) struct InnerSource<'a> {
    /// The tensors of the checkpoint.
    pub(super) source: &'a dyn WeightSource,
    /// Vector instructions that loops may use; every level gives the same values.
    pub(super) level: SimdLevel,
}

impl<'a> InnerSource<'a> {
    /// Name, shape and element type of a tensor.
    pub(super) fn meta(self, index: usize) -> &'a WeightMeta {
        &self.source.weights()[index]
    }

    /// Returns an accessor of one tensor, for many reads.
    pub(super) fn tensor(self, index: usize) -> InnerTensor<'a> {
        let elem_bytes = self.meta(index).ty.bytes().unwrap_or(1);
        InnerTensor { source: self.source, index, mapped: self.source.borrow(index), elem_bytes }
    }

    /// Passes the bytes of some elements of a tensor to `use_them`, as [`InnerTensor::with_elems`].
    pub(super) fn with_elems<T>(
        self,
        index: usize,
        range: Range<u64>,
        use_them: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, SourceError> {
        self.tensor(index).with_elems(range, use_them)
    }

    /// Passes bytes as [`InnerSource::with_elems`] does, to a function that may fail.
    pub(super) fn try_with_elems<T>(
        self,
        index: usize,
        range: Range<u64>,
        use_them: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        self.with_elems(index, range, use_them)?
    }

    /// Creates an error about the element type of a tensor.
    pub(super) fn wrong_type(self, index: usize, expected: impl Into<String>) -> DequantError {
        let WeightMeta { name, ty, .. } = self.meta(index);
        DequantError::DtypeMismatch { tensor: name.clone(), found: *ty, expected: expected.into() }
    }

    /// Creates an error about element `at` of a tensor of integers.
    pub(super) fn out_of_range(
        self,
        index: usize,
        at: u64,
        found: i64,
        expected: impl Into<String>,
    ) -> DequantError {
        let tensor = self.meta(index).name.clone();
        DequantError::IndexOutOfRange { tensor, index: at, found, expected: expected.into() }
    }
}

/// Accessor of a tensor of the checkpoint; its elements are whole bytes.
#[derive(Clone, Copy)]
pub(super) struct InnerTensor<'a> {
    source: &'a dyn WeightSource,
    index: usize,
    /// All bytes of the tensor, if it is mapped.
    mapped: Option<&'a [u8]>,
    elem_bytes: usize,
}

impl InnerTensor<'_> {
    /// Passes the bytes of some elements to `use_them`, from the mapping or through a buffer.
    ///
    /// # Panics
    /// If the range is outside the tensor: shapes are checked while planning.
    pub(super) fn with_elems<T>(
        self,
        range: Range<u64>,
        use_them: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, SourceError> {
        let bytes = range.start as usize * self.elem_bytes..range.end as usize * self.elem_bytes;
        match self.mapped {
            Some(all) => Ok(use_them(&all[bytes])),
            None => scratch::with_bytes(bytes.len(), |buffer| {
                self.source.read_elems(self.index, range.start, buffer)?;
                Ok(use_them(buffer))
            }),
        }
    }
}

impl InnerSource<'_> {
    /// Passes some bytes of a tensor of codes to `use_them`, as if its words were bytes.
    pub(super) fn with_bytes<T>(
        self,
        index: usize,
        range: Range<u64>,
        use_them: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, SourceError> {
        let tensor = self.tensor(index);
        let size = tensor.elem_bytes as u64;
        let (words, skip) = (range.start / size..range.end.div_ceil(size), (range.start % size) as usize);
        let n = (range.end - range.start) as usize;
        tensor.with_elems(words, |bytes| use_them(&bytes[skip..skip + n]))
    }
}

/// One weight that the checkpoint stores as codes, or that is computed from others and has no codes of its own.
///
/// It is read as a matrix: the columns are the last dimension, the rows are all other dimensions together.
///
/// Each quantization method implements this once for each of its code layouts; [`super::Dequantized`] does the rest.
pub(super) trait CodedWeight: Send + Sync {
    /// Decodes a rectangle into `out`, row after row.
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()>;

    /// Returns the GGML types that hold this weight without going through F32, as [`WeightSource::packings`].
    fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        let _ = inner;
        Ok(Vec::new())
    }

    /// Writes a rectangle, whose columns are whole blocks, as blocks of a type that [`CodedWeight::packings`] lists.
    ///
    /// # Panics
    /// If there is no such packing.
    fn pack(&self, inner: InnerSource<'_>, ty: GgmlType, part: &Rectangle, out: &mut [u8]) -> Result<()> {
        let _ = (inner, part, out);
        panic!("no packing as {ty}")
    }

    /// Indices of the stored tensors of this weight, the codes first; empty for a weight without codes.
    fn members(&self) -> &[usize];

    /// Describes codes and scales for messages: `4 bit, groups of 128`.
    fn form(&self) -> String;

    fn code_type(&self, inner: InnerSource<'_>) -> Option<ElementType> {
        self.members().first().map(|&codes| inner.meta(codes).ty)
    }

    /// Announces that the weight will be read, as [`WeightSource::expect`] does.
    fn expect(&self, inner: InnerSource<'_>) {
        for &member in self.members() {
            inner.source.expect(member);
        }
    }

    /// Releases the stored data of elements `elems` of the weight, whose shape is `shape`.
    ///
    /// The codes of one row may be scattered over their tensors. Unless a method overrides this, everything is
    /// released after the last elements were read.
    fn release(&self, inner: InnerSource<'_>, shape: &Shape, elems: Range<u64>) {
        if elems.end >= shape.n_elems() {
            for &member in self.members() {
                inner.source.release_elems(member, 0, inner.meta(member).shape.n_elems());
            }
        }
    }
}
