//! Views prepared for reading: any range of rows, in any type, in memory that depends only on the range.

use crate::ViewError;
use crate::node::{ViewNode, compile};
use crate::origin::{LeafOrigin, Reader};
use crate::view::View;
use gguf_blocks::{self, Extent, SmallRows, first_non_finite_bits, first_unfit};
use gguf_core::scratch::with_floats;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType, Shape, WeightSource};

/// Elements that are decoded, checked and encoded at a time: they fit in the second-level cache.
const STEP_ELEMS: u64 = 1 << 15;

/// Options for reading.
#[derive(Clone, Copy, Debug)]
pub struct ReadPolicy {
    /// Vector instructions to use; the result does not depend on it.
    pub level: SimdLevel,
    /// True to let NaN, infinity and overflow pass.
    pub allow_nonfinite: bool,
}

/// Computation of each element of a tensor, ready to be executed.
#[derive(Clone, Debug)]
pub struct Recipe {
    shape: Shape,
    root: ViewNode,
    /// Source type, if all elements come from weights of one type without arithmetic.
    native: Option<ElementType>,
}

impl Recipe {
    /// Prepares a view; `None` if its size overflows.
    pub fn new(view: &View) -> Option<Self> {
        let shape = Shape::new(view.shape().to_vec())?;
        let root = compile(view);
        let mut native = None;
        let uniform = root.all_leaves(&mut |leaf| match (&leaf.origin, native) {
            (LeafOrigin::Weight { ty, .. }, None) if leaf.math.is_empty() => {
                native = Some(*ty);
                true
            }
            (LeafOrigin::Weight { ty, .. }, Some(first)) => leaf.math.is_empty() && *ty == first,
            _ => false,
        });
        Some(Self { shape, root, native: native.filter(|_| uniform) })
    }

    /// Returns the shape of the result, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the element type of the source, if the result only moves elements of one type.
    pub fn native_type(&self) -> Option<ElementType> {
        self.native
    }

    /// Returns the indices of the weights that are read, each once, in order of first use.
    pub fn weights(&self) -> Vec<usize> {
        let mut found = Vec::new();
        let mut seen = std::collections::HashSet::new();
        self.root.each_weight(&mut |index| {
            if seen.insert(index) {
                found.push(index);
            }
        });
        found
    }

    /// Returns for each index of the first axis the weights of its elements, each once, with the index of the matrix
    /// inside the weight. `matrix_elems` returns the number of elements of a weight's matrices; the index is 0 if it
    /// returns `None`, and `None` for computed elements.
    pub fn slabs(&self, matrix_elems: &dyn Fn(usize) -> Option<u64>) -> Vec<Vec<(usize, Option<u64>)>> {
        let n = self.shape.dims().first().copied().unwrap_or(0);
        let n_elems = self.shape.n_elems().checked_div(n).unwrap_or(0);
        (0..n).map(|slab| self.root.matrices_in(slab * n_elems, n_elems, matrix_elems)).collect()
    }

    /// Produces rows `first_row ..` as blocks of `ty`; the length of `out` determines their number. Counts rows that
    /// became zeros or nearly, because they are too small for the type; their indices are those of the tensor.
    ///
    /// # Errors
    /// [`ViewError`]: the source, values that are not finite or do not fit the type.
    pub fn read_rows(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        policy: ReadPolicy,
        first_row: u64,
        out: &mut [u8],
    ) -> Result<SmallRows, ViewError> {
        let n_cols = self.shape.n_cols();
        let mut small = SmallRows::default();
        if out.is_empty() {
            return Ok(small);
        }
        let too_large = || ViewError::TooLarge { n_cols };
        let row_bytes = ty.row_bytes(n_cols).and_then(|n| usize::try_from(n).ok()).ok_or_else(too_large)?;
        let cols = usize::try_from(n_cols).map_err(|_| too_large())?;
        let rows_per_step = (STEP_ELEMS / n_cols.max(1)).max(1) as usize;
        let is_copy = plain(ty).is_some() && plain(ty) == self.native;
        let mut first = first_row * n_cols;
        for chunk in out.chunks_mut(rows_per_step * row_bytes) {
            let n = chunk.len() / row_bytes * cols;
            if !is_copy && matches!(ty, GgmlType::I32 | GgmlType::I64) {
                self.root.read_ints(source, ty, first, chunk)?;
            } else if is_copy {
                self.root.copy(source, first, chunk, ty.block_bytes())?;
                if !policy.allow_nonfinite
                    && let Some(at) = first_non_finite_bits(ty, chunk)
                {
                    return Err(self.blame(source, ty, first + at as u64)?);
                }
            } else {
                with_floats(n, |floats| {
                    self.read_f32(source, policy.level, first, floats)?;
                    // Values in the range of every type need no further check, before or after.
                    let is_ordinary = gguf_blocks::are_ordinary_rows(ty, policy.level, floats, cols);
                    if !is_ordinary
                        && !policy.allow_nonfinite
                        && let Some(at) = first_unfit(ty, floats)
                    {
                        return Err(self.blame(source, ty, first + at as u64)?);
                    }
                    let row = first / n_cols.max(1);
                    let failed = |error: gguf_blocks::QuantError| error.from_row(row as usize);
                    gguf_blocks::quantize_rows(ty, policy.level, cols, floats, None, chunk)
                        .map_err(failed)?;
                    if !is_ordinary && Extent::of(floats, cols).is_finite() {
                        match gguf_blocks::check_rows(ty, policy.level, cols, floats, None, chunk) {
                            Ok(found) => small.add(found, row),
                            Err(_) if policy.allow_nonfinite => {}
                            Err(error) => return Err(failed(error).into()),
                        }
                    }
                    Ok(())
                })?;
                if ty.is_quantized() && !policy.allow_nonfinite {
                    gguf_blocks::validate_blocks(ty, chunk)?;
                }
            }
            first += n as u64;
        }
        Ok(small)
    }

    /// Produces elements `first ..` as F32.
    ///
    /// # Errors
    /// The source failed, or its element type holds no numbers.
    pub fn read_f32(
        &self,
        source: &dyn WeightSource,
        level: SimdLevel,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), ViewError> {
        self.root.read(Reader { source, level }, first, out)
    }

    /// Returns true if the result moves whole blocks of `ty` and changes no value: rows are selected, reordered,
    /// joined.
    pub fn keeps_blocks(&self, ty: GgmlType) -> bool {
        let block_elems = ty.block_elems() as u64;
        self.shape.n_cols().is_multiple_of(block_elems) && self.root.keeps_blocks(block_elems)
    }

    /// Produces rows `first_row ..` in a type that every weight is packed as ([`WeightSource::packings`]).
    ///
    /// # Errors
    /// The source failed; rows too long for memory.
    ///
    /// # Panics
    /// If the recipe does not keep blocks of the type.
    pub fn read_packed(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first_row: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        assert!(self.keeps_blocks(ty), "blocks of {ty} are cut");
        self.root.read_packed(source, ty, first_row * self.shape.n_cols(), out)
    }

    /// Tells the source that rows were read and will not be read again soon.
    pub fn release_rows(&self, source: &dyn WeightSource, first_row: u64, n_rows: u64) {
        let n_cols = self.shape.n_cols();
        self.root.release(source, first_row * n_cols, n_rows * n_cols);
    }

    /// Converts the position of a bad element to an error that names its source.
    fn blame(&self, source: &dyn WeightSource, ty: GgmlType, index: u64) -> Result<ViewError, ViewError> {
        let mut value = [0.0];
        self.root.read(Reader { source, level: SimdLevel::Scalar }, index, &mut value)?;
        let value = value[0];
        let Some((weight, at)) = self.root.locate(index) else {
            return Ok(ViewError::Computed { index, value });
        };
        let weight = source.weights()[weight].name.clone();
        Ok(if value.is_finite() {
            ViewError::Overflow { weight, index: at, value, ty }
        } else {
            ViewError::NonFinite { weight, index: at, value }
        })
    }
}

/// Returns the element type that a plain GGML type stores.
pub(super) fn plain(ty: GgmlType) -> Option<ElementType> {
    Some(match ty {
        GgmlType::F32 => ElementType::F32,
        GgmlType::F16 => ElementType::F16,
        GgmlType::Bf16 => ElementType::Bf16,
        GgmlType::F64 => ElementType::F64,
        GgmlType::I8 => ElementType::I8,
        GgmlType::I16 => ElementType::I16,
        GgmlType::I32 => ElementType::I32,
        GgmlType::I64 => ElementType::I64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
