//! Search for the cause of damage in a tensor.

mod search;

use crate::weights::cause::{BlockState, Cause};
use crate::weights::compare::Comparison;
use crate::weights::limits::ErrorLimits;
use crate::weights::tensor::{BadBlock, TensorTally};
use crate::weights::tensor_reader::TensorReader;
use gguf_core::GgmlType;
use gguf_engine::EngineError;

use search::RowSample;

/// Damaged tensor and everything that is needed to find the cause.
pub(crate) struct DamagedTensor<'a> {
    pub(crate) comparison: &'a Comparison<'a>,
    pub(crate) tally: &'a TensorTally,
    /// Other tensors of the reference model with the same shape, whose values the damaged tensor may hold.
    pub(crate) others: Vec<TensorReader<'a>>,
    /// Number of attention heads, from the metadata; only for queries and keys.
    pub(crate) n_heads: Option<u64>,
}

impl DamagedTensor<'_> {
    /// Relative error that the type has on these values.
    fn own_error(&self) -> f64 {
        let own = self.tally.own.relative_error();
        if own.is_finite() { own.max(self.comparison.limits.nominal) } else { self.comparison.limits.nominal }
    }

    pub(crate) fn find(&self) -> Result<Option<Cause>, EngineError> {
        if let Some(cause) = self.rounded().or_else(|| self.scaled()) {
            return Ok(Some(cause));
        }
        let sample = RowSample::read(self)?;
        if let Some(cause) = sample.elsewhere(self)? {
            return Ok(Some(cause));
        }
        Ok(self.remains())
    }

    fn rounded(&self) -> Option<Cause> {
        let tally = self.tally;
        let all = |n: u64| tally.n_differing > 0 && n == tally.n_differing;
        let [bf16, f16] = tally.n_through;
        match (all(bf16), all(f16)) {
            _ if tally.n_beyond == 0 => None,
            (true, _) => Some(Cause::RoundedThrough { ty: GgmlType::Bf16 }),
            (_, true) => Some(Cause::RoundedThrough { ty: GgmlType::F16 }),
            _ => None,
        }
    }

    fn scaled(&self) -> Option<Cause> {
        let tally = self.tally;
        let own_error = self.own_error();
        let factor = tally.own.slope() / tally.file.slope();
        let is_quantized = self.comparison.coded.meta().ty.is_quantized();
        let limit = if is_quantized { ErrorLimits::tensor_scale(own_error) } else { 1e-3 };
        let keeps_shape = tally.file.shape_error() <= (1.5 * own_error).max(1e-3);
        let is_far = |factor: f64, limit: f64| factor != 0.0 && factor.abs().ln().abs() > limit;
        if keeps_shape && (factor < 0.0 || is_far(factor, limit)) {
            return Some(Cause::Scaled { factor });
        }
        let rows: Vec<(u64, f64)> =
            tally.bad_rows.first.iter().filter_map(|row| Some((row.row, row.factor?))).collect();
        if !rows.is_empty() && rows.len() == tally.bad_rows.first.len() {
            return Some(Cause::RowsScaled { count: tally.bad_rows.count, first: rows });
        }
        let columns = scaled_columns(tally, own_error);
        if !columns.is_empty()
            && tally.file.correlation() > 0.5
            && columns.len() * 2 < tally.columns.file.products.len()
        {
            let count = columns.len() as u64;
            return Some(Cause::ColumnsScaled { count, first: columns.into_iter().take(16).collect() });
        }
        None
    }

    /// Describes damage whose values were found nowhere else.
    fn remains(&self) -> Option<Cause> {
        let tally = self.tally;
        let own_error = self.own_error();
        // The errors of a few blocks may outweigh all others.
        let in_part = tally.bad_blocks.count > 0 && tally.bad_blocks.count * 2 <= tally.n_blocks;
        let correlation = tally.file.correlation().abs();
        if !in_part && (correlation.is_nan() || correlation < 0.1) {
            return Some(Cause::Unrelated);
        }
        let state = |block: &BadBlock| (block.row, block.block, BlockState::of(&block.sums, own_error));
        let first: Vec<_> = tally.bad_blocks.first.iter().map(state).collect();
        (!first.is_empty()).then_some(Cause::Blocks { count: tally.bad_blocks.count, first })
    }
}

/// Returns the columns that are multiplied, with their factors.
pub(crate) fn scaled_columns(tally: &TensorTally, own_error: f64) -> Vec<(u64, f64)> {
    let limit = ErrorLimits::column_scale(own_error);
    // Columns that hold other values in some rows are not scaled.
    let shape_error = (2.0 * own_error).clamp(0.02, 0.35);
    let factors = tally.columns.factors(shape_error).enumerate().map(|(at, factor)| (at as u64, factor));
    factors.filter(|(_, factor)| factor.ln().abs() > limit).collect()
}
