//! Matrices from which a merged weight is computed: plain weights of any source, and coded ones.

use std::ops::Range;

use crate::layer::{Weight, WeightOrigin};
use crate::rectangle::Rectangle;
use crate::{InnerSource, Result};
use gguf_blocks::decode_elements;
use gguf_core::{ElementType, GgmlType, Packing, Shape};

/// A matrix that is read as an operand.
pub(super) struct Operand {
    /// Element type of the weight, for plain weights.
    ty: ElementType,
    n_cols: u64,
    origin: WeightOrigin,
}

impl Operand {
    pub(super) fn of(weight: Weight) -> Self {
        Self { ty: weight.meta.ty, n_cols: weight.meta.shape.n_cols(), origin: weight.origin }
    }

    /// Reads a rectangle as F32, row after row.
    pub(super) fn read(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let (source, index) = match self.origin.place(inner.source) {
            Ok(found) => found,
            Err(coded) => return coded.decode(inner, part, out),
        };
        let inner = InnerSource { source, level: inner.level };
        for (row, out) in part.split_rows(out, part.width()) {
            let decoded = inner.with_elems(index, part.elems(row, self.n_cols), |bytes| {
                decode_elements(self.ty, inner.level, bytes, out)
            })?;
            decoded.map_err(|_| inner.wrong_type(index, "numbers"))?;
        }
        Ok(())
    }

    /// Returns the types that hold the matrix, as [`WeightSource::packings`].
    pub(super) fn packings(&self, inner: InnerSource<'_>) -> Result<Vec<Packing>> {
        match self.origin.place(inner.source) {
            Ok((source, index)) => Ok(source.packings(index)?),
            Err(coded) => coded.packings(inner),
        }
    }

    /// Writes a part of one row as blocks of a type that [`Operand::packings`] lists.
    pub(super) fn pack(
        &self,
        inner: InnerSource<'_>,
        ty: GgmlType,
        part: &Rectangle,
        out: &mut [u8],
    ) -> Result<()> {
        match self.origin.place(inner.source) {
            Ok((source, index)) => {
                Ok(source.read_packed(index, ty, part.elems(part.rows.start, self.n_cols).start, out)?)
            }
            Err(coded) => coded.pack(inner, ty, part, out),
        }
    }

    pub(super) fn code_type(&self, inner: InnerSource<'_>) -> Option<ElementType> {
        match self.origin.place(inner.source) {
            Ok((source, index)) => source.code_type(index),
            Err(coded) => coded.code_type(inner),
        }
    }

    pub(super) fn expect(&self, inner: InnerSource<'_>) {
        match self.origin.place(inner.source) {
            Ok((source, index)) => source.expect(index),
            Err(coded) => coded.expect(inner),
        }
    }

    pub(super) fn release(&self, inner: InnerSource<'_>, shape: &Shape, elems: Range<u64>) {
        match self.origin.place(inner.source) {
            Ok((source, index)) => source.release_elems(index, elems.start, elems.end - elems.start),
            Err(coded) => coded.release(inner, shape, elems),
        }
    }
}
