//! Output files that appear whole or not at all: written under a temporary name, synced, renamed. The target is checked
//! first: a rename would replace a device or a link by a file.
//!
//! | module | subject |
//! |---|---|
//! | `destination` `link` `error` | the path of an output, links followed, and the reasons to refuse it |
//! | `temporary` `temporary_name` `mode` | the file before it gets its final name, its name and mode until then |
//! | `commit` `journal` `checksum` | the rename, of one file or of a set |
//! | `set` `staged_set` | sets of files, and those of more files than may be open at once |
//! | `locked_directory` `new_directory` | locked directories, and a new directory and its content, created as a whole |
//! | `leftovers` `lock` | files that killed runs left, and locks that tell whether a run is alive |
//! | `shared` | a file that several runs write together |
//! | `guard` | files that an output must not replace |
//! | `write_back` | early write-back, which keeps the disk busy while a file is written |
//! | `edit_lock` | a file that is edited in place, by one program at a time |

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::platform::{self, FileId};
use commit::Finished;
use edit_lock::FileState;
use temporary::{OpenFile, TemporaryFile};

mod checksum;
mod commit;
mod destination;
mod edit_lock;
mod error;
mod fault;
mod guard;
mod journal;
mod leftovers;
mod link;
mod lock;
mod locked_directory;
mod mode;
mod new_directory;
mod set;
mod shared;
mod staged_set;
mod temporary;
mod temporary_name;
mod write_back;

pub use destination::{Destination, check_name};
pub use edit_lock::{EditLock, EditLockError};
pub use error::{Obstacle, OutputError};
pub use guard::{
    CARD_DRAFT, CHART, FoundKind, GuardError, LADDER_PAGE, MODELFILE, OutputGuard, OutputKind, check_kind,
};
pub use locked_directory::ScratchDirectory;
pub use new_directory::NewDirectory;
pub use set::OutputSet;
pub use shared::{Begun, SharedOutput, other_attempts, sweep, unfinished};
pub use write_back::WriteBack;

/// A file being written. It gets its final name in [`OutputFile::commit`]; dropped before that, it is removed. Bytes
/// written to a device arrive at once.
#[derive(Debug)]
pub struct OutputFile {
    target: PathBuf,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    /// A file next to the one that it replaces, of which `before` is the state at the beginning.
    Temporary { temporary: TemporaryFile, path: PathBuf, before: Option<FileState>, is_edit: bool },
    /// Written in place.
    Device(File),
    /// Written in place, also by other runs: see [`SharedOutput`].
    Shared(File),
}

impl OutputFile {
    /// Begins an output: a temporary file in the target's directory, or the device that the target is.
    pub fn create(target: &Path) -> Result<Self, OutputError> {
        Destination::of(target)?.create()
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// [`OutputError`]; then there is no new file.
    pub fn write(target: &Path, bytes: &[u8], sync: bool) -> Result<(), OutputError> {
        let output = Self::create(target)?;
        output.write_at(0, bytes)?;
        Ok(output.commit(sync)?)
    }

    /// Writes several whole files, or none of them. One without bytes is removed after the others have their names. What
    /// a dead run has left of the same files is finished first, if it wrote some or all of them.
    ///
    /// # Errors
    /// [`OutputError`]; as [`OutputFile::commit_all`] says, the files are then as they were.
    pub fn write_all<B: AsRef<[u8]>>(files: &[(PathBuf, Option<B>)], sync: bool) -> Result<(), OutputError> {
        let mut destinations: Vec<_> =
            files.iter().map(|(target, _)| Destination::of(target)).collect::<Result<_, _>>()?;
        Destination::clear_all(&mut destinations)?;
        let mut outputs = Vec::new();
        for (destination, bytes) in destinations.into_iter().zip(files.iter().map(|(_, bytes)| bytes)) {
            if let Some(bytes) = bytes {
                let output = destination.create()?;
                output.write_at(0, bytes.as_ref())?;
                outputs.push(output);
            }
        }
        Self::commit_all(outputs, sync)?;
        for (target, _) in files.iter().filter(|(_, bytes)| bytes.is_none()) {
            match fs_err::remove_file(target) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the final name as it was given.
    pub fn target(&self) -> &Path {
        &self.target
    }

    fn file(&self) -> io::Result<OpenFile<'_>> {
        match &self.sink {
            Sink::Temporary { temporary, .. } => temporary.file().map_err(|e| named(&self.target, &e)),
            Sink::Device(file) | Sink::Shared(file) => Ok(OpenFile::Own(file)),
        }
    }

    fn touch(&self) {
        if let Sink::Temporary { temporary, .. } = &self.sink {
            temporary.touch();
        }
    }

    /// Sets the length. Blocks are reserved where the file system supports it, so that a full disk is detected now.
    ///
    /// # Errors
    /// I/O errors, named with the path; a full disk.
    pub fn reserve(&self, n_bytes: u64) -> io::Result<()> {
        let Sink::Temporary { temporary, .. } = &self.sink else { return Ok(()) };
        temporary.touch();
        platform::reserve(&*self.file()?, n_bytes).map_err(|e| named(&self.target, &e))
    }

    /// Returns the bytes on the disk that the file has already; 0 if the system does not report them.
    pub fn allocated_bytes(&self) -> u64 {
        self.file().map_or(0, |file| platform::allocated_bytes(&file))
    }

    /// Writes bytes at an offset; callable from several threads at once.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file()?;
        let written = fault::point().and_then(|()| platform::write_all_at(&file, bytes, offset));
        let written = written.map_err(|e| named(&self.target, &e));
        self.touch();
        written
    }

    /// Gives the file its final name, after a sync to the disk if asked for. An existing file of that name is
    /// replaced in one step.
    ///
    /// # Errors
    /// I/O errors, named with the path; the temporary file is then removed.
    pub fn commit(self, sync: bool) -> io::Result<()> {
        Self::commit_all(vec![self], sync)
    }

    /// Gives several files their names. Those of one directory are a set: once the first has its name, they all get
    /// theirs, in this run or in the next that writes the same files. If two runs write one set at once, the files of
    /// the last one are all there.
    ///
    /// # Errors
    /// I/O errors, named with the path; something else that took one of the names in the meantime. Then no file of the set
    /// was replaced. Only if renaming itself fails half way were some replaced; the message states how many.
    pub fn commit_all(outputs: Vec<Self>, sync: bool) -> io::Result<()> {
        // Steps that take long and may fail (a disk that is full only now) come before the first rename.
        for output in outputs.iter().filter(|_| sync) {
            fault::point().and_then(|()| output.sync())?;
        }
        let files = outputs.into_iter().filter_map(|Self { sink, .. }| match sink {
            Sink::Temporary { temporary, path, before, is_edit } => {
                Some(Finished { temporary, path, before, is_edit })
            }
            Sink::Device(_) | Sink::Shared(_) => None,
        });
        commit::commit(files.collect(), sync)
    }

    fn sync(&self) -> io::Result<()> {
        match &self.sink {
            Sink::Temporary { temporary, .. } => temporary.sync().map_err(|e| named(&self.target, &e)),
            Sink::Shared(file) => file.sync_all().map_err(|e| named(&self.target, &e)),
            Sink::Device(_) => Ok(()),
        }
    }

    /// Syncs to the disk what was written so far, for a file that will be synced in the end.
    fn sync_data(&self) -> io::Result<()> {
        match &self.sink {
            Sink::Temporary { .. } | Sink::Shared(_) => {
                self.file()?.sync_data().map_err(|e| named(&self.target, &e))
            }
            Sink::Device(_) => Ok(()),
        }
    }
}

/// Returns advice for write errors whose messages explain little.
pub fn io_hints(error: &io::Error) -> Vec<String> {
    match error.kind() {
        io::ErrorKind::FileTooLarge => vec![
            "a limit of this process (`ulimit -f`) or of the file system: raise it, or write smaller files"
                .to_owned(),
        ],
        _ => Vec::new(),
    }
}

fn named(target: &Path, error: &io::Error) -> io::Error {
    let why = if is_too_many(error) { ": a limit of open files is reached (`ulimit -n`)" } else { "" };
    io::Error::new(error.kind(), format!("{}: {error}{why}", target.display()))
}

/// Returns true if the process, or the system, has too many files open.
fn is_too_many(error: &io::Error) -> bool {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    }
    #[cfg(not(unix))]
    {
        let _ = error;
        false
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs a directory, so that its names survive a power failure.
fn sync_directory(dir: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
        if let Err(error) = fs_err::File::open(dir).and_then(|dir| dir.sync_all())
            // A directory that may be written but not read; a file system without such syncs.
            && !matches!(error.kind(), PermissionDenied | InvalidInput | Unsupported)
        {
            let text = format!("{error}; the names of new files may not survive a power failure");
            return Err(io::Error::new(error.kind(), text));
        }
    }
    #[cfg(not(unix))]
    let _ = dir;
    Ok(())
}

/// Returns true if both paths lead to one existing file, through links of any kind.
pub fn same_file(a: &Path, b: &Path) -> bool {
    // A file may be replaced between two looks, and another may get its number.
    let [first, other, again] = [a, b, a].map(|path| FileId::at(path).ok());
    first.is_some() && first == other && other == again
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the entries of a directory, sorted.
    pub(super) fn entries(dir: &Path) -> Vec<String> {
        let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn pieces_of_a_write_come_to_their_places() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let output = OutputFile::create(&path).unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        for (from, to) in [(150_000, 200_000), (0, 0), (32_767, 150_000), (0, 32_767)] {
            output.write_at(7 + from as u64, &bytes[from..to]).unwrap();
        }
        output.write_at(0, &[9; 7]).unwrap();
        output.commit(false).unwrap();
        let found = fs_err::read(&path).unwrap();
        assert_eq!(found[..7], [9; 7]);
        assert!(found[7..] == bytes);
    }

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
}
