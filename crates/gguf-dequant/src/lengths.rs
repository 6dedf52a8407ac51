//! Weights whose rows have lengths of their own (DoRA).

use std::ops::Range;

use crate::layer::{Weight, WeightOrigin};
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::{CodedWeight, InnerSource, Result};
use gguf_core::{ElementType, Shape, WeightMeta, scratch};

/// A weight, each row divided by its length and multiplied by a number.
///
/// # Exactness
/// Squares are summed in F64; the quotient is rounded to F32 once.
struct WithLengths {
    of: Operand,
    lengths: Operand,
    n_cols: u64,
}

/// Returns a weight with other lengths of its rows.
pub(super) fn with_lengths(weight: Weight, lengths: Weight) -> Weight {
    let meta = WeightMeta { ty: ElementType::F32, ..weight.meta.clone() };
    let n_cols = meta.shape.n_cols();
    let coded = WithLengths { of: Operand::of(weight), lengths: Operand::of(lengths), n_cols };
    Weight { meta, origin: WeightOrigin::Coded(Box::new(coded)) }
}

impl CodedWeight for WithLengths {
    fn decode(&self, inner: InnerSource<'_>, part: &Rectangle, out: &mut [f32]) -> Result<()> {
        let cols = part.cols.start as usize..part.cols.end as usize;
        scratch::with_floats(self.n_cols as usize, |line| {
            for (row, out) in part.split_rows(out, part.width()) {
                self.of.read(inner, &Rectangle { rows: row..row + 1, cols: 0..self.n_cols }, line)?;
                let mut length = [0.0];
                self.lengths.read(inner, &Rectangle { rows: 0..1, cols: row..row + 1 }, &mut length)?;
                let squares = line.iter().map(|&value| f64::from(value) * f64::from(value));
                let factor = f64::from(length[0]) / squares.sum::<f64>().sqrt();
                for (out, &value) in out.iter_mut().zip(&line[cols.clone()]) {
                    *out = (f64::from(value) * factor) as f32;
                }
            }
            Ok(())
        })
    }

    /// Returns no members: the weight has no codes.
    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "merged".to_owned()
    }

    fn expect(&self, inner: InnerSource<'_>) {
        self.of.expect(inner);
    }

    fn release(&self, inner: InnerSource<'_>, shape: &Shape, elems: Range<u64>) {
        self.of.release(inner, shape, elems);
    }
}
