//! Writer of both formats.

use std::path::Path;

use crate::imatrix::part::{DIGEST, digest};
use crate::imatrix::unfinished::{EXACT, NLL, REST};
use crate::imatrix::{CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, ImatrixSums, SUMS, UnfinishedRun};
use crate::{Array, GgufFile, Metadata, Value, WriteError, WriteOptions, write_gguf};
use gguf_core::output::{OutputError, OutputFile, OutputGuard, OutputKind};
use gguf_core::progress::Progress;
use gguf_core::{GgmlType, Shape, SourceError, TensorMeta, TensorSource};

/// Metadata key of the run that measured a finished matrix.
const IDENTITY: &str = "gguf_foundry.imatrix.identity";

/// Returns the identity of the run that measured a finished matrix; `None` for a file without one.
pub fn imatrix_identity(path: &Path) -> Option<String> {
    let file = GgufFile::open(path).ok()?;
    file.metadata().get(IDENTITY).and_then(Value::as_str).map(str::to_owned)
}

/// Numbers that are stored as a tensor.
#[derive(Clone, Copy)]
enum TensorValues<'a> {
    Sums(&'a [f64]),
    Counts(&'a [i64]),
}

/// Tensors of a matrix, rounded as they are read.
#[derive(Default)]
struct SumTensors<'a> {
    metas: Vec<TensorMeta>,
    numbers: Vec<TensorValues<'a>>,
}

impl<'a> SumTensors<'a> {
    fn push(&mut self, name: String, ty: GgmlType, dims: Vec<u64>, numbers: TensorValues<'a>) {
        if let Some(shape) = Shape::new(dims) {
            self.metas.push(TensorMeta { name, shape, ty });
            self.numbers.push(numbers);
        }
    }
}

impl TensorSource for SumTensors<'_> {
    fn tensors(&self) -> &[TensorMeta] {
        &self.metas
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let meta = &self.metas[tensor];
        let start = first_row as usize * meta.shape.n_cols() as usize;
        let value = |at: usize| match self.numbers[tensor] {
            TensorValues::Sums(sums) => sums[at],
            TensorValues::Counts(counts) => counts[at] as f64,
        };
        if meta.ty == GgmlType::F64 {
            for (at, raw) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *raw = value(start + at).to_le_bytes();
            }
        } else {
            for (at, raw) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *raw = (value(start + at) as f32).to_le_bytes();
            }
        }
        Ok(())
    }
}

impl ImatrixSums {
    /// Writes the GGUF format.
    pub fn write(
        &self,
        path: &Path,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<(), WriteError> {
        self.write_gguf(path, None, None, options, progress)
    }

    /// Writes the GGUF format with a key that identifies the run that measured the matrix, for [`imatrix_identity`].
    pub fn write_identified(
        &self,
        path: &Path,
        identity: &str,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<(), WriteError> {
        self.write_gguf(path, None, Some(identity), options, progress)
    }

    /// Writes the GGUF format for an unfinished run: a matrix of the finished chunks, with the data that
    /// [`UnfinishedRun::open`] needs to resume.
    pub fn write_unfinished(
        &self,
        path: &Path,
        run: &UnfinishedRun,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<(), WriteError> {
        self.write_gguf(path, Some(run), None, options, progress)
    }

    fn write_gguf(
        &self,
        path: &Path,
        run: Option<&UnfinishedRun>,
        identity: Option<&str>,
        options: &WriteOptions,
        progress: &dyn Progress,
    ) -> Result<(), WriteError> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set(DATASETS, Value::Array(Array::String(self.datasets.clone())));
        metadata.set(CHUNK_COUNT, u32::try_from(self.n_chunks).unwrap_or(u32::MAX));
        metadata.set(CHUNK_SIZE, u32::try_from(self.chunk_size).unwrap_or(u32::MAX));
        if let Some(identity) = identity {
            metadata.set(IDENTITY, identity);
        }
        let mut tensors = SumTensors::default();
        for (name, columns) in &self.tensors {
            let (n_cols, n_mat) = (columns.n_cols as u64, columns.counts.len() as u64);
            // The format drops outer dimensions of one.
            let (sum_dims, count_dims) =
                if n_mat == 1 { (vec![n_cols], vec![1]) } else { (vec![n_mat, n_cols], vec![n_mat, 1]) };
            let (sums, counts) = (TensorValues::Sums(&columns.sums), TensorValues::Counts(&columns.counts));
            tensors.push(format!("{name}{SUMS}"), GgmlType::F32, sum_dims.clone(), sums);
            tensors.push(format!("{name}{COUNTS}"), GgmlType::F32, count_dims.clone(), counts);
            if run.is_some() {
                tensors.push(format!("{name}{SUMS}{EXACT}"), GgmlType::F64, sum_dims, sums);
                tensors.push(format!("{name}{COUNTS}{EXACT}"), GgmlType::F64, count_dims, counts);
            }
            if let Some(rest) = run.and_then(|run| run.rests.get(name)) {
                let dims = vec![rest.len() as u64];
                tensors.push(format!("{name}{SUMS}{REST}"), GgmlType::F64, dims, TensorValues::Sums(rest));
            }
        }
        if let Some(run) = run {
            run.set(&mut metadata);
            if !run.nll.is_empty() {
                let dims = vec![run.nll.len() as u64];
                tensors.push(NLL.to_owned(), GgmlType::F64, dims, TensorValues::Sums(&run.nll));
            }
        }
        if run.is_some_and(|run| run.part.is_some()) {
            let digest = digest(&metadata, &tensors).map_err(WriteError::Source)?;
            metadata.set(DIGEST, digest);
        }
        write_gguf(path, &metadata, &tensors, options, progress)?;
        Ok(())
    }

    /// Writes the legacy format, which stores the name of only one text: the last.
    pub fn write_legacy(&self, path: &Path, options: &WriteOptions) -> Result<(), WriteError> {
        let mut guard = OutputGuard::default();
        let told = options.inputs.iter().try_for_each(|input| guard.read("", input));
        told.and_then(|()| guard.write("-o", path, OutputKind::Imatrix)).map_err(OutputError::Guard)?;
        Ok(OutputFile::write(path, &self.legacy(), options.sync)?)
    }

    fn legacy(&self) -> Vec<u8> {
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
        let dataset = self.datasets.last().map_or(&[][..], Vec::as_slice);
        bytes.extend(len(dataset.len()));
        bytes.extend(dataset);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Imatrix;
    use crate::imatrix::ColumnSums;
    use gguf_core::progress::Silent;

    #[test]
    fn both_forms_are_read_back() {
        let experts = ColumnSums { n_cols: 2, sums: vec![8.0, 2.0, 0.0, 0.0], counts: vec![4, 0] };
        let plain = ColumnSums { n_cols: 3, sums: vec![3.0, 6.0, 9.0], counts: vec![3] };
        let tensors = [("blk.0.experts.weight", experts), ("blk.0.plain.weight", plain)];
        let tensors = tensors.map(|(name, sums)| (name.to_owned(), sums)).into();
        let datasets = vec![b"text".to_vec()];
        let sums = ImatrixSums { tensors, datasets, n_chunks: 2, chunk_size: 4 };
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("m.gguf"), dir.path().join("m.dat"));
        let options = WriteOptions::default();
        sums.write(&new, &options, &Silent).unwrap();
        sums.write_legacy(&old, &options).unwrap();
        for path in [new, old] {
            let read = Imatrix::open(&path).unwrap();
            assert_eq!((read.dataset(), read.n_chunks()), (Some(&b"text"[..]), 2));
            assert_eq!(read.get("blk.0.experts.weight").unwrap().weights, [2.0, 0.5, 1.0, 1.0]);
            assert_eq!(read.get("blk.0.plain.weight").unwrap().weights, [1.0, 2.0, 3.0]);
        }
    }

    #[test]
    fn a_matrix_tells_its_run_and_no_folders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let columns = ColumnSums { n_cols: 1, sums: vec![4.0], counts: vec![2] };
        let tensors = [("a.weight".to_owned(), columns)].into();
        let sums =
            ImatrixSums { tensors, datasets: vec![b"C:\\me/text.txt".to_vec()], n_chunks: 1, chunk_size: 2 };
        let options = WriteOptions::default();
        sums.write(&path, &options, &Silent).unwrap();
        assert_eq!(imatrix_identity(&path), None);
        sums.write_identified(&path, "a run", &options, &Silent).unwrap();
        assert_eq!(imatrix_identity(&path).as_deref(), Some("a run"));
        let mut matrix = Imatrix::open(&path).unwrap();
        matrix.leave_folders_out();
        assert_eq!((matrix.path(), matrix.dataset()), (Path::new("m.gguf"), Some(&b"text.txt"[..])));
    }
}
