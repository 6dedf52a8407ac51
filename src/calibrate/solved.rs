//! Blocks that a solver has made, in a temporary file until the output is written.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::calibrate::CalibrateError;
use crate::core::{GgmlType, SourceError, TensorMeta};
use crate::quantize::SolvedRows;

/// Where a tensor's blocks lie.
#[derive(Debug)]
struct Place {
    offset: u64,
    row_bytes: u64,
    /// Matrices whose rows are all there.
    whole: Mutex<BTreeSet<u64>>,
}

impl Place {
    fn whole(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks of a model's tensors. The file has no name: nothing of it is left behind, however the program ends.
#[derive(Debug)]
pub struct SolvedBlocks {
    file: Mutex<std::fs::File>,
    places: BTreeMap<String, Place>,
    n_bytes: u64,
}

impl SolvedBlocks {
    /// Room in a folder for the blocks of `targets`: tensors of the source with the types that they are to have.
    ///
    /// # Errors
    /// A file that cannot be made there.
    pub(super) fn new<'t>(
        dir: &Path,
        targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)>,
    ) -> Result<Self, CalibrateError> {
        let file = tempfile::tempfile_in(dir)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", dir.display())))?;
        let (mut places, mut n_bytes) = (BTreeMap::new(), 0u64);
        for (tensor, ty) in targets {
            let row_bytes = ty.row_bytes(tensor.shape.n_cols()).unwrap_or(0);
            places.insert(tensor.name.clone(), Place { offset: n_bytes, row_bytes, whole: Mutex::default() });
            n_bytes = n_bytes.saturating_add(row_bytes.saturating_mul(tensor.shape.n_rows()));
        }
        Ok(Self { file: Mutex::new(file), places, n_bytes })
    }

    /// Bytes of all blocks, once all are made.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn file(&self) -> MutexGuard<'_, std::fs::File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, tensor: &str, first_row: u64) -> std::io::Result<u64> {
        let place = self.places.get(tensor);
        place
            .and_then(|place| place.row_bytes.checked_mul(first_row)?.checked_add(place.offset))
            .ok_or_else(|| std::io::Error::other("no such rows were solved"))
    }

    /// Puts rows down.
    pub(super) fn put(&self, tensor: &str, first_row: u64, blocks: &[u8]) -> std::io::Result<()> {
        let offset = self.at(tensor, first_row)?;
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(blocks)
    }

    /// All rows of a matrix are there.
    pub(super) fn finish(&self, tensor: &str, matrix: u64) {
        if let Some(place) = self.places.get(tensor) {
            place.whole().insert(matrix);
        }
    }
}

impl SolvedRows for SolvedBlocks {
    fn has(&self, tensor: &str, matrix: u64) -> bool {
        self.places.get(tensor).is_some_and(|place| place.whole().contains(&matrix))
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
    use crate::core::Shape;

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
        blocks.finish("b", 1);
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
