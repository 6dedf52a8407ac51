//! Importance matrices: activation statistics of each column of a weight, measured on a text. Both formats of
//! llama-imatrix are read and written.

mod error;
mod merge;
mod part;
mod read;
mod unfinished;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use error::ImatrixError;
pub use merge::merge_imatrices;
pub use part::{CombinedImatrix, ImatrixPart, combine_imatrix_parts};
pub use unfinished::UnfinishedRun;
pub use write::imatrix_identity;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// Sums of squares over the activation rows of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSums {
    /// Number of columns.
    pub n_cols: usize,
    /// Sums of squares of each column; for a stack of experts, matrix after matrix.
    pub sums: Vec<f64>,
    /// Number of rows seen by each matrix.
    pub counts: Vec<i64>,
}

impl ColumnSums {
    /// Zero sums for `n_matrices` matrices of `n_cols` columns.
    pub fn zero(n_cols: usize, n_matrices: usize) -> Self {
        Self { n_cols, sums: vec![0.0; n_matrices * n_cols], counts: vec![0; n_matrices] }
    }

    /// Importance of every column.
    ///
    /// # Exactness
    /// Equals llama-quantize: a sum of squares divided by the count as a float; 1 for experts that no token reached.
    pub fn weights(&self) -> Vec<f32> {
        let mean = |(sums, &count): (&[f64], &i64)| {
            let weight = move |&sum: &f64| if count > 0 { sum as f32 / count as f32 } else { 1.0 };
            sums.iter().map(weight).collect::<Vec<f32>>()
        };
        self.sums.chunks(self.n_cols.max(1)).zip(&self.counts).flat_map(mean).collect()
    }
}

/// Results of a run over a text, to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixSums {
    /// Sums by tensor name.
    pub tensors: BTreeMap<String, ColumnSums>,
    /// Names of the texts in the order of their use; bytes, as in the format.
    pub datasets: Vec<Vec<u8>>,
    /// Number of chunks of the text.
    pub n_chunks: usize,
    /// Number of tokens per chunk.
    pub chunk_size: usize,
}

impl ImatrixSums {
    /// Number of whole chunks of `chunk_size` tokens seen by the tensor with the most rows. llama-imatrix counts the
    /// chunks of combined files like this.
    pub fn counted_chunks(&self) -> usize {
        let counts = self.tensors.values().flat_map(|columns| &columns.counts);
        let most = counts.copied().max().and_then(|most| usize::try_from(most).ok()).unwrap_or(0);
        most / self.chunk_size.max(1)
    }
}

/// File format of an importance matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImatrixFormat {
    /// GGUF: sums and counts.
    Gguf,
    /// Legacy format (`.dat`): means times the number of calls.
    #[serde(rename = "dat")]
    Legacy,
}

/// Contents of a file of either format, as stored.
#[derive(Clone, Debug)]
pub struct StoredImatrix {
    path: PathBuf,
    format: ImatrixFormat,
    entries: BTreeMap<String, StoredEntry>,
    datasets: Vec<Vec<u8>>,
    n_chunks: i64,
    chunk_size: Option<usize>,
    unfinished: Option<UnfinishedRun>,
}

/// Stored values of a tensor.
#[derive(Clone, Debug, PartialEq)]
struct StoredEntry {
    /// Sums of squares; in the legacy format, means times the number of calls.
    values: Vec<f32>,
    /// Number of rows seen by each matrix; in the legacy format, the number of calls.
    counts: Vec<i64>,
}

impl StoredImatrix {
    /// Path of the file, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Format of the file.
    pub fn format(&self) -> ImatrixFormat {
        self.format
    }

    /// Names of the texts.
    pub fn datasets(&self) -> &[Vec<u8>] {
        &self.datasets
    }

    /// Number of chunks that the file declares; 0 without a declaration.
    pub fn n_chunks(&self) -> i64 {
        self.n_chunks
    }

    /// Number of tokens per chunk; the legacy format does not store it.
    pub fn chunk_size(&self) -> Option<usize> {
        self.chunk_size
    }

    /// Number of tensors with an entry.
    pub fn n_entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if a tensor has an entry.
    pub fn has(&self, tensor: &str) -> bool {
        self.entries.contains_key(tensor)
    }

    /// State of an unfinished run, if the file was left by one.
    pub fn unfinished(&self) -> Option<&UnfinishedRun> {
        self.unfinished.as_ref()
    }
}

/// Importance of the columns of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ImatrixEntry {
    /// Weight of each column; for a stack of experts, matrix after matrix.
    pub weights: Vec<f32>,
    /// Number of uses of each matrix; the legacy format counts the tensor as a whole.
    pub counts: Vec<i64>,
}

/// An importance matrix file.
#[derive(Clone, Debug)]
pub struct Imatrix {
    path: PathBuf,
    entries: BTreeMap<String, ImatrixEntry>,
    /// Names of entries that were excluded on request.
    withheld: BTreeSet<String>,
    dataset: Option<Vec<u8>>,
    n_chunks: i64,
    n_tokens: Option<i64>,
}

impl Imatrix {
    /// Leaves out the folders of the matrix and of its text, for files that others get.
    pub fn leave_folders_out(&mut self) {
        self.path = self.path.file_name().map_or_else(PathBuf::new, PathBuf::from);
        if let Some(text) = &mut self.dataset {
            // Of either system: the matrix may come from another.
            let start = text.iter().rposition(|byte| b"/\\".contains(byte)).map_or(0, |at| at + 1);
            text.drain(..start);
        }
    }

    /// Keeps the entries whose names contain one of `parts`; returns the parts that no name contains.
    pub fn include(&mut self, parts: &[String]) -> Vec<String> {
        self.withhold(|name| !parts.iter().any(|part| name.contains(part.as_str())), parts)
    }

    /// Removes the entries whose names contain one of `parts`; returns the parts that no name contains.
    pub fn exclude(&mut self, parts: &[String]) -> Vec<String> {
        self.withhold(|name| parts.iter().any(|part| name.contains(part.as_str())), parts)
    }

    fn withhold(&mut self, is_withheld: impl Fn(&str) -> bool, parts: &[String]) -> Vec<String> {
        let names = || self.entries.keys();
        let is_idle = |part: &&String| !names().any(|name| name.contains(part.as_str()));
        let idle = parts.iter().filter(is_idle).cloned().collect();
        let withheld: Vec<String> = names().filter(|name| is_withheld(name)).cloned().collect();
        for name in withheld {
            self.entries.remove(&name);
            self.withheld.insert(name);
        }
        idle
    }

    /// Returns true for a tensor whose entry was excluded on request.
    pub fn is_withheld(&self, tensor: &str) -> bool {
        self.withheld.contains(tensor)
    }

    /// Converts the sums of a run that were not written to a file; the path is empty.
    ///
    /// # Errors
    /// [`ImatrixError::NonFinite`] for sums that are not finite.
    pub fn of_sums(sums: &ImatrixSums) -> Result<Self, ImatrixError> {
        let entry = |columns: &ColumnSums| ImatrixEntry {
            weights: columns.weights(),
            counts: columns.counts.clone(),
        };
        let imatrix = Self {
            path: PathBuf::new(),
            withheld: BTreeSet::new(),
            entries: sums.tensors.iter().map(|(name, columns)| (name.clone(), entry(columns))).collect(),
            dataset: sums.datasets.first().cloned(),
            n_chunks: i64::try_from(sums.n_chunks).unwrap_or(i64::MAX),
            n_tokens: None,
        };
        imatrix.check_finite()?;
        Ok(imatrix)
    }

    /// Path of the file, as given; empty for sums from no file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Iterates over the entries by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &ImatrixEntry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Entry of a tensor.
    pub fn get(&self, tensor: &str) -> Option<&ImatrixEntry> {
        self.entries.get(tensor)
    }

    /// Returns true if no entry is left.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Name of the (first) text that was used.
    pub fn dataset(&self) -> Option<&[u8]> {
        self.dataset.as_deref()
    }

    /// Number of chunks of the text; 0 if unknown.
    pub fn n_chunks(&self) -> i64 {
        self.n_chunks
    }

    /// Number of tokens that the tensor with the most rows saw, if the file counts them.
    pub fn n_tokens(&self) -> Option<i64> {
        self.n_tokens
    }

    /// Checks that all weights are finite and not negative. Files are checked when they are read.
    ///
    /// # Errors
    /// [`ImatrixError::NonFinite`], [`ImatrixError::Negative`] for the first weight that is not.
    pub fn check_finite(&self) -> Result<(), ImatrixError> {
        for (name, entry) in &self.entries {
            check_values(&self.path, name, &entry.weights)?;
        }
        Ok(())
    }
}

/// Checks that the values are finite and not negative: importance is a mean of squares.
fn check_values(path: &Path, tensor: &str, values: &[f32]) -> Result<(), ImatrixError> {
    let is_bad = |value: &f32| !(*value >= 0.0 && value.is_finite());
    let Some(index) = values.iter().position(is_bad) else { return Ok(()) };
    let (path, tensor, value) = (path.to_owned(), tensor.to_owned(), values[index]);
    Err(if value.is_finite() {
        ImatrixError::Negative { path, tensor, index, value }
    } else {
        ImatrixError::NonFinite { path, tensor, index, value }
    })
}
