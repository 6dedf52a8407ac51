//! What the comparison says about one tensor.

use serde::{Deserialize, Serialize};

use crate::core::{GgmlType, Shape};
use crate::verify::exact;
use crate::verify::weights::cause::Cause;
use crate::verify::weights::sums::Sums;

/// Marks that are kept of each kind: the first ones, in the order of the tensor.
pub(crate) const MARKS: usize = 16;
/// Upper ends of the histogram's bins but the last, which has none: error of a block over what the type does.
const BINS: [f64; 11] = [0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0];

/// How a tensor compares with the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightOutcome {
    /// The same bytes as our own quantizer (or rounding) makes of the baseline.
    Reproduced,
    /// Other bytes, but no farther from the baseline than the type can be.
    Within,
    /// Farther from the baseline than rounding explains.
    Damaged,
    /// Could not be compared.
    Unjudged,
}

impl WeightOutcome {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Within => "within",
            Self::Damaged => "damaged",
            Self::Unjudged => "unjudged",
        }
    }
}

/// Blocks by the ratio of their error to what the type does with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatioHistogram {
    /// Blocks per bin.
    pub counts: [u64; BINS.len() + 1],
}

impl RatioHistogram {
    /// Upper ends of the bins; the last bin has none.
    #[must_use]
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

/// A block whose error is beyond what its type can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BadBlock {
    /// Its row.
    pub row: u64,
    /// Its number in the row.
    pub block: u64,
    /// Its relative rms error.
    #[serde(with = "exact::double")]
    pub error: f64,
    /// The same over what the type does.
    #[serde(with = "exact::double")]
    pub ratio: f64,
    #[serde(skip)]
    pub(crate) sums: Sums,
}

/// A row that is farther off than its type can be, or scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BadRow {
    /// Its number.
    pub row: u64,
    /// Its relative rms error.
    #[serde(with = "exact::double")]
    pub error: f64,
    /// The same over what the type does.
    #[serde(with = "exact::double")]
    pub ratio: f64,
    /// The factor that the row was scaled by, if nothing else is wrong with it.
    #[serde(with = "exact::double_if_any")]
    pub factor: Option<f64>,
}

/// How many there are of something, and the first of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Marked<T> {
    /// How many.
    pub count: u64,
    /// The first ones.
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
        let room = MARKS - self.first.len();
        self.first.extend(later.first.into_iter().take(room));
    }
}

/// The first value that is not the baseline's, rounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstDifference {
    /// Its row.
    pub row: u64,
    /// Its column.
    pub column: u64,
    /// What the file has.
    #[serde(with = "exact::single")]
    pub found: f32,
    /// What the baseline makes.
    #[serde(with = "exact::single")]
    pub expected: f32,
}

/// Of a column that is lost, at most this share is left where our own codes keep at least that.
const LOST_COLUMN: f64 = 0.05;
const KEPT_COLUMN: f64 = 0.8;

/// Sums over the rows, for each column: of the file, then of our own codes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ColumnSums {
    pub(crate) products: Vec<f64>,
    pub(crate) values: Vec<f64>,
    pub(crate) own_products: Vec<f64>,
    pub(crate) own_values: Vec<f64>,
    pub(crate) references: Vec<f64>,
}

impl ColumnSums {
    pub(crate) fn resize(&mut self, n_cols: usize) {
        let Self { products, values, own_products, own_values, references } = self;
        for sums in [products, values, own_products, own_values, references] {
            sums.resize(n_cols, 0.0);
        }
    }

    pub(crate) fn add_row(&mut self, file: &[f32], own: &[f32], reference: &[f32]) {
        let sums = self.products.iter_mut().zip(&mut self.values);
        for ((product, value), (&f, &r)) in sums.zip(file.iter().zip(reference)) {
            let (f, r) = (f64::from(f), f64::from(r));
            *product += f * r;
            *value += f * f;
        }
        for (sum, &r) in self.references.iter_mut().zip(reference) {
            *sum += f64::from(r).powi(2);
        }
        let sums = self.own_products.iter_mut().zip(&mut self.own_values);
        for ((product, value), (&f, &r)) in sums.zip(own.iter().zip(reference)) {
            let (f, r) = (f64::from(f), f64::from(r));
            *product += f * r;
            *value += f * f;
        }
    }

    fn append(&mut self, later: &Self) {
        self.resize(later.products.len());
        let add = |own: &mut [f64], more: &[f64]| own.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        add(&mut self.products, &later.products);
        add(&mut self.values, &later.values);
        add(&mut self.own_products, &later.own_products);
        add(&mut self.own_values, &later.own_values);
        add(&mut self.references, &later.references);
    }

    /// By how much more than by rounding each column is scaled; 1 where nothing can be said, or where more than
    /// `shape_error` is left once the scale is right; 0 where next to nothing is left of what our own codes keep.
    pub(crate) fn factors(&self, shape_error: f64) -> impl Iterator<Item = f64> {
        let own = self.own_products.iter().zip(&self.own_values);
        let file = self.products.iter().zip(&self.values).zip(&self.references);
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

/// Our own codes may be the ones that are off, so a column must be scaled both against them and by itself.
fn nearer_to_one(a: f64, b: f64) -> f64 {
    if a.ln().abs() < b.ln().abs() { a } else { b }
}

/// What rows of a tensor showed; joined in the order of the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Of the file against the baseline.
    pub(crate) file: Sums,
    /// Of our own codes against the baseline.
    pub(crate) own: Sums,
    pub(crate) n_blocks: u64,
    pub(crate) n_equal_blocks: u64,
    pub(crate) histogram: RatioHistogram,
    pub(crate) bad_blocks: Marked<BadBlock>,
    pub(crate) bad_rows: Marked<BadRow>,
    pub(crate) columns: ColumnSums,
    /// Of floats: values that differ, those that no rounding explains, and the first.
    pub(crate) n_differing: u64,
    pub(crate) n_beyond: u64,
    pub(crate) first_difference: Option<FirstDifference>,
    /// Of floats: values that went through BF16, and through F16, before they were rounded to their type.
    pub(crate) n_through: [u64; 2],
    pub(crate) unjudged: Option<String>,
}

impl Seen {
    pub(crate) fn append(&mut self, later: Self) {
        self.file.add(&later.file);
        self.own.add(&later.own);
        self.n_blocks += later.n_blocks;
        self.n_equal_blocks += later.n_equal_blocks;
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

/// One tensor of the file against the baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorWeights {
    /// Name in the file.
    pub name: String,
    /// The tensor of the baseline, where it has another name (a head that is the embedding).
    pub baseline_name: Option<String>,
    /// `blk.N`: the layer.
    pub layer: Option<usize>,
    /// The rest of the name.
    pub role: String,
    /// Type in the file.
    #[serde(with = "exact::ggml_type")]
    pub ty: GgmlType,
    /// Type in the baseline.
    #[serde(with = "exact::ggml_type")]
    pub baseline_ty: GgmlType,
    /// Shape, outermost first.
    #[serde(with = "exact::shape")]
    pub shape: Shape,
    /// The result.
    pub outcome: WeightOutcome,
    /// Relative rms error of the file against the baseline.
    #[serde(with = "exact::double")]
    pub error: f64,
    /// That of our own quantization of the same values, without an importance matrix.
    #[serde(with = "exact::double")]
    pub own_error: f64,
    /// The file's error over what the type does with these values; 1 where both are exact.
    #[serde(with = "exact::double")]
    pub ratio: f64,
    /// Blocks; of floats, values.
    pub blocks: u64,
    /// Those that are reproduced.
    pub equal_blocks: u64,
    /// Blocks by the ratio of their errors; empty for floats.
    pub histogram: RatioHistogram,
    /// Blocks beyond what the type can do.
    pub bad_blocks: Marked<BadBlock>,
    /// Rows beyond what the type can do.
    pub bad_rows: Marked<BadRow>,
    /// Of floats: the first value that differs.
    pub first_difference: Option<FirstDifference>,
    /// What is wrong, in words; why it could not be judged.
    pub message: Option<String>,
    /// Why, where it was found.
    pub cause: Option<Cause>,
}

/// `blk.3.attn_q.weight` as layer 3 and `attn_q.weight`.
pub(crate) fn split_name(name: &str) -> (Option<usize>, &str) {
    let parts = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match parts.and_then(|(layer, role)| Some((layer.parse().ok()?, role))) {
        Some((layer, role)) => (Some(layer), role),
        None => (None, name),
    }
}
