//! State of an unfinished run, stored next to its matrix: the exact sums in memory and the position. The run can resume
//! as if it had not stopped. Other readers ignore these data.

use std::collections::BTreeMap;
use std::path::Path;

use crate::imatrix::part::is_whole;
use crate::imatrix::{
    COUNTS, ColumnSums, ImatrixError, ImatrixPart, ImatrixSums, SUMS, StoredEntry, StoredImatrix,
};
use crate::{GgufFile, Metadata, Value};
use gguf_core::bytes::{Cursor, Endian};
use gguf_core::{GgmlType, TensorSource};

/// Metadata key of the version of the digests in the file; those of another version cannot be compared.
const DIGESTS: &str = "gguf_foundry.imatrix.digests";
const DIGESTS_VERSION: u32 = 3;
/// Metadata keys of an unfinished run.
const FINGERPRINT: &str = "gguf_foundry.imatrix.run";
const DONE: &str = "gguf_foundry.imatrix.chunks_done";
const TOTAL: &str = "gguf_foundry.imatrix.chunks_total";
/// Suffix of the exact sums and counts, stored in addition to those in f32: `NAME.in_sum2_f64`, `NAME.counts_f64`.
pub(super) const EXACT: &str = "_f64";
/// Suffix of the rounding errors of the sums: `NAME.in_sum2_rest_f64`.
pub(super) const REST: &str = "_rest_f64";
/// Name of the tensor with the negative log likelihoods of the tokens scored so far.
pub(super) const NLL: &str = "gguf_foundry.imatrix.nll";

/// State of a stopped run.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfinishedRun {
    /// Fingerprint of the run: the model, the tokens of the finished chunks, and the options.
    pub fingerprint: String,
    /// Number of finished chunks.
    pub n_done: usize,
    /// Number of chunks of the whole run.
    pub n_total: usize,
    /// Negative log likelihoods of the tokens scored so far.
    pub nll: Vec<f64>,
    /// Rounding errors of the sums by tensor; empty if unknown, or if the sums were not read.
    pub rests: BTreeMap<String, Vec<f64>>,
    /// Part of a run, if several machines share it.
    pub part: Option<ImatrixPart>,
}

impl UnfinishedRun {
    /// Reads the state from a file, without the sums; `None` for a finished run.
    pub(super) fn of(file: &GgufFile) -> Option<Self> {
        let metadata = file.metadata();
        let number = |key| usize::try_from(metadata.get(key)?.as_u64()?).ok();
        Some(Self {
            fingerprint: metadata.get(FINGERPRINT).and_then(Value::as_str)?.to_owned(),
            n_done: number(DONE)?,
            n_total: number(TOTAL)?,
            nll: doubles(file, NLL).unwrap_or_default(),
            rests: BTreeMap::new(),
            part: ImatrixPart::of(metadata),
        })
    }

    /// Reads the state from the file of an unfinished run, without the sums; `None` for any other file.
    pub fn find(path: &Path) -> Option<Self> {
        Self::of(&GgufFile::open(path).ok()?)
    }

    /// Opens the file of an unfinished run: its state, and its exact sums.
    ///
    /// # Errors
    /// [`ImatrixError`]: not an importance matrix, that of a finished run, a file of another version of the program,
    /// sums that are missing or not finite.
    pub fn open(path: &Path) -> Result<(Self, ImatrixSums), ImatrixError> {
        let stored = StoredImatrix::open(path)?;
        let Some(mut run) = stored.unfinished else {
            return Err(ImatrixError::Finished { path: stored.path });
        };
        let file = GgufFile::open(path)?;
        if file.metadata().get(DIGESTS).and_then(Value::as_u64) != Some(DIGESTS_VERSION.into()) {
            return Err(ImatrixError::OtherVersion { path: path.to_owned() });
        }
        if run.part.is_some() && !is_whole(&file) {
            return Err(ImatrixError::DamagedPart { path: path.to_owned() });
        }
        let mut tensors = BTreeMap::new();
        for (name, entry) in &stored.entries {
            let columns = exact(&file, name, entry);
            let columns = columns
                .ok_or_else(|| ImatrixError::NotExact { path: path.to_owned(), tensor: name.clone() })?;
            if let Some(rest) = doubles(&file, &format!("{name}{SUMS}{REST}")) {
                if rest.len() != columns.sums.len() || rest.iter().any(|rest| !rest.is_finite()) {
                    return Err(ImatrixError::NotExact { path: path.to_owned(), tensor: name.clone() });
                }
                run.rests.insert(name.clone(), rest);
            }
            tensors.insert(name.clone(), columns);
        }
        let sums = ImatrixSums {
            tensors,
            datasets: stored.datasets,
            n_chunks: usize::try_from(stored.n_chunks).unwrap_or(0),
            chunk_size: stored.chunk_size.unwrap_or(0),
        };
        Ok((run, sums))
    }

    pub(super) fn set(&self, metadata: &mut Metadata) {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        metadata.set(DIGESTS, DIGESTS_VERSION);
        metadata.set(FINGERPRINT, self.fingerprint.as_str());
        metadata.set(DONE, number(self.n_done));
        metadata.set(TOTAL, number(self.n_total));
        if let Some(part) = &self.part {
            part.set(metadata);
        }
    }
}

fn exact(file: &GgufFile, name: &str, entry: &StoredEntry) -> Option<ColumnSums> {
    let sums = doubles(file, &format!("{name}{SUMS}{EXACT}"))?;
    let counts = doubles(file, &format!("{name}{COUNTS}{EXACT}"))?;
    let fits = sums.len() == entry.values.len() && counts.len() == entry.counts.len();
    let is_sound = |values: &[f64]| values.iter().all(|value| value.is_finite() && *value >= 0.0);
    (fits && is_sound(&sums) && is_sound(&counts)).then(|| ColumnSums {
        n_cols: sums.len() / counts.len().max(1),
        sums,
        counts: counts.into_iter().map(|count| count as i64).collect(),
    })
}

fn doubles(file: &GgufFile, name: &str) -> Option<Vec<f64>> {
    let index = file.tensor_index(name)?;
    let tensor = &file.tensors()[index];
    if tensor.ty != GgmlType::F64 {
        return None;
    }
    // The header would have been refused if the data exceeded the file.
    let mut bytes = vec![0; usize::try_from(tensor.n_bytes()?).ok()?];
    file.read_rows(index, 0, &mut bytes).ok()?;
    let mut cursor = Cursor::new(&bytes, Endian::Little);
    (0..bytes.len() / 8).map(|_| cursor.f64().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WriteOptions, write_gguf};
    use gguf_core::progress::Silent;

    #[test]
    fn a_file_with_digests_of_another_version_is_refused() {
        let columns = ColumnSums { n_cols: 1, sums: vec![4.0], counts: vec![2] };
        let tensors = [("a.weight".to_owned(), columns)].into();
        let sums = ImatrixSums { tensors, datasets: Vec::new(), n_chunks: 1, chunk_size: 2 };
        let run = UnfinishedRun {
            fingerprint: "00".to_owned(),
            n_done: 1,
            n_total: 2,
            nll: Vec::new(),
            rests: BTreeMap::new(),
            part: None,
        };
        let dir = tempfile::tempdir().unwrap();
        let (path, older) = (dir.path().join("own.gguf"), dir.path().join("older.gguf"));
        let options = WriteOptions::default();
        sums.write_unfinished(&path, &run, &options, &Silent).unwrap();
        assert_eq!(UnfinishedRun::open(&path).unwrap(), (run, sums));
        let file = GgufFile::open(&path).unwrap();
        let mut metadata = file.metadata().clone();
        metadata.remove(DIGESTS);
        write_gguf(&older, &metadata, &file, &options, &Silent).unwrap();
        let error = UnfinishedRun::open(&older).unwrap_err();
        assert!(matches!(error, ImatrixError::OtherVersion { .. }), "{error}");
    }
}
