//! Sets of more files than a process may have open at once. Until they are renamed, the files have their own names in a
//! directory next to the targets. That directory is locked like a temporary file, so that its files need no locks of
//! their own. Only the files written to last are open.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::locked_directory::make_locked;
use super::temporary_name::parts_name;
use super::{fault, is_too_many, mode, named, parent};
use crate::mmap::faults::{self, Watch};
use crate::platform::again;
use crate::sync::Unpoisoned;

/// Maximum number of open files of a set: more would not make writing them faster.
const MOST_OPEN: usize = 256;

/// Shared state of the files of a large set.
#[derive(Debug)]
pub(super) struct StagedSet {
    most: usize,
    sync: bool,
    /// Open files, the one written to last at the end.
    open: Mutex<VecDeque<(Arc<StagedFile>, Arc<File>)>>,
    /// Staging directories, one next to the targets of each directory.
    stagings: Mutex<Vec<(PathBuf, Weak<StagingDirectory>)>>,
}

/// A file of the set, open or not.
#[derive(Debug)]
struct StagedFile {
    path: PathBuf,
    /// True if something was written to it since it was synced.
    is_dirty: AtomicBool,
}

/// Handle of a file of the set. Dropping it closes the file; its name is removed by the owner of the name.
#[derive(Debug)]
pub(super) struct StagedHandle {
    staged: Arc<StagedFile>,
    set: Arc<StagedSet>,
    staging: Arc<StagingDirectory>,
    /// Final mode of the file, if its writer could not reopen it with that mode.
    mode: Option<u32>,
}

impl StagedSet {
    /// Creates the state of a set with at most `most` open files, in any case at most [`MOST_OPEN`].
    pub(super) fn new(most: usize, sync: bool) -> Arc<Self> {
        let most = most.clamp(1, MOST_OPEN);
        Arc::new(Self { most, sync, open: Mutex::default(), stagings: Mutex::default() })
    }

    /// Begins a file with the final path `path`. Returns its current path and the file.
    pub(super) fn begin(self: &Arc<Self>, path: &Path, mode: u32) -> io::Result<(PathBuf, StagedHandle)> {
        let staging = self.staging(path)?;
        fault::point()?;
        let staged_path = staging.path.join(path.file_name().unwrap_or_default());
        let file = mode::create(&staged_path, mode)?;
        fault::point()?;
        let mode = openable(&file)?;
        let staged = Arc::new(StagedFile { path: staged_path.clone(), is_dirty: AtomicBool::new(true) });
        self.enter(&staged, file)?;
        Ok((staged_path, StagedHandle { staged, set: Arc::clone(self), staging, mode }))
    }

    /// Returns the staging directory for files whose final place is next to `path`.
    fn staging(&self, path: &Path) -> io::Result<Arc<StagingDirectory>> {
        let dir = parent(path);
        let mut stagings = lock(&self.stagings);
        if let Some(staging) =
            stagings.iter().find(|(other, _)| other == dir).and_then(|(_, staging)| staging.upgrade())
        {
            return Ok(staging);
        }
        let staging = Arc::new(StagingDirectory::next_to(path)?);
        stagings.retain(|(other, _)| other != dir);
        stagings.push((dir.to_owned(), Arc::downgrade(&staging)));
        Ok(staging)
    }

    /// Adds an open file and closes the ones that were not written to for longest.
    fn enter(&self, staged: &Arc<StagedFile>, file: File) -> io::Result<Arc<File>> {
        let file = Arc::new(file);
        let mut open = lock(&self.open);
        let mut over = Vec::new();
        while open.len() >= self.most {
            over.extend(open.pop_front());
        }
        open.push_back((Arc::clone(staged), Arc::clone(&file)));
        drop(open);
        over.iter().try_for_each(|(staged, file)| self.retire(staged, file))?;
        Ok(file)
    }

    /// Returns a file of the set, reopened if necessary.
    fn open(&self, staged: &Arc<StagedFile>) -> io::Result<Arc<File>> {
        let find = |open: &mut VecDeque<(Arc<StagedFile>, Arc<File>)>| {
            let at = open.iter().position(|(other, _)| Arc::ptr_eq(other, staged))?;
            let found = open.remove(at)?;
            let file = Arc::clone(&found.1);
            open.push_back(found);
            Some(file)
        };
        if let Some(file) = find(&mut lock(&self.open)) {
            return Ok(file);
        }
        loop {
            match reopen(&staged.path) {
                // Two threads may open one file at once: then it is listed twice for a while.
                Ok(file) => return self.enter(staged, file),
                Err(error) if is_too_many(&error) => {
                    let Some((staged, file)) = lock(&self.open).pop_front() else { return Err(error) };
                    self.retire(&staged, &file)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Syncs a file that is about to be closed: after a reopen, the system may have forgotten that writing it to the
    /// disk failed. A write in the meantime marks it dirty again.
    fn retire(&self, staged: &StagedFile, file: &File) -> io::Result<()> {
        if self.sync { staged.sync(file) } else { Ok(()) }
    }

    fn forget(&self, staged: &Arc<StagedFile>) {
        lock(&self.open).retain(|(other, _)| !Arc::ptr_eq(other, staged));
    }
}

impl StagedFile {
    fn sync(&self, file: &File) -> io::Result<()> {
        if self.is_dirty.swap(false, Ordering::AcqRel) {
            file.sync_all().map_err(|error| named(&self.path, &error))?;
        }
        Ok(())
    }
}

impl StagedHandle {
    pub(super) fn open(&self) -> io::Result<Arc<File>> {
        self.set.open(&self.staged)
    }

    /// Marks the file as dirty; to be called after writing.
    pub(super) fn touch(&self) {
        self.staged.is_dirty.store(true, Ordering::Release);
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        if self.staged.is_dirty.load(Ordering::Acquire) { self.staged.sync(&*self.open()?) } else { Ok(()) }
    }

    /// Returns the final mode of the file, if it has another one until it gets its name.
    pub(super) fn mode(&self) -> Option<u32> {
        self.mode
    }

    /// Returns the file's current name relative to its target directory.
    pub(super) fn name(&self) -> Option<OsString> {
        Some(Path::new(self.staging.path.file_name()?).join(self.staged.path.file_name()?).into_os_string())
    }

    /// Keeps the directory and its content.
    pub(super) fn keep(&self) {
        self.staging.is_kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for StagedHandle {
    fn drop(&mut self) {
        self.set.forget(&self.staged);
    }
}

/// Locked directory with the files of a set. Dropping it removes the directory.
#[derive(Debug)]
struct StagingDirectory {
    path: PathBuf,
    is_kept: AtomicBool,
    /// Removes the directory if the run ends without unwinding.
    _watch: Watch,
    /// Held open for the lock.
    _open: Option<File>,
}

impl StagingDirectory {
    fn next_to(first: &Path) -> io::Result<Self> {
        // Private to the owner until the files have their names and modes.
        let (path, open) = make_locked(&parent(first).join(parts_name(first)), 0o700)?;
        let watch = faults::temporary(&path);
        Ok(Self { path, is_kept: AtomicBool::new(false), _watch: watch, _open: open })
    }
}

impl Drop for StagingDirectory {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            let _ = fs_err::remove_dir_all(&self.path);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unpoisoned()
}

fn reopen(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    }
    again(|| options.open(path))
}

/// Makes sure that the writer can reopen the file, whatever the umask. Returns its previous mode if it was changed.
fn openable(file: &File) -> io::Result<Option<u32>> {
    #[cfg(unix)]
    {
        use rustix::fs::fchmod;
        use std::os::unix::fs::MetadataExt;
        let mode = file.metadata()?.mode() & 0o7777;
        if mode & 0o600 != 0o600 {
            fchmod(file, mode::mode_of(mode | 0o600))?;
            return Ok(Some(mode));
        }
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(None)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::super::fault::{self, Fault};
    use super::super::{Destination, NewDirectory, OutputError, OutputFile, OutputSet};
    use super::*;
    use crate::output::tests::entries;

    const N_FILES: usize = 7;
    const MOST: usize = 2;

    fn names() -> Vec<String> {
        (1..=N_FILES).map(|n| format!("m-{n:05}-of-{N_FILES:05}.gguf")).collect()
    }

    fn destinations(dir: &Path) -> Result<Vec<Destination>, OutputError> {
        let mut found: Vec<_> =
            names().iter().map(|name| Destination::of_part(&dir.join(name))).collect::<Result<_, _>>()?;
        Destination::clear_all(&mut found)?;
        Ok(found)
    }

    fn begin(dir: &Path, content: &str, sync: bool) -> Result<Vec<OutputFile>, OutputError> {
        let set = OutputSet::with_limit(MOST, sync);
        let outputs: Vec<_> = destinations(dir)?
            .into_iter()
            .map(|destination| set.create(destination))
            .collect::<Result<_, OutputError>>()?;
        for (output, name) in outputs.iter().zip(names()) {
            output.reserve(content.len() as u64)?;
            output.write_at(content.len() as u64, format!(" {name}").as_bytes())?;
        }
        // Written again, after the first files have been closed.
        outputs.iter().try_for_each(|output| output.write_at(0, content.as_bytes()))?;
        Ok(outputs)
    }

    fn write(dir: &Path, content: &str, sync: bool) -> Result<(), OutputError> {
        Ok(OutputFile::commit_all(begin(dir, content, sync)?, sync)?)
    }

    /// Content of all files, `None` where there are none; panics if they differ.
    fn content(dir: &Path) -> Option<String> {
        let read = |name: &String| {
            let text = fs_err::read_to_string(dir.join(name)).ok()?;
            Some(text.strip_suffix(&format!(" {name}")).expect("a whole file").to_owned())
        };
        let mut found: Vec<_> = names().iter().map(read).collect();
        found.dedup();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// Finishes what the run before left half done. A process that another test starts meanwhile holds the locks of this
    /// one until it runs its program, so the first try may find a set of the living.
    fn finish(dir: &Path) {
        for _ in 0..1000 {
            drop(destinations(dir).unwrap());
            if entries(dir) == names() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn n_open_in(dir: &Path) -> usize {
        let links = fs_err::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|link| fs_err::read_link(link.unwrap().path()).ok());
        targets.filter(|target| target.starts_with(dir)).count()
    }

    #[test]
    fn few_files_are_open_and_all_get_their_names() {
        let dir = tempfile::tempdir().unwrap();
        for (sync, text) in [(true, "first"), (false, "second")] {
            let outputs = begin(dir.path(), text, sync).unwrap();
            // The lock is an open file, too.
            let n_open = n_open_in(dir.path());
            assert!((1..=MOST + 1).contains(&n_open), "{n_open}");
            OutputFile::commit_all(outputs, sync).unwrap();
            assert_eq!(content(dir.path()).as_deref(), Some(text));
            assert_eq!(entries(dir.path()), names());
            assert_eq!(n_open_in(dir.path()), 0);
        }
        drop(begin(dir.path(), "third", true).unwrap());
        assert_eq!(content(dir.path()).as_deref(), Some("second"));
        assert_eq!(entries(dir.path()), names());
    }

    #[test]
    fn modes_are_those_of_files_that_were_always_open() {
        let (large, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = &names()[0];
        let mode = |dir: &Path| fs_err::metadata(dir.join(name)).unwrap().mode() & 0o7777;
        write(large.path(), "new", false).unwrap();
        OutputFile::write(&small.path().join(name), b"new", false).unwrap();
        assert_eq!(mode(large.path()), mode(small.path()));
        for wanted in [0o640, 0o444, 0o600] {
            fs_err::set_permissions(large.path().join(name), PermissionsExt::from_mode(wanted)).unwrap();
            write(large.path(), "newer", false).unwrap();
            assert_eq!(mode(large.path()), wanted);
        }
        // As with a umask that denies the owner everything.
        let path = large.path().join("closed");
        let file = mode::create(&path, 0o044).unwrap();
        assert_eq!(openable(&file).unwrap().map(|mode| mode & !0o044), Some(0));
        reopen(&path).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = begin(dir.path(), "new", false).unwrap();
        fs_err::write(dir.path().join("other"), b"keep").unwrap();
        let staging = entries(dir.path()).into_iter().find(|name| name.starts_with('.')).unwrap();
        let staged = dir.path().join(staging).join(&names()[0]);
        fs_err::remove_file(&staged).unwrap();
        std::os::unix::fs::symlink("../other", &staged).unwrap();
        assert!(outputs[0].write_at(0, b"lost").is_err());
        assert_eq!(fs_err::read(dir.path().join("other")).unwrap(), b"keep");
    }

    #[test]
    fn a_new_directory_holds_many_files() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("out");
        let mut dir = NewDirectory::of(&path).unwrap();
        dir.begin().unwrap();
        dir.set = OutputSet::with_limit(MOST, true);
        let files: Vec<_> = names().iter().map(|name| dir.create(name).unwrap()).collect();
        for file in &files {
            file.write_at(0, b"x").unwrap();
        }
        dir.commit(files, true).unwrap();
        assert_eq!(entries(&path), names());
        assert_eq!(entries(root.path()), ["out"]);
    }

    /// The process that is killed: this test binary, started again.
    #[test]
    #[ignore = "the victim of the tests below, not a test"]
    fn victim() {
        let Ok(plan) = std::env::var("GGUF_CORE_TEST_STAGED_SET_VICTIM") else { return };
        let (point, dir) = plan.split_once(' ').unwrap();
        fault::arm(Some((point.parse().unwrap(), Fault::Kill)));
        write(Path::new(dir), "new", true).unwrap();
    }

    fn n_points() -> usize {
        let dir = tempfile::tempdir().unwrap();
        fault::arm(None);
        write(dir.path(), "new", true).unwrap();
        fault::reached()
    }

    #[test]
    fn whoever_is_killed_at_any_point_leaves_what_the_next_run_clears_up() {
        let (mut n_old, mut n_new, mut n_left) = (0, 0, 0);
        // Two points for each file that is begun, two for each that gets its name.
        assert!(n_points() > 4 * N_FILES);
        for point in 0..n_points() {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "old", false).unwrap();
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "output::staged_set::tests::victim", "--ignored"])
                .env("GGUF_CORE_TEST_STAGED_SET_VICTIM", format!("{point} {}", dir.path().display()))
                .stdout(std::process::Stdio::null())
                .status()
                .unwrap();
            assert_eq!(status.signal(), Some(9), "point {point}: {status}");
            n_left += usize::from(entries(dir.path()) != names());
            // Another run of the same command that writes nothing.
            drop(destinations(dir.path()).unwrap());
            assert_eq!(entries(dir.path()), names(), "point {point}");
            match content(dir.path()).as_deref() {
                Some("old") => n_old += 1,
                Some("new") => n_new += 1,
                other => panic!("point {point}: {other:?}"),
            }
            write(dir.path(), "third", false).unwrap();
            assert_eq!(content(dir.path()).as_deref(), Some("third"));
            assert_eq!(entries(dir.path()), names(), "point {point}");
        }
        assert!(n_old > 3 * N_FILES && n_new >= N_FILES && n_left > 4 * N_FILES, "{n_old} {n_new} {n_left}");
    }

    #[test]
    fn an_error_at_any_point_keeps_the_old_set_or_tells_how_to_finish() {
        let mut n_half = 0;
        for point in 0..n_points() {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "old", false).unwrap();
            fault::arm(Some((point, Fault::Error)));
            let error = write(dir.path(), "new", true).unwrap_err().to_string();
            fault::arm(None);
            if error.contains("files have been replaced: the same command") {
                n_half += 1;
                finish(dir.path());
                assert_eq!(content(dir.path()).as_deref(), Some("new"), "point {point}");
            } else {
                assert!(content(dir.path()).is_some(), "point {point}");
            }
            finish(dir.path());
            assert_eq!(entries(dir.path()), names(), "point {point}: {error}");
        }
        assert_eq!(n_half, N_FILES - 1);
    }

    #[test]
    fn the_living_are_not_cleared_and_of_writers_at_once_one_wins_whole() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = begin(dir.path(), "slow", false).unwrap();
        // Whole runs of others come and go while this one has most of its files closed.
        write(dir.path(), "fast", false).unwrap();
        assert_eq!(content(dir.path()).as_deref(), Some("fast"));
        OutputFile::commit_all(outputs, false).unwrap();
        assert_eq!(content(dir.path()).as_deref(), Some("slow"));
        for _ in 0..10 {
            std::thread::scope(|scope| {
                for writer in 0..4 {
                    let dir = dir.path();
                    scope.spawn(move || {
                        for _ in 0..3 {
                            write(dir, &writer.to_string(), false).unwrap();
                        }
                    });
                }
            });
            assert!(content(dir.path()).is_some());
            assert_eq!(entries(dir.path()), names());
        }
    }
}
