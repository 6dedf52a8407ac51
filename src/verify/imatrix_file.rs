//! Importance matrices as files: llama.cpp's GGUF form and its legacy form.

use std::io::Write;
use std::path::Path;

use crate::core::output::OutputFile;
use crate::core::progress::Progress;
use crate::core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};
use crate::gguf::{Metadata, WriteError, WriteOptions, write_gguf};
use crate::verify::{Importance, VerifyError};

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

impl Importance {
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
    ) -> Result<(), VerifyError> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set("imatrix.datasets", vec![dataset]);
        metadata.set("imatrix.chunk_count", u32::try_from(self.n_chunks).unwrap_or(u32::MAX));
        metadata.set("imatrix.chunk_size", u32::try_from(self.chunk_size).unwrap_or(u32::MAX));
        let mut tensors = InMemory { metas: Vec::new(), values: Vec::new() };
        for (name, sums) in &self.tensors {
            let (n_cols, n_mat) = (sums.n_cols as u64, sums.counts.len() as u64);
            // The format drops outer dimensions of one.
            let (sum_dims, count_dims) =
                if n_mat == 1 { (vec![n_cols], vec![1]) } else { (vec![n_mat, n_cols], vec![n_mat, 1]) };
            let in_sum2 = sums.in_sum2.iter().map(|&x| x as f32).collect();
            tensors.push(format!("{name}.in_sum2"), sum_dims, in_sum2);
            tensors.push(
                format!("{name}.counts"),
                count_dims,
                sums.counts.iter().map(|&n| n as f32).collect(),
            );
        }
        write_gguf(path, &metadata, &tensors, options, progress)?;
        Ok(())
    }

    /// Writes the legacy form.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write_legacy(&self, path: &Path, dataset: &str, sync: bool) -> Result<(), VerifyError> {
        let mut bytes = Vec::new();
        let chunk_size = self.chunk_size.max(1) as u64;
        let int = |n: u64| i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes();
        let used: Vec<_> = self.tensors.iter().filter(|(_, s)| s.counts.iter().any(|&n| n > 0)).collect();
        bytes.write_all(&int(used.len() as u64))?;
        for (name, sums) in used {
            bytes.write_all(&int(name.len() as u64))?;
            bytes.write_all(name.as_bytes())?;
            let most = sums.counts.iter().copied().max().unwrap_or(0);
            let n_calls = most.div_ceil(chunk_size);
            bytes.write_all(&int(n_calls))?;
            bytes.write_all(&int(sums.in_sum2.len() as u64))?;
            for (at, &sum) in sums.in_sum2.iter().enumerate() {
                // An expert that was never chosen counts as 1 everywhere.
                let value = match sums.counts[at / sums.n_cols] {
                    0 => 1.0,
                    count => sum as f32 / count as f32,
                };
                bytes.write_all(&(value * n_calls as f32).to_le_bytes())?;
            }
        }
        bytes.write_all(&int(self.n_chunks as u64))?;
        bytes.write_all(&int(dataset.len() as u64))?;
        bytes.write_all(dataset.as_bytes())?;
        OutputFile::write(path, &bytes, sync).map_err(WriteError::from)?;
        Ok(())
    }
}
