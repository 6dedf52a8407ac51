//! Run of a plan: rows are quantized when the writer asks for them, on the thread that asks.

use std::cell::Cell;
use std::path::Path;

use crate::class::n_matrices;
use crate::{QuantizeError, QuantizePlan, RowError, SolvedRows};
use gguf_arch::is_bound;
use gguf_blocks::{
    Extent, QuantError, SmallRows, are_ordinary_rows, check_rows, dequantize, first_non_finite,
    is_ordinary_importance, quantize_rows, validate_blocks,
};
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;
use gguf_core::{GgmlType, SourceError, TensorMeta, TensorSource};
use gguf_format::split::part_path;
use gguf_format::{
    PlannedOutput, WriteOptions, WriteReport, output_kind, plan_parts, write_files, write_gguf,
};

/// Number of floats that are decoded at a time: few enough to stay in the cache of a core.
const BATCH_ELEMS: usize = 64 << 10;

/// Buffers of a thread, kept between calls.
#[derive(Default)]
struct ThreadBuffers {
    floats: Vec<f32>,
    bytes: Vec<u8>,
}

/// Rows of one matrix that are decoded at a time.
#[derive(Clone, Copy)]
struct RowBatch {
    tensor: usize,
    matrix: u64,
    first_row: u64,
    n_rows: usize,
    n_cols: usize,
}

/// Decoded rows of one matrix.
struct DecodedRows<'a> {
    ty: GgmlType,
    n_cols: usize,
    floats: &'a [f32],
    weights: Option<&'a [f32]>,
}

thread_local! {
    // Taken out while in use: the source of a plan may be another plan.
    static SCRATCH: Cell<Option<ThreadBuffers>> = const { Cell::new(None) };
}

impl QuantizePlan<'_> {
    /// Returns true for a tensor that keeps its type.
    pub(crate) fn is_copied(&self, tensor: usize) -> bool {
        self.tensors[tensor].ty == self.source.tensors()[self.steps[tensor].source].ty
    }

    fn copy_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let meta = &self.tensors[tensor];
        let source = self.steps[tensor].source;
        let row_bytes = row_bytes(meta);
        let n_rows = out.len() as u64 / row_bytes as u64;
        match self.source.borrow_rows(source, first_row, n_rows) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => self.source.read_rows(source, first_row, out)?,
        }
        self.contents[tensor].note(|| out.iter().any(|&byte| byte != 0));
        if self.allow_nonfinite || is_bound(&meta.name) {
            return Ok(());
        }
        validate_blocks(meta.ty, out).map_err(|mut error| {
            let blocks_per_row = row_bytes / meta.ty.block_bytes();
            let row = first_row + (error.block / blocks_per_row) as u64;
            error.block %= blocks_per_row;
            at(meta, RowError::BadBlock { row, error })
        })
    }

    /// Returns the blocks that were made elsewhere, if the matrix has some.
    fn solved_for(&self, rows: RowBatch) -> Option<&dyn SolvedRows> {
        self.solved.filter(|solved| solved.has(&self.tensors[rows.tensor].name, rows.matrix))
    }

    fn decode(&self, rows: RowBatch, scratch: &mut ThreadBuffers) -> Result<(), SourceError> {
        let source = self.steps[rows.tensor].source;
        let meta = &self.source.tensors()[source];
        let bytes = match self.source.borrow_rows(source, rows.first_row, rows.n_rows as u64) {
            Some(bytes) => bytes,
            None => {
                scratch.bytes.resize(rows.n_rows * row_bytes(meta), 0);
                self.source.read_rows(source, rows.first_row, &mut scratch.bytes)?;
                &scratch.bytes
            }
        };
        scratch.floats.resize(rows.n_rows * rows.n_cols, 0.0);
        dequantize(meta.ty, self.simd, bytes, &mut scratch.floats)
            .map_err(|error| at(&self.tensors[rows.tensor], error.into()))
    }

    fn quantize(&self, rows: RowBatch, floats: &[f32], out: &mut [u8]) -> Result<(), SourceError> {
        let RowBatch { tensor, first_row, n_cols, .. } = rows;
        let is_ordinary = self.check_input(tensor, first_row, n_cols, floats)?;
        let matrix = usize::try_from(rows.matrix).unwrap_or(usize::MAX);
        let weights = self.steps[tensor].weights.as_deref();
        let weights = weights.map(|weights| &weights[matrix * n_cols..(matrix + 1) * n_cols]);
        let batch = DecodedRows { ty: self.tensors[tensor].ty, n_cols, floats, weights };
        self.quantize_batch(tensor, first_row, &batch, is_ordinary, out)
    }

    fn quantize_batch(
        &self,
        tensor: usize,
        row: u64,
        batch: &DecodedRows<'_>,
        is_ordinary: bool,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let target = &self.tensors[tensor];
        let DecodedRows { ty, n_cols, floats, weights } = *batch;
        let failed =
            |error: QuantError| at(target, error.from_row(usize::try_from(row).unwrap_or(usize::MAX)).into());
        quantize_rows(ty, self.simd, n_cols, floats, weights, out).map_err(failed)?;
        self.check_output(target, row, batch, out)?;
        if is_ordinary && weights.is_none_or(is_ordinary_importance) {
            return Ok(());
        }
        match check_rows(ty, self.simd, n_cols, floats, weights, out) {
            Ok(small) => self.note_small(tensor, row, small),
            Err(_) if self.allow_nonfinite => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    fn note_small(&self, tensor: usize, first_row: u64, small: SmallRows) {
        if small.n_rows > 0 {
            let mut rows = self.small_rows.lock().unpoisoned();
            rows.entry(tensor).or_default().add(small, first_row);
        }
    }

    /// Tensors with rows that are too small for their type and became zeros or nearly zeros, in output order.
    /// Meaningful after all rows were read.
    pub fn small_rows(&self) -> Vec<(&TensorMeta, SmallRows)> {
        let rows = self.small_rows.lock().unpoisoned();
        rows.iter().map(|(&tensor, &small)| (&self.tensors[tensor], small)).collect()
    }

    /// Checks rows before they are quantized; returns true if their magnitudes rule out overflow and underflow.
    fn check_input(
        &self,
        tensor: usize,
        row: u64,
        n_cols: usize,
        floats: &[f32],
    ) -> Result<bool, SourceError> {
        let is_ordinary = are_ordinary_rows(self.tensors[tensor].ty, self.simd, floats, n_cols);
        let is_zero = || floats.iter().all(|&value| value == 0.0);
        self.contents[tensor].note(|| is_ordinary || !is_zero());
        let non_finite = if is_ordinary { None } else { first_non_finite(floats) };
        if let Some(index) = non_finite
            && !self.allow_nonfinite
        {
            let row = row + (index / n_cols) as u64;
            let column = (index % n_cols) as u64;
            return Err(at(&self.tensors[tensor], RowError::NonFinite { row, column, value: floats[index] }));
        }
        // Non-finite values have no magnitude to check.
        Ok(is_ordinary || non_finite.is_some())
    }

    fn check_output(
        &self,
        target: &TensorMeta,
        row: u64,
        batch: &DecodedRows<'_>,
        out: &[u8],
    ) -> Result<(), SourceError> {
        if self.allow_nonfinite {
            return Ok(());
        }
        validate_blocks(target.ty, out).map_err(|error| {
            let blocks_per_row = row_bytes(target) / target.ty.block_bytes();
            let block_elems = target.ty.block_elems();
            let values = batch.floats.get(error.block * block_elems..).unwrap_or_default();
            let values = &values[..values.len().min(block_elems)];
            let largest = Extent::of(values, values.len()).largest;
            let row = row + (error.block / blocks_per_row) as u64;
            let column = (error.block % blocks_per_row * block_elems) as u64;
            let (ty, flaw) = (target.ty, error.flaw);
            // The exponent of MXFP4 also overflows at its lower end.
            let what = if largest < 1.0 { "small" } else { "large" };
            at(target, RowError::Overflow { row, column, largest, what, ty, flaw })
        })
    }

    /// Matrices in which only zeros were read; biases of zero are normal and left out. Meaningful after all rows were
    /// read.
    pub fn all_zero(&self) -> impl Iterator<Item = &TensorMeta> {
        let pairs = self.tensors.iter().zip(&self.contents);
        pairs
            .filter(|(tensor, content)| tensor.shape.rank() > 1 && content.is_all_zero())
            .map(|(tensor, _)| tensor)
    }

    /// Writes the output.
    ///
    /// This is one file called `target`, or with [`crate::QuantizeOptions::keep_split`] one for each file of
    /// the source, called `target-00001-of-00003.gguf`. These are cut where the source is cut; `options.split` gives
    /// the rules and the id.
    ///
    /// # Errors
    /// See [`gguf_format::WriteError`]. Then no file is left under a final name.
    pub fn write(
        &self,
        target: &Path,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<WriteReport, QuantizeError> {
        if !self.keep_split {
            return Ok(write_gguf(target, &self.metadata, self, options, progress)?);
        }
        if let [_] = self.parts.as_slice() {
            let options = WriteOptions { split: None, ..options.clone() };
            return Ok(write_gguf(&part_path(target, 1, 1), &self.metadata, self, &options, progress)?);
        }
        let spec = options.split.unwrap_or_default();
        let (metadata, ranges) = (&self.metadata, self.parts.clone());
        let files = plan_parts(target, metadata, &self.tensors, options.layout, &spec, ranges)?;
        let output = PlannedOutput { target, files, kind: output_kind(metadata), id: None };
        Ok(write_files(output, self, options, progress)?)
    }
}

/// Quantizes rows of a tensor for several plans over the same source, which is read and decoded once. The buffers have
/// the bytes of the same number of rows.
pub(crate) fn quantize_for(
    plans: &[&QuantizePlan<'_>],
    tensor: usize,
    first_row: u64,
    out: &mut [&mut [u8]],
) -> Result<(), SourceError> {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = quantize_in_batches(plans, tensor, first_row, out, &mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

fn quantize_in_batches(
    plans: &[&QuantizePlan<'_>],
    tensor: usize,
    first_row: u64,
    out: &mut [&mut [u8]],
    scratch: &mut ThreadBuffers,
) -> Result<(), SourceError> {
    let ([plan, ..], [first, ..]) = (plans, &*out) else { return Ok(()) };
    let target = &plan.tensors[tensor];
    let n_cols = usize::try_from(target.shape.n_cols()).unwrap_or(usize::MAX);
    let rows_per_matrix = target.shape.n_rows() / n_matrices(target).max(1);
    let batch_rows = (BATCH_ELEMS / n_cols).max(1);

    let n_rows = first.len() / row_bytes(target);
    let mut done = 0;
    while done < n_rows {
        let row = first_row + done as u64;
        // Each matrix of a stack has its own importance weights.
        let left_in_matrix = rows_per_matrix - row % rows_per_matrix;
        let n = batch_rows.min(n_rows - done).min(usize::try_from(left_in_matrix).unwrap_or(usize::MAX));
        let rows = RowBatch { tensor, matrix: row / rows_per_matrix, first_row: row, n_rows: n, n_cols };
        if plans.iter().any(|plan| plan.solved_for(rows).is_none()) {
            plan.decode(rows, scratch)?;
        }
        for (plan, out) in plans.iter().zip(&mut *out) {
            let target_bytes = row_bytes(&plan.tensors[tensor]);
            let out = &mut out[done * target_bytes..(done + n) * target_bytes];
            match plan.solved_for(rows) {
                Some(solved) => {
                    solved.read(&plan.tensors[tensor].name, row, out)?;
                    plan.contents[tensor].note(|| true);
                }
                None => plan.quantize(rows, &scratch.floats, out)?,
            }
        }
        done += n;
    }
    Ok(())
}

/// Bytes of a row. Rows of a plan and of its source are whole blocks, which was checked when they were opened and
/// planned.
fn row_bytes(tensor: &TensorMeta) -> usize {
    tensor.row_bytes().and_then(|n| usize::try_from(n).ok()).unwrap_or(0).max(1)
}

fn at(tensor: &TensorMeta, error: RowError) -> SourceError {
    SourceError { tensor: tensor.name.clone(), source: Box::new(error) }
}

impl TensorSource for QuantizePlan<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        if self.is_copied(tensor) {
            return self.copy_rows(tensor, first_row, out);
        }
        quantize_for(&[self], tensor, first_row, &mut [out])
    }

    fn expect(&self, tensor: usize) {
        self.source.expect(self.steps[tensor].source);
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.source.release_rows(self.steps[tensor].source, first_row, n_rows);
    }
}
