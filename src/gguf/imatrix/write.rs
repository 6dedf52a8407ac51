//! Writing either format.

use std::path::Path;

use crate::core::output::OutputFile;
use crate::core::progress::Progress;
use crate::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use crate::gguf::imatrix::{CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, ImatrixSums, SUMS};
use crate::gguf::{Metadata, WriteError, WriteOptions, write_gguf};

/// Tensors of f32 in memory.
struct InMemory {
    metas: Vec<TensorMeta>,
    values: Vec<Vec<f32>>,
}

impl InMemory {
    fn push(&mut self, name: String, dims: Vec<u64>, values: Vec<f32>) {
        if let Some(shape) = Shape::new(dims) {
            self.metas.push(TensorMeta { name, shape, ty: GgmlType::F32 });
            self.values.push(values);
        }
    }
}

impl TensorSource for InMemory {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = first_row as usize * self.metas[tensor].shape.n_cols() as usize;
        for (raw, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(&self.values[tensor][start..]) {
            *raw = value.to_le_bytes();
        }
        Ok(())
    }
}

impl ImatrixSums {
    /// Writes the GGUF form. `dataset` is the name recorded for the text.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(
        &self,
        path: &Path,
        dataset: &str,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<(), WriteError> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set(DATASETS, vec![dataset]);
        metadata.set(CHUNK_COUNT, u32::try_from(self.n_chunks).unwrap_or(u32::MAX));
        metadata.set(CHUNK_SIZE, u32::try_from(self.chunk_size).unwrap_or(u32::MAX));
        let mut tensors = InMemory { metas: Vec::new(), values: Vec::new() };
        for (name, columns) in &self.tensors {
            let (n_cols, n_mat) = (columns.n_cols as u64, columns.counts.len() as u64);
            // The format drops outer dimensions of one.
            let (sum_dims, count_dims) =
                if n_mat == 1 { (vec![n_cols], vec![1]) } else { (vec![n_mat, n_cols], vec![n_mat, 1]) };
            let sums = columns.sums.iter().map(|&x| x as f32).collect();
            tensors.push(format!("{name}{SUMS}"), sum_dims, sums);
            let counts = columns.counts.iter().map(|&n| n as f32).collect();
            tensors.push(format!("{name}{COUNTS}"), count_dims, counts);
        }
        write_gguf(path, &metadata, &tensors, options, progress)?;
        Ok(())
    }

    /// Writes the older form.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write_legacy(&self, path: &Path, dataset: &str, options: &WriteOptions) -> Result<(), WriteError> {
        Ok(OutputFile::write(path, &self.legacy(dataset), options.sync)?)
    }

    fn legacy(&self, dataset: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let chunk_size = i64::try_from(self.chunk_size.max(1)).unwrap_or(i64::MAX);
        let int = |n: i64| i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes();
        let len = |n: usize| int(i64::try_from(n).unwrap_or(i64::MAX));
        let used: Vec<_> = self.tensors.iter().filter(|(_, s)| s.counts.iter().any(|&n| n > 0)).collect();
        bytes.extend(len(used.len()));
        for (name, columns) in used {
            bytes.extend(len(name.len()));
            bytes.extend(name.as_bytes());
            let most = columns.counts.iter().copied().max().unwrap_or(0);
            let n_calls = most.saturating_add(chunk_size - 1) / chunk_size;
            bytes.extend(int(n_calls));
            bytes.extend(len(columns.sums.len()));
            for weight in columns.weights() {
                bytes.extend((weight * n_calls as f32).to_le_bytes());
            }
        }
        bytes.extend(len(self.n_chunks));
        bytes.extend(len(dataset.len()));
        bytes.extend(dataset.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::progress::Silent;
    use crate::gguf::Imatrix;
    use crate::gguf::imatrix::ColumnSums;

    #[test]
    fn both_forms_are_read_back() {
        let experts = ColumnSums { n_cols: 2, sums: vec![8.0, 2.0, 0.0, 0.0], counts: vec![4, 0] };
        let plain = ColumnSums { n_cols: 3, sums: vec![3.0, 6.0, 9.0], counts: vec![3] };
        let tensors = [("blk.0.experts.weight", experts), ("blk.0.plain.weight", plain)];
        let tensors = tensors.map(|(name, sums)| (name.to_owned(), sums)).into();
        let sums = ImatrixSums { tensors, n_chunks: 2, chunk_size: 4 };
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("m.gguf"), dir.path().join("m.dat"));
        let options = WriteOptions::default();
        sums.write(&new, "text", &options, &Silent).unwrap();
        sums.write_legacy(&old, "text", &options).unwrap();
        for path in [new, old] {
            let read = Imatrix::open(&path).unwrap();
            assert_eq!((read.dataset(), read.n_chunks()), (Some(&b"text"[..]), 2));
            assert_eq!(read.get("blk.0.experts.weight").unwrap().weights, [2.0, 0.5, 1.0, 1.0]);
            assert_eq!(read.get("blk.0.plain.weight").unwrap().weights, [1.0, 2.0, 3.0]);
        }
    }
}
