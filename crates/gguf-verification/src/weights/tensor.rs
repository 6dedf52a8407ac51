//! Result of the comparison of one tensor.

use serde::{Deserialize, Serialize};

use crate::exact;
use crate::weights::cause::Cause;
use gguf_core::comparison::{self, ColumnSums, ComparisonSums};
use gguf_core::{GgmlType, Shape};

/// Maximum number of marks that are kept of each kind: the first ones, in the order of the tensor.
pub(crate) const MARKS: usize = 16;
/// Upper ends of the histogram's bins: error of a block over the error of its type. The last bin has no end.
const BINS: [f64; 11] = [0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0];

/// Outcome of the comparison of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightOutcome {
    /// Equal to the bytes that our own quantizer (or rounding) makes of the baseline, with the importance matrix if it is
    /// known.
    Reproduced,
    /// Other bytes, but within the error that the type can have.
    Within,
    /// Codes of a solver that also moves weights, in the file's own words: only large damage would show, and the
    /// divergence decides.
    Moved,
    /// Farther from the baseline than rounding explains.
    Damaged,
    /// Not comparable.
    Unjudged,
}

impl WeightOutcome {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Within => "within",
            Self::Moved => "moved",
            Self::Damaged => "damaged",
            Self::Unjudged => "unjudged",
        }
    }
}

/// Number of blocks by the ratio of their error to the error of their type on the same values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatioHistogram {
    /// Number of blocks per bin.
    pub counts: [u64; BINS.len() + 1],
}

impl RatioHistogram {
    /// Returns the upper ends of the bins; the last bin has none.
    pub fn ends() -> &'static [f64] {
        &BINS
    }

    pub(crate) fn count(&mut self, ratio: f64) {
        let bin = BINS.iter().position(|&end| ratio <= end).unwrap_or(BINS.len());
        self.counts[bin] += 1;
    }

    fn add(&mut self, other: &Self) {
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
    }
}

/// Block whose error is larger than its type explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BadBlock {
    /// Row of the block.
    pub row: u64,
    /// Index of the block in the row.
    pub block: u64,
    /// Relative rms error of the block.
    #[serde(with = "exact::double")]
    pub error: f64,
    /// Ratio of that error to the error of the type.
    #[serde(with = "exact::double")]
    pub ratio: f64,
    #[serde(skip)]
    pub(crate) sums: ComparisonSums,
}

/// Row whose error is larger than its type explains, or that is scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BadRow {
    /// Index of the row.
    pub row: u64,
    /// Relative rms error of the row.
    #[serde(with = "exact::double")]
    pub error: f64,
    /// Ratio of that error to the error of the type.
    #[serde(with = "exact::double")]
    pub ratio: f64,
    /// Factor by which the row was scaled, if nothing else is wrong with it.
    #[serde(with = "exact::double_if_any")]
    pub factor: Option<f64>,
}

/// Number of marked items, with the first of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Marked<T> {
    /// Number of items.
    pub count: u64,
    /// First items, at most 16.
    pub first: Vec<T>,
}

impl<T> Default for Marked<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> Marked<T> {
    pub(crate) fn mark(&mut self, item: T) {
        self.count += 1;
        if self.first.len() < MARKS {
            self.first.push(item);
        }
    }

    pub(crate) fn append(&mut self, later: Self) {
        self.count += later.count;
        let n_free = MARKS - self.first.len();
        self.first.extend(later.first.into_iter().take(n_free));
    }
}

/// First value that differs from the baseline's, rounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstDifference {
    /// Row of the value.
    pub row: u64,
    /// Column of the value.
    pub column: u64,
    /// Value in the file.
    #[serde(with = "exact::single")]
    pub found: f32,
    /// Value that the baseline gives.
    #[serde(with = "exact::single")]
    pub expected: f32,
}

/// Limits for a lost column: at most `LOST_COLUMN` of it is left in the file, while our own codes keep at least
/// `KEPT_COLUMN`.
const LOST_COLUMN: f64 = 0.05;
const KEPT_COLUMN: f64 = 0.8;

/// Sums for each column: of the file, of our own codes, and of the squares of the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ColumnComparison {
    pub(crate) file: ColumnSums,
    pub(crate) own: ColumnSums,
    pub(crate) references: Vec<f64>,
}

impl ColumnComparison {
    pub(crate) fn add_row(&mut self, file: &[f32], own: &[f32], reference: &[f32]) {
        self.file.add_row(file, reference);
        self.own.add_row(own, reference);
        comparison::add_products(&mut self.references, reference, reference);
    }

    fn append(&mut self, later: &Self) {
        self.file.append(&later.file);
        self.own.append(&later.own);
        comparison::append(&mut self.references, &later.references);
    }

    /// Returns the factor of each column beyond the effect of rounding. It is 1 if nothing can be said, or if more than
    /// `shape_error` remains with the best scale. It is 0 if almost nothing is left of a column that our own codes
    /// keep.
    pub(crate) fn factors(&self, shape_error: f64) -> impl Iterator<Item = f64> {
        let own = self.own.products.iter().zip(&self.own.values);
        let file = self.file.products.iter().zip(&self.file.values).zip(&self.references);
        file.zip(own).map(move |(((&p, &v), &r), (&op, &ov))| {
            if p.abs() < LOST_COLUMN * r && op > KEPT_COLUMN * r {
                return 0.0;
            }
            let is_column = p * p >= (1.0 - shape_error * shape_error) * v * r;
            if is_column && p > 0.0 && v > 0.0 && op > 0.0 && ov > 0.0 {
                nearer_to_one((op / ov) / (p / v), v / p)
            } else {
                1.0
            }
        })
    }
}

/// Our own codes may be the inaccurate ones, so a column must be scaled both relative to them and by itself.
fn nearer_to_one(a: f64, b: f64) -> f64 {
    if a.ln().abs() < b.ln().abs() { a } else { b }
}

/// Sums and marks over rows of a tensor; joined in the order of the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TensorTally {
    /// Sums of the file against the baseline.
    pub(crate) file: ComparisonSums,
    /// Sums of our own codes against the baseline.
    pub(crate) own: ComparisonSums,
    pub(crate) n_blocks: u64,
    pub(crate) n_equal_blocks: u64,
    /// Number of blocks among them that are equal only by way of F16 or BF16.
    pub(crate) n_by_detour: u64,
    pub(crate) histogram: RatioHistogram,
    pub(crate) bad_blocks: Marked<BadBlock>,
    pub(crate) bad_rows: Marked<BadRow>,
    pub(crate) columns: ColumnComparison,
    /// Number of float values that differ, number of those that no rounding explains, and the first difference.
    pub(crate) n_differing: u64,
    pub(crate) n_beyond: u64,
    pub(crate) first_difference: Option<FirstDifference>,
    /// Number of float values that were rounded to BF16, or to F16, before they were rounded to their type.
    pub(crate) n_through: [u64; 2],
    pub(crate) unjudged: Option<String>,
}

impl TensorTally {
    pub(crate) fn append(&mut self, later: Self) {
        self.file.add(&later.file);
        self.own.add(&later.own);
        self.n_blocks += later.n_blocks;
        self.n_equal_blocks += later.n_equal_blocks;
        self.n_by_detour += later.n_by_detour;
        self.histogram.add(&later.histogram);
        self.bad_blocks.append(later.bad_blocks);
        self.bad_rows.append(later.bad_rows);
        self.columns.append(&later.columns);
        self.n_differing += later.n_differing;
        self.n_beyond += later.n_beyond;
        self.first_difference = self.first_difference.take().or(later.first_difference);
        for (own, more) in self.n_through.iter_mut().zip(later.n_through) {
            *own += more;
        }
        self.unjudged = self.unjudged.take().or(later.unjudged);
    }
}

/// Comparison of one tensor of the file with the baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorWeights {
    /// Name of the tensor in the file.
    pub name: String,
    /// Name of the baseline's tensor if it differs (a head that is the embedding).
    pub(crate) baseline_name: Option<String>,
    /// Layer number, from `blk.N`.
    pub layer: Option<usize>,
    /// Rest of the name.
    pub role: String,
    /// Type in the file.
    #[serde(with = "exact::ggml_type")]
    pub ty: GgmlType,
    /// Type in the baseline.
    #[serde(with = "exact::ggml_type")]
    pub(crate) baseline_ty: GgmlType,
    /// Shape, outermost dimension first.
    #[serde(with = "exact::shape")]
    pub shape: Shape,
    /// Outcome of the comparison.
    pub outcome: WeightOutcome,
    /// Relative rms error of the file against the baseline.
    #[serde(with = "exact::double")]
    pub error: f64,
    /// Relative rms error of our own quantization of the same values, without an importance matrix.
    #[serde(with = "exact::double")]
    pub own_error: f64,
    /// Ratio of the file's error to the error of the type on these values; 1 if both are exact.
    #[serde(with = "exact::double")]
    pub ratio: f64,
    /// Number of blocks; of values for floats.
    pub blocks: u64,
    /// Number of reproduced blocks.
    pub(crate) equal_blocks: u64,
    /// True if a reference copy of the file has the same values: the baseline's, quantized to this type.
    pub is_copy: bool,
    /// Blocks by the ratio of their errors; empty for floats.
    pub histogram: RatioHistogram,
    /// Blocks whose error is larger than the type explains.
    pub bad_blocks: Marked<BadBlock>,
    /// Rows whose error is larger than the type explains.
    pub(crate) bad_rows: Marked<BadRow>,
    /// First float value that differs; `None` for quantized types.
    pub(crate) first_difference: Option<FirstDifference>,
    /// Description of the problem, or the reason why the tensor could not be judged.
    pub message: Option<String>,
    /// Cause of the damage, if it was found.
    pub cause: Option<Cause>,
}

/// Splits `blk.3.attn_q.weight` into layer 3 and `attn_q.weight`.
pub(crate) fn split_name(name: &str) -> (Option<usize>, &str) {
    let parts = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match parts.and_then(|(layer, role)| Some((layer.parse().ok()?, role))) {
        Some((layer, role)) => (Some(layer), role),
        None => (None, name),
    }
}
