//! Importance matrices: how strongly each column of a weight is used, measured on a text. Both formats of
//! llama-imatrix, read and written.

mod error;
mod read;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use error::ImatrixError;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// What the rows that a tensor was multiplied with add up to.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSums {
    /// Columns.
    pub n_cols: usize,
    /// Sums of squares of each column, matrix after matrix where the tensor is a stack of experts.
    pub sums: Vec<f64>,
    /// Rows that each matrix has seen.
    pub counts: Vec<i64>,
}

impl ColumnSums {
    /// Nothing seen yet by `n_matrices` of `n_cols` columns.
    #[must_use]
    pub fn zero(n_cols: usize, n_matrices: usize) -> Self {
        Self { n_cols, sums: vec![0.0; n_matrices * n_cols], counts: vec![0; n_matrices] }
    }

    /// The importance of every column.
    ///
    /// # Exactness
    /// Equals llama-quantize: a sum of squares divided by the count as a float; 1 for experts that no token reached.
    #[must_use]
    pub fn weights(&self) -> Vec<f32> {
        let mean = |(sums, &count): (&[f64], &i64)| {
            let weight = move |&sum: &f64| if count > 0 { sum as f32 / count as f32 } else { 1.0 };
            sums.iter().map(weight).collect::<Vec<f32>>()
        };
        self.sums.chunks(self.n_cols.max(1)).zip(&self.counts).flat_map(mean).collect()
    }
}

/// What a run over a text has measured, to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixSums {
    /// By tensor name.
    pub tensors: BTreeMap<String, ColumnSums>,
    /// Chunks of the text.
    pub n_chunks: usize,
    /// Tokens of a chunk.
    pub chunk_size: usize,
}

/// Importance of the columns of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixEntry {
    /// One weight a column, matrix after matrix where the tensor is a stack of experts.
    pub weights: Vec<f32>,
    /// How often each matrix was used; the older format counts the tensor as a whole.
    pub counts: Vec<i64>,
}

/// An importance matrix file.
#[derive(Clone, Debug)]
pub struct Imatrix {
    path: PathBuf,
    entries: BTreeMap<String, ImatrixEntry>,
    dataset: Option<Vec<u8>>,
    n_chunks: i64,
}

impl Imatrix {
    /// Keeps the entries whose names contain one of these.
    pub fn include(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| parts.iter().any(|part| name.contains(part.as_str())));
    }

    /// Drops the entries whose names contain one of these.
    pub fn exclude(&mut self, parts: &[String]) {
        self.entries.retain(|name, _| !parts.iter().any(|part| name.contains(part.as_str())));
    }

    /// The file, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Entries by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &ImatrixEntry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The entry of a tensor.
    #[must_use]
    pub fn get(&self, tensor: &str) -> Option<&ImatrixEntry> {
        self.entries.get(tensor)
    }

    /// True if no entry is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Name of the (first) text it was measured on.
    #[must_use]
    pub fn dataset(&self) -> Option<&[u8]> {
        self.dataset.as_deref()
    }

    /// Number of chunks of the text; 0 if unknown.
    #[must_use]
    pub fn n_chunks(&self) -> i64 {
        self.n_chunks
    }

    /// Checks that all weights are numbers.
    ///
    /// # Errors
    /// [`ImatrixError::NonFinite`] for the first that is not.
    pub fn check_finite(&self) -> Result<(), ImatrixError> {
        for (name, entry) in &self.entries {
            if let Some(index) = entry.weights.iter().position(|weight| !weight.is_finite()) {
                return Err(ImatrixError::NonFinite {
                    path: self.path.clone(),
                    tensor: name.clone(),
                    index,
                    value: entry.weights[index],
                });
            }
        }
        Ok(())
    }
}
