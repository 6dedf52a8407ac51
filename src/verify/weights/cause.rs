//! Search for the cause of damage in a tensor: another tensor's values, or an operation on the right ones.

mod search;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::core::GgmlType;
use crate::core::text::escape;
use crate::engine::EngineError;
use crate::verify::exact;
use crate::verify::weights::compare::Comparison;
use crate::verify::weights::limits::Limits;
use crate::verify::weights::side::Side;
use crate::verify::weights::sums::Sums;
use crate::verify::weights::tensor::{BadBlock, Seen};

use search::Sample;

/// Cause of the damage in a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Cause {
    /// The tensor holds the values of another tensor of the baseline.
    Holds {
        /// Name of that tensor.
        tensor: String,
    },
    /// Rows of queries or keys are in the order of halves where pairs are expected, or the other way round.
    RotaryOrder {
        /// Number of rows of a head.
        head_rows: u64,
        /// True if the file has halves and the baseline pairs.
        halves: bool,
    },
    /// Every row is this many rows later than in the baseline.
    RowsShifted {
        /// Number of rows; negative if earlier.
        by: i64,
    },
    /// Rows are at other positions.
    RowsMoved {
        /// Some of them: row of the file, row of the baseline that it holds.
        moved: Vec<(u64, u64)>,
    },
    /// Every value is multiplied by one factor.
    Scaled {
        /// Factor of every value.
        #[serde(with = "exact::double")]
        factor: f64,
    },
    /// Some rows are multiplied by a factor each.
    RowsScaled {
        /// Number of such rows.
        count: u64,
        /// First of them: row, factor.
        #[serde(with = "exact::numbered")]
        first: Vec<(u64, f64)>,
    },
    /// Some columns are multiplied by a factor each.
    ColumnsScaled {
        /// Number of such columns.
        count: u64,
        /// First of them: column, factor.
        #[serde(with = "exact::numbered")]
        first: Vec<(u64, f64)>,
    },
    /// Rows and columns are exchanged.
    Transposed,
    /// The values are this many elements later than in the baseline.
    ElementsShifted {
        /// Number of elements; negative if earlier.
        by: i64,
    },
    /// Single blocks hold other values.
    Blocks {
        /// Number of such blocks.
        count: u64,
        /// First of them: row, block, content.
        first: Vec<(u64, u64, BlockState)>,
    },
    /// The values were rounded to a narrower type before.
    RoundedThrough {
        /// Narrower type.
        #[serde(with = "exact::ggml_type")]
        ty: GgmlType,
    },
    /// The values have nothing in common with the baseline's.
    Unrelated,
}

/// Content of a damaged block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum BlockState {
    /// Zeros.
    Zero,
    /// Right values with another scale.
    Scaled(#[serde(with = "exact::double")] f64),
    /// Values that have nothing to do with the baseline's.
    Unrelated,
    /// Partly the right values.
    Partly,
}

impl BlockState {
    fn of(sums: &Sums, own_error: f64) -> Self {
        let limit = (3.0 * own_error).clamp(0.05, 0.7);
        match sums.correlation() {
            _ if sums.values == 0.0 => Self::Zero,
            c if c.abs() > 0.5 && sums.shape_error() <= limit => Self::Scaled(1.0 / sums.slope()),
            c if c.abs() > 0.7 => Self::Partly,
            _ => Self::Unrelated,
        }
    }
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => write!(f, "zeros"),
            Self::Scaled(factor) => write!(f, "scaled by {}", number(*factor)),
            Self::Unrelated => write!(f, "unrelated values"),
            Self::Partly => write!(f, "partly other values"),
        }
    }
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    if (1e-3..1e6).contains(&value.abs()) {
        let digits = (2 - value.abs().log10().floor() as i64).clamp(0, 6) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:.2e}")
    }
}

impl Cause {
    /// Stable name for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Holds { .. } => "holds",
            Self::RotaryOrder { .. } => "rotary-order",
            Self::RowsShifted { .. } => "rows-shifted",
            Self::RowsMoved { .. } => "rows-moved",
            Self::Scaled { .. } => "scaled",
            Self::RowsScaled { .. } => "rows-scaled",
            Self::ColumnsScaled { .. } => "columns-scaled",
            Self::Transposed => "transposed",
            Self::ElementsShifted { .. } => "elements-shifted",
            Self::Blocks { .. } => "blocks",
            Self::RoundedThrough { .. } => "rounded-through",
            Self::Unrelated => "unrelated",
        }
    }
}

impl Cause {
    /// Describes the cause for a finding about several tensors that share it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Holds { .. } => "values of other tensors",
            Self::RotaryOrder { halves: true, .. } => "the permutation for rotary positions is missing",
            Self::RotaryOrder { halves: false, .. } => "the permutation for rotary positions is one too many",
            Self::RowsShifted { .. } => "rows shifted",
            Self::RowsMoved { .. } => "rows permuted",
            Self::Scaled { .. } => "values multiplied",
            Self::RowsScaled { .. } => "rows multiplied",
            Self::ColumnsScaled { .. } => "columns multiplied",
            Self::Transposed => "rows and columns exchanged",
            Self::ElementsShifted { .. } => "values shifted",
            Self::Blocks { .. } => "damaged blocks",
            Self::RoundedThrough { .. } => "values rounded to a narrower type on their way",
            Self::Unrelated => "values that have nothing to do with the baseline's",
        }
    }
}

fn list<T>(items: &[T], count: u64, show: impl Fn(&T) -> String) -> String {
    const SHOWN: usize = 4;
    let text: Vec<String> = items.iter().take(SHOWN).map(show).collect();
    let more = if count > text.len() as u64 { ", …" } else { "" };
    text.join(", ") + more
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds { tensor } => write!(f, "it holds the baseline's `{}`", escape(tensor)),
            Self::RotaryOrder { head_rows, halves } => {
                let (found, expected) = if *halves { ("halves", "pairs") } else { ("pairs", "halves") };
                write!(
                    f,
                    "rows of each head ({head_rows}) are in the order of {found}, {expected} expected: the permutation \
                     for rotary positions is {}",
                    if *halves { "missing" } else { "one too many" }
                )
            }
            Self::RowsShifted { by } => write!(f, "rows are shifted by {by}"),
            Self::RowsMoved { moved }
                if moved.len() == 2 && moved[0].0 == moved[1].1 && moved[0].1 == moved[1].0 =>
            {
                write!(f, "rows {} and {} are swapped", moved[0].0, moved[1].0)
            }
            Self::RowsMoved { moved } => {
                let rows = list(moved, moved.len() as u64, |(at, from)| format!("row {at} holds row {from}"));
                write!(f, "rows are in another order: {rows}")
            }
            Self::Scaled { factor } => write!(f, "all values are multiplied by {}", number(*factor)),
            Self::RowsScaled { count, first } => {
                let rows = list(first, *count, |(row, factor)| format!("row {row} by {}", number(*factor)));
                write!(f, "{count} rows are multiplied: {rows}")
            }
            Self::ColumnsScaled { count, first } => {
                let columns =
                    list(first, *count, |(at, factor)| format!("column {at} by {}", number(*factor)));
                write!(f, "{count} columns are multiplied: {columns}")
            }
            Self::Transposed => write!(f, "rows and columns are exchanged"),
            Self::ElementsShifted { by } => write!(f, "values are shifted by {by} elements"),
            Self::Blocks { count, first } => {
                let blocks =
                    list(first, *count, |(row, block, state)| format!("row {row} block {block} {state}"));
                write!(f, "{count} damaged blocks: {blocks}")
            }
            Self::RoundedThrough { ty } => write!(f, "values were rounded to {ty} on their way"),
            Self::Unrelated => write!(f, "values have nothing to do with the baseline's"),
        }
    }
}

/// Damaged tensor and everything that is needed to find the cause.
pub(crate) struct Case<'a> {
    pub(crate) comparison: &'a Comparison<'a>,
    pub(crate) seen: &'a Seen,
    /// Other tensors of the reference model with the same shape, whose values the damaged tensor may hold.
    pub(crate) others: Vec<Side<'a>>,
    /// Number of attention heads, from the metadata; only for queries and keys.
    pub(crate) n_heads: Option<u64>,
}

impl Case<'_> {
    /// Relative error that the type has on these values.
    fn own_error(&self) -> f64 {
        let own = self.seen.own.relative_error();
        if own.is_finite() { own.max(self.comparison.limits.nominal) } else { self.comparison.limits.nominal }
    }

    /// Searches for the cause.
    ///
    /// # Errors
    /// Tensors that cannot be read.
    pub(crate) fn find(&self) -> Result<Option<Cause>, EngineError> {
        if let Some(cause) = self.rounded().or_else(|| self.scaled()) {
            return Ok(Some(cause));
        }
        let sample = Sample::read(self)?;
        if let Some(cause) = sample.elsewhere(self)? {
            return Ok(Some(cause));
        }
        Ok(self.remains())
    }

    fn rounded(&self) -> Option<Cause> {
        let seen = self.seen;
        let all = |n: u64| seen.n_differing > 0 && n == seen.n_differing;
        let [bf16, f16] = seen.n_through;
        match (all(bf16), all(f16)) {
            _ if seen.n_beyond == 0 => None,
            (true, _) => Some(Cause::RoundedThrough { ty: GgmlType::Bf16 }),
            (_, true) => Some(Cause::RoundedThrough { ty: GgmlType::F16 }),
            _ => None,
        }
    }

    fn scaled(&self) -> Option<Cause> {
        let seen = self.seen;
        let own_error = self.own_error();
        let factor = seen.own.slope() / seen.file.slope();
        let is_quantized = self.comparison.coded.meta().ty.is_quantized();
        let limit = if is_quantized { Limits::tensor_scale(own_error) } else { 1e-3 };
        let keeps_shape = seen.file.shape_error() <= (1.5 * own_error).max(1e-3);
        let is_far = |factor: f64, limit: f64| factor != 0.0 && factor.abs().ln().abs() > limit;
        if keeps_shape && (factor < 0.0 || is_far(factor, limit)) {
            return Some(Cause::Scaled { factor });
        }
        let rows: Vec<(u64, f64)> =
            seen.bad_rows.first.iter().filter_map(|row| Some((row.row, row.factor?))).collect();
        if !rows.is_empty() && rows.len() == seen.bad_rows.first.len() {
            return Some(Cause::RowsScaled { count: seen.bad_rows.count, first: rows });
        }
        let columns = scaled_columns(seen, own_error);
        if !columns.is_empty()
            && seen.file.correlation() > 0.5
            && columns.len() * 2 < seen.columns.products.len()
        {
            let count = columns.len() as u64;
            return Some(Cause::ColumnsScaled { count, first: columns.into_iter().take(16).collect() });
        }
        None
    }

    /// Describes damage whose values were found nowhere else.
    fn remains(&self) -> Option<Cause> {
        let seen = self.seen;
        let own_error = self.own_error();
        // The errors of a few blocks may outweigh all others.
        let in_part = seen.bad_blocks.count > 0 && seen.bad_blocks.count * 2 <= seen.n_blocks;
        let correlation = seen.file.correlation().abs();
        if !in_part && (correlation.is_nan() || correlation < 0.1) {
            return Some(Cause::Unrelated);
        }
        let state = |block: &BadBlock| (block.row, block.block, BlockState::of(&block.sums, own_error));
        let first: Vec<_> = seen.bad_blocks.first.iter().map(state).collect();
        (!first.is_empty()).then_some(Cause::Blocks { count: seen.bad_blocks.count, first })
    }
}

/// Returns the columns that are multiplied, with their factors.
pub(crate) fn scaled_columns(seen: &Seen, own_error: f64) -> Vec<(u64, f64)> {
    let limit = Limits::column_scale(own_error);
    // Columns that hold other values in some rows are not scaled.
    let shape_error = (2.0 * own_error).clamp(0.02, 0.35);
    let factors = seen.columns.factors(shape_error).enumerate().map(|(at, factor)| (at as u64, factor));
    factors.filter(|(_, factor)| factor.ln().abs() > limit).collect()
}
