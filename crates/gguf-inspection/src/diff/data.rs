//! Comparison of the decoded values of a tensor in two files.

use rayon::prelude::*;
use serde::Serialize;

use crate::DiffError;
use gguf_blocks::dequantize;
use gguf_core::progress::Progress;
use gguf_core::simd::SimdLevel;
use gguf_core::{SourceError, TensorSource};
use gguf_format::GgufFile;

/// Number of elements that each thread decodes at a time.
const CHUNK_ELEMS: u64 = 1 << 18;

/// Distance of the decoded values of a tensor in two files.
///
/// NaN equals NaN.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize)]
pub struct DataDiff {
    /// Number of elements.
    #[serde(rename = "elements")]
    pub n_elems: u64,
    /// Number of elements that differ.
    #[serde(rename = "differing")]
    pub n_differing: u64,
    /// Number of elements that are not finite in one file and differ in the other; the other statistics exclude them.
    #[serde(rename = "non_finite")]
    pub n_non_finite: u64,
    /// Largest `abs(a - b)`.
    pub max_abs: f64,
    /// Index of the element with the largest `abs(a - b)`, in row-major order.
    pub(crate) max_abs_at: u64,
    /// Largest `abs(a - b) / max(abs(a), abs(b))`.
    pub(crate) max_rel: f64,
    /// Root mean square of `a - b`.
    pub rms: f64,
    /// Root of the sum of `(a - b)²` over that of `a²`; 0 if both are zero.
    pub relative_rms: f64,
}

/// Statistics of a part of the elements, with the sums that the root mean squares need.
#[derive(Clone, Copy, Debug, Default)]
struct DataSums {
    /// Statistics without the root mean squares.
    diff: DataDiff,
    sum_a2: f64,
    sum_d2: f64,
}

impl DataSums {
    fn add(&mut self, index: u64, a: f32, b: f32) {
        self.diff.n_elems += 1;
        if a == b || (a.is_nan() && b.is_nan()) {
            let a = if a.is_finite() { f64::from(a) } else { 0.0 };
            self.sum_a2 += a * a;
            return;
        }
        self.diff.n_differing += 1;
        if !a.is_finite() || !b.is_finite() {
            self.diff.n_non_finite += 1;
            return;
        }
        let (a, b) = (f64::from(a), f64::from(b));
        let abs = (a - b).abs();
        if abs > self.diff.max_abs {
            self.diff.max_abs = abs;
            self.diff.max_abs_at = index;
        }
        self.diff.max_rel = self.diff.max_rel.max(abs / a.abs().max(b.abs()));
        self.sum_a2 += a * a;
        self.sum_d2 += abs * abs;
    }

    /// Merges the statistics of a later chunk.
    fn join(mut self, later: Self) -> Self {
        if later.diff.max_abs > self.diff.max_abs {
            self.diff.max_abs = later.diff.max_abs;
            self.diff.max_abs_at = later.diff.max_abs_at;
        }
        self.diff.max_rel = self.diff.max_rel.max(later.diff.max_rel);
        self.diff.n_elems += later.diff.n_elems;
        self.diff.n_differing += later.diff.n_differing;
        self.diff.n_non_finite += later.diff.n_non_finite;
        self.sum_a2 += later.sum_a2;
        self.sum_d2 += later.sum_d2;
        self
    }

    /// Returns the statistics with the root mean squares.
    fn finish(self) -> DataDiff {
        let Self { diff, sum_a2, sum_d2 } = self;
        let rms = if diff.n_elems == 0 { 0.0 } else { (sum_d2 / diff.n_elems as f64).sqrt() };
        let relative_rms = if sum_d2 == 0.0 { 0.0 } else { (sum_d2 / sum_a2).sqrt() };
        DataDiff { rms, relative_rms, ..diff }
    }
}

/// A tensor that both files have with the same rows.
pub(super) struct TensorPair<'a> {
    pub(super) a: &'a GgufFile,
    pub(super) b: &'a GgufFile,
    pub(super) tensor: usize,
    pub(super) other: usize,
    pub(super) level: SimdLevel,
    pub(super) progress: &'a dyn Progress,
}

impl TensorPair<'_> {
    /// Compares the tensor; `None` if the bytes are the same.
    pub(super) fn compare(&self, same_type: bool) -> Result<Option<DataDiff>, DiffError> {
        let shape = &self.a.tensors()[self.tensor].shape;
        let (n_rows, n_cols) = (shape.n_rows(), shape.n_cols());
        if shape.n_elems() == 0 {
            return Ok((!same_type).then(DataDiff::default));
        }
        let step = (CHUNK_ELEMS / n_cols).max(1);
        let chunks = (0..n_rows.div_ceil(step))
            .into_par_iter()
            .map(|chunk| (chunk * step, step.min(n_rows - chunk * step)));
        if same_type {
            let differs = chunks.clone().map_init(PairBuffers::default, |buffers, (first, n)| {
                self.read(buffers, first, n)?;
                Ok(buffers.bytes_a != buffers.bytes_b)
            });
            // Stops at the first chunk that differs (or fails, which then shows below).
            if !differs.any(|found: Result<bool, DiffError>| found.unwrap_or(true)) {
                let place = self.a.place(self.tensor);
                self.progress.advance(place.n_bytes);
                return Ok(None);
            }
        }
        let parts: Vec<DataSums> = chunks
            .map_init(PairBuffers::default, |buffers, (first, n)| self.measure(buffers, first, n))
            .collect::<Result<_, _>>()?;
        // Merged in order, so that sums do not depend on threads.
        Ok(parts.into_iter().reduce(DataSums::join).map(DataSums::finish))
    }

    fn read(&self, buffers: &mut PairBuffers, first: u64, n_rows: u64) -> Result<(), DiffError> {
        if self.progress.is_cancelled() {
            return Err(DiffError::Cancelled);
        }
        read(self.a, self.tensor, first, n_rows, &mut buffers.bytes_a)?;
        read(self.b, self.other, first, n_rows, &mut buffers.bytes_b)?;
        self.a.release_rows(self.tensor, first, n_rows);
        self.b.release_rows(self.other, first, n_rows);
        Ok(())
    }

    fn measure(&self, buffers: &mut PairBuffers, first: u64, n_rows: u64) -> Result<DataSums, DiffError> {
        self.read(buffers, first, n_rows)?;
        self.decode(self.a, self.tensor, n_rows, &buffers.bytes_a, &mut buffers.a)?;
        self.decode(self.b, self.other, n_rows, &buffers.bytes_b, &mut buffers.b)?;
        let mut sums = DataSums::default();
        let n_cols = self.a.tensors()[self.tensor].shape.n_cols();
        for (index, (&a, &b)) in (first * n_cols..).zip(buffers.a.iter().zip(&buffers.b)) {
            sums.add(index, a, b);
        }
        self.progress.advance(buffers.bytes_a.len() as u64);
        Ok(sums)
    }

    fn decode(
        &self,
        file: &GgufFile,
        tensor: usize,
        n_rows: u64,
        bytes: &[u8],
        out: &mut Vec<f32>,
    ) -> Result<(), DiffError> {
        let meta = &file.tensors()[tensor];
        // A chunk is one row, which is mapped, or at most `CHUNK_ELEMS`.
        out.resize((n_rows * meta.shape.n_cols()) as usize, 0.0);
        dequantize(meta.ty, self.level, bytes, out)
            .map_err(|error| DiffError::Decode { tensor: meta.name.clone(), error })
    }
}

#[derive(Default)]
struct PairBuffers {
    bytes_a: Vec<u8>,
    bytes_b: Vec<u8>,
    a: Vec<f32>,
    b: Vec<f32>,
}

fn read(
    file: &GgufFile,
    tensor: usize,
    first: u64,
    n_rows: u64,
    out: &mut Vec<u8>,
) -> Result<(), SourceError> {
    let row_bytes = file.tensors()[tensor].row_bytes().unwrap_or(0);
    out.resize((n_rows * row_bytes) as usize, 0);
    file.read_rows(tensor, first, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_measured() {
        let mut sums = DataSums::default();
        for (index, (a, b)) in
            [(3.0, 3.0), (4.0, 5.0), (-1.0, -1.5), (f32::NAN, f32::NAN), (1.0, f32::INFINITY)]
                .into_iter()
                .enumerate()
        {
            sums.add(index as u64, a, b);
        }
        let diff = sums.finish();
        assert_eq!((diff.n_elems, diff.n_differing, diff.n_non_finite), (5, 3, 1));
        assert_eq!((diff.max_abs, diff.max_abs_at), (1.0, 1));
        assert!((diff.max_rel - 1.0 / 3.0).abs() < 1e-12);
        assert!((diff.relative_rms - (1.25f64 / 26.0).sqrt()).abs() < 1e-12);
        let mut later = DataSums::default();
        later.add(9, 0.0, -7.0);
        let joined = sums.join(later).finish();
        assert_eq!((joined.max_abs_at, joined.max_rel, joined.n_elems), (9, 1.0, 6));
    }
}
