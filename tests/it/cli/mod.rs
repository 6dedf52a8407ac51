//! What the programs have in common: their arguments, names, messages and refusals.

mod archs;
mod completions;
mod default_names;
mod determinism;
#[cfg(unix)]
mod effects;
#[cfg(unix)]
mod guards;
mod hints;
mod isolated;
mod output;
mod refused;

use std::path::{Path, PathBuf};

use crate::support::files;

/// Files that tests need alike: made once, and copied.
pub struct Made(Vec<(PathBuf, Vec<u8>)>);

impl Made {
    /// Takes the files of a directory and of those below it.
    pub fn of(dir: &Path) -> Self {
        let file = |path: PathBuf| (path.strip_prefix(dir).unwrap().to_owned(), fs_err::read(&path).unwrap());
        Self(files::below(dir).into_iter().map(file).collect())
    }

    /// Writes the files into a new directory.
    fn copy(&self) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        dir
    }

    /// Writes the files into a directory.
    pub fn write(&self, dir: &Path) {
        for (name, bytes) in &self.0 {
            let path = dir.join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, bytes).unwrap();
        }
    }
}
