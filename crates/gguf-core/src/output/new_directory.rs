//! An output that is a directory and appears whole. It is filled under a temporary name next to its own, locked like a
//! temporary file, and renamed, possibly over an empty directory. If that is impossible (the working directory, a
//! mounted disk, a directory inside one that we may not write), the files get their names in it together, like those of
//! a set.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::destination::{Destination, check_name};
use super::error::{Obstacle, OutputError};
use super::link::follow;
use super::locked_directory::make_locked;
use super::mode::inherit;
use super::{OutputFile, OutputSet, fault, leftovers, named, parent, sync_directory};
use crate::platform::again;

/// A new or empty directory. Dropped before it is committed, it is restored to its previous state.
#[derive(Debug)]
pub struct NewDirectory {
    path: PathBuf,
    /// Parent directories created for it, innermost first.
    created: Vec<PathBuf>,
    /// The files in it.
    pub(super) set: OutputSet,
    state: FillState,
}

#[derive(Debug)]
enum FillState {
    /// Only checked so far.
    Planned,
    /// The directory exists; files are written inside it.
    InPlace,
    /// Filled under a temporary name, then renamed to this path.
    Temporary(TemporaryDirectory, PathBuf),
}

impl NewDirectory {
    /// Checks the path, before hours of work. Leftovers of a killed run are removed.
    ///
    /// # Errors
    /// [`OutputError`]: the path is in use, or no directory should have that name.
    pub fn of(path: &Path) -> Result<Self, OutputError> {
        // `out/` is as good a name of a directory as `out`; `-` is not one.
        if path.as_os_str() == "-" {
            check_name(path)?;
        }
        let refused = |obstacle| Err(OutputError::Refused { target: path.to_owned(), obstacle });
        match path.metadata() {
            Ok(found) if !found.is_dir() => return refused(Obstacle::NotADirectory),
            Ok(_) if !leftovers::is_empty(path)? => return refused(Obstacle::NotEmpty),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(path, &error).into()),
        }
        Ok(Self {
            path: path.to_owned(),
            created: Vec::new(),
            set: OutputSet::default(),
            state: FillState::Planned,
        })
    }

    /// Begins the directory. Until it is committed, only its parent directories are visible.
    pub fn begin(&mut self) -> Result<(), OutputError> {
        let failed = |error: io::Error| OutputError::from(named(&self.path, &error));
        if self.path.is_dir() {
            let target = fs_err::canonicalize(&self.path)?;
            self.state = FillState::InPlace;
            if may_be_replaced(&target) {
                leftovers::clear_directories(&target)?;
                // Filled in place if nothing may be created next to it.
                if let Ok(temporary) = TemporaryDirectory::next_to(&target) {
                    self.state = FillState::Temporary(temporary, target);
                }
            }
            return Ok(());
        }
        let target = follow(&self.path).map_err(failed)?;
        if target.file_name().is_none() {
            return Err(OutputError::Refused { target, obstacle: Obstacle::DirectoryName });
        }
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.is_dir();
        self.created = target.ancestors().skip(1).take_while(is_missing).map(Path::to_owned).collect();
        fs_err::create_dir_all(parent(&target))?;
        leftovers::clear_directories(&target)?;
        let temporary = TemporaryDirectory::next_to(&target).map_err(failed)?;
        self.state = FillState::Temporary(temporary, target);
        Ok(())
    }

    /// Path of the directory, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Announces about how many files it will hold, and whether they are synced at the end. Without this call, they are
    /// few.
    pub fn expect(&mut self, n_files: usize, sync: bool) {
        self.set = OutputSet::of(n_files, sync);
    }

    /// Creates a subdirectory for files like `name/file`, unless it exists.
    pub fn create_folder(&mut self, name: &str) -> Result<(), OutputError> {
        let (folder, goes_with_it) = match &self.state {
            FillState::Temporary(temporary, _) => (temporary.path.join(name), true),
            FillState::InPlace | FillState::Planned => (self.path.join(name), false),
        };
        if !folder.is_dir() {
            fs_err::create_dir(&folder)?;
            if !goes_with_it {
                self.created.insert(0, folder);
            }
        }
        Ok(())
    }

    /// Begins a file in the directory.
    ///
    /// # Errors
    /// [`OutputError`], with the final name of the file.
    pub fn create(&self, name: &str) -> Result<OutputFile, OutputError> {
        let dir = match &self.state {
            FillState::Temporary(temporary, _) => &temporary.path,
            FillState::InPlace | FillState::Planned => &self.path,
        };
        let mut file = self.set.create(Destination::of(&dir.join(name))?)?;
        file.target = self.path.join(name);
        Ok(file)
    }

    /// Gives the files their names, in order, and then the directory its own.
    ///
    /// # Errors
    /// I/O errors. Then the directory is as it was, unless renaming itself failed half way in an existing one.
    pub fn commit(mut self, files: Vec<OutputFile>, sync: bool) -> io::Result<()> {
        if let (FillState::InPlace, Some(taken)) =
            (&self.state, files.iter().find(|file| file.target.symlink_metadata().is_ok()))
        {
            let target = taken.target.clone();
            return Err(OutputError::Refused { target, obstacle: Obstacle::Taken }.into());
        }
        OutputFile::commit_all(files, sync)?;
        if let FillState::Temporary(temporary, target) =
            std::mem::replace(&mut self.state, FillState::Planned)
        {
            temporary.rename(&target).map_err(|error| match error.kind() {
                io::ErrorKind::DirectoryNotEmpty
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::NotADirectory => {
                    OutputError::Refused { target: self.path.clone(), obstacle: Obstacle::Taken }.into()
                }
                _ => named(&self.path, &error),
            })?;
            fault::point()?;
            if sync {
                sync_directory(parent(&target))?;
            }
        }
        let created = std::mem::take(&mut self.created);
        if sync {
            // Includes the names of the directories that were created.
            created.iter().try_for_each(|dir| sync_directory(parent(dir)))?;
        }
        Ok(())
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        // Innermost first.
        self.state = FillState::Planned;
        for dir in &self.created {
            // A directory that is not empty is in use by others.
            let _ = fs_err::remove_dir(dir);
        }
    }
}

/// Returns true for an empty directory that may be replaced: it is not the working directory, and no disk is mounted on
/// it.
fn may_be_replaced(target: &Path) -> bool {
    let is_elsewhere = std::env::current_dir().is_ok_and(|here| !here.starts_with(target));
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        let found = statx(CWD, target, AtFlags::empty(), StatxFlags::BASIC_STATS);
        let root = StatxAttributes::MOUNT_ROOT;
        let is_mounted = found.map_or(true, |found| {
            !found.stx_attributes_mask.contains(root) || found.stx_attributes.contains(root)
        });
        is_elsewhere && !is_mounted
    }
    // On other systems a directory cannot replace another, or it is not known whether it can.
    #[cfg(not(target_os = "linux"))]
    {
        let _ = is_elsewhere;
        false
    }
}

/// A locked directory that has no final name yet. Dropping it removes it and its content.
#[derive(Debug)]
struct TemporaryDirectory {
    path: PathBuf,
    is_done: bool,
    /// Held open for the lock.
    open: Option<File>,
}

impl TemporaryDirectory {
    fn next_to(target: &Path) -> io::Result<Self> {
        let (path, open) = make_locked(target, 0o777)?;
        Ok(Self { path, is_done: false, open })
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        if let (Some(open), Ok(old)) = (&self.open, target.symlink_metadata()) {
            inherit(open, &old)?;
        }
        again(|| fs_err::rename(&self.path, target))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs_err::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::entries;

    fn write(path: &Path, content: &str, sync: bool) -> Result<(), OutputError> {
        let mut dir = NewDirectory::of(path)?;
        dir.begin()?;
        let files: Vec<_> =
            ["model", "config"].map(|name| dir.create(name)).into_iter().collect::<Result<_, _>>()?;
        for file in &files {
            file.write_at(0, content.as_bytes())?;
        }
        assert_eq!(files[0].target(), path.join("model"));
        Ok(dir.commit(files, sync)?)
    }

    #[test]
    fn what_was_created_vanishes_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let (dir, own) = (root.path().join("a/b/c"), root.path().join("own"));
        fs_err::create_dir_all(&own).unwrap();
        for path in [dir.as_path(), &root.path().join("a/b/c/"), &own] {
            let mut new = NewDirectory::of(path).unwrap();
            new.begin().unwrap();
            new.create("file").unwrap().write_at(0, b"x").unwrap();
            drop(new);
            assert_eq!(entries(root.path()), ["own"], "{}", path.display());
        }
        let mut new = NewDirectory::of(&dir).unwrap();
        new.begin().unwrap();
        fs_err::write(root.path().join("a/guest"), b"x").unwrap();
        drop(new);
        assert!(root.path().join("a/guest").exists() && !root.path().join("a/b").exists());
        for path in [&dir, &own] {
            write(path, "new", true).unwrap();
            assert_eq!(entries(path), ["config", "model"]);
        }
        assert_eq!(entries(root.path()), ["a", "own"]);
        assert_eq!(entries(&root.path().join("a/b")), ["c"]);
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs_err::write(&file, b"x").unwrap();
        let obstacle = |path: &Path| match NewDirectory::of(path) {
            Err(OutputError::Refused { obstacle, .. }) => obstacle,
            other => panic!("{other:?}"),
        };
        assert_eq!(obstacle(&file), Obstacle::NotADirectory);
        assert_eq!(obstacle(root.path()), Obstacle::NotEmpty);
        assert_eq!(obstacle(Path::new("-")), Obstacle::StandardOutput);
        // Windows does not report that a file is in the way; the directory is not made there.
        let error = NewDirectory::of(&file.join("dir")).and_then(|mut dir| dir.begin());
        let error = error.unwrap_err().to_string();
        let is_named = error.starts_with(&format!("{}: ", file.join("dir").display()));
        assert!(is_named || cfg!(windows), "{error}");
    }

    #[test]
    fn what_somebody_else_made_meanwhile_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("out");
        let mut new = NewDirectory::of(&path).unwrap();
        new.begin().unwrap();
        let file = new.create("model").unwrap();
        fs_err::create_dir_all(&path).unwrap();
        fs_err::write(path.join("theirs"), b"x").unwrap();
        let error = new.commit(vec![file], false).unwrap_err().to_string();
        assert!(
            error.ends_with("another program has written this while the directory was filled"),
            "{error}"
        );
        assert_eq!(entries(&path), ["theirs"]);
        assert_eq!(entries(root.path()), ["out"]);
    }

    #[cfg(target_os = "linux")]
    mod kills {
        use super::super::super::fault::{self, Fault};
        use super::*;
        use std::os::unix::process::ExitStatusExt;

        /// The process that is killed: this test binary, started again.
        #[test]
        #[ignore = "the victim of the test below, not a test"]
        fn victim() {
            let Ok(plan) = std::env::var("GGUF_CORE_TEST_VICTIM") else { return };
            let (point, path) = plan.split_once(' ').unwrap();
            fault::arm(Some((point.parse().unwrap(), Fault::Kill)));
            write(Path::new(path), "new", true).unwrap();
        }

        fn run(point: usize, cwd: &Path, path: &Path) -> std::process::ExitStatus {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "output::new_directory::tests::kills::victim", "--ignored"])
                .env("GGUF_CORE_TEST_VICTIM", format!("{point} {}", path.display()))
                .current_dir(cwd)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap()
        }

        #[test]
        fn whoever_is_killed_leaves_no_obstacle() {
            for (is_there, is_within) in [(false, false), (true, false), (true, true)] {
                let mut n_kills = 0;
                let mut n_half = 0;
                loop {
                    let root = tempfile::tempdir().unwrap();
                    let path = root.path().join("out");
                    if is_there {
                        fs_err::create_dir_all(&path).unwrap();
                    }
                    let (cwd, argument) = if is_within {
                        (path.as_path(), Path::new("."))
                    } else {
                        (root.path(), path.as_path())
                    };
                    let status = run(n_kills, cwd, argument);
                    if status.success() {
                        break;
                    }
                    assert_eq!(status.signal(), Some(9), "{status}");
                    let found = ["config", "model"].map(|name| path.join(name).exists());
                    let is_half = found[0] != found[1];
                    assert!(!is_half || is_within, "point {n_kills}: half a directory");
                    n_half += usize::from(is_half);
                    // The last points come after the last rename: the directory is complete and stops another run.
                    assert_eq!(run(usize::MAX, cwd, argument).success(), !found[0], "point {n_kills}");
                    assert_eq!(entries(&path), ["config", "model"], "point {n_kills}");
                    assert_eq!(entries(root.path()), ["out"], "point {n_kills}");
                    n_kills += 1;
                }
                assert!(n_kills > 5, "{n_kills}");
                assert_eq!(n_half > 0, is_within);
            }
        }

        #[test]
        fn an_empty_directory_keeps_its_mode() {
            use std::os::unix::fs::PermissionsExt;
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("out");
            fs_err::create_dir(&path).unwrap();
            fs_err::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
            write(&path, "new", false).unwrap();
            assert_eq!(fs_err::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
        }
    }
}
