//! Adds up the squares of what matrices are multiplied with.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::core::TensorSource;
use crate::core::simd::SimdLevel;
use crate::engine::plan::Matrix;
use crate::engine::{Observer, add_squares};
use crate::gguf::ColumnSums;

/// Rows summed by one task; partial sums are added in row order, whatever the threads do.
const ROWS_PER_TASK: usize = 256;

/// Sums of one group of chunks.
pub(crate) struct SumCollector {
    level: SimdLevel,
    tensors: Mutex<BTreeMap<String, ColumnSums>>,
}

impl SumCollector {
    pub(crate) fn new(level: SimdLevel) -> Self {
        Self { level, tensors: Mutex::default() }
    }

    pub(crate) fn into_sums(self) -> BTreeMap<String, ColumnSums> {
        self.tensors.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds rows of `n_cols` to matrix `at` of the `n_matrices` of a tensor.
    pub(super) fn add(&self, name: &str, n_cols: usize, (at, n_matrices): (usize, usize), x: &[f32]) {
        let partial: Vec<Vec<f64>> = x
            .par_chunks(ROWS_PER_TASK * n_cols)
            .map(|rows| {
                let mut sums = vec![0.0; n_cols];
                rows.chunks(n_cols).for_each(|row| add_squares(self.level, &mut sums, row));
                sums
            })
            .collect();
        let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        let columns = tensors.entry(name.to_owned()).or_insert_with(|| ColumnSums::zero(n_cols, n_matrices));
        for part in partial {
            for (sum, x) in columns.sums[at * n_cols..][..n_cols].iter_mut().zip(part) {
                *sum += x;
            }
        }
        columns.counts[at] += (x.len() / n_cols) as i64;
    }
}

impl Observer for SumCollector {
    fn input(&self, source: &dyn TensorSource, matrix: &Matrix, x: &[f32]) {
        let meta = &source.tensors()[matrix.tensor];
        if !meta.name.starts_with("blk.") {
            return;
        }
        let n_experts = match matrix.expert {
            Some(_) => usize::try_from(meta.shape.dims()[0]).unwrap_or(0),
            None => 1,
        };
        self.add(&meta.name, matrix.n_cols, (matrix.expert.unwrap_or(0), n_experts), x);
    }
}
