//! The directory of a checkpoint to be: new or empty, and gone again if nothing came of it.

use std::io;
use std::path::{Path, PathBuf};

use crate::core::output;

use super::ToHfError;

/// A directory that may be written to.
#[derive(Debug)]
pub(super) struct NewDirectory<'a> {
    path: &'a Path,
    /// The directories that were created for it, innermost first.
    created: Vec<PathBuf>,
}

impl<'a> NewDirectory<'a> {
    /// Checks a directory, before hours of work: it does not exist, or is empty.
    ///
    /// # Errors
    /// Something is there; a name that no directory should have.
    pub(super) fn check(path: &'a Path) -> Result<Self, ToHfError> {
        // `out/` is as good a name of a directory as `out`; `-` is none.
        if path.as_os_str() == "-" {
            output::check_name(path)?;
        }
        match path.metadata() {
            Ok(found) if !found.is_dir() => return Err(ToHfError::NotADirectory { path: path.to_owned() }),
            Ok(_) if fs_err::read_dir(path)?.next().is_some() => {
                return Err(ToHfError::NotEmpty { path: path.to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())).into());
            }
        }
        Ok(Self { path, created: Vec::new() })
    }

    /// Creates the directory, and those that it lies in. They vanish with this value unless it is kept.
    ///
    /// # Errors
    /// The file system refused.
    pub(super) fn create(&mut self) -> Result<&'a Path, ToHfError> {
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.is_dir();
        self.created = self.path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        fs_err::create_dir_all(self.path)?;
        Ok(self.path)
    }

    /// The directory has its files: it stays.
    pub(super) fn keep(mut self) {
        self.created.clear();
    }
}

impl Drop for NewDirectory<'_> {
    fn drop(&mut self) {
        for dir in &self.created {
            // What is not empty belongs to somebody else.
            let _ = fs_err::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_created_vanishes_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let (dir, own) = (root.path().join("a/b/c"), root.path().join("own"));
        fs_err::create_dir_all(&own).unwrap();
        for path in [dir.as_path(), &root.path().join("a/b/c/"), &own] {
            let mut new = NewDirectory::check(path).unwrap();
            assert!(new.create().unwrap().is_dir());
            drop(new);
            assert_eq!(fs_err::read_dir(root.path()).unwrap().count(), 1, "{}", path.display());
        }
        let mut new = NewDirectory::check(&dir).unwrap();
        new.create().unwrap();
        fs_err::write(root.path().join("a/guest"), b"x").unwrap();
        drop(new);
        assert!(root.path().join("a/guest").exists() && !root.path().join("a/b").exists());
        let mut new = NewDirectory::check(&dir).unwrap();
        new.create().unwrap();
        new.keep();
        assert!(dir.is_dir());
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs_err::write(&file, b"x").unwrap();
        assert!(matches!(NewDirectory::check(&file), Err(ToHfError::NotADirectory { .. })));
        assert!(matches!(NewDirectory::check(root.path()), Err(ToHfError::NotEmpty { .. })));
        let error = NewDirectory::check(&file.join("dir")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", file.join("dir").display())), "{error}");
        assert!(matches!(NewDirectory::check(Path::new("-")), Err(ToHfError::Output(_))));
    }
}
