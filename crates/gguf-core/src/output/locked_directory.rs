//! Directories under temporary names, locked while a run needs them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::lock::{self, Lock};
use super::temporary_name::builder;
use super::{leftovers, parent};
use crate::mmap::faults::{self, Watch};
use crate::platform::again;

/// Makes a directory with a temporary name of `target`, next to it, and locks it.
pub(super) fn make_locked(target: &Path, mode: u32) -> io::Result<(PathBuf, Option<File>)> {
    let mut directory = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut directory, mode);
    #[cfg(not(unix))]
    let _ = (mode, &mut directory);
    let made = builder(target, |builder| {
        builder.make_in(parent(target), |path| {
            again(|| directory.create(path))?;
            // As with files: another run may have taken it for dead before it was locked, even before it was opened.
            let open = match File::options().read(true).open(path) {
                Ok(open) => open,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                Err(_) => return Ok(None),
            };
            match lock::take(&open) {
                Lock::Held if lock::leads_to(path, &open) => Ok(Some(open)),
                Lock::Unknown => Ok(Some(open)),
                Lock::Held | Lock::Busy => Err(io::ErrorKind::AlreadyExists.into()),
            }
        })
    })?;
    let (open, path) = made.into_parts();
    Ok((path.keep().map_err(|error| error.error)?, open))
}

/// A locked directory for as long as a run needs it. Dropping it removes it and its content. Leftovers of killed runs
/// are removed when the next one is made.
#[derive(Debug)]
pub struct ScratchDirectory {
    path: PathBuf,
    /// Removes the directory if the run ends without unwinding.
    _watch: Watch,
    /// Held open for the lock.
    _open: Option<File>,
}

impl ScratchDirectory {
    /// Makes a directory in `place`; its name begins with a dot and `name`.
    pub fn create(place: &Path, name: &str) -> io::Result<Self> {
        let target = place.join(name);
        // A failure to clear is no obstacle: the directory may belong to others.
        let _ = leftovers::clear_directories(&target);
        let (path, open) = make_locked(&target, 0o700)?;
        let watch = faults::temporary(&path);
        Ok(Self { path, _watch: watch, _open: open })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs_err::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_goes_with_its_run_or_with_the_next() {
        let place = tempfile::tempdir().unwrap();
        let dead = place.path().join(".work.abc123.tmp");
        fs_err::create_dir(&dead).unwrap();
        fs_err::write(dead.join("file"), "x").unwrap();
        fs_err::create_dir(place.path().join(".other.abc123.tmp")).unwrap();
        let first = ScratchDirectory::create(place.path(), "work").unwrap();
        fs_err::write(first.path().join("file"), "x").unwrap();
        let second = ScratchDirectory::create(place.path(), "work").unwrap();
        assert!(first.path().join("file").exists() && second.path().exists() && !dead.exists());
        drop(first);
        drop(second);
        let left = place.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), [".other.abc123.tmp"]);
    }
}
