//! Output files that appear whole or not at all: a temporary file beside the target, sync, rename.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file being written. It gets its final name in [`OutputFile::commit`]; dropped before that, it vanishes.
#[derive(Debug)]
pub struct OutputFile {
    target: PathBuf,
    temp: NamedTempFile,
}

impl OutputFile {
    /// Creates the temporary file in the target's directory.
    ///
    /// # Errors
    /// I/O errors, named with the path.
    pub fn create(target: &Path) -> io::Result<Self> {
        let dir = match target.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let name = target.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{}: not a file name", target.display()))
        })?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As any program creates a file; the umask narrows it.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let temp = builder.tempfile_in(dir).map_err(|e| named(target, &e))?;
        Ok(Self { target: target.to_owned(), temp })
    }

    /// The final name.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Sets the length. On file systems that can, blocks are reserved, so that a full disk shows now.
    ///
    /// # Errors
    /// I/O errors, named with the path; a full disk.
    pub fn reserve(&self, n_bytes: u64) -> io::Result<()> {
        let file = self.temp.as_file();
        #[cfg(target_os = "linux")]
        if n_bytes > 0 {
            use rustix::fs::{FallocateFlags, fallocate};
            match fallocate(file, FallocateFlags::empty(), 0, n_bytes) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::NOSPC) => {
                    return Err(named(&self.target, &io::Error::from(rustix::io::Errno::NOSPC)));
                }
                Err(_) => {}
            }
        }
        file.set_len(n_bytes).map_err(|e| named(&self.target, &e))
    }

    /// Writes bytes at an offset; callable from several threads at once.
    ///
    /// # Errors
    /// I/O errors, named with the path.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileExt;
            self.temp.as_file().write_all_at(bytes, offset).map_err(|e| named(&self.target, &e))
        }
        #[cfg(not(unix))]
        {
            use std::io::{Seek, SeekFrom, Write};
            static POSITION: std::sync::Mutex<()> = std::sync::Mutex::new(());
            let _guard = POSITION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut file = self.temp.as_file();
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| file.write_all(bytes))
                .map_err(|e| named(&self.target, &e))
        }
    }

    /// Starts writing back what was written so far, so that the final sync has less to do. Best effort.
    pub fn start_writeback(&self, offset: u64, n_bytes: u64) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{Advice, fadvise};
            // `POSIX_FADV_DONTNEED` starts asynchronous write-back of dirty pages in the range.
            let _ =
                fadvise(self.temp.as_file(), offset, std::num::NonZeroU64::new(n_bytes), Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, n_bytes);
    }

    /// Gives the file its final name, after a sync to the disk if asked for. An existing file of that name is
    /// replaced in one step.
    ///
    /// # Errors
    /// I/O errors, named with the path; the temporary file is then removed.
    pub fn commit(self, sync: bool) -> io::Result<()> {
        if sync {
            self.temp.as_file().sync_all().map_err(|e| named(&self.target, &e))?;
        }
        self.temp.persist(&self.target).map_err(|e| named(&self.target, &e.error))?;
        #[cfg(unix)]
        if sync && let Some(dir) = self.target.parent() {
            // The rename itself must survive too. Some file systems refuse to sync a directory: not our loss.
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            if let Ok(dir) = fs_err::File::open(dir) {
                let _ = dir.sync_all();
            }
        }
        Ok(())
    }
}

fn named(target: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", target.display()))
}

/// Bytes free on the file system that holds `path` (or will hold it); `None` where the system does not tell.
#[must_use]
pub fn free_bytes(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let mut dir = path;
        loop {
            let probe = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            if let Ok(stat) = rustix::fs::statvfs(probe) {
                return stat.f_bavail.checked_mul(stat.f_frsize);
            }
            dir = dir.parent()?;
        }
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// True if both paths lead to one existing file, through links of any kind.
#[must_use]
pub fn same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        match (fs_err::metadata(a), fs_err::metadata(b)) {
            (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
            _ => false,
        }
    }
    #[cfg(not(unix))]
    {
        match (fs_err::canonicalize(a), fs_err::canonicalize(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_lead_to_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, other) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        fs_err::write(&file, b"x").unwrap();
        fs_err::write(&other, b"x").unwrap();
        fs_err::hard_link(&file, &link).unwrap();
        assert!(same_file(&file, &link));
        assert!(!same_file(&file, &other));
        assert!(!same_file(&file, &dir.path().join("missing")));
    }

    #[test]
    fn nothing_appears_before_commit_and_nothing_stays_after_a_drop() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.bin");
        let n_entries = || fs_err::read_dir(dir.path()).unwrap().count();

        let out = OutputFile::create(&target).unwrap();
        out.reserve(8).unwrap();
        out.write_at(4, b"tail").unwrap();
        out.write_at(0, b"head").unwrap();
        assert!(!target.exists());
        out.commit(true).unwrap();
        assert_eq!(fs_err::read(&target).unwrap(), b"headtail");

        drop(OutputFile::create(&target).unwrap());
        assert_eq!(n_entries(), 1);
        assert_eq!(fs_err::read(&target).unwrap(), b"headtail");
    }

    #[test]
    fn free_space_is_known_for_a_path_that_does_not_exist_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(&dir.path().join("not/there/yet")).is_some_and(|n| n > 0));
    }
}
