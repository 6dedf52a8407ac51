//! Matrices from which a merged weight is computed: plain weights of any source, and coded ones.

use std::ops::Range;

use crate::core::{ElementType, Shape};
use crate::dequant::layer::{Origin, Weight};
use crate::dequant::{Below, DequantError};
use crate::quant::decode_elements;

/// A matrix that is read as an operand.
pub(super) struct Operand {
    /// Element type of the weight, for plain weights.
    ty: ElementType,
    n_cols: u64,
    origin: Origin,
}

impl Operand {
    pub(super) fn of(weight: Weight) -> Self {
        Self { ty: weight.meta.ty, n_cols: weight.meta.shape.n_cols(), origin: weight.origin }
    }

    /// Reads a rectangle as F32, row after row.
    pub(super) fn read(
        &self,
        below: Below<'_>,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let (source, index) = match self.origin.place(below.source) {
            Ok(found) => found,
            Err(coded) => return coded.decode(below, rows, cols, out),
        };
        let below = Below { source, level: below.level };
        let width = (cols.end - cols.start) as usize;
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let first = row * self.n_cols;
            let decoded = below.with_elems(index, first + cols.start..first + cols.end, |bytes| {
                decode_elements(self.ty, below.level, bytes, out)
            })?;
            decoded.map_err(|_| DequantError::DtypeMismatch {
                tensor: below.meta(index).name.clone(),
                found: self.ty,
                expected: "numbers".to_owned(),
            })?;
        }
        Ok(())
    }

    pub(super) fn expect(&self, below: Below<'_>) {
        match self.origin.place(below.source) {
            Ok((source, index)) => source.expect(index),
            Err(coded) => coded.expect(below),
        }
    }

    pub(super) fn release(&self, below: Below<'_>, shape: &Shape, elems: Range<u64>) {
        match self.origin.place(below.source) {
            Ok((source, index)) => source.release_elems(index, elems.start, elems.end - elems.start),
            Err(coded) => coded.release(below, shape, elems),
        }
    }
}
