//! Exclusive editing: a file that is read, changed and replaced is locked from the reading to the replacing.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::named;
use crate::platform::FileId;

const PAUSE: Duration = Duration::from_millis(15);

/// An advisory lock on a file (`flock`), with the state of the file when the lock was taken. Other programs that do not
/// ask for the lock can change the file all the same: [`EditLock::has_changed`] detects that. On file systems without
/// locks, that check is all there is.
#[derive(Debug)]
pub struct EditLock {
    path: PathBuf,
    /// Held open as long as the lock is held.
    _file: File,
    state: FileState,
    is_locked: bool,
}

/// Reason why a file was not locked.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum EditLockError {
    #[error("{}: another program is changing this file, after {} seconds of waiting", path.display(), waited.as_secs())]
    Busy { path: PathBuf, waited: Duration },
    #[error("interrupted")]
    Cancelled,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Properties that tell a file from its replacement and from its earlier content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileState {
    id: Option<FileId>,
    n_bytes: u64,
    modified: Option<SystemTime>,
}

impl FileState {
    fn of(id: io::Result<FileId>, found: &Metadata) -> Self {
        Self { id: id.ok(), n_bytes: found.len(), modified: found.modified().ok() }
    }

    /// Returns the state of the file that a path leads to; `None` if there is none.
    pub(super) fn at(path: &Path) -> Option<Self> {
        path.metadata().ok().map(|found| Self::of(FileId::at(path), &found))
    }
}

impl EditLock {
    /// Locks the file that a path leads to, through links. Waits for another holder; `waiting` is called repeatedly
    /// with the elapsed time and returns whether to go on.
    ///
    /// A holder may replace the file before it releases the lock. The lock then belongs to a file that has no name any
    /// more, and the new one is tried. So whoever holds a lock holds that of the file which the path leads to.
    pub fn of(
        path: &Path,
        wait: Duration,
        waiting: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Self, EditLockError> {
        let begun = Instant::now();
        loop {
            let target = path.canonicalize().map_err(|error| named(path, &error))?;
            let file = open(&target).map_err(|error| named(path, &error))?;
            let is_locked = match try_lock(&file) {
                Ok(is_locked) => is_locked,
                Err(TryLockError::WouldBlock) => {
                    let waited = begun.elapsed();
                    if !waiting(waited) {
                        return Err(EditLockError::Cancelled);
                    } else if waited > wait {
                        return Err(EditLockError::Busy { path: path.to_owned(), waited });
                    }
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(named(path, &error).into()),
            };
            let found = file.metadata().map_err(|error| named(path, &error))?;
            let state = FileState::of(FileId::of(&file), &found);
            let lock = Self { path: target, _file: file, state, is_locked };
            if !lock.has_changed() {
                return Ok(lock);
            }
        }
    }

    /// Returns the path of the file, links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns false if the file system has no locks.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Returns true if the file was replaced or written to since.
    pub fn has_changed(&self) -> bool {
        FileState::at(&self.path).is_none_or(|found| found != self.state)
    }
}

/// Opens the file for writing if that is allowed, since locks over a network require it. Nothing is written.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path).or_else(|_| File::options().read(true).open(path))
}

/// Tries to lock the file; returns false if there are no locks.
#[cfg(unix)]
fn try_lock(file: &File) -> Result<bool, TryLockError> {
    use rustix::io::Errno;
    let without = [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP, Errno::BADF, Errno::INVAL];
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::Error(error))
            if error.kind() == io::ErrorKind::Unsupported
                || without.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns false: on other systems a lock would keep the file from being read and replaced.
#[cfg(not(unix))]
fn try_lock(_: &File) -> Result<bool, TryLockError> {
    Ok(false)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::ZERO;

    #[test]
    fn a_second_lock_waits_and_then_gives_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs_err::write(&path, "1").unwrap();
        let held = EditLock::of(&path, NEVER, &mut |_| true).unwrap();
        assert!(held.is_locked() && !held.has_changed());
        let error = EditLock::of(&path, NEVER, &mut |_| true).unwrap_err();
        assert!(error.to_string().contains("another program is changing this file"), "{error}");
        let error = EditLock::of(&path, Duration::MAX, &mut |_| false).unwrap_err();
        assert!(matches!(error, EditLockError::Cancelled), "{error}");
        drop(held);
        EditLock::of(&path, NEVER, &mut |_| true).unwrap();
    }

    #[test]
    fn the_lock_is_that_of_the_file_that_took_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("a"), dir.path().join("b"));
        fs_err::write(&path, "1").unwrap();
        fs_err::write(&new, "2").unwrap();
        let held = std::cell::Cell::new(Some(EditLock::of(&path, NEVER, &mut |_| true).unwrap()));
        let second = EditLock::of(&path, Duration::MAX, &mut |_| {
            // While the second waits, the first replaces the file and lets go.
            if let Some(held) = held.take() {
                fs_err::rename(&new, &path).unwrap();
                assert!(held.has_changed());
            }
            true
        });
        let second = second.unwrap();
        assert!(!second.has_changed());
        assert!(EditLock::of(&path, NEVER, &mut |_| true).is_err(), "the new file is not locked");
        fs_err::write(&path, "longer").unwrap();
        assert!(second.has_changed());
    }
}
