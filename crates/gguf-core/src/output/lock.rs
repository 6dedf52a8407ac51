//! Advisory locks that tell whether the writer of a file is alive: the system releases them when a process ends,
//! however it ends.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::platform::FileId;

/// Longest time that another writer may take to give its files their names.
const PATIENCE: Duration = Duration::from_mins(2);
/// Longest time that a process may take to start.
const MOMENT: Duration = Duration::from_millis(100);

/// Result of trying to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// Ours until the file is closed.
    Held,
    /// Another process holds it.
    Busy,
    /// The file system has no locks: the state is unknown.
    Unknown,
}

/// Tries to lock a file.
pub(super) fn take(file: &File) -> Lock {
    match file.try_lock() {
        Ok(()) => Lock::Held,
        Err(TryLockError::WouldBlock) => Lock::Busy,
        Err(TryLockError::Error(_)) => Lock::Unknown,
    }
}

/// Locks a file, waiting for its current holder.
pub(super) fn wait(file: &File) -> io::Result<Lock> {
    match take_within(file, PATIENCE) {
        Lock::Busy => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "another program has been giving these files their names for two minutes",
        )),
        lock => Ok(lock),
    }
}

/// Tries to lock a file that a dead process may have held. A process that is being started holds what its parent had open
/// until it runs, which takes a moment.
pub(super) fn take_of_dead(file: &File) -> Lock {
    take_within(file, MOMENT)
}

fn take_within(file: &File, patience: Duration) -> Lock {
    let since = Instant::now();
    loop {
        match take(file) {
            Lock::Busy if since.elapsed() < patience => std::thread::sleep(Duration::from_millis(5)),
            lock => return lock,
        }
    }
}

/// Returns true if `path` is the name of the open `file`. Another process may have removed or replaced it between
/// opening and locking.
pub(super) fn leads_to(path: &Path, file: &File) -> bool {
    matches!((FileId::of_name(path), FileId::of(file)), (Ok(there), Ok(open)) if there == open)
}

/// Opens an existing file to lock it. It must be a regular file, not a link. Never blocks.
pub(super) fn open_existing(path: &Path) -> io::Result<File> {
    if !path.symlink_metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let open = |write| {
        let mut options = File::options();
        options.read(true).write(write);
        #[cfg(unix)]
        {
            use rustix::fs::OFlags;
            use std::os::unix::fs::OpenOptionsExt;
            options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        }
        options.open(path)
    };
    // Network file systems lock only files that are open for writing.
    open(true).or_else(|_| open(false))
}
