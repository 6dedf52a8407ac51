//! Collector of the sums of squares of matrix inputs.

use std::collections::BTreeMap;
use std::sync::Mutex;

use rayon::prelude::*;

use gguf_core::TensorSource;
use gguf_core::exact::add_exactly;
use gguf_core::simd::SimdLevel;
use gguf_core::sync::Unpoisoned;
use gguf_engine::{Matrix, Observer, add_squares};
use gguf_format::ColumnSums;

/// Number of rows that one task sums; partial sums are added in row order, independent of the threads.
const ROWS_PER_TASK: usize = 256;

/// Collector of the sums of one group of chunks, with their rounding errors.
pub struct SumCollector {
    level: SimdLevel,
    tensors: Mutex<BTreeMap<String, ExactColumns>>,
}

/// Column sums of a tensor, with their rounding errors.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactColumns {
    /// Sums and counts.
    pub columns: ColumnSums,
    /// Rounding error of each sum.
    pub rests: Vec<f64>,
}

impl ExactColumns {
    /// Adds the sums and rounding errors of the same tensor.
    pub fn add(&mut self, more: &Self) {
        add_exactly(&mut self.columns.sums, &mut self.rests, &more.columns.sums, &more.rests);
        let counts = self.columns.counts.iter_mut().zip(&more.columns.counts);
        counts.for_each(|(count, n)| *count = count.saturating_add(*n));
    }
}

impl SumCollector {
    /// Returns a collector without rows.
    pub fn new(level: SimdLevel) -> Self {
        Self { level, tensors: Mutex::default() }
    }

    /// Returns the sums, rounded once.
    pub fn into_sums(self) -> BTreeMap<String, ColumnSums> {
        self.into_exact().into_iter().map(|(name, exact)| (name, exact.columns)).collect()
    }

    /// Returns the sums with their rounding errors.
    pub(crate) fn into_exact(self) -> BTreeMap<String, ExactColumns> {
        self.tensors.into_inner().unpoisoned()
    }

    /// Adds rows of `n_cols` values to matrix `at` of the `n_matrices` of a tensor.
    pub(super) fn add(&self, name: &str, n_cols: usize, at: usize, n_matrices: usize, x: &[f32]) {
        let partial: Vec<(Vec<f64>, Vec<f64>)> = x
            .par_chunks(ROWS_PER_TASK * n_cols)
            .map(|rows| {
                let (mut sums, mut rests) = (vec![0.0; n_cols], vec![0.0; n_cols]);
                rows.chunks(n_cols).for_each(|row| add_squares(self.level, &mut sums, &mut rests, row));
                (sums, rests)
            })
            .collect();
        let mut tensors = self.tensors.lock().unpoisoned();
        let ExactColumns { columns, rests } =
            tensors.entry(name.to_owned()).or_insert_with(|| ExactColumns {
                columns: ColumnSums::zero(n_cols, n_matrices),
                rests: vec![0.0; n_matrices * n_cols],
            });
        for (sums, own_rests) in partial {
            let row = at * n_cols..(at + 1) * n_cols;
            add_exactly(&mut columns.sums[row.clone()], &mut rests[row], &sums, &own_rests);
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
        self.add(&meta.name, matrix.n_cols, matrix.expert.unwrap_or(0), n_experts, x);
    }
}
