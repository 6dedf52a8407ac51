//! Rows of a weight that rows of an adapter take the place of: tokens that were trained alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::core::{ElementType, Shape, WeightMeta, WeightSource};
use crate::dequant::layer::{Origin, Weight};
use crate::dequant::lora::{LoraError, Operand};
use crate::dequant::{Below, CodedWeight, DequantError};

/// Rows of a weight of the model, and the weight of the adapter that has others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedRows {
    /// The weight of the model.
    pub base: usize,
    /// The weight of the adapter.
    pub by: usize,
    /// The row of the model's weight that each row of the adapter's takes the place of.
    pub rows: Vec<u64>,
}

/// The weight with the adapter's rows.
///
/// # Errors
/// [`LoraError::Rows`]: rows that the weight does not have, twice the same, or another number than the adapter has.
pub(super) fn with_rows(
    weight: Weight,
    adapter: &Arc<dyn WeightSource + Send>,
    replaced: &ReplacedRows,
) -> Result<Weight, LoraError> {
    let own = &adapter.weights()[replaced.by];
    let places: BTreeMap<u64, u64> = replaced.rows.iter().copied().zip(0..).collect();
    let (first, last) = (places.keys().next().copied(), places.keys().next_back().copied());
    let fits = match (weight.meta.shape.dims(), own.shape.dims()) {
        (&[n_rows, n_cols], &[n, n_cols_own]) => {
            n_cols == n_cols_own
                && n == replaced.rows.len() as u64
                && n == places.len() as u64
                && last.is_none_or(|last| last < n_rows)
        }
        _ => false,
    };
    if !fits {
        let (name, base, by) = (weight.meta.name.clone(), weight.meta.shape.clone(), own.shape.clone());
        let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
        return Err(LoraError::Rows { name, base, by, first, last });
    }
    let meta = WeightMeta { ty: ElementType::F32, ..weight.meta.clone() };
    let by = Weight { meta: own.clone(), origin: Origin::Beside(adapter.clone(), replaced.by) };
    let made = Rows { base: Operand::of(weight), by: Operand::of(by), places };
    Ok(Weight { meta, origin: Origin::Coded(Box::new(made)) })
}

/// A weight of which some rows are another's.
struct Rows {
    base: Operand,
    by: Operand,
    /// Rows of `by` by the row whose place each takes.
    places: BTreeMap<u64, u64>,
}

impl CodedWeight for Rows {
    fn decode(
        &self,
        below: Below<'_>,
        rows: Range<u64>,
        cols: Range<u64>,
        out: &mut [f32],
    ) -> Result<(), DequantError> {
        let width = (cols.end - cols.start) as usize;
        self.base.read(below, rows.clone(), cols.clone(), out)?;
        for (&row, &by) in self.places.range(rows.clone()) {
            let at = (row - rows.start) as usize * width;
            self.by.read(below, by..by + 1, cols.clone(), &mut out[at..at + width])?;
        }
        Ok(())
    }

    /// None: what is read has no codes.
    fn members(&self) -> &[usize] {
        &[]
    }

    fn form(&self) -> String {
        "merged".to_owned()
    }

    fn expect(&self, below: Below<'_>) {
        self.base.expect(below);
    }

    fn release(&self, below: Below<'_>, shape: &Shape, elems: Range<u64>) {
        self.base.release(below, shape, elems);
    }
}
