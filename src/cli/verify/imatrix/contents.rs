//! Contents of a matrix that was written, as reports have them.

use serde::Serialize;

use crate::gguf::ImatrixSums;

/// Contents of an importance matrix.
#[derive(Serialize)]
pub(super) struct MatrixContents {
    /// Number of tensors with importance data.
    #[serde(rename = "tensors")]
    pub(super) n_tensors: usize,
    /// Number of chunks that the matrix contains, including those of matrices that were added.
    #[serde(rename = "chunks")]
    pub(super) n_chunks: usize,
    /// Number of tokens in a chunk.
    pub(super) chunk_tokens: usize,
    /// Texts that were run, in the order in which they were used.
    datasets: Vec<String>,
}

impl MatrixContents {
    pub(super) fn of(sums: &ImatrixSums) -> Self {
        Self {
            n_tensors: sums.tensors.len(),
            n_chunks: sums.n_chunks,
            chunk_tokens: sums.chunk_size,
            datasets: dataset_names(&sums.datasets),
        }
    }
}

/// Returns the names of texts; bytes that are not UTF-8 become U+FFFD.
pub(super) fn dataset_names(datasets: &[Vec<u8>]) -> Vec<String> {
    datasets.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}
