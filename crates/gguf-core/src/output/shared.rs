//! A file that several runs write together, each its own ranges, on one machine or on many that share a file system. It
//! gets its name when the last of them is done.
//!
//! The runs do not communicate. Next to the target is `TARGET.into-ID.1`, which has its full length from the start, and
//! for each finished run an empty file `TARGET.into-ID.1.2-of-8`. A run that finds all of these gives the file its
//! name. The id identifies the plan and the input, so that runs of different plans do not write into one file. An
//! interrupted run leaves `TARGET.into-ID.1.2-of-8.at` instead, with the offset that it reached. Started again, it
//! continues from there. A single resumable run is one of one.
//!
//! The number after the id is that of the attempt: a note counts only for the file of its own attempt. A file that is
//! gone (it got its name, or somebody removed it) is never begun again under its number while anything of that attempt
//! is left, so that no note refers to missing bytes. Before the file gets its name, its length and time are recorded in
//! `.TARGET.into-ID.1.done`. That note stays: while the target is the file that it describes, a restarted run has
//! nothing to do. If the target differs, the run begins another attempt.
//!
//! A run that shares its file with no other may hide it: all names begin with a dot, so that a folder that is uploaded
//! does not show it. It is locked while it is written; [`sweep`] removes hidden files of dead runs.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::guard::look_again;
use super::temporary_name::stem_of;
use super::{
    Destination, OutputError, OutputFile, Sink, fault, leftovers, lock, named, parent, sync_directory,
};
use crate::platform::{FileId, again, stamp};

/// Separator between the target's name and the id.
const INTO: &str = ".into-";
/// End of the name of the note that the file is complete.
const DONE: &str = ".done";
/// Number of times that a file may vanish between looking and opening.
const MAX_TRIES: usize = 100;

/// The part of a shared file that this run writes.
#[derive(Debug)]
pub struct SharedOutput {
    /// Target as it was given.
    target: PathBuf,
    /// Target with its links followed.
    path: PathBuf,
    id: String,
    number: usize,
    count: usize,
    /// Number of the attempt of the file that is written.
    attempt: u64,
    /// True to keep the note that the file is complete.
    keeps_note: bool,
    /// True for names that begin with a dot.
    is_hidden: bool,
}

/// Remaining work of a run.
#[derive(Debug)]
pub enum Begun {
    /// Nothing is left to do: the target is what this and the other runs wrote.
    Finished,
    /// This run's ranges are written; others are missing.
    Written,
    /// This run's ranges from `start` on remain; those before it are in the file.
    At {
        /// The file, which other runs may write to as well.
        file: OutputFile,
        /// Offset in the file, in bytes.
        start: u64,
    },
}

/// Files of this plan next to the target.
#[derive(Debug, Default)]
struct AttemptFiles {
    /// Attempt number and name of each file.
    names: Vec<(u64, OsString)>,
}

impl AttemptFiles {
    /// Returns the number of the newest attempt; 0 if there is none.
    fn newest(&self) -> u64 {
        self.names.iter().map(|(attempt, _)| *attempt).max().unwrap_or(0)
    }
}

impl SharedOutput {
    /// Creates run `number` (from 1) of `count` that write `target`.
    ///
    /// # Errors
    /// As [`Destination::of_part`]: a device has no files next to it.
    pub fn of(target: &Path, id: &str, number: usize, count: usize) -> Result<Self, OutputError> {
        let path = Destination::of_part(target)?.into_file()?;
        Ok(Self {
            target: target.to_owned(),
            path,
            id: id.to_owned(),
            number,
            count,
            attempt: 0,
            keeps_note: count > 1,
            is_hidden: false,
        })
    }

    /// Hides the file until it has its name.
    pub fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }

    /// Keeps the note that the file is complete also if no other run writes it, until [`SharedOutput::forget_notes`].
    pub fn with_note(self) -> Self {
        Self { keeps_note: true, ..self }
    }

    /// Removes the notes that a file is complete.
    pub fn forget_notes(target: &Path) -> io::Result<()> {
        remove_notes(target, |_| false)
    }

    /// Returns the common prefix of all names of this plan.
    fn stem(&self) -> OsString {
        let mut name = OsString::from(if self.is_hidden { "." } else { "" });
        name.push(self.path.file_name().unwrap_or_default());
        name.push(format!("{INTO}{}.", self.id));
        name
    }

    fn attempt_path(&self, end: &str) -> PathBuf {
        let mut name = self.stem();
        name.push(format!("{}{end}", self.attempt));
        self.path.with_file_name(name)
    }

    fn data(&self) -> PathBuf {
        self.attempt_path("")
    }

    fn mark(&self, number: usize) -> PathBuf {
        self.attempt_path(&format!(".{number}-of-{}", self.count))
    }

    fn journal(&self) -> PathBuf {
        self.attempt_path(&format!(".{}-of-{}.at", self.number, self.count))
    }

    fn done(&self) -> PathBuf {
        let mut name = OsString::from(if self.is_hidden { "" } else { "." });
        name.push(self.stem());
        name.push(format!("{}{DONE}", self.attempt));
        self.path.with_file_name(name)
    }

    /// Looks for files that runs of this plan have left.
    fn survey(&self) -> io::Result<AttemptFiles> {
        let stem = self.stem();
        let attempt_of = |name: &OsStr| {
            let bytes = name.as_encoded_bytes();
            let is_note = !self.is_hidden && bytes.ends_with(DONE.as_bytes());
            let rest = bytes.strip_prefix(b".").filter(|_| is_note).unwrap_or(bytes);
            let rest = rest.strip_prefix(stem.as_encoded_bytes())?;
            let digits = rest.split(|&byte| byte == b'.').next()?;
            std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
        };
        let mut survey = AttemptFiles::default();
        for entry in fs_err::read_dir(parent(&self.path))? {
            let name = entry?.file_name();
            if let Some(attempt) = attempt_of(&name) {
                survey.names.push((attempt, name));
            }
        }
        Ok(survey)
    }

    /// Determines the remaining work. The file has `n_bytes` bytes; another run may have begun it.
    pub fn begin(&mut self, n_bytes: u64) -> io::Result<Begun> {
        let failed = |error| named(&self.target.clone(), &error);
        for _ in 0..MAX_TRIES {
            let survey = self.survey().map_err(failed)?;
            self.attempt = survey.newest();
            let is_new = self.attempt == 0 || found(&self.data()).map_err(failed)?.is_none();
            if is_new && self.attempt > 0 && self.is_finished().map_err(failed)? {
                self.clear(self.attempt).map_err(failed)?;
                return Ok(Begun::Finished);
            }
            if is_new {
                self.attempt += 1;
            } else if found(&self.mark(self.number)).map_err(failed)?.is_some() {
                return Ok(Begun::Written);
            }
            let mut options = File::options();
            options.read(true).write(true).create_new(is_new);
            let file = match again(|| options.open(self.data())) {
                Ok(file) => file,
                // Another run was faster, or gave the file its name.
                Err(error)
                    if [io::ErrorKind::AlreadyExists, io::ErrorKind::NotFound].contains(&error.kind()) =>
                {
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            fault::point()?;
            if self.is_hidden {
                // Held until the file is closed. On a file system without locks, nothing is swept.
                let _ = lock::take(&file);
            }
            if is_new {
                // Checked again now that nobody else can begin this attempt: it may have been finished before the first
                // check.
                let attempt = self.attempt;
                let survey = self.survey().map_err(failed)?;
                if survey.newest() > attempt || found(&self.done()).map_err(failed)?.is_some() {
                    remove(&self.data()).map_err(failed)?;
                    continue;
                }
                self.clear(attempt - 1).map_err(failed)?;
            }
            // All runs set the same length, so that none truncates what another has written.
            if file.metadata().map_err(failed)?.len() != n_bytes {
                again(|| file.set_len(n_bytes)).map_err(failed)?;
            }
            fault::point()?;
            let start = self.written_to();
            let file = OutputFile { target: self.target.clone(), sink: Sink::Shared(file) };
            return Ok(Begun::At { file, start });
        }
        Err(failed(io::Error::other("other runs keep beginning and ending it")))
    }

    /// Returns the offset in the file before which all of this run's ranges are written; 0 if it has not begun.
    fn written_to(&self) -> u64 {
        // A number that a power cut truncated is smaller, or has no line end.
        let text = fs_err::read_to_string(self.journal()).unwrap_or_default();
        text.strip_suffix('\n').and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Records that all of this run's ranges before `offset` are in the file, on the disk if `sync`.
    pub fn note_written_to(&self, file: &OutputFile, offset: u64, sync: bool) -> io::Result<()> {
        if sync {
            file.sync_data()?;
        }
        fs_err::write(self.journal(), format!("{offset}\n")).map_err(|error| named(&self.target, &error))
    }

    /// Records that this run's ranges are written, and gives the file its name if it was the last. Returns the numbers
    /// of the missing runs.
    ///
    /// # Errors
    /// I/O errors, named with the target; the file was removed.
    pub fn finish(&self, written: Option<&OutputFile>, sync: bool) -> io::Result<Vec<usize>> {
        let failed = |error| named(&self.target, &error);
        if let Some(file) = written {
            if sync {
                file.sync()?;
            }
            fault::point()?;
            fs_err::File::create(self.mark(self.number)).map_err(failed)?;
            fault::point()?;
            remove(&self.journal()).map_err(failed)?;
            if sync {
                sync_directory(parent(&self.path)).map_err(failed)?;
            }
        }
        let mut missing = Vec::new();
        for number in 1..=self.count {
            if found(&self.mark(number)).map_err(failed)?.is_none() {
                missing.push(number);
            }
        }
        let data = found(&self.data()).map_err(failed)?;
        if let (Some(data), true) = (&data, missing.is_empty()) {
            match File::options().read(true).open(self.data()) {
                Ok(own) => look_again(&own, &self.path, None, false)?,
                // Another run was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
            self.note_done(data, sync)?;
            fault::point()?;
            match fs_err::rename(self.data(), &self.path) {
                // Another run was faster.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
            fault::point()?;
            if sync {
                sync_directory(parent(&self.path)).map_err(failed)?;
            }
        } else if data.is_some() {
            return Ok(missing);
        } else if !self.is_target(written, sync).map_err(failed)? {
            remove(&self.mark(self.number)).map_err(failed)?;
            let text =
                format!("{}: removed while it was written: start every part again", self.data().display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        self.clear(self.attempt).map_err(failed)?;
        self.forget_others().map_err(failed)?;
        Ok(Vec::new())
    }

    /// Records length and time of the complete file.
    fn note_done(&self, whole: &Metadata, sync: bool) -> io::Result<()> {
        Ok(OutputFile::write(&self.done(), stamp(whole).as_bytes(), sync)?)
    }

    /// Returns true if the target is the file that the note of this attempt describes.
    fn is_finished(&self) -> io::Result<bool> {
        let noted = match fs_err::read_to_string(self.done()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            // The note is not valid text.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(found(&self.path)?.is_some_and(|target| stamp(&target) == noted))
    }

    /// Like `is_finished`, if this run has the file open: its own writes after the rename have made the file newer than
    /// the note.
    fn is_target(&self, written: Option<&OutputFile>, sync: bool) -> io::Result<bool> {
        let Some(Sink::Shared(file)) = written.map(|file| &file.sink) else { return self.is_finished() };
        if !matches!((FileId::of(file), FileId::at(&self.path)), (Ok(own), Ok(target)) if own == target) {
            return self.is_finished();
        }
        if self.count > 1 {
            self.note_done(&file.metadata()?, sync)?;
        }
        Ok(true)
    }

    /// Removes the notes of the attempts up to `last`. The note of completion stays if other runs may be started again.
    fn clear(&self, last: u64) -> io::Result<()> {
        let kept = self.done();
        for (attempt, name) in self.survey()?.names {
            let path = self.path.with_file_name(name);
            if attempt <= last && (path != kept || !self.keeps_note) {
                fault::point()?;
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the notes of other plans: they no longer describe the target.
    fn forget_others(&self) -> io::Result<()> {
        let kept = self.done();
        remove_notes(&self.path, |name| Some(name) == kept.file_name())
    }
}

/// Removes what dead runs left in a folder under hidden names: unfinished files with their notes, and temporary files.
/// Unfinished files of the targets `kept` stay.
pub fn sweep(folder: &Path, kept: &[PathBuf]) -> io::Result<()> {
    let is_kept = |target: &OsStr| kept.iter().any(|kept| kept.file_name() == Some(target));
    // Notes of a file that a living run writes stay, too.
    let mut held: Option<PathBuf> = None;
    for (path, target) in unfinished(folder)? {
        let name = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        let is_held = held.as_ref().is_some_and(|held| name(&path).starts_with(&name(held)));
        if is_held || is_kept(&target) {
            continue;
        }
        leftovers::remove_dead(&path)?;
        if found(&path)?.is_some() {
            held = Some(path);
        }
    }
    for entry in fs_err::read_dir(folder)? {
        let entry = entry?;
        if stem_of(&entry.file_name()).is_some() {
            leftovers::remove_dead(&entry.path())?;
        }
    }
    Ok(())
}

/// Returns the hidden files of unfinished targets in a folder, and the name of each target.
pub fn unfinished(folder: &Path) -> io::Result<Vec<(PathBuf, OsString)>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = name.strip_prefix('.').and_then(|name| name.rsplit_once(INTO));
        if let Some((target, _)) = target.filter(|(target, _)| !target.is_empty()) {
            let target = OsString::from(target);
            found.push((path, target));
        }
    }
    // Notes follow the file that they are about.
    found.sort();
    Ok(found)
}

/// Returns the unfinished files next to a target that got its name: those of runs of another plan or input, which may go
/// on elsewhere.
pub fn other_attempts(target: &Path) -> io::Result<Vec<PathBuf>> {
    let mut start = target.file_name().unwrap_or_default().to_owned();
    start.push(INTO);
    let mut found = Vec::new();
    for entry in fs_err::read_dir(parent(target))? {
        let file_name = entry?.file_name();
        let name = file_name.as_encoded_bytes();
        let name = name.strip_prefix(b".").unwrap_or(name);
        // Notes have more behind the number of the attempt.
        let rest =
            name.strip_prefix(start.as_encoded_bytes()).and_then(|rest| std::str::from_utf8(rest).ok());
        if rest.and_then(|rest| rest.split_once('.')).is_some_and(|(_, number)| number.parse::<u64>().is_ok())
        {
            found.push(target.with_file_name(&file_name));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes the notes that a file is complete, except those with a name that is kept.
fn remove_notes(target: &Path, is_kept: impl Fn(&OsStr) -> bool) -> io::Result<()> {
    let mut start = OsString::from(".");
    start.push(target.file_name().unwrap_or_default());
    start.push(INTO);
    for entry in fs_err::read_dir(parent(target))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let bytes = name.as_encoded_bytes();
        let is_note = bytes.starts_with(start.as_encoded_bytes()) && bytes.ends_with(DONE.as_bytes());
        if is_note && !is_kept(name) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a file if it exists.
fn remove(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the metadata of a file, or `None` if it is absent. Any other failure is an error: a mark that cannot be looked
/// at is not a mark that is missing.
fn found(path: &Path) -> io::Result<Option<Metadata>> {
    match fs_err::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
