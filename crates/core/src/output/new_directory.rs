//! An output that is a directory. A new one appears whole: it is filled under a temporary name beside its own, locked as
//! temporary files are, and renamed. One that is there and empty stays the directory it is (it may be where somebody stands,
//! or a mounted disk); its files get their names together, as those of a set do.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::destination::{self, Destination, Obstacle, OutputError, check_name};
use super::lock::{self, Lock};
use super::temporary::builder;
use super::{OutputFile, again, fault, leftovers, named, parent, sync_directory};

/// A directory that is new or empty. Dropped before it is committed, it is as it was.
#[derive(Debug)]
pub struct NewDirectory {
    /// As it was given.
    path: PathBuf,
    /// The directories that were created for it to lie in, innermost first.
    created: Vec<PathBuf>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Looked at only.
    Planned,
    /// It is there.
    Inside,
    /// Filled here, and renamed to the path behind it.
    Beside(Temporary, PathBuf),
}

impl NewDirectory {
    /// Looks at what is there, before hours of work. What a run that was killed left there is cleared away.
    ///
    /// # Errors
    /// [`OutputError`]: something is there; a name that no directory should have.
    pub fn of(path: &Path) -> Result<Self, OutputError> {
        // `out/` is as good a name of a directory as `out`; `-` is none.
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
        Ok(Self { path: path.to_owned(), created: Vec::new(), way: Way::Planned })
    }

    /// Begins the directory. Nothing of it is to be seen before it is committed, but directories that it lies in.
    ///
    /// # Errors
    /// The file system refused.
    pub fn begin(&mut self) -> Result<(), OutputError> {
        let failed = |error: io::Error| OutputError::from(named(&self.path, &error));
        let target = destination::follow(&self.path).map_err(failed)?;
        if target.file_name().is_none() || target.is_dir() {
            self.way = Way::Inside;
            return Ok(());
        }
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.is_dir();
        self.created = target.ancestors().skip(1).take_while(is_missing).map(Path::to_owned).collect();
        fs_err::create_dir_all(parent(&target))?;
        leftovers::clear_directories(&target)?;
        let temporary = Temporary::beside(&target).map_err(failed)?;
        self.way = Way::Beside(temporary, target);
        Ok(())
    }

    /// Begins a file in it.
    ///
    /// # Errors
    /// [`OutputError`], named as the file will be called.
    pub fn create(&self, name: &str) -> Result<OutputFile, OutputError> {
        let dir = match &self.way {
            Way::Beside(temporary, _) => &temporary.path,
            Way::Inside | Way::Planned => &self.path,
        };
        let mut file = Destination::of(&dir.join(name))?.create()?;
        file.target = self.path.join(name);
        Ok(file)
    }

    /// Gives the files their names, in order, and the directory its own.
    ///
    /// # Errors
    /// I/O errors. Then the directory is as it was, unless renaming itself broke down half way in one that was there.
    pub fn commit(mut self, files: Vec<OutputFile>, sync: bool) -> io::Result<()> {
        OutputFile::commit_all(files, sync)?;
        if let Way::Beside(temporary, target) = std::mem::replace(&mut self.way, Way::Planned) {
            temporary.rename(&target).map_err(|error| named(&self.path, &error))?;
            fault::point()?;
            if sync {
                sync_directory(parent(&target))?;
            }
        }
        let created = std::mem::take(&mut self.created);
        if sync {
            // The names of the directories that were created, too.
            created.iter().try_for_each(|dir| sync_directory(parent(dir)))?;
        }
        Ok(())
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        // First what lies in the others.
        self.way = Way::Planned;
        for dir in &self.created {
            // What is not empty belongs to somebody else.
            let _ = fs_err::remove_dir(dir);
        }
    }
}

/// A directory on its way. It is locked. Dropped, it vanishes with all that is in it.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    is_done: bool,
    /// The lock.
    _open: Option<File>,
}

impl Temporary {
    fn beside(target: &Path) -> io::Result<Self> {
        let made = builder(target, |builder| {
            builder.make_in(parent(target), |path| {
                again(|| std::fs::create_dir(path))?;
                let Ok(open) = File::options().read(true).open(path) else { return Ok(None) };
                // As with files: another run may have taken it for dead before it was locked.
                match lock::take(&open) {
                    Lock::Held if lock::leads_to(path, &open) => Ok(Some(open)),
                    Lock::Unknown => Ok(Some(open)),
                    Lock::Held | Lock::Busy => Err(io::ErrorKind::AlreadyExists.into()),
                }
            })
        })?;
        let (open, path) = made.into_parts();
        let path = path.keep().map_err(|error| error.error)?;
        Ok(Self { path, is_done: false, _open: open })
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        again(|| fs_err::rename(&self.path, target))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs_err::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn entries(dir: &Path) -> Vec<String> {
        let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
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
        let error = NewDirectory::of(&file.join("dir")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", file.join("dir").display())), "{error}");
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
        new.commit(vec![file], false).unwrap_err();
        assert_eq!(entries(&path), ["theirs"]);
        assert_eq!(entries(root.path()), ["out"]);
    }

    #[cfg(target_os = "linux")]
    mod kills {
        use super::super::super::fault::{self, Fault};
        use super::*;
        use std::os::unix::process::ExitStatusExt;

        /// The process that is killed: this test binary once more.
        #[test]
        #[ignore = "the victim of the test below, not a test"]
        fn victim() {
            let Ok(plan) = std::env::var("GGUF_CORE_TEST_VICTIM") else { return };
            let (point, path) = plan.split_once(' ').unwrap();
            fault::arm(Some((point.parse().unwrap(), Fault::Kill)));
            write(Path::new(path), "new", true).unwrap();
        }

        #[test]
        fn whoever_is_killed_leaves_no_obstacle() {
            for is_there in [false, true] {
                let mut n_kills = 0;
                loop {
                    let root = tempfile::tempdir().unwrap();
                    let path = root.path().join("out");
                    if is_there {
                        fs_err::create_dir_all(&path).unwrap();
                    }
                    let status = std::process::Command::new(std::env::current_exe().unwrap())
                        .args(["--exact", "output::new_directory::tests::kills::victim", "--ignored"])
                        .env("GGUF_CORE_TEST_VICTIM", format!("{n_kills} {}", path.display()))
                        .stdout(std::process::Stdio::null())
                        .status()
                        .unwrap();
                    if status.success() {
                        break;
                    }
                    assert_eq!(status.signal(), Some(9), "{status}");
                    let is_whole = path.join("config").exists() && path.join("model").exists();
                    assert!(is_there || is_whole || !path.exists(), "point {n_kills}: half a directory");
                    match write(&path, "third", false) {
                        Ok(()) => assert_eq!(fs_err::read(path.join("model")).unwrap(), b"third"),
                        // The last points come after the last name: all is there.
                        Err(OutputError::Refused { obstacle: Obstacle::NotEmpty, .. }) if is_whole => {}
                        Err(error) => panic!("point {n_kills}: {error}"),
                    }
                    assert_eq!(entries(&path), ["config", "model"], "point {n_kills}");
                    assert_eq!(entries(root.path()), ["out"], "point {n_kills}");
                    n_kills += 1;
                }
                assert!(n_kills > 5, "{n_kills}");
            }
        }
    }
}
