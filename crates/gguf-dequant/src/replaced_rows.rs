//! Rows of a weight that an adapter replaces: separately trained tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::adapted::{Change, adapted};
use crate::layer::{Weight, WeightOrigin};
use crate::lora::LoraError;
use crate::operand::Operand;
use crate::rectangle::Rectangle;
use crate::{InnerSource, Result};
use gguf_core::WeightSource;

/// Rows of a model's weight, and the adapter's weight with their replacements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedRows {
    /// Index of the weight in the model.
    pub base: usize,
    /// Index of the weight in the adapter.
    pub by: usize,
    /// Row of the model's weight that each row of the adapter's weight replaces.
    pub rows: Vec<u64>,
}

/// Returns the weight with the adapter's rows in it.
///
/// # Errors
/// [`LoraError::Rows`]: rows that the weight does not have, duplicate rows, or another number than the adapter has.
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
    let by = Weight { meta: own.clone(), origin: WeightOrigin::Other(adapter.clone(), replaced.by) };
    Ok(adapted(weight, OtherRows { by: Operand::of(by), places }))
}

struct OtherRows {
    by: Operand,
    places: BTreeMap<u64, u64>,
}

impl Change for OtherRows {
    fn apply(&self, inner: InnerSource<'_>, part: &Rectangle, values: &mut [f32]) -> Result<()> {
        let (width, rows) = (part.width(), part.rows.clone());
        for (&row, &by) in self.places.range(rows.clone()) {
            let at = (row - rows.start) as usize * width;
            let own = Rectangle { rows: by..by + 1, cols: part.cols.clone() };
            self.by.read(inner, &own, &mut values[at..at + width])?;
        }
        Ok(())
    }
}
