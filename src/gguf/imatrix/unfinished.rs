//! What the file of a run that was stopped says beside its matrix, so that the run can go on as if nothing had happened:
//! the sums as they were in memory, and where the run stood. Other readers pass over it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::core::bytes::{Cursor, Endian};
use crate::core::{GgmlType, TensorSource};
use crate::gguf::imatrix::part::is_whole;
use crate::gguf::imatrix::{
    COUNTS, ColumnSums, ImatrixError, ImatrixPart, ImatrixSums, SUMS, StoredEntry, StoredImatrix,
};
use crate::gguf::{GgufFile, Metadata, Value};

/// Keys of an unfinished run.
const FINGERPRINT: &str = "gguf_foundry.imatrix.run";
const DONE: &str = "gguf_foundry.imatrix.chunks_done";
const TOTAL: &str = "gguf_foundry.imatrix.chunks_total";
/// Beside the sums and counts in f32, those of the run: `NAME.in_sum2_f64`, `NAME.counts_f64`.
pub(super) const EXACT: &str = "_f64";
/// What the rounding of the sums lost: `NAME.in_sum2_rest_f64`.
pub(super) const REST: &str = "_rest_f64";
/// Negative log likelihoods of the tokens scored so far.
pub(super) const NLL: &str = "gguf_foundry.imatrix.nll";

/// Where a run stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfinishedRun {
    /// What was run: the model, the tokens of the chunks that are done, and the options.
    pub fingerprint: String,
    /// Chunks that are done.
    pub n_done: usize,
    /// Chunks that the run was to have.
    pub n_total: usize,
    /// Negative log likelihoods of the tokens scored so far.
    pub nll: Vec<f64>,
    /// By tensor, what the rounding of its sums lost; nothing if none is known, or the file was only looked at.
    pub rests: BTreeMap<String, Vec<f64>>,
    /// Which part of a run it is, if several machines share it.
    pub part: Option<ImatrixPart>,
}

impl UnfinishedRun {
    /// What a file says of it; `None` in a file of a whole run.
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

    /// What a file says of an unfinished run, if it is the file of one.
    #[must_use]
    pub fn find(path: &Path) -> Option<Self> {
        Self::of(&GgufFile::open(path).ok()?)
    }

    /// Opens the file of an unfinished run: where it stopped, and its sums as they were in memory.
    ///
    /// # Errors
    /// [`ImatrixError`]: no importance matrix, that of a whole run, sums that are missing or no numbers.
    pub fn open(path: &Path) -> Result<(Self, ImatrixSums), ImatrixError> {
        let stored = StoredImatrix::open(path)?;
        let Some(mut run) = stored.unfinished else {
            return Err(ImatrixError::Finished { path: stored.path });
        };
        let file = GgufFile::open(path)?;
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
        metadata.set(FINGERPRINT, self.fingerprint.as_str());
        metadata.set(DONE, number(self.n_done));
        metadata.set(TOTAL, number(self.n_total));
        if let Some(part) = &self.part {
            part.set(metadata);
        }
    }
}

/// The sums of a tensor as the run had them.
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
    // The header was refused if the data reached beyond the file.
    let mut bytes = vec![0; usize::try_from(tensor.n_bytes()?).ok()?];
    file.read_rows(index, 0, &mut bytes).ok()?;
    let mut cursor = Cursor::new(&bytes, Endian::Little);
    (0..bytes.len() / 8).map(|_| cursor.f64().ok()).collect()
}
