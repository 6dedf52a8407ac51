//! One at a time: a file that is read, changed and replaced is locked from the reading to the replacing.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::named;
use crate::platform::FileId;

/// How long a try waits for the next.
const PAUSE: Duration = Duration::from_millis(15);

/// An advisory lock on a file (`flock`), and what the file was when the lock was taken. Other programs that do not ask
/// for the lock can change the file all the same: [`EditLock::has_changed`] tells. Where the file system knows no locks,
/// that is all there is.
#[derive(Debug)]
pub struct EditLock {
    path: PathBuf,
    /// Open as long as the lock is held.
    _file: File,
    state: State,
    is_locked: bool,
}

/// Why a file was not locked.
#[derive(Debug, thiserror::Error)]
pub enum EditLockError {
    /// Another process has had the lock all the time.
    #[error("{}: another program is changing this file, after {} seconds of waiting", path.display(), waited.as_secs())]
    Busy {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The caller had enough of waiting.
    #[error("interrupted")]
    Cancelled,
    /// The system refused; the message names the file.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What tells a file from the one that takes its place, and from what it was before.
#[derive(Debug, PartialEq, Eq)]
struct State {
    id: Option<FileId>,
    n_bytes: u64,
    modified: Option<SystemTime>,
}

impl State {
    fn of(id: io::Result<FileId>, found: &Metadata) -> Self {
        Self { id: id.ok(), n_bytes: found.len(), modified: found.modified().ok() }
    }
}

impl EditLock {
    /// Locks the file that a path leads to, through links. Another holder is waited for; `waiting` is asked again and
    /// again whether to go on, with the time that has passed.
    ///
    /// A holder may replace the file before it lets go. Then the lock is one of a file that has no name any more, and
    /// the new one is tried, so that whoever holds a lock holds that of the file which the path leads to.
    ///
    /// # Errors
    /// [`EditLockError`].
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
            let state = State::of(FileId::of(&file), &found);
            let lock = Self { path: target, _file: file, state, is_locked };
            if !lock.has_changed() {
                return Ok(lock);
            }
        }
    }

    /// Where the file is, links resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// False where the file system knows no locks.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// True if another file is there by now, or the file was written to.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let id = FileId::at(&self.path);
        self.path.metadata().map_or(true, |found| State::of(id, &found) != self.state)
    }
}

/// For writing, which locks over a network ask for, where that is allowed. Nothing is written.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path).or_else(|_| File::options().read(true).open(path))
}

/// False if there are no locks.
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

/// Elsewhere a lock would keep the file from being read and replaced.
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
