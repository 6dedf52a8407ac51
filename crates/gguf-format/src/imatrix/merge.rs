//! Merge of several importance matrices: addition of sums and counts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::imatrix::{
    COUNTS, ColumnSums, ImatrixError, ImatrixFormat, ImatrixSums, SUMS, StoredEntry, StoredImatrix,
};

/// Adds the contents of files of either format: sums, counts, lists of texts. Chunks are counted in units of
/// `chunk_size` tokens, which is also the assumed size of a call in the legacy format.
///
/// # Exactness
/// Equals llama-imatrix's combination of several `--in-file`: sums in f32, in the order of the files; the calls of the
/// legacy format times the chunk size; the number of chunks from the largest count. A single count for a tensor applies
/// to each of its matrices, in any order of the files; llama-imatrix does so only if that file is first.
///
/// # Errors
/// Values that are not finite; tensors whose widths or numbers of matrices differ, with both files.
pub fn merge_imatrices(files: &[StoredImatrix], chunk_size: usize) -> Result<ImatrixSums, ImatrixError> {
    let mut merged = ImatrixSums { tensors: BTreeMap::new(), datasets: Vec::new(), n_chunks: 0, chunk_size };
    for (at, file) in files.iter().enumerate() {
        let unit = match file.format {
            ImatrixFormat::Gguf => 1,
            ImatrixFormat::Legacy => i64::try_from(chunk_size).unwrap_or(i64::MAX),
        };
        for (name, entry) in &file.entries {
            file.check_values(name, entry)?;
            let n_counts = entry.counts.len();
            let columns = merged
                .tensors
                .entry(name.clone())
                .or_insert_with(|| ColumnSums::zero(entry.values.len() / n_counts.max(1), n_counts));
            if let Err((what, before)) = columns.add(entry, unit) {
                let has_it = |earlier: &&StoredImatrix| earlier.entries.contains_key(name);
                let other = files[..at].iter().find(has_it).map(|earlier| earlier.path.clone());
                return Err(ImatrixError::Contradiction {
                    path: file.path.clone(),
                    tensor: name.clone(),
                    what,
                    found: if what == SUMS_DIFFER { entry.values.len() } else { n_counts },
                    before,
                    other: other.unwrap_or_else(|| PathBuf::from("?")),
                });
            }
        }
        merged.datasets.extend(file.datasets.iter().cloned());
    }
    merged.n_chunks = merged.counted_chunks();
    Ok(merged)
}

const SUMS_DIFFER: &str = "values";
const COUNTS_DIFFER: &str = "counts";

impl StoredImatrix {
    /// Refuses values that are not finite or counts that are negative, which would invalidate the sums.
    fn check_values(&self, name: &str, entry: &StoredEntry) -> Result<(), ImatrixError> {
        let non_finite = |index: usize, value: f32, suffix: &str| ImatrixError::NonFinite {
            path: self.path.clone(),
            tensor: format!("{name}{suffix}"),
            index,
            value,
        };
        if let Some(index) = entry.values.iter().position(|value| !value.is_finite()) {
            return Err(non_finite(index, entry.values[index], SUMS));
        }
        match entry.counts.iter().position(|&count| count < 0) {
            Some(index) => Err(non_finite(index, entry.counts[index] as f32, COUNTS)),
            None => Ok(()),
        }
    }
}

impl ColumnSums {
    /// Replaces a single count by a count for each of `n_matrices` matrices.
    pub fn spread(&mut self, n_matrices: usize) {
        if let ([count], true) = (self.counts.as_slice(), n_matrices > 1) {
            self.counts = vec![*count; n_matrices];
            self.n_cols = self.sums.len() / n_matrices;
        }
    }

    /// Adds stored values, each worth `unit` rows. The error has the kind of the mismatch and the earlier number.
    fn add(&mut self, entry: &StoredEntry, unit: i64) -> Result<(), (&'static str, usize)> {
        let n_counts = entry.counts.len();
        if entry.values.len() != self.sums.len() {
            return Err((SUMS_DIFFER, self.sums.len()));
        }
        self.spread(n_counts);
        if n_counts != self.counts.len() && n_counts != 1 {
            return Err((COUNTS_DIFFER, self.counts.len()));
        }
        for (sum, value) in self.sums.iter_mut().zip(&entry.values) {
            // ref: f32 sums, keep.
            *sum = f64::from(*sum as f32 + value * unit as f32);
        }
        for (at, count) in self.counts.iter_mut().enumerate() {
            let added = entry.counts.get(at).or(entry.counts.first()).copied().unwrap_or(0);
            *count = count.saturating_add(added.saturating_mul(unit));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(
        name: &str,
        format: ImatrixFormat,
        tensor: &str,
        values: &[f32],
        counts: &[i64],
    ) -> StoredImatrix {
        let entry = StoredEntry { values: values.to_vec(), counts: counts.to_vec() };
        StoredImatrix {
            path: name.into(),
            format,
            entries: [(tensor.to_owned(), entry)].into(),
            datasets: vec![name.as_bytes().to_vec()],
            n_chunks: 0,
            chunk_size: None,
            unfinished: None,
        }
    }

    #[test]
    fn sums_counts_and_texts_are_joined() {
        use ImatrixFormat::{Gguf, Legacy};
        let files = [
            file("a", Gguf, "t", &[1.0, 2.0], &[8]),
            file("b", Gguf, "u", &[5.0], &[4]),
            file("c", Legacy, "t", &[0.5, 0.25], &[3]),
        ];
        let merged = merge_imatrices(&files, 4).unwrap();
        assert_eq!(merged.tensors["t"], ColumnSums { n_cols: 2, sums: vec![3.0, 3.0], counts: vec![20] });
        assert_eq!(merged.tensors["u"], ColumnSums { n_cols: 1, sums: vec![5.0], counts: vec![4] });
        assert_eq!((merged.n_chunks, merged.datasets.len()), (5, 3));
    }

    #[test]
    fn one_count_goes_to_every_expert_in_either_order() {
        use ImatrixFormat::{Gguf, Legacy};
        let experts = file("a", Gguf, "t", &[1.0, 2.0, 3.0, 4.0], &[8, 0]);
        let whole = file("b", Legacy, "t", &[1.0; 4], &[2]);
        let expected = ColumnSums { n_cols: 2, sums: vec![5.0, 6.0, 7.0, 8.0], counts: vec![16, 8] };
        for files in [[experts.clone(), whole.clone()], [whole, experts]] {
            assert_eq!(merge_imatrices(&files, 4).unwrap().tensors["t"], expected);
        }
    }

    #[test]
    fn contradictions_name_both_files() {
        use ImatrixFormat::Gguf;
        let merge = |a: (&[f32], &[i64]), b: (&[f32], &[i64])| {
            let other = file("c", Gguf, "other", &[1.0], &[1]);
            let files = [file("a", Gguf, "t", a.0, a.1), other, file("b", Gguf, "t", b.0, b.1)];
            merge_imatrices(&files, 4).unwrap_err().to_string()
        };
        assert_eq!(merge((&[1.0; 4], &[1]), (&[1.0; 6], &[1])), "b: tensor `t`: 6 values, but 4 values in a");
        assert_eq!(
            merge((&[1.0; 6], &[1, 1]), (&[1.0; 6], &[1, 1, 1])),
            "b: tensor `t`: 3 counts, but 2 counts in a"
        );
        assert_eq!(
            merge((&[1.0; 2], &[1]), (&[1.0, f32::NAN], &[1])),
            "b: tensor `t.in_sum2`: importance value 1 is NaN"
        );
    }
}
