//! Ways to make a tensor, and the comparison of the result with a file, block by block.

use std::ops::Range;

use rayon::prelude::*;

use crate::core::bytes::Endian;
use crate::core::progress::Progress;
use crate::core::{SourceError, TensorMeta};
use crate::gguf::{GgufFile, WriteError, swap_blocks};
use crate::quantize::MadeTensor;

/// Bytes of a file that are compared at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Blocks of each of the three places of a tensor that a probe compares.
const PROBE_BLOCKS: u64 = 256;

/// Way to make a tensor of a tensor of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Copied, or quantized without importance.
    Plain,
    Importance,
}

/// Error of rows that no memory of this machine can hold.
pub(super) fn too_large(tensor: &TensorMeta) -> SourceError {
    let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    SourceError { tensor: tensor.name.clone(), source: Box::new(source) }
}

/// Blocks that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) n_blocks: u64,
    pub(super) n_differing: u64,
    /// Index in the tensor of the first block that differs.
    pub(super) first: Option<u64>,
}

impl Compared {
    fn add(self, other: Self) -> Self {
        Self {
            n_blocks: self.n_blocks + other.n_blocks,
            n_differing: self.n_differing + other.n_differing,
            first: self.first.or(other.first),
        }
    }

    pub(super) fn is_exact(&self) -> bool {
        self.n_differing == 0
    }

    /// Returns true if more than half of the blocks differ.
    pub(super) fn is_mostly_different(&self) -> bool {
        self.n_differing > self.n_blocks / 2
    }
}

/// Bytes of rows of a tensor as the file stores them.
pub(super) fn raw_rows<'f>(file: &'f GgufFile, tensor: usize, rows: &Range<u64>) -> Option<&'f [u8]> {
    let row_bytes = file_row_bytes(&crate::core::TensorSource::tensors(file)[tensor]);
    let start = file.place(tensor).offset.checked_add(rows.start.checked_mul(row_bytes)?)?;
    let end = start.checked_add((rows.end - rows.start).checked_mul(row_bytes)?)?;
    let bytes = file.parts().first()?.bytes();
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// Returns true if one tensor has the rows of another: outer dimensions of 1 are no difference, because llama.cpp drops
/// them when it quantizes.
pub(super) fn has_rows_of(tensor: &TensorMeta, other: &TensorMeta) -> bool {
    tensor.shape.of_ggml() == other.shape.of_ggml()
}

pub(super) fn file_row_bytes(tensor: &TensorMeta) -> u64 {
    // Rows are whole blocks, which was checked when the file was opened.
    tensor.row_bytes().unwrap_or(0).max(1)
}

/// Cuts rows into chunks of about `chunk_bytes`.
pub(super) fn chunks(tensor: &TensorMeta, rows: &[Range<u64>], chunk_bytes: u64) -> Vec<Range<u64>> {
    let step = (chunk_bytes / file_row_bytes(tensor)).max(1);
    let cut = |rows: &Range<u64>| {
        let end = rows.end;
        let starts = (rows.start..end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        starts.map(move |start| start..start.saturating_add(step).min(end)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(cut).collect()
}

/// Rows at the start, in the middle and at the end of a tensor.
pub(super) fn probe(tensor: &TensorMeta) -> Vec<Range<u64>> {
    let n_rows = tensor.shape.n_rows();
    let blocks_per_row = (tensor.shape.n_cols() / tensor.ty.block_elems() as u64).max(1);
    let n = (PROBE_BLOCKS / blocks_per_row).max(1);
    if n_rows <= 3 * n {
        return whole(tensor);
    }
    let middle = (n_rows - n) / 2;
    vec![0..n, middle..middle + n, n_rows - n..n_rows]
}

/// All rows of a tensor.
pub(super) fn whole(tensor: &TensorMeta) -> Vec<Range<u64>> {
    vec![Range { start: 0, end: tensor.shape.n_rows() }]
}

/// Makes rows as the file would store them.
pub(super) fn make(
    made: &MadeTensor<'_>,
    endian: Endian,
    rows: &Range<u64>,
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    let meta = made.meta();
    let n_bytes = (rows.end - rows.start).checked_mul(file_row_bytes(meta));
    let n_bytes = n_bytes.and_then(|n| usize::try_from(n).ok()).ok_or_else(|| too_large(meta))?;
    out.resize(n_bytes, 0);
    made.read_rows(rows.start, out)?;
    made.release_rows(rows.start, rows.end - rows.start);
    if endian == Endian::Big {
        swap_blocks(meta.ty, out);
    }
    Ok(())
}

/// Compares rows of a file with a tensor that is made; `None` if the type cannot hold the rows.
pub(super) fn compare(
    made: &MadeTensor<'_>,
    file: &GgufFile,
    tensor: usize,
    rows: &[Range<u64>],
    progress: &dyn Progress,
) -> Result<Option<Compared>, WriteError> {
    let meta = made.meta();
    let block_bytes = meta.ty.block_bytes().max(1);
    let blocks_per_row = file_row_bytes(meta) / block_bytes as u64;
    let of_chunk = |buffer: &mut Vec<u8>, rows: &Range<u64>| -> Result<Compared, WriteError> {
        if progress.is_cancelled() {
            return Err(WriteError::Cancelled);
        }
        make(made, file.endian(), rows, buffer)?;
        let found = raw_rows(file, tensor, rows).unwrap_or_default();
        let n_blocks = (rows.end - rows.start) * blocks_per_row;
        if found == buffer.as_slice() {
            return Ok(Compared { n_blocks, n_differing: 0, first: None });
        }
        let pairs = found.chunks(block_bytes).zip(buffer.chunks(block_bytes));
        let differing = || (0u64..).zip(pairs.clone()).filter(|(_, (a, b))| a != b).map(|(at, _)| at);
        let first = differing().next().map(|at| rows.start * blocks_per_row + at);
        Ok(Compared { n_blocks, n_differing: differing().count() as u64, first })
    };
    let compared: Result<Vec<Compared>, WriteError> =
        chunks(meta, rows, CHUNK_BYTES).par_iter().map_init(Vec::new, of_chunk).collect();
    match compared {
        Ok(parts) => Ok(Some(parts.into_iter().fold(Compared::default(), Compared::add))),
        Err(WriteError::Source(error)) if MadeTensor::is_refused(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
