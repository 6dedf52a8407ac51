//! Causes of damage in a tensor: another tensor's values, or an operation on the right ones.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::exact;
use gguf_core::GgmlType;
use gguf_core::comparison::ComparisonSums;
use gguf_core::text::{escape, noun_of, plural};

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
    pub(super) fn of(sums: &ComparisonSums, own_error: f64) -> Self {
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
            Self::Partly => write!(f, "partly wrong values"),
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
                write!(f, "{}: {rows}", plural(*count, "multiplied row"))
            }
            Self::ColumnsScaled { count, first } => {
                let columns =
                    list(first, *count, |(at, factor)| format!("column {at} by {}", number(*factor)));
                write!(f, "{}: {columns}", plural(*count, "multiplied column"))
            }
            Self::Transposed => write!(f, "rows and columns are exchanged"),
            Self::ElementsShifted { by } => {
                write!(f, "values are shifted by {by} {}", noun_of(by.unsigned_abs(), "element"))
            }
            Self::Blocks { count, first } => {
                let blocks =
                    list(first, *count, |(row, block, state)| format!("row {row} block {block} {state}"));
                write!(f, "{}: {blocks}", plural(*count, "damaged block"))
            }
            Self::RoundedThrough { ty } => write!(f, "values were rounded to {ty} on their way"),
            Self::Unrelated => write!(f, "values have nothing to do with the baseline's"),
        }
    }
}
