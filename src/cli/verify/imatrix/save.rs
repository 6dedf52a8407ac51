//! Saving of a run: every so many chunks, at the end, and when it is stopped.

use std::path::{Path, PathBuf};

use crate::cli::Session;
use crate::core::progress::{Progress, Silent};
use crate::core::text::{escape, plural};
use crate::gguf::{
    ImatrixSums, StoredImatrix, UnfinishedRun, WriteOptions, imatrix_identity, merge_imatrices,
};
use crate::verify::{Collected, ImportanceRun};

/// Output path and format of a matrix.
pub(super) struct MatrixOutput<'a> {
    pub(super) path: &'a Path,
    /// True for the format before GGUF.
    pub(super) legacy: bool,
    pub(super) sync: bool,
    /// Files that must not be overwritten.
    pub(super) inputs: Vec<PathBuf>,
}

impl MatrixOutput<'_> {
    /// Warns if the name of a GGUF file suggests the older format (`.dat`).
    pub(super) fn warn_of_name(&self, session: &Session) {
        if !self.legacy && self.path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("dat")) {
            let path = self.path.display().to_string();
            session.progress.warn(&format!(
                "{}: the file is GGUF, despite its name; programs that read `.dat` files need --legacy",
                escape(&path)
            ));
        }
    }

    fn options(&self) -> WriteOptions {
        WriteOptions { sync: self.sync, inputs: self.inputs.clone(), ..WriteOptions::default() }
    }

    fn write_to(&self, path: &Path, sums: &ImatrixSums, identity: Option<&str>) -> anyhow::Result<()> {
        // Without progress: the file is small, and an interrupt must not stop its writing.
        match identity {
            _ if self.legacy => sums.write_legacy(path, &self.options())?,
            Some(identity) => sums.write_identified(path, identity, &self.options(), &Silent)?,
            None => sums.write(path, &self.options(), &Silent)?,
        }
        Ok(())
    }

    /// Writes a finished matrix, with its identity if there is one. Returns the size of the file.
    pub(super) fn write(&self, sums: &ImatrixSums, identity: Option<&str>) -> anyhow::Result<u64> {
        self.write_to(self.path, sums, identity)?;
        Ok(fs_err::metadata(self.path)?.len())
    }

    /// Writes a matrix of the chunks that are done. The older format can hold no more state than that.
    pub(super) fn write_unfinished(&self, sums: &ImatrixSums, run: &UnfinishedRun) -> anyhow::Result<()> {
        if self.legacy {
            return self.write_to(self.path, sums, None);
        }
        Ok(sums.write_unfinished(self.path, run, &self.options(), &Silent)?)
    }

    pub(super) fn write_copy(&self, sums: &ImatrixSums, identity: &str) -> anyhow::Result<()> {
        self.write_to(&self.copy_path(sums.n_chunks), sums, Some(identity))
    }

    /// Path of a copy after `n_chunks` chunks, named as llama-imatrix does.
    pub(super) fn copy_path(&self, n_chunks: usize) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".at_{n_chunks}"));
        PathBuf::from(name)
    }
}

/// Number of chunks between two saves; 0 turns them off.
#[derive(Clone, Copy)]
pub(super) struct SaveFrequency {
    pub(super) output: usize,
    pub(super) copies: usize,
}

impl SaveFrequency {
    /// Returns the chunk counts at which a run of `n_run` chunks on top of `before` chunks keeps a copy.
    pub(super) fn copies_of(self, before: usize, n_run: usize) -> impl Iterator<Item = usize> {
        let last = before.saturating_add(n_run);
        let every = if self.copies == 0 { usize::MAX } else { self.copies };
        (before / every + 1..=last / every).map(move |n| n * every)
    }
}

/// Run with its session, target and initial sums.
pub(super) struct CollectRun<'a, 'm> {
    pub(super) session: &'a Session,
    pub(super) target: MatrixOutput<'a>,
    pub(super) run: ImportanceRun<'m>,
    pub(super) before: ImatrixSums,
    pub(super) frequency: SaveFrequency,
    /// Identity of the run, which the finished matrix has.
    pub(super) identity: String,
}

impl CollectRun<'_, '_> {
    fn output(&self) -> String {
        escape(&self.target.path.display().to_string()).into_owned()
    }

    /// Starts a run from its first chunk. Notes first if the output holds a stopped run, in case `--resume` was
    /// forgotten.
    pub(super) fn begin(&self) -> Collected {
        let is_stopped = |run: &UnfinishedRun| run.n_done < run.n_total;
        if let Some(run) = UnfinishedRun::find(self.target.path).filter(is_stopped) {
            self.session.note(&format!(
                "`{}` holds {} of {} of a run that was stopped, and will be overwritten: `--resume` would continue it",
                self.output(),
                run.n_done,
                plural(run.n_total as u64, "chunk")
            ));
        }
        Collected::from_sums(self.before.clone())
    }

    /// Returns true if the output is the finished matrix of this very run.
    ///
    /// # Errors
    /// A finished matrix of another text, model or version: it is not replaced by a run that continues.
    pub(super) fn is_complete(&self, is_of_folder: bool) -> anyhow::Result<bool> {
        let output = self.output();
        if !self.target.path.exists() || UnfinishedRun::find(self.target.path).is_some() {
            return Ok(false);
        }
        match imatrix_identity(self.target.path) {
            Some(found) if found == self.identity => {
                let what = if is_of_folder {
                    "the matrix of an earlier run is used"
                } else {
                    "finished earlier, and left as it is"
                };
                self.session.note(&format!("{output}: {what}"));
                Ok(true)
            }
            None if !is_of_folder => Ok(false),
            _ => {
                let remedy = if is_of_folder {
                    "`--replace` measures"
                } else {
                    "the command without `--resume` measures"
                };
                anyhow::bail!(
                    "{output}: measured on another text, of another model, with other options, or by another version of this \
                     program: {remedy} it again"
                )
            }
        }
    }

    pub(super) fn finished(&self) -> anyhow::Result<(Collected, u64)> {
        let path = self.target.path;
        let sums = merge_imatrices(&[StoredImatrix::open(path)?], self.before.chunk_size)?;
        Ok((Collected::from_sums(sums), fs_err::metadata(path)?.len()))
    }

    /// Continues a run where it stopped; starts it if it was never saved.
    pub(super) fn resume(&self) -> anyhow::Result<Collected> {
        if !self.target.path.exists() {
            self.session.note(&format!("no file `{}` yet: the run begins", self.output()));
            return Ok(Collected::from_sums(self.before.clone()));
        }
        let (run, sums) = UnfinishedRun::open(self.target.path)?;
        let collected = self.run.resume(self.target.path, &self.before, run, sums)?;
        self.session.note(&format!(
            "{} of {} done",
            collected.n_done,
            plural(self.run.n_chunks() as u64, "chunk")
        ));
        Ok(collected)
    }

    /// Saves what is due after a group of chunks. `n_saved` is the number of chunks that the output holds.
    pub(super) fn save(&self, collected: &Collected, n_saved: &mut usize) -> anyhow::Result<()> {
        let is_due = |every: usize| every > 0 && collected.sums.n_chunks.is_multiple_of(every);
        if is_due(self.frequency.copies) {
            // It is the finished matrix of a run over so many chunks.
            let identity = self.run.fingerprint(&self.before, collected.n_done);
            self.target.write_copy(&collected.sums, &identity)?;
        }
        // The last save is the one of the whole run.
        if is_due(self.frequency.output) && collected.n_done < self.run.n_chunks() {
            self.write_unfinished(collected)?;
            *n_saved = collected.n_done;
        }
        Ok(())
    }

    /// Writes the sums of the whole run, or of this machine's share. Returns the size of the file.
    pub(super) fn write(&self, collected: &Collected) -> anyhow::Result<u64> {
        if self.run.part().is_none() {
            return self.target.write(&collected.sums, Some(&self.identity));
        }
        self.write_unfinished(collected)?;
        Ok(fs_err::metadata(self.target.path)?.len())
    }

    fn write_unfinished(&self, collected: &Collected) -> anyhow::Result<()> {
        let run = self.run.unfinished(&self.before, collected);
        self.target.write_unfinished(&collected.sums, &run)
    }

    /// Saves the complete chunks of a stopped run, and tells the user how to continue.
    pub(super) fn rescue(&self, collected: &Collected, n_saved: usize, from_chunk: usize) {
        let n_done = collected.n_done;
        if n_done > n_saved
            && let Err(error) = self.write_unfinished(collected)
        {
            self.session.progress.warn(&crate::cli::render::error_line(&error));
            return;
        }
        if n_done == 0 {
            return;
        }
        let (output, chunks) = (self.output(), plural(self.run.n_chunks() as u64, "chunk"));
        let rest = if self.target.legacy {
            format!(
                "`--in-file {output} --from-chunk {}` adds the rest, to another output",
                from_chunk + n_done
            )
        } else {
            "the same command with `--resume` resumes from it".to_owned()
        };
        self.session.note(&format!("`{output}` holds {n_done} of {chunks}: {rest}"));
    }
}
