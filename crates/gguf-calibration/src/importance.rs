//! Importance sums of several kinds of text.

use std::collections::BTreeMap;

use gguf_format::{ColumnSums, ImatrixSums};

/// Sums up the importance sums of several kinds.
pub fn total_importance(kinds: &[ImatrixSums]) -> ImatrixSums {
    let chunk_size = kinds.first().map_or(0, |kind| kind.chunk_size);
    let mut total = ImatrixSums { tensors: BTreeMap::new(), datasets: Vec::new(), n_chunks: 0, chunk_size };
    for kind in kinds {
        for (name, own) in &kind.tensors {
            let n_matrices = own.counts.len();
            let sum = total.tensors.entry(name.clone());
            let sum = sum.or_insert_with(|| ColumnSums::zero(own.n_cols, n_matrices));
            sum.sums.iter_mut().zip(&own.sums).for_each(|(sum, x)| *sum += x);
            sum.counts.iter_mut().zip(&own.counts).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
        total.datasets.extend(kind.datasets.iter().cloned());
        total.n_chunks += kind.n_chunks;
    }
    total
}
