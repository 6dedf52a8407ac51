//! Leaves of a view: ranges of their elements are split into evenly spaced stretches of the source.

use std::sync::Arc;

use crate::axis::{Dim, merge_dims};
use crate::elems::{Elems, StridedRange};
use crate::origin::{LeafOrigin, Reader};
use crate::view::Leaf;
use crate::{ViewError, math};
use gguf_arch::MathOp;
use gguf_core::scratch::with_bytes;
use gguf_core::simd::SimdLevel;
use gguf_core::{ElementType, GgmlType, WeightSource};

/// A leaf with its factors merged to as few as possible.
#[derive(Clone, Debug)]
pub(super) struct MergedLeaf {
    pub(super) origin: LeafOrigin,
    offset: u64,
    dims: Vec<Dim>,
    pub(super) math: Vec<MathOp>,
}

/// The two innermost factors of a transposed matrix: rows of the result are columns of the source.
#[derive(Clone, Copy)]
struct TransposedFactors {
    rows: Dim,
    columns: Dim,
}

impl MergedLeaf {
    /// Merges the factors of a leaf of a view.
    pub(super) fn of(leaf: &Leaf) -> Self {
        Self {
            origin: leaf.origin.clone(),
            offset: leaf.offset,
            dims: merge_dims(leaf.dims()),
            math: leaf.math.clone(),
        }
    }

    /// Splits `first .. first + n` into evenly spaced stretches, up to the first error; the second argument is the
    /// position in the range.
    fn stretches(
        &self,
        first: u64,
        n: u64,
        visit: &mut dyn FnMut(StridedRange, usize) -> Result<(), ViewError>,
    ) -> Result<(), ViewError> {
        let mut done = 0;
        while done < n {
            let stretch = self.stretch(first + done, n - done);
            let len = stretch.len as u64;
            visit(stretch, done as usize)?;
            done += len;
        }
        Ok(())
    }

    /// Returns the stretch from `at`, of at most `n` elements.
    pub(super) fn stretch(&self, at: u64, n: u64) -> StridedRange {
        let Some((inner, outer)) = self.dims.split_last() else {
            return StridedRange { start: self.offset, stride: 1, len: 1 };
        };
        let (mut rest, column) = (at / inner.size, at % inner.size);
        let mut start = self.offset + column * inner.stride;
        for dim in outer.iter().rev() {
            start += rest % dim.size * dim.stride;
            rest /= dim.size;
        }
        StridedRange { start, stride: inner.stride, len: (inner.size - column).min(n) as usize }
    }

    /// Calls `visit` for each part of the source, `part_elems` elements long, that a range reads from.
    pub(super) fn each_part(&self, first: u64, n: u64, part_elems: u64, visit: &mut dyn FnMut(u64)) {
        let mut done = 0;
        while done < n {
            let stretch = self.stretch(first + done, n - done);
            let len = (stretch.len as u64).max(1);
            let last = stretch.start + stretch.stride * (len - 1);
            (stretch.start / part_elems..=last / part_elems).for_each(&mut *visit);
            done += len;
        }
    }

    /// Returns the two innermost factors, if the matrix is transposed.
    fn transposed(&self) -> Option<TransposedFactors> {
        match self.dims.as_slice() {
            [.., rows, columns] if rows.stride == 1 && columns.stride != 1 => {
                Some(TransposedFactors { rows: *rows, columns: *columns })
            }
            _ => None,
        }
    }

    /// Reads elements `first ..` of a transposed matrix. Several rows of the result are read together, so that adjacent
    /// source elements are read at once.
    fn read_transposed(
        &self,
        transposed: TransposedFactors,
        elems: Elems<'_>,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        let TransposedFactors { rows, columns } = transposed;
        let n = (out.len() / elems.elem_bytes()) as u64;
        let mut done = 0;
        while done < n {
            let at = first + done;
            let stretch = self.stretch(at, n - done);
            let row = at / columns.size % rows.size;
            let n_rows = if at.is_multiple_of(columns.size) { (n - done) / columns.size } else { 0 };
            let n_rows = n_rows.min(rows.size - row);
            let len = if n_rows > 1 { n_rows * columns.size } else { stretch.len as u64 };
            let out = &mut out[done as usize * elems.elem_bytes()..][..len as usize * elems.elem_bytes()];
            if n_rows > 1 {
                elems.tile(&stretch, n_rows as usize, out)?;
            } else {
                elems.gather(&stretch, out)?;
            }
            done += len;
        }
        Ok(())
    }

    /// Reads elements `first ..` as floats.
    pub(super) fn read(&self, reader: Reader<'_>, first: u64, out: &mut [f32]) -> Result<(), ViewError> {
        match &self.origin {
            LeafOrigin::Fill(value) => out.fill(*value),
            LeafOrigin::Values(values) => self.stretches(first, out.len() as u64, &mut |stretch, at| {
                take_values(values, &stretch, &mut out[at..at + stretch.len]);
                Ok(())
            })?,
            LeafOrigin::Weight { index, ty } => {
                self.read_weight(reader.source, *index, *ty, reader.level, first, out)?;
            }
            LeafOrigin::Computed(computed) => {
                self.stretches(first, out.len() as u64, &mut |stretch, at| {
                    computed.read(reader, &stretch, &mut out[at..at + stretch.len])
                })?;
            }
        }
        let in_f16 = match &self.origin {
            LeafOrigin::Weight { ty, .. } => *ty == ElementType::F16,
            LeafOrigin::Computed(computed) => computed.element_type() == Some(ElementType::F16),
            LeafOrigin::Values(_) | LeafOrigin::Fill(_) => false,
        };
        for op in &self.math {
            math::apply(*op, first, out, in_f16);
        }
        Ok(())
    }

    fn read_weight(
        &self,
        source: &dyn WeightSource,
        index: usize,
        ty: ElementType,
        level: SimdLevel,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), ViewError> {
        let no_number = || ViewError::ElementType { weight: source.weights()[index].name.clone(), ty };
        let elems = Elems::new(source, index, ty.bytes().ok_or_else(no_number)?);
        let decode = |bytes: &[u8], out: &mut [f32]| {
            gguf_blocks::decode_elements(ty, level, bytes, out).map_err(|_| no_number())
        };
        if let Some(transposed) = self.transposed() {
            return with_bytes(out.len() * elems.elem_bytes(), |bytes| {
                self.read_transposed(transposed, elems, first, bytes)?;
                decode(bytes, out)
            });
        }
        self.stretches(first, out.len() as u64, &mut |stretch, at| {
            let out = &mut out[at..at + stretch.len];
            elems.with(&stretch, |bytes| decode(bytes, out))
        })
    }

    /// Reads elements `first ..` as integers of the width of `ty`.
    pub(super) fn read_ints(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        let size = ty.block_bytes();
        let LeafOrigin::Weight { index, ty: stored } = self.origin else {
            return Err(ViewError::Computed { index: first, value: f32::NAN });
        };
        let weight = || source.weights()[index].name.clone();
        let no_number = || ViewError::ElementType { weight: weight(), ty: stored };
        let elems = Elems::new(source, index, stored.bytes().ok_or_else(no_number)?);
        self.stretches(first, (out.len() / size) as u64, &mut |stretch, at| {
            let out = &mut out[at * size..(at + stretch.len) * size];
            elems.with(&stretch, |bytes| {
                let stored_elems = bytes.chunks_exact(elems.elem_bytes());
                for ((place, bytes), out) in
                    (first + at as u64..).zip(stored_elems).zip(out.chunks_exact_mut(size))
                {
                    let mut int = integer(stored, bytes).ok_or_else(no_number)?;
                    for math in &self.math {
                        int = match math {
                            MathOp::AddIndex => int.saturating_add_unsigned(place),
                            MathOp::SubIndex => int.saturating_sub_unsigned(place),
                            _ => return Err(no_number()),
                        };
                    }
                    if size == 8 {
                        out.copy_from_slice(&int.to_le_bytes());
                    } else {
                        let narrow = i32::try_from(int);
                        let range =
                            |_| ViewError::IntRange { weight: weight(), index: place, value: int, ty };
                        out.copy_from_slice(&narrow.map_err(range)?.to_le_bytes());
                    }
                }
                Ok(())
            })
        })
    }

    /// Copies elements `first ..` as stored in their weight.
    pub(super) fn copy(
        &self,
        source: &dyn WeightSource,
        first: u64,
        out: &mut [u8],
        elem_bytes: usize,
    ) -> Result<(), ViewError> {
        let LeafOrigin::Weight { index, .. } = self.origin else { return Ok(()) };
        let elems = Elems::new(source, index, elem_bytes);
        if let Some(transposed) = self.transposed() {
            return self.read_transposed(transposed, elems, first, out);
        }
        self.stretches(first, (out.len() / elem_bytes) as u64, &mut |stretch, at| {
            elems.copy(&stretch, &mut out[at * elem_bytes..(at + stretch.len) * elem_bytes])
        })
    }

    /// Returns true if every element comes from a weight, unchanged, in whole blocks of `block_elems` neighbours.
    pub(super) fn keeps_blocks(&self, block_elems: u64) -> bool {
        let Some((inner, outer)) = self.dims.split_last() else { return block_elems == 1 };
        matches!(self.origin, LeafOrigin::Weight { .. })
            && self.math.is_empty()
            && inner.stride == 1
            && inner.size % block_elems == 0
            && self.offset.is_multiple_of(block_elems)
            && outer.iter().all(|dim| dim.stride % block_elems == 0)
    }

    /// Reads blocks of a type that the weight can be packed as, from element `first`.
    pub(super) fn read_packed(
        &self,
        source: &dyn WeightSource,
        ty: GgmlType,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), ViewError> {
        let LeafOrigin::Weight { index, .. } = self.origin else { return Ok(()) };
        let (elems, bytes) = (ty.block_elems(), ty.block_bytes());
        self.stretches(first, (out.len() / bytes * elems) as u64, &mut |stretch, at| {
            let out = &mut out[at / elems * bytes..(at + stretch.len) / elems * bytes];
            Ok(source.read_packed(index, ty, stretch.start, out)?)
        })
    }

    /// Releases the memory of a range.
    pub(super) fn release(&self, source: &dyn WeightSource, first: u64, n: u64) {
        let index = match &self.origin {
            LeafOrigin::Weight { index, .. } => *index,
            LeafOrigin::Computed(computed) => {
                // Only in the order of computation: reordered elements are not released.
                if let [Dim { stride: 1, .. }] = self.dims.as_slice() {
                    computed.release(source, self.offset + first, n);
                }
                return;
            }
            LeafOrigin::Values(_) | LeafOrigin::Fill(_) => return,
        };
        let Some((outer, rest)) = self.dims.split_first() else { return };
        let inner: u64 = rest.iter().map(|dim| dim.size).product();
        // Whole steps of the outermost factor, if each is a separate region of the source.
        if rest.iter().any(|dim| dim.stride >= outer.stride) {
            return;
        }
        // Up to the last used element: a step that ends with a gap may end beyond the weight.
        let extent = 1 + rest.iter().map(|dim| (dim.size - 1) * dim.stride).sum::<u64>();
        let (begin, end) = (first.div_ceil(inner), (first + n) / inner);
        if begin < end {
            let n_elems = (end - begin - 1) * outer.stride + extent;
            source.release_elems(index, self.offset + begin * outer.stride, n_elems);
        }
    }
}

/// Returns the integer in the bytes of one element; `None` for other types, and for values that only an unsigned type
/// holds.
fn integer(ty: ElementType, bytes: &[u8]) -> Option<i64> {
    Some(match ty {
        ElementType::I64 => i64::from_le_bytes(bytes.try_into().ok()?),
        ElementType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        ElementType::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
        ElementType::I8 => i8::from_le_bytes(bytes.try_into().ok()?).into(),
        ElementType::U64 => i64::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()?,
        ElementType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        ElementType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        ElementType::U8 => (*bytes.first()?).into(),
        _ => return None,
    })
}

fn take_values(values: &Arc<[f32]>, stretch: &StridedRange, out: &mut [f32]) {
    for (i, value) in out.iter_mut().enumerate() {
        *value = values[(stretch.start + i as u64 * stretch.stride) as usize];
    }
}
