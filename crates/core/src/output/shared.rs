//! A file that several runs write together, each its own ranges, on one machine or on many that share a file system. It gets
//! its name when the last of them is through.
//!
//! Nobody asks anybody: beside the target lies `TARGET.into-ID`, as long as the whole from the start, and for each run that is
//! through an empty file `TARGET.into-ID.2-of-8`. Whoever finds all of these gives the file its name. The id stands for the plan and the
//! input, so that runs of different plans do not write into one file. A run that was stopped leaves no such file, but
//! `TARGET.into-ID.2-of-8.at`: up to where it came. Started again, it goes on from there. A single run that is to be
//! resumed is one of one.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::{Destination, OutputError, OutputFile, Sink, again, named, parent, sync_directory};

/// The part of a shared file that is written here.
#[derive(Debug)]
pub struct SharedOutput {
    /// As it was given.
    target: PathBuf,
    /// Where its links lead.
    path: PathBuf,
    id: String,
    number: usize,
    count: usize,
}

impl SharedOutput {
    /// Run `number` (from 1) of `count` that write `target`.
    ///
    /// # Errors
    /// As [`Destination::of_part`]: a device has no file beside it.
    pub fn of(target: &Path, id: &str, number: usize, count: usize) -> Result<Self, OutputError> {
        let path = Destination::of_part(target)?.into_file()?;
        Ok(Self { target: target.to_owned(), path, id: id.to_owned(), number, count })
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.file_name().map(OsString::from).unwrap_or_default();
        name.push(format!(".into-{}{end}", self.id));
        self.path.with_file_name(name)
    }

    fn data(&self) -> PathBuf {
        self.beside("")
    }

    fn mark(&self, number: usize) -> PathBuf {
        self.beside(&format!(".{number}-of-{}", self.count))
    }

    fn journal(&self) -> PathBuf {
        self.beside(&format!(".{}-of-{}.at", self.number, self.count))
    }

    /// Offset in the file before which all of this run's ranges are there; 0 where it has not begun.
    #[must_use]
    pub fn written_to(&self) -> u64 {
        if !self.data().exists() {
            return 0;
        }
        // What a power cut has left of a number is a smaller one, or has no end.
        let text = fs_err::read_to_string(self.journal()).unwrap_or_default();
        text.strip_suffix('\n').and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Takes note that all of this run's ranges before `offset` are in the file, on the disk if `sync`.
    ///
    /// # Errors
    /// I/O errors, named with the target.
    pub fn note_written_to(&self, file: &OutputFile, offset: u64, sync: bool) -> io::Result<()> {
        if sync {
            file.sync_data()?;
        }
        fs_err::write(self.journal(), format!("{offset}\n")).map_err(|error| named(&self.target, &error))
    }

    /// True if this run's ranges are there already.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.mark(self.number).exists() && self.data().exists()
    }

    /// Opens the file of `n_bytes`, which another run may have begun.
    ///
    /// # Errors
    /// I/O errors, named with the target.
    pub fn open(&self, n_bytes: u64) -> io::Result<OutputFile> {
        let failed = |error| named(&self.target, &error);
        let mut options = std::fs::OpenOptions::new();
        options.create(true).read(true).write(true).truncate(false);
        let file = again(|| options.open(self.data())).map_err(failed)?;
        // All runs set the same length, so that none cuts off what another has written.
        if file.metadata().map_err(failed)?.len() != n_bytes {
            again(|| file.set_len(n_bytes)).map_err(failed)?;
        }
        Ok(OutputFile { target: self.target.clone(), sink: Sink::Shared(file) })
    }

    /// Notes that this run's ranges are there, and gives the file its name if it was the last. Returns the numbers of the
    /// runs that are missing.
    ///
    /// # Errors
    /// I/O errors, named with the target.
    pub fn finish(&self, written: Option<OutputFile>, sync: bool) -> io::Result<Vec<usize>> {
        let failed = |error| named(&self.target, &error);
        if let Some(file) = written {
            if sync {
                file.sync()?;
            }
            fs_err::File::create(self.mark(self.number)).map_err(failed)?;
            remove(&self.journal()).map_err(failed)?;
            if sync {
                sync_directory(parent(&self.path)).map_err(failed)?;
            }
        }
        let missing: Vec<_> = (1..=self.count).filter(|&number| !self.mark(number).exists()).collect();
        if !missing.is_empty() {
            if !self.is_finished() {
                return Ok(missing);
            }
            // Another run of the same number was through before, and the last has cleared up since.
            remove(&self.mark(self.number)).map_err(failed)?;
            return Ok(Vec::new());
        }
        match fs_err::rename(self.data(), &self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        if sync {
            sync_directory(parent(&self.path)).map_err(failed)?;
        }
        (1..=self.count).try_for_each(|number| remove(&self.mark(number))).map_err(failed)?;
        Ok(missing)
    }

    /// True where whoever was last has given the file its name.
    fn is_finished(&self) -> bool {
        !self.data().exists() && self.path.exists()
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(dir: &Path, number: usize) -> Vec<usize> {
        let shared = SharedOutput::of(&dir.join("m.gguf"), "ab", number, 3).unwrap();
        assert!(!shared.is_written());
        let file = shared.open(6).unwrap();
        file.write_at(2 * (number as u64 - 1), &[number as u8; 2]).unwrap();
        shared.finish(Some(file), true).unwrap()
    }

    #[test]
    fn the_last_gives_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs_err::write(dir.join("m.gguf"), "old").unwrap();
        assert_eq!(write(dir, 2), [1, 3]);
        assert_eq!(write(dir, 3), [1]);
        assert_eq!(fs_err::read(dir.join("m.gguf")).unwrap(), b"old");
        let again = SharedOutput::of(&dir.join("m.gguf"), "ab", 3, 3).unwrap();
        assert!(again.is_written());
        assert_eq!(again.finish(None, true).unwrap(), [1]);
        assert_eq!(write(dir, 1), [0; 0]);
        assert_eq!(fs_err::read(dir.join("m.gguf")).unwrap(), [1, 1, 2, 2, 3, 3]);
        assert_eq!(names(dir), ["m.gguf"]);
    }

    #[test]
    fn a_run_that_was_stopped_leaves_nothing_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(write(dir, 1), [2, 3]);
        let stopped = SharedOutput::of(&dir.join("m.gguf"), "ab", 2, 3).unwrap();
        stopped.open(6).unwrap().write_at(2, &[9, 9]).unwrap();
        assert_eq!(write(dir, 3), [2]);
        assert!(!dir.join("m.gguf").exists());
        // Another plan is another file.
        let other = SharedOutput::of(&dir.join("m.gguf"), "cd", 2, 3).unwrap();
        assert!(!other.is_written());
        let file = other.open(9).unwrap();
        assert_eq!(other.finish(Some(file), false).unwrap(), [1, 3]);
        assert_eq!(write(dir, 2), [0; 0]);
        assert_eq!(fs_err::read(dir.join("m.gguf")).unwrap(), [1, 1, 2, 2, 3, 3]);
        assert_eq!(names(dir), ["m.gguf", "m.gguf.into-cd", "m.gguf.into-cd.2-of-3"]);
    }

    #[test]
    fn a_run_that_was_started_twice() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, 1);
        write(dir, 2);
        let late = SharedOutput::of(&dir.join("m.gguf"), "ab", 3, 3).unwrap();
        let file = late.open(6).unwrap();
        assert_eq!(write(dir, 3), [0; 0]);
        file.write_at(4, &[3, 3]).unwrap();
        assert_eq!(late.finish(Some(file), true).unwrap(), [0; 0]);
        assert_eq!(fs_err::read(dir.join("m.gguf")).unwrap(), [1, 1, 2, 2, 3, 3]);
        assert_eq!(names(dir), ["m.gguf"]);
    }

    #[test]
    fn a_run_knows_how_far_it_came() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let shared = SharedOutput::of(&dir.join("m.gguf"), "ab", 1, 1).unwrap();
        assert_eq!(shared.written_to(), 0);
        let file = shared.open(20).unwrap();
        for offset in [7, 12] {
            shared.note_written_to(&file, offset, true).unwrap();
            assert_eq!(shared.written_to(), offset);
        }
        // Windows keeps the name of what is open.
        drop(file);
        // Cut short by a power cut: no end, no number.
        fs_err::write(dir.join("m.gguf.into-ab.1-of-1.at"), "1").unwrap();
        assert_eq!(shared.written_to(), 0);
        fs_err::remove_file(dir.join("m.gguf.into-ab")).unwrap();
        fs_err::write(dir.join("m.gguf.into-ab.1-of-1.at"), "12\n").unwrap();
        assert_eq!(shared.written_to(), 0, "the file itself is gone");
        let file = shared.open(20).unwrap();
        assert_eq!(shared.finish(Some(file), true).unwrap(), [0; 0]);
        assert_eq!(names(dir), ["m.gguf"]);
    }

    #[test]
    fn two_that_are_last_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, 1);
        write(dir, 2);
        let [one, other] =
            [3, 2].map(|number| SharedOutput::of(&dir.join("m.gguf"), "ab", number, 3).unwrap());
        let file = one.open(6).unwrap();
        assert_eq!(one.finish(Some(file), true).unwrap(), [0; 0]);
        assert_eq!(other.finish(None, true).unwrap(), [0; 0]);
        assert_eq!(names(dir), ["m.gguf"]);
    }
}
