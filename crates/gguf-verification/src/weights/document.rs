//! Comparison of the weights as programs read it.

use serde::Serialize;

use crate::weights::{BadBlock, BadRow, Cause, RatioHistogram, TensorWeights, WeightOutcome, WeightReport};
use gguf_core::GgmlType;

/// Numbers of tensors by outcome, and the figures of every tensor.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WeightDocument<'a> {
    /// Number of tensors that equal our own quantization of the baseline.
    reproduced: usize,
    /// Number of tensors with an error within the limits of their types.
    within: usize,
    /// Number of tensors whose weights a solver has moved, so that only large damage would show.
    moved: usize,
    /// Number of tensors that are farther from the baseline than rounding explains.
    damaged: usize,
    /// Number of tensors that are not comparable.
    unjudged: usize,
    /// Upper ends of the bins of `histogram`; the last bin has none.
    histogram_ends: &'static [f64],
    /// Tensors that both models have, in the order of the file.
    tensors: Vec<TensorDocument<'a>>,
}

/// Comparison of one tensor of the file with the baseline.
#[derive(Clone, Debug, Serialize)]
struct TensorDocument<'a> {
    /// Name of the tensor in the file.
    name: &'a str,
    /// Name of the tensor in the baseline, if it differs.
    baseline_name: Option<&'a str>,
    /// Layer number, from `blk.N`.
    layer: Option<usize>,
    /// Name without the layer.
    role: &'a str,
    /// Type in the file.
    #[serde(rename = "type")]
    ty: GgmlType,
    /// Type in the baseline.
    #[serde(rename = "baseline_type")]
    baseline_ty: GgmlType,
    /// Outcome of the comparison: `reproduced`, `within`, `moved`, `damaged` or `unjudged`.
    outcome: &'static str,
    /// Relative rms error of the file against the baseline.
    error: f64,
    /// Relative rms error of our own quantization of the same values.
    own_error: f64,
    /// Ratio of the file's error to the error of the type on these values.
    ratio: f64,
    /// Number of blocks; of values for floats.
    blocks: u64,
    /// Number of reproduced blocks.
    equal_blocks: u64,
    /// Number of blocks per bin, by the ratio of their errors; null for floats.
    histogram: Option<&'a [u64]>,
    /// Number of blocks whose error is larger than the type explains.
    bad_blocks: u64,
    /// First of these blocks, at most 16.
    first_bad_blocks: Vec<BlockDocument>,
    /// Number of rows whose error is larger than the type explains.
    bad_rows: u64,
    /// First of these rows, at most 16.
    first_bad_rows: Vec<RowDocument>,
    /// Cause of the damage, if it was found.
    cause: Option<CauseDocument>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct BlockDocument {
    /// Row of the block.
    row: u64,
    /// Index of the block in the row.
    block: u64,
    /// Relative rms error of the block.
    error: f64,
    /// Ratio of that error to the error of the type.
    ratio: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct RowDocument {
    /// Index of the row.
    row: u64,
    /// Relative rms error of the row.
    error: f64,
    /// Ratio of that error to the error of the type.
    ratio: f64,
    /// Factor by which the row was scaled, if nothing else is wrong with it.
    factor: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct CauseDocument {
    /// Name of the cause: `holds`, `rotary-order`, `rows-shifted`, `rows-moved`, `scaled`, `rows-scaled`,
    /// `columns-scaled`, `transposed`, `elements-shifted`, `blocks`, `rounded-through` or `unrelated`.
    kind: &'static str,
    /// Readable description.
    text: String,
}

impl<'a> From<&'a WeightReport> for WeightDocument<'a> {
    fn from(report: &'a WeightReport) -> Self {
        let count = |outcome| report.with(outcome).count();
        Self {
            reproduced: count(WeightOutcome::Reproduced),
            within: count(WeightOutcome::Within),
            moved: count(WeightOutcome::Moved),
            damaged: count(WeightOutcome::Damaged),
            unjudged: count(WeightOutcome::Unjudged),
            histogram_ends: RatioHistogram::ends(),
            tensors: report.tensors.iter().map(TensorDocument::from).collect(),
        }
    }
}

impl<'a> From<&'a TensorWeights> for TensorDocument<'a> {
    fn from(tensor: &'a TensorWeights) -> Self {
        Self {
            name: &tensor.name,
            baseline_name: tensor.baseline_name.as_deref(),
            layer: tensor.layer,
            role: &tensor.role,
            ty: tensor.ty,
            baseline_ty: tensor.baseline_ty,
            outcome: tensor.outcome.name(),
            error: tensor.error,
            own_error: tensor.own_error,
            ratio: tensor.ratio,
            blocks: tensor.blocks,
            equal_blocks: tensor.equal_blocks,
            histogram: tensor.ty.is_quantized().then_some(tensor.histogram.counts.as_slice()),
            bad_blocks: tensor.bad_blocks.count,
            first_bad_blocks: tensor.bad_blocks.first.iter().map(BlockDocument::from).collect(),
            bad_rows: tensor.bad_rows.count,
            first_bad_rows: tensor.bad_rows.first.iter().map(RowDocument::from).collect(),
            cause: tensor.cause.as_ref().map(CauseDocument::from),
        }
    }
}

impl From<&BadBlock> for BlockDocument {
    fn from(&BadBlock { row, block, error, ratio, .. }: &BadBlock) -> Self {
        Self { row, block, error, ratio }
    }
}

impl From<&BadRow> for RowDocument {
    fn from(&BadRow { row, error, ratio, factor }: &BadRow) -> Self {
        Self { row, error, ratio, factor }
    }
}

impl From<&Cause> for CauseDocument {
    fn from(cause: &Cause) -> Self {
        Self { kind: cause.name(), text: cause.to_string() }
    }
}
