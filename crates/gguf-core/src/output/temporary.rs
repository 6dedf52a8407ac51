//! Files that have no final name yet. Where the file system allows, they have no name at all, so that nothing is left
//! of a run that dies. Elsewhere their name identifies the target, and a lock tells the next run whether their writer
//! is dead.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempPath;

use super::lock::{self, Lock};
#[cfg(target_os = "linux")]
use super::mode::CLOSED;
use super::mode::{create, first_mode, inherit, set_mode};
use super::parent;
use super::staged_set::{StagedHandle, StagedSet};
use super::temporary_name::builder;
use crate::mmap::faults::{self, Watch};
#[cfg(target_os = "linux")]
use crate::platform::FileId;
use crate::platform::again;

#[derive(Debug)]
enum Handle {
    Own(File),
    /// One of very many files.
    Staged(StagedHandle),
}

/// A file that is open as long as this value lives.
pub(super) enum OpenFile<'a> {
    Own(&'a File),
    Shared(Arc<File>),
}

impl Deref for OpenFile<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Own(file) => file,
            Self::Shared(file) => file,
        }
    }
}

/// A locked file that has no final name yet. Dropping it removes it.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    // Declared before the file, so that the name goes while the lock is held.
    name: Option<TempPath>,
    file: Handle,
    /// Removes the file if the run ends without unwinding.
    watch: Watch,
}

impl TemporaryFile {
    /// Begins a file with the final path `path`.
    pub(super) fn next_to(path: &Path) -> io::Result<Self> {
        let mode = first_mode(path);
        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed(parent(path), mode) {
            return Ok(Self { name: None, file: Handle::Own(file), watch: Watch::default() });
        }
        Self::named(path, mode)
    }

    /// Begins one of very many files.
    pub(super) fn among(set: &Arc<StagedSet>, path: &Path) -> io::Result<Self> {
        let (name, staged) = set.begin(path, first_mode(path))?;
        let name = TempPath::try_from_path(name)?;
        let watch = faults::temporary(&name);
        Ok(Self { name: Some(name), file: Handle::Staged(staged), watch })
    }

    /// Begins a file under a temporary name.
    pub(super) fn named(path: &Path, mode: u32) -> io::Result<Self> {
        let made = builder(path, |builder| {
            builder.make_in(parent(path), |temp| {
                let file = create(temp, mode)?;
                // Another run may have found the file before it was locked and taken it for dead: then another name is
                // tried.
                match lock::take(&file) {
                    Lock::Held if lock::leads_to(temp, &file) => Ok(file),
                    Lock::Unknown => Ok(file),
                    Lock::Held | Lock::Busy => Err(io::ErrorKind::AlreadyExists.into()),
                }
            })
        })?;
        let (file, name) = made.into_parts();
        let watch = faults::temporary(&name);
        Ok(Self { name: Some(name), file: Handle::Own(file), watch })
    }

    pub(super) fn file(&self) -> io::Result<OpenFile<'_>> {
        match &self.file {
            Handle::Own(file) => Ok(OpenFile::Own(file)),
            Handle::Staged(staged) => staged.open().map(OpenFile::Shared),
        }
    }

    /// Marks the file as written to; to be called after writing.
    pub(super) fn touch(&self) {
        if let Handle::Staged(staged) = &self.file {
            staged.touch();
        }
    }

    /// Syncs the file to the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.file {
            Handle::Own(file) => file.sync_all(),
            Handle::Staged(staged) => staged.sync(),
        }
    }

    /// Returns the temporary name, if it has one, relative to the target directory.
    pub(super) fn name(&self) -> Option<OsString> {
        match &self.file {
            Handle::Own(_) => self.name.as_deref()?.file_name().map(OsStr::to_owned),
            Handle::Staged(staged) => staged.name(),
        }
    }

    /// Prepares the file to be renamed to `path`: mode and owner of the file that it replaces, and a temporary name.
    pub(super) fn prepare_rename(&mut self, path: &Path) -> io::Result<()> {
        if let Some(old) = path.symlink_metadata().ok().filter(Metadata::is_file) {
            inherit(&*self.file()?, &old)?;
        } else if let Handle::Staged(staged) = &self.file
            && let Some(mode) = staged.mode()
        {
            set_mode(&*self.file()?, mode)?;
        }
        #[cfg(target_os = "linux")]
        if self.name.is_none()
            && let Handle::Own(file) = &self.file
        {
            match link(file, path) {
                Ok(name) => self.name = Some(name),
                // Security rules may forbid links. What took hours to write is copied rather than lost.
                Err(error) if is_refusal(&error) => {
                    let named = Self::named(path, CLOSED)?;
                    io::copy(&mut rewound(file)?, &mut &*named.file()?)?;
                    named.sync()?;
                    inherit(&*named.file()?, &file.metadata()?)?;
                    *self = named;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives the file its final name. [`TemporaryFile::prepare_rename`] was called before.
    pub(super) fn rename(self, path: &Path) -> Result<(), (io::Error, Self)> {
        let Self { name, file, watch } = self;
        let Some(name) = name else {
            return Err((io::ErrorKind::NotFound.into(), Self { name: None, file, watch }));
        };
        let mut name = Some(name);
        let mut renamed = || match name.take().map(|name| name.persist(path)) {
            Some(Err(error)) => {
                name = Some(error.path);
                Err(error.error)
            }
            _ => Ok(()),
        };
        // The failure may be transient, and the other files of a set are waiting.
        match again(&mut renamed).or_else(|_| again(&mut renamed)) {
            Ok(()) => Ok(()),
            Err(error) => Err((error, Self { name, file, watch })),
        }
    }

    /// Keeps the file under its temporary name.
    pub(super) fn keep(self) {
        if let Some(name) = self.name {
            let _ = name.keep();
        }
        if let Handle::Staged(staged) = &self.file {
            staged.keep();
        }
    }
}

/// Creates an unnamed file, if the file system supports such files and there is a way to name it later.
#[cfg(target_os = "linux")]
fn unnamed(dir: &Path, mode: u32) -> Option<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, dir, flags, Mode::from_raw_mode(mode)).ok()?);
    // Locked before anyone can see it.
    lock::take(&file);
    let there = FileId::at(&proc_path(&file)).ok()?;
    (there == FileId::of(&file).ok()?).then_some(file)
}

/// Path under which the system shows an open file.
#[cfg(target_os = "linux")]
fn proc_path(file: &File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Gives an unnamed file a temporary name.
#[cfg(target_os = "linux")]
fn link(file: &File, path: &Path) -> io::Result<TempPath> {
    use rustix::fs::{AtFlags, CWD, linkat};
    let from = proc_path(file);
    let made = builder(path, |builder| {
        builder.make_in(parent(path), |temp| {
            again(|| Ok(linkat(CWD, &from, CWD, temp, AtFlags::SYMLINK_FOLLOW)?))
        })
    })?;
    Ok(made.into_temp_path())
}

/// Returns true for errors that mean that links are not allowed here, not that something is broken.
#[cfg(target_os = "linux")]
fn is_refusal(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::NOENT, Errno::XDEV, Errno::MLINK];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

#[cfg(target_os = "linux")]
fn rewound(file: &File) -> io::Result<File> {
    use std::io::{Seek, SeekFrom};
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_longest_name_that_a_file_may_have_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n".repeat(255));
        super::super::OutputFile::write(&path, b"x", true).unwrap();
        assert_eq!(fs_err::read(path).unwrap(), b"x");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[cfg(unix)]
    mod modes {
        use super::super::super::OutputFile;
        use super::super::super::mode::{CLOSED, OPEN};
        use super::super::*;
        use rustix::fs::Mode;
        use std::os::unix::fs::{MetadataExt, PermissionsExt};

        fn mode(file: &File) -> u32 {
            file.metadata().unwrap().mode() & 0o7777
        }

        /// Begins a file in both ways.
        fn begin(path: &Path) -> [TemporaryFile; 2] {
            let mode = if path.exists() { CLOSED } else { OPEN };
            [TemporaryFile::next_to(path).unwrap(), TemporaryFile::named(path, mode).unwrap()]
        }

        #[test]
        fn a_file_that_replaces_another_keeps_its_mode_and_is_never_more_open() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.gguf");
            for wanted in [0o600, 0o640, 0o444, 0o664, 0o777] {
                fs_err::write(&path, b"old").unwrap();
                fs_err::set_permissions(&path, PermissionsExt::from_mode(wanted)).unwrap();
                for mut temporary in begin(&path) {
                    assert_eq!(mode(&temporary.file().unwrap()) & !0o600, 0, "{wanted:o}");
                    temporary.prepare_rename(&path).unwrap();
                    assert_eq!(mode(&temporary.file().unwrap()), wanted);
                    temporary.rename(&path).unwrap();
                    assert_eq!(mode(&File::options().read(true).open(&path).unwrap()), wanted);
                }
                fs_err::remove_file(&path).unwrap();
            }
        }

        #[test]
        fn a_new_file_follows_the_umask_and_a_narrower_mode_set_meanwhile_holds() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.gguf");
            // The umask belongs to the process: it is queried, not set, since other tests run at the same time.
            let probe = File::options().write(true).create_new(true).open(dir.path().join("probe")).unwrap();
            for temporary in begin(&path) {
                assert_eq!(mode(&temporary.file().unwrap()), mode(&probe));
            }
            let output = OutputFile::create(&path).unwrap();
            fs_err::write(&path, b"in between").unwrap();
            fs_err::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            output.write_at(0, b"new").unwrap();
            output.commit(true).unwrap();
            assert_eq!(fs_err::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        }

        #[test]
        fn owner_and_group_are_kept_where_that_is_permitted() {
            if !rustix::process::geteuid().is_root() {
                return eprintln!("not the superuser, so owners are not tried");
            }
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.gguf");
            fs_err::write(&path, b"old").unwrap();
            std::os::unix::fs::chown(&path, Some(12345), Some(54321)).unwrap();
            fs_err::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
            OutputFile::write(&path, b"new", false).unwrap();
            let found = fs_err::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (12345, 54321, 0o640));
        }

        #[test]
        fn what_cannot_be_linked_is_copied() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.gguf");
            assert!(Mode::from_raw_mode(CLOSED).contains(Mode::RUSR));
            fs_err::write(&path, b"old").unwrap();
            let mut temporary = TemporaryFile::named(&path, CLOSED).unwrap();
            // A file that lost its only name cannot be linked, like one whose links are forbidden.
            let name = temporary.name.take().unwrap();
            drop(name);
            std::os::unix::fs::FileExt::write_all_at(&*temporary.file().unwrap(), b"new content", 0).unwrap();
            temporary.prepare_rename(&path).unwrap();
            temporary.rename(&path).unwrap();
            assert_eq!(fs_err::read(&path).unwrap(), b"new content");
        }
    }
}
