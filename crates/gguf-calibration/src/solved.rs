//! Solved blocks in a file until the output is written. The file is temporary, or kept so that the next run can resume.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use sha2::{Digest, Sha256};

use crate::Result;
use crate::journal::AttemptLog;
use gguf_core::progress::Progress;
use gguf_core::sync::Unpoisoned;
use gguf_core::text::hex;
use gguf_core::{GgmlType, SourceError, TensorMeta};
use gguf_engine::EngineError;
use gguf_quantization::SolvedRows;

/// Location of a tensor's blocks in the file.
#[derive(Debug)]
struct BlockRegion {
    offset: u64,
    row_bytes: u64,
    n_rows: u64,
    n_matrices: u64,
    known: Mutex<KnownMatrices>,
}

/// Matrices whose rows are all in the file.
#[derive(Debug, Default)]
struct KnownMatrices {
    whole: BTreeSet<u64>,
    /// Matrices that an earlier run made and this run has not reached; they are hidden until then.
    found: BTreeSet<u64>,
}

impl BlockRegion {
    fn known(&self) -> MutexGuard<'_, KnownMatrices> {
        self.known.lock().unpoisoned()
    }
}

/// Solved blocks of a model's tensors. A temporary file has no name, so nothing of it remains, however the program
/// ends.
#[derive(Debug)]
pub struct SolvedBlocks {
    file: Mutex<std::fs::File>,
    /// Path of the file, or folder of a file without a name.
    path: PathBuf,
    regions: BTreeMap<String, BlockRegion>,
    n_bytes: u64,
    log: Option<AttemptLog>,
}

impl SolvedBlocks {
    /// Creates a temporary file in `dir` for the blocks of `targets`: tensors of the source with their target types.
    pub(super) fn new<'t>(
        dir: &Path,
        targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)>,
    ) -> Result<Self> {
        let file = tempfile::tempfile_in(dir)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", dir.display())))?;
        Ok(Self::in_file(file, dir, targets, None))
    }

    fn in_file<'t>(
        file: std::fs::File,
        path: &Path,
        targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)>,
        log: Option<AttemptLog>,
    ) -> Self {
        let (mut regions, mut n_bytes) = (BTreeMap::new(), 0u64);
        for (tensor, ty) in targets {
            let row_bytes = ty.row_bytes(tensor.shape.n_cols()).unwrap_or(0);
            let (n_all, dims) = (tensor.shape.n_rows(), tensor.shape.dims());
            let n_rows = dims.len().checked_sub(2).map_or(n_all, |at| dims[at]);
            let n_matrices = n_all.checked_div(n_rows).unwrap_or(0);
            let known = Mutex::default();
            let region = BlockRegion { offset: n_bytes, row_bytes, n_rows, n_matrices, known };
            regions.insert(tensor.name.clone(), region);
            n_bytes = n_bytes.saturating_add(row_bytes.saturating_mul(n_all));
        }
        Self { file: Mutex::new(file), path: path.to_owned(), regions, n_bytes, log }
    }

    /// Opens the file of an earlier run, and counts the matrices whose digests are as expected.
    pub(super) fn kept<'t>(
        file: std::fs::File,
        path: &Path,
        targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)>,
        log: Option<AttemptLog>,
        digests: &BTreeMap<(String, u64), String>,
        progress: &dyn Progress,
    ) -> Result<(Self, usize)> {
        let blocks = Self::in_file(file, path, targets, log);
        let n_bytes = |(tensor, _): &(String, u64)| {
            blocks.regions.get(tensor).map_or(0, |region| region.n_rows.saturating_mul(region.row_bytes))
        };
        progress.begin("reading what an earlier run has finished", digests.keys().map(n_bytes).sum());
        let mut n_found = 0;
        for (key, expected) in digests {
            if progress.is_cancelled() {
                return Err(EngineError::Cancelled.into());
            }
            let (tensor, matrix) = key;
            let Some(region) = blocks.regions.get(tensor).filter(|region| *matrix < region.n_matrices) else {
                continue;
            };
            if blocks.digest(tensor, *matrix).is_ok_and(|found| found == *expected) {
                region.known().found.insert(*matrix);
                n_found += 1;
            }
            progress.advance(n_bytes(key));
        }
        progress.end();
        Ok((blocks, n_found))
    }

    /// SHA-256 digest of a matrix's blocks.
    fn digest(&self, tensor: &str, matrix: u64) -> std::io::Result<String> {
        let absent = || std::io::Error::other("no such matrix was solved");
        let region = self.regions.get(tensor).ok_or_else(absent)?;
        let first_row = matrix.checked_mul(region.n_rows).ok_or_else(absent)?;
        let mut left = region.n_rows.checked_mul(region.row_bytes).ok_or_else(absent)?;
        let offset = self.at(tensor, first_row)?;
        let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset))?;
        while left > 0 {
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            file.read_exact(&mut buffer[..n])?;
            digest.update(&buffer[..n]);
            left -= n as u64;
        }
        Ok(hex(&digest.finalize()))
    }

    pub(super) fn n_matrices(&self, tensor: &str) -> u64 {
        self.regions.get(tensor).map_or(0, |region| region.n_matrices)
    }

    /// Number of matrices of all tensors.
    pub(super) fn n_all(&self) -> u64 {
        self.regions.values().map(|region| region.n_matrices).sum()
    }

    /// Returns true if every matrix of a tensor is in the file, reached by this run or not.
    pub(super) fn has_all(&self, tensor: &str) -> bool {
        let n_known = self.regions.get(tensor).map(|region| {
            let known = region.known();
            (known.whole.len() + known.found.len()) as u64
        });
        n_known.is_some_and(|n| n == self.n_matrices(tensor))
    }

    /// Marks a matrix of an earlier run as reached, so that it becomes visible. Returns false if there is none.
    pub(super) fn meet(&self, tensor: &str, matrix: u64) -> bool {
        self.regions.get(tensor).is_some_and(|region| {
            let mut known = region.known();
            known.found.remove(&matrix) && known.whole.insert(matrix)
        })
    }

    /// Marks all matrices of an earlier run as reached.
    pub(super) fn meet_all(&self) {
        for region in self.regions.values() {
            let mut known = region.known();
            let found = std::mem::take(&mut known.found);
            known.whole.extend(found);
        }
    }

    /// Bytes of all blocks when all are made.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn file(&self) -> MutexGuard<'_, std::fs::File> {
        self.file.lock().unpoisoned()
    }

    fn at(&self, tensor: &str, first_row: u64) -> std::io::Result<u64> {
        let region = self.regions.get(tensor);
        region
            .and_then(|region| region.row_bytes.checked_mul(first_row)?.checked_add(region.offset))
            .ok_or_else(|| std::io::Error::other("no such rows were solved"))
    }

    pub(super) fn put(&self, tensor: &str, first_row: u64, blocks: &[u8]) -> std::io::Result<()> {
        let offset = self.at(tensor, first_row)?;
        let mut file = self.file();
        let written = file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(blocks));
        drop(file);
        written.map_err(|error| self.named(&error))
    }

    /// Adds the path to an error.
    fn named(&self, error: &std::io::Error) -> std::io::Error {
        std::io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }

    /// Marks a matrix as complete, and logs its digest.
    pub(super) fn finish(&self, tensor: &str, matrix: u64) -> std::io::Result<()> {
        if let Some(region) = self.regions.get(tensor) {
            region.known().whole.insert(matrix);
        }
        let Some(log) = &self.log else { return Ok(()) };
        let digest = self.digest(tensor, matrix).map_err(|error| self.named(&error))?;
        log.solved(&self.file(), tensor, matrix, digest)
    }
}

impl SolvedRows for SolvedBlocks {
    fn has(&self, tensor: &str, matrix: u64) -> bool {
        self.regions.get(tensor).is_some_and(|region| region.known().whole.contains(&matrix))
    }

    fn read(&self, tensor: &str, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let mut read = || {
            let offset = self.at(tensor, first_row)?;
            let mut file = self.file();
            file.seek(SeekFrom::Start(offset))?;
            file.read_exact(out)
        };
        read()
            .map_err(|error: std::io::Error| SourceError { tensor: tensor.to_owned(), source: error.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::Shape;

    #[test]
    fn rows_come_back_where_they_belong() {
        let meta = |name: &str, dims: &[u64]| TensorMeta {
            name: name.to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F32,
        };
        let (a, b) = (meta("a", &[3, 64]), meta("b", &[2, 2, 32]));
        let targets = [(&a, GgmlType::Q4_0), (&b, GgmlType::Q8_0)];
        let blocks = SolvedBlocks::new(&std::env::temp_dir(), targets.into_iter()).unwrap();
        assert_eq!(blocks.n_bytes(), 3 * 36 + 4 * 34);
        blocks.put("b", 2, &[7; 68]).unwrap();
        blocks.put("a", 1, &[5; 36]).unwrap();
        assert!(!blocks.has("b", 1));
        blocks.finish("b", 1).unwrap();
        assert!(blocks.has("b", 1) && !blocks.has("b", 0) && !blocks.has("c", 1));
        let mut row = [0; 34];
        blocks.read("b", 3, &mut row).unwrap();
        assert_eq!(row, [7; 34]);
        let mut row = [0; 36];
        blocks.read("a", 1, &mut row).unwrap();
        assert_eq!(row, [5; 36]);
        assert!(blocks.read("c", 0, &mut row).unwrap_err().to_string().contains("`c`"));
    }
}
