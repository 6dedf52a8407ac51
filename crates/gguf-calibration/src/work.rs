//! Work of an interrupted run, kept so that the next run can resume: blocks of solved matrices, and a journal of
//! results.
//!
//! # Layout
//! - `work.json`: everything that decides the result, by name. A run that differs is refused with the first difference.
//! - `journal`: a line for each solved matrix and each measured figure, after the line's own digest. Everything from
//!   the first truncated or damaged line on is discarded.
//! - `blocks-0`, `blocks-1`: the blocks of each attempt. The journal holds the digest of each matrix, so that damaged
//!   ones are found and solved again.
//! - `text`: text that the model has written, after its digest.
//! - `importance.gguf`: importance matrix with its exact sums.
//! - `candidate-…`: folders of the same layout, for candidates among which the run chooses.
//! - `lock`: held while a run works here.

mod error;
mod facts;
mod text;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::figures::HeldOutFigures;
use crate::journal::{AttemptLog, Journal, Record};
use crate::solved::SolvedBlocks;
use crate::work::facts::WorkManifest;
use crate::{NotSolved, Result};
use gguf_core::output::{EditLock, EditLockError, OutputFile};
use gguf_core::progress::{Progress, Silent};
use gguf_core::sha256::sha256_of_file;
use gguf_core::sync::Unpoisoned;
use gguf_core::{GgmlType, TensorMeta, TensorSource};
use gguf_format::{ImatrixSums, Metadata, UnfinishedRun, WriteOptions};
use gguf_verification::{Fingerprint, Model};

pub use error::WorkError;
pub(super) use facts::WorkFacts;
pub(super) use text::{KeptText, TextKey};

const MANIFEST: &str = "work.json";
const JOURNAL: &str = "journal";
const IMPORTANCE: &str = "importance.gguf";
const TEXT: &str = "text";
const LOCK: &str = "lock";
const CANDIDATE: &str = "candidate-";
/// Digits of a candidate's digest in the name of its folder.
const CANDIDATE_DIGITS: usize = 16;
const N_ATTEMPTS: usize = 2;

/// Folder in which a run keeps its work.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    sync: bool,
    /// Manifest of an earlier run.
    found: Option<WorkManifest>,
    /// True if the folder was created for the work.
    is_made: bool,
    state: Mutex<WorkState>,
    _lock: EditLock,
}

#[derive(Debug, Default)]
struct WorkState {
    journal: Option<Arc<Journal>>,
    records: Vec<Record>,
}

/// Results of a finished attempt in addition to its blocks.
pub(super) struct FinishedAttempt {
    pub(super) importance: ImatrixSums,
    pub(super) left: Vec<NotSolved>,
}

/// Blocks, with the number of matrices of an earlier run that are intact or damaged.
pub(super) struct Resumed {
    pub(super) blocks: SolvedBlocks,
    pub(super) n_found: usize,
    pub(super) n_damaged: usize,
}

/// Digests that identify a model and its tokenizer. They cover all keys that its graph and its text depend on,
/// and the names, types, shapes and values of all tensors.
pub(super) fn identity(model: &Model<'_>) -> std::io::Result<(String, String)> {
    let (metadata, source): (&Metadata, &dyn TensorSource) = (model.metadata, model.source);
    let mut whole = Fingerprint::default();
    whole.model(metadata, source, &Silent).map_err(std::io::Error::other)?;
    let mut tokenizer = Fingerprint::default();
    tokenizer.metadata(metadata, |key| key.starts_with("tokenizer."));
    Ok((whole.hex(), tokenizer.hex()))
}

fn blocks_file(attempt: usize) -> String {
    format!("blocks-{attempt}")
}

impl WorkFolder {
    /// Opens a folder that is new or empty, or that holds the work of an interrupted run. With `sync`, work reaches the
    /// disk every second.
    ///
    /// # Errors
    /// [`WorkError`]: other files in the folder, another run that uses it, a broken or unknown `work.json`.
    pub fn open(path: &Path, sync: bool) -> Result<Self, WorkError> {
        let is_new = !path.exists();
        if is_new {
            fs_err::create_dir_all(path)?;
        } else if !path.is_dir() {
            return Err(WorkError::NoFolder { path: path.to_owned() });
        }
        let manifest = path.join(MANIFEST);
        let is_ours = |name: &std::ffi::OsStr| {
            let ours = [MANIFEST, JOURNAL, IMPORTANCE, TEXT, LOCK].iter().any(|own| name == *own);
            let is_candidate = name.as_encoded_bytes().starts_with(CANDIDATE.as_bytes());
            ours || is_candidate || (0..N_ATTEMPTS).any(|attempt| name == blocks_file(attempt).as_str())
        };
        for entry in fs_err::read_dir(path)? {
            let name = entry?.file_name();
            // A run that was killed while it wrote its first file may leave a hidden temporary file.
            if !is_ours(&name) && !name.as_encoded_bytes().starts_with(b".") {
                return Err(WorkError::Foreign {
                    path: path.to_owned(),
                    name: name.to_string_lossy().into_owned(),
                });
            }
            // Text is written before a run begins.
            let is_first = name == LOCK || name == TEXT;
            if !is_first && !manifest.is_file() && is_ours(&name) {
                return Err(WorkError::NoManifest { path: path.to_owned() });
            }
        }
        // A broken manifest is reported before the lock is taken. It is read again under the lock.
        if manifest.is_file() {
            WorkManifest::read(&manifest)?;
        }
        File::options().create(true).truncate(false).write(true).open(path.join(LOCK)).map_err(|error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.join(LOCK).display()))
        })?;
        let lock = EditLock::of(&path.join(LOCK), Duration::ZERO, &mut |_| true);
        let lock = lock.map_err(|error| match error {
            EditLockError::Io(error) => WorkError::Io(error),
            EditLockError::Busy { .. } | EditLockError::Cancelled => {
                WorkError::Busy { path: path.to_owned() }
            }
        })?;
        let found = if manifest.is_file() { Some(WorkManifest::read(&manifest)?) } else { None };
        let is_made = is_new || found.as_ref().is_some_and(|found| found.is_made);
        Ok(Self { path: path.to_owned(), sync, found, is_made, state: Mutex::default(), _lock: lock })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if there is work of an earlier run.
    pub fn is_resumed(&self) -> bool {
        self.found.is_some()
    }

    /// Returns true if this run has begun to keep work, so that it can be resumed.
    pub fn is_begun(&self) -> bool {
        self.state().journal.is_some()
    }

    fn state(&self) -> MutexGuard<'_, WorkState> {
        self.state.lock().unpoisoned()
    }

    /// Begins, or resumes if the earlier run agrees in everything that decides its result.
    pub(super) fn begin(&self, facts: WorkFacts) -> Result<(), WorkError> {
        match &self.found {
            Some(found) => found.check(&facts, &self.path)?,
            None => {
                let json = WorkManifest::new(facts, self.is_made).json()?;
                OutputFile::write(&self.path.join(MANIFEST), &json, self.sync)?;
            }
        }
        let (journal, records) = Journal::open(&self.path.join(JOURNAL), self.sync)?;
        *self.state() = WorkState { journal: Some(Arc::new(journal)), records };
        Ok(())
    }

    fn add(&self, record: &Record) -> Result<(), WorkError> {
        let journal = self.state().journal.clone();
        match journal {
            Some(journal) => Ok(journal.add(record)?),
            None => Ok(()),
        }
    }

    /// Opens the file for the blocks of an attempt, and finds those that are already there.
    pub(super) fn blocks<'t>(
        &self,
        attempt: usize,
        targets: impl Iterator<Item = (&'t TensorMeta, GgmlType)>,
        progress: &dyn Progress,
    ) -> Result<Resumed> {
        let path = self.path.join(blocks_file(attempt));
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file =
            file.map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let state = self.state();
        let digests = state.records.iter().filter_map(|record| match record {
            Record::Solved { attempt: own, tensor, matrix, digest } if *own == attempt => {
                Some(((tensor.clone(), *matrix), digest.clone()))
            }
            _ => None,
        });
        let digests: BTreeMap<(String, u64), String> = digests.collect();
        let journal = state.journal.clone();
        drop(state);
        let log = journal.map(|journal| AttemptLog { journal, attempt });
        let (blocks, n_found) = SolvedBlocks::kept(file, &path, targets, log, &digests, progress)?;
        let n_damaged = digests.len().saturating_sub(n_found);
        Ok(Resumed { blocks, n_found, n_damaged })
    }

    /// Results of an attempt, if it was finished and they are all intact.
    pub(super) fn finished(&self, attempt: usize) -> Option<FinishedAttempt> {
        let state = self.state();
        let expected = state.records.iter().find_map(|record| match record {
            Record::Done { attempt: own, importance } if *own == attempt => Some(importance.clone()),
            _ => None,
        })?;
        let mut left: Vec<NotSolved> = Vec::new();
        for record in &state.records {
            let Record::Left { attempt: own, tensor, matrix, reason } = record else { continue };
            // An attempt that had to be repaired has two records of it.
            let is_told = |known: &NotSolved| known.tensor == *tensor && known.matrix == *matrix;
            if *own == attempt && !left.iter().any(is_told) {
                let (tensor, reason) = (tensor.clone(), reason.clone());
                left.push(NotSolved { tensor, matrix: *matrix, reason });
            }
        }
        drop(state);
        let path = self.path.join(IMPORTANCE);
        if sha256_of_file(&path, &Silent).ok()? != expected {
            return None;
        }
        let (_, importance) = UnfinishedRun::open(&path).ok()?;
        Some(FinishedAttempt { importance, left })
    }

    pub(super) fn finish(&self, attempt: usize, importance: &ImatrixSums, left: &[NotSolved]) -> Result<()> {
        for NotSolved { tensor, matrix, reason } in left {
            let (tensor, reason) = (tensor.clone(), reason.clone());
            self.add(&Record::Left { attempt, tensor, matrix: *matrix, reason })?;
        }
        let path = self.path.join(IMPORTANCE);
        let run = UnfinishedRun {
            fingerprint: String::new(),
            n_done: importance.n_chunks,
            n_total: importance.n_chunks,
            nll: Vec::new(),
            rests: BTreeMap::new(),
            part: None,
        };
        let options = WriteOptions { sync: self.sync, ..WriteOptions::default() };
        importance.write_unfinished(&path, &run, &options, &Silent).map_err(std::io::Error::other)?;
        let importance = sha256_of_file(&path, &Silent).map_err(|error| WorkError::Io(error.into()))?;
        self.add(&Record::Done { attempt, importance })?;
        Ok(())
    }

    /// Measured figures of an attempt's file; `None` is the file of the importance matrix alone.
    pub(super) fn judged(&self, attempt: Option<usize>) -> Option<HeldOutFigures> {
        let state = self.state();
        state.records.iter().find_map(|record| match record {
            Record::Judged { attempt: own, figures } if *own == attempt => {
                Some(HeldOutFigures::of_figures(*figures))
            }
            _ => None,
        })
    }

    /// Records measured figures.
    pub(super) fn judge(&self, attempt: Option<usize>, judged: &HeldOutFigures) -> Result<(), WorkError> {
        let figures = judged.figures();
        // JSON cannot hold NaN and infinity; such figures are measured again.
        if figures.iter().all(|figure| figure.is_finite()) {
            self.add(&Record::Judged { attempt, figures })?;
        }
        Ok(())
    }

    pub(super) fn candidate(&self, candidate: &str) -> Result<Self, WorkError> {
        let digits = candidate.get(..CANDIDATE_DIGITS).unwrap_or(candidate);
        self.open_candidate(&self.path.join(format!("{CANDIDATE}{digits}")))
    }

    fn open_candidate(&self, path: &Path) -> Result<Self, WorkError> {
        let mut folder = Self::open(path, self.sync)?;
        // Whatever run made it: one may have been killed before it wrote that down.
        folder.is_made = true;
        Ok(folder)
    }

    /// Measured divergence with only this group of tensors quantized.
    pub(super) fn cost(&self, group: usize) -> Option<f64> {
        self.state().records.iter().find_map(|record| match record {
            Record::Cost { group: own, kld } if *own == group => Some(*kld),
            _ => None,
        })
    }

    /// Records the measured divergence of a group.
    pub(super) fn add_cost(&self, group: usize, kld: f64) -> Result<(), WorkError> {
        if kld.is_finite() { self.add(&Record::Cost { group, kld }) } else { Ok(()) }
    }

    pub(super) fn tried(&self, candidate: &str) -> Option<HeldOutFigures> {
        self.state().records.iter().find_map(|record| match record {
            Record::Tried { candidate: own, figures } if own == candidate => {
                Some(HeldOutFigures::of_figures(*figures))
            }
            _ => None,
        })
    }

    pub(super) fn add_tried(&self, candidate: &str, figures: &HeldOutFigures) -> Result<(), WorkError> {
        let (candidate, figures) = (candidate.to_owned(), figures.figures());
        if figures.iter().all(|figure| figure.is_finite()) {
            self.add(&Record::Tried { candidate, figures })?;
        }
        Ok(())
    }

    /// Removes the blocks of an attempt that is given up.
    pub(super) fn drop_blocks(&self, attempt: usize) {
        let _ = fs_err::remove_file(self.path.join(blocks_file(attempt)));
    }

    /// Removes the work when the output is written, since it can be as large. A folder that was created for it is
    /// removed too.
    pub fn clear(self) -> std::io::Result<()> {
        for entry in fs_err::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(CANDIDATE.as_bytes()) {
                self.open_candidate(&entry.path()).map_err(std::io::Error::other)?.clear()?;
            }
        }
        let blocks = (0..N_ATTEMPTS).map(blocks_file);
        // The manifest, which identifies the other files, is removed last except for the lock.
        let names = blocks.chain([IMPORTANCE, TEXT, JOURNAL, MANIFEST, LOCK].map(str::to_owned));
        for name in names {
            match fs_err::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.is_made {
            // Fails, as intended, if it has other files by now.
            let _ = fs_err::remove_dir(&self.path);
        }
        Ok(())
    }
}

impl Drop for WorkFolder {
    /// Leaves the folder as it was if the run stops before it has begun.
    fn drop(&mut self) {
        if self.found.is_none() && !self.is_begun() {
            let _ = fs_err::remove_file(self.path.join(TEXT));
            let _ = fs_err::remove_file(self.path.join(LOCK));
            if self.is_made {
                let _ = fs_err::remove_dir(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_whose_run_was_killed_at_once_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("work");
        let work = WorkFolder::open(&path, false).unwrap();
        let candidate = path.join(format!("{CANDIDATE}00"));
        fs_err::create_dir(&candidate).unwrap();
        fs_err::write(candidate.join(LOCK), "").unwrap();
        work.clear().unwrap();
        assert!(!path.exists());
    }
}
