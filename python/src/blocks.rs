//! Rows of floats to blocks and back, on several threads.

use gguf_foundry::core::simd::SimdLevel;
use gguf_foundry::core::{GgmlType, ImatrixNeed};
use gguf_foundry::quant::{self, QuantError};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::error::exception;

/// Elements that a thread takes at a time; fewer in all are not worth a second thread.
const ELEMENTS_AT_A_TIME: usize = 1 << 17;

/// The type of a name.
pub(crate) fn type_of(name: &str) -> PyResult<GgmlType> {
    GgmlType::from_name(name).ok_or_else(|| {
        let known: Vec<_> = GgmlType::all().map(GgmlType::name).collect();
        PyValueError::new_err(format!("unknown type `{name}`, expected one of {}", known.join(", ")))
    })
}

/// All types: name, number in the format, elements and bytes of a block, whether floats can be quantized to it, and whether it
/// needs an importance matrix.
#[pyfunction]
pub(crate) fn types() -> Vec<(&'static str, u32, usize, usize, bool, bool)> {
    GgmlType::all()
        .map(|ty| {
            let needs_imatrix = ty.info().imatrix == ImatrixNeed::Required;
            (ty.name(), ty.id(), ty.block_elems(), ty.block_bytes(), quant::can_quantize(ty), needs_imatrix)
        })
        .collect()
}

/// Blocks of whole rows: `values` is `[n_rows, n_cols]`, flat; `imatrix` has a weight for each column.
#[pyfunction]
#[pyo3(signature = (values, ty, n_cols, imatrix, n_threads))]
pub(crate) fn quantize<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<'py, f32>,
    ty: &str,
    n_cols: usize,
    imatrix: Option<PyReadonlyArray1<'py, f32>>,
    n_threads: usize,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let ty = type_of(ty)?;
    let values = values.as_slice()?;
    let imatrix = imatrix.as_ref().map(PyReadonlyArray1::as_slice).transpose()?;
    let row_bytes = ty.row_bytes(n_cols as u64).filter(|_| n_cols > 0);
    let Some(row_bytes) = row_bytes.and_then(|bytes| usize::try_from(bytes).ok()) else {
        return Err(exception(&QuantError::Columns { ty, n_cols }));
    };
    let n_rows = values.len() / n_cols;
    let n_bytes = n_rows.checked_mul(row_bytes);
    let n_bytes = n_bytes.ok_or_else(|| exception(&QuantError::TooLarge { ty, n_blocks: n_rows }))?;
    let level = SimdLevel::detect();
    let blocks = py.detach(|| {
        let mut blocks = vec![0; n_bytes];
        let rows_at_a_time = (ELEMENTS_AT_A_TIME / n_cols).max(1);
        let (elements, bytes) = (rows_at_a_time * n_cols, rows_at_a_time * row_bytes);
        let pieces = values.par_chunks(elements).zip(blocks.par_chunks_mut(bytes)).enumerate();
        let refused = on_threads(n_threads, values.len(), || {
            let refusals = pieces.filter_map(|(piece, (values, blocks))| {
                let done = quant::quantize_rows(ty, level, n_cols, values, imatrix, blocks);
                done.err().map(|error| error.from_row(piece * rows_at_a_time))
            });
            refusals.find_first(|_| true)
        });
        refused.map_or(Ok(blocks), |error| Err(exception(&error)))
    });
    Ok(PyArray1::from_vec(py, blocks?))
}

/// The floats of whole blocks.
#[pyfunction]
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    blocks: PyReadonlyArray1<'py, u8>,
    ty: &str,
    n_threads: usize,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let ty = type_of(ty)?;
    let blocks = blocks.as_slice()?;
    let floats = py.detach(|| floats(ty, blocks, n_threads)).map_err(|error| exception(&error))?;
    Ok(PyArray1::from_vec(py, floats))
}

/// The floats of whole blocks.
pub(crate) fn floats(ty: GgmlType, blocks: &[u8], n_threads: usize) -> Result<Vec<f32>, QuantError> {
    let (block_elems, block_bytes) = (ty.block_elems(), ty.block_bytes());
    let n_blocks = blocks.len() / block_bytes;
    if !blocks.len().is_multiple_of(block_bytes) {
        let expected = n_blocks.saturating_add(1).saturating_mul(block_bytes);
        return Err(QuantError::Length { ty, expected, found: blocks.len() });
    }
    let n_elems = n_blocks.checked_mul(block_elems).ok_or(QuantError::TooLarge { ty, n_blocks })?;
    let level = SimdLevel::detect();
    let mut floats = vec![0.0; n_elems];
    let at_a_time = ELEMENTS_AT_A_TIME / block_elems;
    let pieces =
        blocks.par_chunks(at_a_time * block_bytes).zip(floats.par_chunks_mut(at_a_time * block_elems));
    on_threads(n_threads, n_elems, || {
        pieces.try_for_each(|(blocks, floats)| quant::dequantize(ty, level, blocks, floats))
    })?;
    Ok(floats)
}

/// Runs `work` on a pool of its own: one that outlived the call would be dead in a process that forks, as
/// `multiprocessing` does. Little work, or a pool that the system refuses, stays on a single thread.
fn on_threads<T: Send>(n_threads: usize, n_elems: usize, work: impl FnOnce() -> T + Send) -> T {
    let n_threads = if n_threads == 0 { available() } else { n_threads };
    let n_threads = n_threads.min(n_elems.div_ceil(ELEMENTS_AT_A_TIME)).max(1);
    let builder = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
    let pool = if n_threads == 1 { builder.use_current_thread().build() } else { builder.build() };
    match pool {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
