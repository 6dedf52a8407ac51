//! Destination of an output, checked before work begins.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::edit_lock::FileState;
use super::error::{Obstacle, OutputError};
use super::link::follow;
use super::staged_set::StagedSet;
use super::temporary::TemporaryFile;
use super::{OutputFile, Sink, leftovers, named, parent};
use crate::platform;

/// Destination of an output, checked before any work is done.
#[derive(Debug)]
pub struct Destination {
    target: PathBuf,
    resolved: ResolvedTarget,
    /// True once leftovers of dead runs have been looked for.
    is_cleared: bool,
    /// True for the edit of a file, which keeps its kind or changes it.
    is_edit: bool,
}

#[derive(Debug)]
enum ResolvedTarget {
    /// A regular file, existing or not, at the end of the target's links.
    File(PathBuf),
    /// A character device that takes positioned writes, such as `/dev/null`.
    Device(File),
}

impl Destination {
    /// Checks what exists at the target. Links are followed, also those that lead to no file yet.
    ///
    /// # Errors
    /// [`OutputError`]: something that is neither a file nor a device with positions, a directory that does not exist or
    /// cannot be written to.
    pub fn of(target: &Path) -> Result<Self, OutputError> {
        check_name(target)?;
        let refused = |obstacle| OutputError::Refused { target: target.to_owned(), obstacle };
        let resolved = match target.metadata() {
            Ok(found) if found.is_file() => {
                ResolvedTarget::File(target.canonicalize().map_err(|error| named(target, &error))?)
            }
            Ok(found) if found.is_dir() => return Err(refused(Obstacle::Directory)),
            Ok(found) => ResolvedTarget::Device(open_device(target, &found)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = follow(target).map_err(|error| named(target, &error))?;
                let Some(name) = path.file_name() else {
                    return Err(refused(Obstacle::DirectoryName));
                };
                let dir = parent(&path);
                if !dir.is_dir() {
                    return Err(OutputError::NoDirectory { target: target.to_owned(), dir: dir.to_owned() });
                }
                // One directory has one name, so that files that exist and files that do not are one set.
                let dir = dir.canonicalize().map_err(|error| named(target, &error))?;
                ResolvedTarget::File(dir.join(name))
            }
            Err(error) => return Err(named(target, &error).into()),
        };
        if let ResolvedTarget::File(path) = &resolved {
            let cannot = |error| {
                io::Error::new(io::Error::kind(&error), format!("cannot write to its folder: {error}"))
            };
            platform::check_writable(parent(path)).map_err(|error| named(target, &cannot(error)))?;
        }
        Ok(Self { target: target.to_owned(), resolved, is_cleared: false, is_edit: false })
    }

    /// Checks the target of an output that may not be a device, because it has several parts side by side.
    ///
    /// # Errors
    /// As [`Destination::of`]; a device.
    pub fn of_part(target: &Path) -> Result<Self, OutputError> {
        let destination = Self::of(target)?;
        match destination.resolved {
            ResolvedTarget::File(_) => Ok(destination),
            ResolvedTarget::Device(_) => {
                Err(OutputError::Refused { target: destination.target, obstacle: Obstacle::DeviceForParts })
            }
        }
    }

    /// Marks the output as an edit: it replaces the file that is there now, of whatever kind, and no other.
    pub fn for_edit(self) -> Self {
        Self { is_edit: true, ..self }
    }

    /// Returns the path of the file, links followed.
    pub(super) fn into_file(self) -> Result<PathBuf, OutputError> {
        match self.resolved {
            ResolvedTarget::File(path) => Ok(path),
            ResolvedTarget::Device(_) => {
                Err(OutputError::Refused { target: self.target, obstacle: Obstacle::DeviceForParts })
            }
        }
    }

    /// Returns the free bytes where the file goes; `None` for a device, and if the system does not report them.
    pub fn free_bytes(&self) -> Option<u64> {
        match &self.resolved {
            ResolvedTarget::File(path) => platform::free_bytes(path),
            ResolvedTarget::Device(_) => None,
        }
    }

    /// Removes or finishes what killed runs have left of these outputs, as [`Destination::create`] does for each alone.
    /// Doing it first frees disk space, and a set is handled as one.
    ///
    /// # Errors
    /// I/O errors; [`OutputError::Interrupted`].
    pub fn clear_all(destinations: &mut [Self]) -> Result<(), OutputError> {
        let mut done: Vec<PathBuf> = Vec::new();
        for dir in destinations.iter().filter_map(Self::dir) {
            if done.iter().any(|other| other == dir) {
                continue;
            }
            let here = destinations.iter().filter(|other| other.dir() == Some(dir));
            let names: Vec<_> = here.filter_map(Self::name).collect();
            leftovers::clear(dir, &names)?;
            done.push(dir.to_owned());
        }
        for destination in destinations {
            destination.is_cleared = true;
        }
        Ok(())
    }

    fn dir(&self) -> Option<&Path> {
        match &self.resolved {
            ResolvedTarget::File(path) => Some(parent(path)),
            ResolvedTarget::Device(_) => None,
        }
    }

    fn name(&self) -> Option<&std::ffi::OsStr> {
        match &self.resolved {
            ResolvedTarget::File(path) => path.file_name(),
            ResolvedTarget::Device(_) => None,
        }
    }

    /// Begins the output. Leftovers of a killed run are removed.
    ///
    /// # Errors
    /// I/O errors, named with the target; [`OutputError::Interrupted`].
    pub fn create(self) -> Result<OutputFile, OutputError> {
        self.create_among(None)
    }

    /// Begins the output as one of the files of a set, if there is one.
    pub(super) fn create_among(mut self, set: Option<&Arc<StagedSet>>) -> Result<OutputFile, OutputError> {
        if !self.is_cleared {
            Self::clear_all(std::slice::from_mut(&mut self))?;
        }
        let target = self.target;
        let sink = match self.resolved {
            ResolvedTarget::Device(device) => Sink::Device(device),
            ResolvedTarget::File(path) => {
                let begun = match set {
                    Some(set) => TemporaryFile::among(set, &path),
                    None => TemporaryFile::next_to(&path),
                };
                let temporary = begun.map_err(|error| named(&target, &error))?;
                Sink::Temporary { temporary, before: FileState::at(&path), path, is_edit: self.is_edit }
            }
        };
        Ok(OutputFile { target, sink })
    }
}

/// Refuses names that are not file names, whatever exists there: `-`, and names that end in a separator. For outputs
/// whose files are named after `target`.
pub fn check_name(target: &Path) -> Result<(), OutputError> {
    let obstacle = match target.as_os_str().as_encoded_bytes() {
        b"-" => Obstacle::StandardOutput,
        [.., last] if std::path::is_separator(char::from(*last)) => {
            if !target.is_dir() {
                return Err(OutputError::NoDirectory { target: target.to_owned(), dir: target.to_owned() });
            }
            Obstacle::DirectoryName
        }
        _ => return Ok(()),
    };
    Err(OutputError::Refused { target: target.to_owned(), obstacle })
}

/// Opens a device, if it can be written at any position.
#[cfg(unix)]
fn open_device(target: &Path, found: &std::fs::Metadata) -> Result<File, OutputError> {
    use std::os::unix::fs::{FileExt, FileTypeExt};
    let refused = |obstacle| OutputError::Refused { target: target.to_owned(), obstacle };
    let kind = found.file_type();
    if kind.is_fifo() {
        return Err(refused(Obstacle::Fifo));
    } else if kind.is_socket() {
        return Err(refused(Obstacle::Socket));
    } else if kind.is_block_device() {
        return Err(refused(Obstacle::BlockDevice));
    }
    let device = File::options().write(true).open(target).map_err(|error| named(target, &error))?;
    // Writes nothing, but a device without positions refuses nevertheless.
    match device.write_at(&[], 0) {
        Ok(_) => Ok(device),
        Err(error) if error.kind() == io::ErrorKind::NotSeekable => Err(refused(Obstacle::Stream)),
        Err(error) => Err(named(target, &error).into()),
    }
}

/// Refuses always: other systems have no such devices below a path, or none that are known.
#[cfg(not(unix))]
fn open_device(target: &Path, _: &std::fs::Metadata) -> Result<File, OutputError> {
    Err(OutputError::Refused { target: target.to_owned(), obstacle: Obstacle::Stream })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

    /// Makes a private device node, so that the tests do not use the real ones.
    fn node(path: &Path, kind: FileType, [major, minor]: [u32; 2]) -> bool {
        let made = mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), makedev(major, minor));
        if let Err(error) = made {
            eprintln!("{}: not made, so not tested: {error}", path.display());
        }
        made.is_ok()
    }

    fn message(target: &Path) -> String {
        let error = Destination::of(target).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("{}: ", target.display())), "{text}");
        text[target.display().to_string().len() + 2..].to_owned()
    }

    #[test]
    fn a_device_is_written_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let null = dir.path().join("null");
        if !node(&null, FileType::CharacterDevice, [1, 3]) {
            return;
        }
        let before = null.symlink_metadata().unwrap();
        let out = match OutputFile::create(&null) {
            Ok(out) => out,
            Err(error) => return eprintln!("{error}: devices are not opened here, so not tested"),
        };
        out.reserve(1 << 40).unwrap();
        out.write_at(1 << 39, b"gone").unwrap();
        out.commit(true).unwrap();
        let after = null.symlink_metadata().unwrap();
        assert_eq!(after.file_type(), before.file_type());
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
        assert_eq!(Destination::of(&null).unwrap().free_bytes(), None);
        let error = Destination::of_part(&null).unwrap_err();
        assert!(matches!(error, OutputError::Refused { obstacle: Obstacle::DeviceForParts, .. }), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_found_before_the_work() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |mode| fs_err::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).unwrap();
        mode(0o555);
        if rustix::process::geteuid().is_root() {
            eprintln!("root may write to any folder, so not tested");
        } else {
            let found = message(&dir.path().join("out"));
            assert!(found.starts_with("cannot write to its folder: Permission denied"), "{found}");
        }
        mode(0o755);
        Destination::of(&dir.path().join("out")).unwrap();
    }

    #[test]
    fn the_real_null_device_is_a_destination() {
        let out = OutputFile::create(Path::new("/dev/null")).unwrap();
        assert!(matches!(out.sink, Sink::Device(_)));
        out.write_at(4096, b"gone").unwrap();
        out.commit(true).unwrap();
    }

    #[test]
    fn what_takes_no_positioned_writes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, socket, disk) =
            (dir.path().join("fifo"), dir.path().join("socket"), dir.path().join("disk"));
        assert!(node(&fifo, FileType::Fifo, [0, 0]));
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(message(&fifo), "this is a FIFO, which has no positions to write at");
        assert_eq!(message(&socket), "this is a socket, which has no positions to write at");
        // A number without a driver: opening it would fail, its metadata can be read.
        if node(&disk, FileType::BlockDevice, [4095, 1_048_575]) {
            assert_eq!(message(&disk), "this is a block device, a file name expected");
        }
        assert_eq!(message(dir.path()), "this is a directory, a file name expected");
    }

    #[test]
    fn names_that_are_no_file_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(message(Path::new("-")), "cannot write to standard output, only to a file");
        for name in ["./", "new/.."] {
            assert_eq!(message(&dir.path().join(name)), "not a file name", "{name}");
        }
        let new = dir.path().join("new/");
        assert_eq!(message(&new), format!("there is no directory {}", new.display()));
        assert_eq!(message(Path::new("")), "not a file name");
        let missing = dir.path().join("no/such/out.gguf");
        assert_eq!(
            message(&missing),
            format!("there is no directory {}", dir.path().join("no/such").display())
        );
        fs_err::write(dir.path().join("file"), b"x").unwrap();
        assert!(message(&dir.path().join("file/out.gguf")).starts_with("Not a directory"));
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn links_lead_to_the_file_that_is_replaced_or_made() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::create_dir_all(at("far")).unwrap();
        fs_err::write(at("far/old"), b"old").unwrap();
        symlink("far/old", at("to-old")).unwrap();
        symlink("to-old", at("to-link")).unwrap();
        symlink("far/new", at("to-new")).unwrap();
        symlink("nowhere/new", at("to-nowhere")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for (link, file) in [("to-link", "far/old"), ("to-new", "far/new")] {
            let out = OutputFile::create(&at(link)).unwrap();
            out.write_at(0, link.as_bytes()).unwrap();
            out.commit(false).unwrap();
            assert!(at(link).symlink_metadata().unwrap().is_symlink(), "{link}");
            assert!(at(file).symlink_metadata().unwrap().is_file(), "{file}");
            assert_eq!(fs_err::read(at(file)).unwrap(), link.as_bytes());
        }
        assert!(at("to-old").symlink_metadata().unwrap().is_symlink());
        assert_eq!(message(&at("to-nowhere")), format!("there is no directory {}", at("nowhere").display()));
        assert!(message(&at("loop")).contains("symbolic links"));
        assert_eq!(at("far").read_dir().unwrap().count(), 2);
    }
}
