//! Comparison of every tensor with the baseline tensor that it was made from.
//!
//! The baseline's values are quantized with our own quantizer to the file's type. Equal bytes mean that the tensor is
//! reproduced. Other bytes come from an importance matrix, from rounding that feeds errors back, or from damage. The
//! file's error is compared with the error of our own codes over the tensor, its rows and its blocks. If it is larger
//! than the type explains, the values are looked for elsewhere in the baseline, so that the report can name the cause.

mod cause;
mod compare;
mod copied;
mod diagnosis;
pub(super) mod document;
mod findings;
mod limits;
mod pairs;
mod tensor;
mod tensor_reader;

pub use cause::{BlockState, Cause};
pub use tensor::{BadBlock, BadRow, FirstDifference, Marked, RatioHistogram, TensorWeights, WeightOutcome};

use rayon::prelude::*;

use crate::{Finding, Model, VerifyError};
use compare::{Comparison, RowBuffers, RowsResult};
use diagnosis::{DamagedTensor, scaled_columns};
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::text::plural;
use gguf_core::{GgmlType, TensorMeta};
use gguf_engine::EngineError;
use gguf_format::{Array, Imatrix, Share, Value};
pub use limits::SOLVER_KEY;
use limits::{ErrorLimits, MOSTLY_REPRODUCED, exceeds};
use pairs::{TensorPair, TensorPairs};
use tensor::{TensorTally, split_name};
pub(crate) use tensor_reader::TensorReader;

/// Largest and smallest number of values of a tensor that a thread compares at a time.
const CHUNK_ELEMS: u64 = 128 << 10;
const MIN_CHUNK_ELEMS: u64 = 4 << 10;
/// Bytes that a value takes in a thread's buffers: decoded, encoded on both sides, and sums.
const ELEM_BYTES: u64 = 24;
/// Number of chunks per thread whose results are held until they are joined in order.
const WAVE: u64 = 4;
/// Maximum number of damaged tensors whose cause is searched for; a file with more is another model.
const MAX_CASES: usize = 64;

/// Options of the comparison of weights.
#[derive(Clone, Copy, Debug)]
pub struct WeightOptions<'a> {
    /// Vector instructions.
    pub level: SimdLevel,
    /// Memory for the rows that are compared, over all threads. A single row is held whatever its size.
    pub memory_bytes: u64,
    /// Importance matrix that the model was quantized with, if it is known.
    pub importance: Option<&'a Imatrix>,
}

/// Result of the comparison of all tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightReport {
    /// Tensors that both models have, in the order of the file.
    pub tensors: Vec<TensorWeights>,
    /// Problems found: tensors without a result, then damaged ones; those with a common cause are grouped.
    pub findings: Vec<Finding>,
}

/// Compares the tensors of a model with those of its baseline, on the threads of the current rayon pool.
///
/// # Errors
/// Tensors that cannot be read; cancellation. Problems of the model are findings.
pub fn compare_weights(
    model: &Model<'_>,
    baseline: &Model<'_>,
    options: &WeightOptions<'_>,
    progress: &dyn Progress,
) -> Result<WeightReport, VerifyError> {
    let whole = compare_share(model, baseline, options, None, progress)?;
    Ok(WeightReport::joined(vec![whole]))
}

/// Compares a share of the tensors as [`compare_weights`] does. The only findings are those of tensors that just one of
/// the two models has, which every share reports. [`WeightReport::joined`] makes the report of all shares.
pub(super) fn compare_share(
    model: &Model<'_>,
    baseline: &Model<'_>,
    options: &WeightOptions<'_>,
    share: Option<Share>,
    progress: &dyn Progress,
) -> Result<WeightReport, VerifyError> {
    let TensorPairs { pairs, findings } = TensorPairs::of(model, baseline, options.level)?;
    let mut report = WeightReport { tensors: Vec::new(), findings };
    let own = match share {
        Some(share) => pairs.get(share.of_tensors(pairs.iter().map(|pair| pair.file.meta()))),
        None => Some(pairs.as_slice()),
    };
    let own = own.unwrap_or_default();
    let drift = limits::drift_of(model, options.level);
    let n_bytes = |pair: &TensorPair<'_>| pair.file.meta().n_bytes().unwrap_or(0);
    progress.begin("comparing weights", own.iter().map(n_bytes).sum());
    let (mut n_cases, mut is_copy) = (0, true);
    for pair in own {
        let comparison = comparison(pair, drift, options.level);
        let found = compare(&comparison, options, pair.file.meta(), progress)
            .and_then(|tally| {
                let mut tensor = judge(pair, &comparison, &tally);
                if tensor.outcome == WeightOutcome::Within
                    && pair.is_made_with(options.importance, progress)?
                {
                    tensor.outcome = WeightOutcome::Reproduced;
                } else {
                    is_copy = is_copy && pair.is_copy(&comparison, &tally, progress)?;
                }
                tensor.is_copy = is_copy;
                if tensor.outcome == WeightOutcome::Damaged && n_cases < MAX_CASES {
                    n_cases += 1;
                    let others = others(&pairs, pair, &comparison);
                    let n_heads = n_heads(model, &tensor);
                    let case = DamagedTensor { comparison: &comparison, tally: &tally, others, n_heads };
                    tensor.cause = case.find()?;
                }
                Ok(tensor)
            })
            .inspect_err(|_| progress.end())?;
        pair.file.source.release_rows(pair.file.tensor, 0, pair.file.n_rows());
        pair.baseline.source.release_rows(pair.baseline.tensor, 0, pair.baseline.n_rows());
        report.tensors.push(found);
    }
    progress.end();
    Ok(report)
}

impl WeightReport {
    /// Joins the reports of consecutive shares and adds the findings.
    pub(super) fn joined(shares: Vec<Self>) -> Self {
        let mut joined = Self::default();
        for (at, share) in shares.into_iter().enumerate() {
            if at == 0 {
                joined.findings = share.findings;
            }
            joined.tensors.extend(share.tensors);
        }
        // Each share may have searched for `MAX_CASES` causes; the joined report has at most that many.
        let damaged = joined.tensors.iter_mut().filter(|tensor| tensor.outcome == WeightOutcome::Damaged);
        damaged.skip(MAX_CASES).for_each(|tensor| tensor.cause = None);
        joined.add_findings();
        joined
    }
}

/// Chooses the coarser tensor as the one that is judged by the finer one: a float file made from a quantized baseline
/// holds the values of the baseline's codes.
fn comparison<'a>(pair: &TensorPair<'a>, drift: f64, level: SimdLevel) -> Comparison<'a> {
    let (file, baseline) = (pair.file.clone(), pair.baseline.clone());
    let bits = |ty: GgmlType| ty.bits_per_weight();
    let (coded, reference) =
        if bits(file.meta().ty) <= bits(baseline.meta().ty) { (file, baseline) } else { (baseline, file) };
    let limits = ErrorLimits::new(coded.meta().ty, reference.meta().ty, drift, level);
    Comparison { coded, reference, limits }
}

/// Compares all rows, in chunks on all threads.
fn compare(
    comparison: &Comparison<'_>,
    options: &WeightOptions<'_>,
    file: &TensorMeta,
    progress: &dyn Progress,
) -> Result<TensorTally, VerifyError> {
    let n_threads = rayon::current_num_threads().max(1) as u64;
    let n_rows = comparison.coded.n_rows();
    let n_cols = comparison.coded.meta().shape.n_cols().max(1);
    let budget = options.memory_bytes / (n_threads * ELEM_BYTES);
    let step = (budget.clamp(MIN_CHUNK_ELEMS, CHUNK_ELEMS) / n_cols).max(1);
    let row_bytes = file.row_bytes().unwrap_or(0);
    let n_chunks = n_rows.div_ceil(step);
    let (mut tally, mut strict) = (TensorTally::default(), tensor::Marked::default());
    let mut first = 0;
    while first < n_chunks {
        let end = n_chunks.min(first + WAVE * n_threads);
        let wave: Vec<RowsResult> = (first..end)
            .into_par_iter()
            .map_init(RowBuffers::default, |buffers, chunk| {
                if progress.is_cancelled() {
                    return Err(EngineError::Cancelled);
                }
                let row = chunk * step;
                let n = step.min(n_rows - row);
                let both = comparison.rows(row, n, buffers)?;
                progress.advance(n * row_bytes);
                Ok(both)
            })
            .collect::<Result<_, EngineError>>()?;
        // Joined in order, so that the sums do not depend on the number of threads.
        for both in wave {
            tally.append(both.tally);
            strict.append(both.strict);
        }
        first = end;
    }
    let reproduced = tally.n_equal_blocks as f64 >= MOSTLY_REPRODUCED * tally.n_blocks as f64;
    if reproduced && comparison.coded.meta().ty.is_quantized() {
        tally.bad_blocks = strict;
    }
    Ok(tally)
}

/// Other tensors of the same shape, whose values a damaged tensor may hold.
fn others<'a>(
    pairs: &[TensorPair<'a>],
    own: &TensorPair<'a>,
    comparison: &Comparison<'a>,
) -> Vec<TensorReader<'a>> {
    let is_file = std::ptr::addr_eq(comparison.reference.source, own.file.source);
    let shape = &comparison.reference.meta().shape;
    pairs
        .iter()
        .filter(|pair| pair.name != own.name)
        .map(|pair| if is_file { &pair.file } else { &pair.baseline })
        .filter(|reader| {
            reader.meta().shape.n_cols() == shape.n_cols() && reader.meta().shape.n_rows() == shape.n_rows()
        })
        .cloned()
        .collect()
}

/// Number of attention heads of a query or key tensor, from the metadata; `None` for other tensors.
fn n_heads(model: &Model<'_>, tensor: &TensorWeights) -> Option<u64> {
    let heads = |name: &str| {
        let value = model.metadata.get(&format!("{}.attention.{name}", model.arch()?))?;
        match value {
            Value::Array(array) => of_layer(array, tensor.layer?),
            value => value.as_u64(),
        }
    };
    if tensor.role.starts_with("attn_q.") {
        heads("head_count")
    } else if tensor.role.starts_with("attn_k.") {
        heads("head_count_kv").or_else(|| heads("head_count"))
    } else {
        None
    }
}

fn of_layer(array: &Array, layer: usize) -> Option<u64> {
    array.get(layer)?.as_u64()
}

/// Turns the sums of a tensor into its outcome.
fn judge(pair: &TensorPair<'_>, comparison: &Comparison<'_>, tally: &TensorTally) -> TensorWeights {
    let (file, baseline) = (pair.file.meta(), pair.baseline.meta());
    let (layer, role) = split_name(&pair.name);
    let is_quantized = comparison.coded.meta().ty.is_quantized();
    let limits = &comparison.limits;
    let granted = limits.granted(tally.own.errors, tally.file.reference, 0.0);
    let (error, own_error) = (tally.file.relative_error(), tally.own.relative_error());
    let ratio = match (is_quantized, tally.n_equal_blocks == tally.n_blocks) {
        (_, true) => 1.0,
        (true, _) => compare::ratio(tally.file.errors, granted),
        (false, _) => compare::ratio(tally.file.errors, tally.own.errors),
    };
    let mut tensor = TensorWeights {
        name: pair.name.clone(),
        baseline_name: (baseline.name != pair.name).then(|| baseline.name.clone()),
        layer,
        role: role.to_owned(),
        ty: file.ty,
        baseline_ty: baseline.ty,
        shape: file.shape.clone(),
        outcome: WeightOutcome::Reproduced,
        error,
        own_error,
        ratio,
        blocks: tally.n_blocks,
        equal_blocks: tally.n_equal_blocks,
        is_copy: false,
        histogram: tally.histogram.clone(),
        bad_blocks: tally.bad_blocks.clone(),
        bad_rows: tally.bad_rows.clone(),
        first_difference: tally.first_difference.clone(),
        message: None,
        cause: None,
    };
    if let Some(reason) = &tally.unjudged {
        tensor.outcome = WeightOutcome::Unjudged;
        tensor.message = Some(reason.clone());
    } else if tally.n_equal_blocks != tally.n_blocks {
        tensor.message = if is_quantized { coded_flaw(&tensor, tally, limits) } else { float_flaw(tally) };
        tensor.outcome = match tensor.message {
            Some(_) => WeightOutcome::Damaged,
            None if is_quantized && limits.drift > 0.0 => WeightOutcome::Moved,
            None => WeightOutcome::Within,
        };
    }
    tensor
}

/// Describes what is wrong with a quantized tensor; `None` if nothing is.
fn coded_flaw(tensor: &TensorWeights, tally: &TensorTally, limits: &ErrorLimits) -> Option<String> {
    let own_error = tally.own.relative_error().max(limits.nominal);
    let scale = (tally.own.slope() / tally.file.slope()).abs().ln().abs();
    let does = format!(
        "relative error {:.4}, {:.1} times that of a fresh {} quantization",
        tensor.error, tensor.ratio, tensor.ty
    );
    if limits.is_bad_tensor(&tally.file, tensor.ratio) {
        return Some(does);
    }
    // With few values, chance affects every factor.
    let is_large = tally.n_blocks * tensor.ty.block_elems() as u64 >= 4096;
    if is_large && limits.drift == 0.0 && exceeds(scale, ErrorLimits::tensor_scale(own_error)) {
        return Some(does);
    }
    if tally.bad_rows.count > 0 {
        let row = tally.bad_rows.first.first().map_or(0, |row| row.row);
        let (n, ty) = (tally.bad_rows.count, tensor.ty);
        let rows = plural(n, "row");
        return Some(format!("{rows} with a larger error than {ty} explains, the first is row {row}"));
    }
    if tally.bad_blocks.count > 0 {
        let block = tally.bad_blocks.first.first();
        let (row, at) = block.map_or((0, 0), |block| (block.row, block.block));
        let count = tally.bad_blocks.count;
        return Some(format!(
            "{count} of {} blocks with a larger error than {} explains, the first in row {row}, block {at}",
            tally.n_blocks, tensor.ty
        ));
    }
    let n_rows = tensor.shape.n_rows();
    let columns =
        if n_rows >= 64 { scaled_columns(tally, own_error.hypot(limits.drift)) } else { Vec::new() };
    columns
        .first()
        .map(|(column, _)| (plural(columns.len() as u64, "column"), column))
        .map(|(columns, first)| format!("{columns} with another scale, the first is column {first}"))
}

/// Describes what is wrong with a float tensor; `None` if nothing is.
fn float_flaw(tally: &TensorTally) -> Option<String> {
    if tally.n_beyond == 0 {
        return None;
    }
    let first = tally.first_difference.as_ref()?;
    Some(format!(
        "{} of {} values differ, the first in row {}, column {}: {:e}, expected {:e}",
        tally.n_differing, tally.n_blocks, first.row, first.column, first.found, first.expected
    ))
}
