//! Error of a tensor's output after rounding to a type, from a sample of its rows.

use crate::class::n_matrices;
use gguf_blocks::{QuantError, dequantize, first_non_finite, quantize_rows};
use gguf_core::{GgmlType, SourceError, TensorMeta, TensorSource, simd::SimdLevel};

/// Number of sampled elements of a tensor. Errors of blocks differ little within a tensor: some thousand blocks give
/// them to a percent.
const SAMPLE_ELEMS: u64 = 1 << 19;
/// Minimum number of rows, if the tensor has them: rows differ more than blocks do.
const LEAST_ROWS: u64 = 64;

/// Tensor to sample.
#[derive(Clone, Copy)]
pub(super) struct Sampled<'a> {
    pub(super) source: &'a dyn TensorSource,
    pub(super) tensor: usize,
    /// Mean squares of the columns of its input, matrix after matrix; `None`: all equal.
    pub(super) weights: Option<&'a [f32]>,
    pub(super) level: SimdLevel,
}

/// Indices of the sampled rows, evenly spread over all rows of a tensor.
pub(super) fn sample(meta: &TensorMeta) -> Vec<u64> {
    let (n_rows, n_cols) = (meta.shape.n_rows(), meta.shape.n_cols().max(1));
    let n = (SAMPLE_ELEMS / n_cols).max(LEAST_ROWS).min(n_rows);
    // The middle of each of `n` parts. Row numbers are at most 2^63 and `n` at most 2^19, so nothing overflows.
    let row = |at: u64| (u128::from(2 * at + 1) * u128::from(n_rows) / u128::from(2 * n)) as u64;
    (0..n).map(row).collect()
}

impl Sampled<'_> {
    /// Quantizes the sample to each type and returns `Σ w (W − Ŵ)² / Σ w W²` for each, where `w` is the mean square of
    /// the column's input. If inputs are uncorrelated, that is the power of the output's error over the power of the
    /// output.
    ///
    /// The value is 0 for a tensor whose output has no power, and for the type that it already has. Rows with
    /// non-finite values are skipped: the run reports them.
    pub(super) fn errors(&self, types: &[GgmlType]) -> Result<Vec<(GgmlType, f64)>, SourceError> {
        let meta = &self.source.tensors()[self.tensor];
        let failed = |error: QuantError| SourceError { tensor: meta.name.clone(), source: error.into() };
        let n_cols = usize::try_from(meta.shape.n_cols()).unwrap_or(usize::MAX);
        let row_bytes = meta.row_bytes().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let rows_per_matrix = (meta.shape.n_rows() / n_matrices(meta).max(1)).max(1);
        let (mut bytes, mut blocks) = (vec![0; row_bytes], Vec::new());
        let (mut floats, mut back) = (vec![0.0; n_cols], vec![0.0; n_cols]);
        let (mut power, mut lost) = (0.0, vec![0.0; types.len()]);
        for row in sample(meta) {
            let stored = match self.source.borrow_rows(self.tensor, row, 1) {
                Some(stored) => stored,
                None => {
                    self.source.read_rows(self.tensor, row, &mut bytes)?;
                    &bytes
                }
            };
            dequantize(meta.ty, self.level, stored, &mut floats).map_err(failed)?;
            if first_non_finite(&floats).is_some() {
                continue;
            }
            let matrix = usize::try_from(row / rows_per_matrix).unwrap_or(usize::MAX);
            let weights = self.weights.and_then(|weights| weights.chunks(n_cols.max(1)).nth(matrix));
            power += weighted(&floats, weights);
            for (&ty, lost) in types.iter().zip(&mut lost) {
                if ty == meta.ty {
                    continue;
                }
                let n_bytes = ty.row_bytes(n_cols as u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
                blocks.resize(n_bytes, 0);
                quantize_rows(ty, self.level, n_cols, &floats, weights, &mut blocks).map_err(failed)?;
                dequantize(ty, self.level, &blocks, &mut back).map_err(failed)?;
                for (back, value) in back.iter_mut().zip(&floats) {
                    *back -= value;
                }
                *lost += weighted(&back, weights);
            }
        }
        self.source.release_rows(self.tensor, 0, meta.shape.n_rows());
        let relative = |lost: f64| if power > 0.0 { lost / power } else { 0.0 };
        Ok(types.iter().zip(lost).map(|(&ty, lost)| (ty, relative(lost))).collect())
    }
}

/// Sum of squares, weighted by column.
fn weighted(values: &[f32], weights: Option<&[f32]>) -> f64 {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    match weights {
        None => values.iter().map(square).sum(),
        Some(weights) => {
            values.iter().zip(weights).map(|(value, &weight)| square(value) * f64::from(weight)).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;
    use gguf_testkit::memory::MemoryTensors;

    fn rows(dims: &[u64], value: impl Fn(usize) -> f32) -> MemoryTensors {
        let values: Vec<f32> = (0..dims.iter().product::<u64>() as usize).map(value).collect();
        MemoryTensors::of_f32(&[("x", dims, &values)])
    }

    fn errors(rows: &MemoryTensors, weights: Option<&[f32]>, types: &[GgmlType]) -> Vec<f64> {
        let sampled = Sampled { source: rows, tensor: 0, weights, level: SimdLevel::Scalar };
        sampled.errors(types).unwrap().into_iter().map(|row| row.1).collect()
    }

    #[test]
    fn more_bits_lose_less_and_a_type_that_holds_the_values_loses_nothing() {
        let rows = rows(&[8, 256], |i| (i as f32 * 0.37).sin());
        let types = [GgmlType::Q2K, GgmlType::Q3K, GgmlType::Q4K, GgmlType::Q6K, GgmlType::F32];
        let errors = errors(&rows, None, &types);
        assert!(errors.windows(2).all(|two| two[0] > 2.5 * two[1]), "{errors:?}");
        assert!(errors[0] < 0.2 && errors[4] == 0.0, "{errors:?}");
    }

    #[test]
    fn columns_count_by_their_weight() {
        // Halves of blocks that Q8_0 stores exactly, next to halves that it does not.
        let rows = rows(&[2, 64], |i| if i % 64 < 32 { 127.0 } else { (i as f32).sin() });
        let mut weights = vec![1.0; 64];
        let all = errors(&rows, Some(&weights), &[GgmlType::Q8_0])[0];
        weights[32..].fill(0.0);
        let held = errors(&rows, Some(&weights), &[GgmlType::Q8_0])[0];
        assert!(all > 0.0 && held == 0.0, "{all} {held}");
    }

    #[test]
    fn a_sample_is_spread_over_all_rows_and_matrices() {
        let rows = rows(&[4, 3, 32], |_| 1.0);
        assert_eq!(sample(&rows.tensors()[0]), (0..12).collect::<Vec<_>>());
        let shape = Shape::new(vec![128, 4096, 4096]).unwrap();
        let found = sample(&TensorMeta { name: String::new(), shape, ty: GgmlType::F16 });
        assert_eq!((found.len(), found[0], found[127]), (128, 2048, 127 * 4096 + 2048));
    }

    #[test]
    fn rows_without_numbers_are_left_out() {
        let bad = rows(&[2, 32], |i| if i == 40 { f32::NAN } else { 1.5 + i as f32 });
        let found = errors(&bad, None, &[GgmlType::Q4_0])[0];
        assert!(found.is_finite() && found > 0.0);
        assert_eq!(errors(&rows(&[2, 32], |_| 0.0), None, &[GgmlType::Q4_0]), [0.0]);
    }
}
