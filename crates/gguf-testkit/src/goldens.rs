//! Output of reference programs: the selection in `fixtures/golden`, which every run uses, and the conformance corpus
//! that it is taken from. One test body runs over both.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rayon::prelude::*;

use crate::{fixture, root, sha256};

/// Makes two tests over golden data: `golden` over the selection, and `corpus`, which is ignored by default.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident) => {
        mod $name {
            #[test]
            fn golden() {
                super::$name(&$crate::goldens::Goldens::selection());
            }

            #[test]
            #[ignore = "needs the conformance corpus: set GGUF_CONFORMANCE"]
            fn corpus() {
                super::$name(&$crate::goldens::Goldens::corpus());
            }
        }
    };
}

/// Makes three tests of a function that takes a [`Tier`](crate::tiers::Tier), too: `golden` over a choice of the
/// selection, and, ignored by default, `deep` over all of it and `corpus`.
#[macro_export]
macro_rules! tiered_conformance_tests {
    ($name:ident) => {
        mod $name {
            use $crate::goldens::Goldens;
            use $crate::tiers::Tier;

            #[test]
            fn golden() {
                super::$name(&Goldens::selection(), Tier::Everyday);
            }

            #[test]
            #[ignore = "of the deep tier"]
            fn deep() {
                super::$name(&Goldens::selection(), Tier::Deep);
            }

            #[test]
            #[ignore = "needs the conformance corpus: set GGUF_CONFORMANCE"]
            fn corpus() {
                super::$name(&Goldens::corpus(), Tier::Deep);
            }
        }
    };
}

/// Makes a test over files of the corpus that are too large for the repository.
#[macro_export]
macro_rules! corpus_tests {
    ($name:ident) => {
        mod $name {
            #[test]
            #[ignore = "needs the conformance corpus: set GGUF_CONFORMANCE"]
            fn corpus() {
                super::$name(&$crate::goldens::Goldens::corpus());
            }
        }
    };
}

pub use crate::{conformance_tests, corpus_tests, tiered_conformance_tests};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Selection,
    Whole,
}

/// Directory of golden data, in the layout of the corpus.
pub struct Goldens {
    dir: PathBuf,
    scope: Scope,
}

impl Deref for Goldens {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.dir
    }
}

impl Goldens {
    /// Unpacked selection of `fixtures/golden`.
    pub fn selection() -> Self {
        static DIR: LazyLock<PathBuf> = LazyLock::new(unpacked);
        Self { dir: DIR.clone(), scope: Scope::Selection }
    }

    /// Corpus that `GGUF_CONFORMANCE` names. A missing variable or an empty folder is a failure.
    pub fn corpus() -> Self {
        let named = std::env::var_os("GGUF_CONFORMANCE").expect("GGUF_CONFORMANCE is not set");
        // Tests run in the package root; a relative path is relative to it.
        let dir = root().join(named);
        assert!(dir.join("index.json").is_file(), "GGUF_CONFORMANCE: {} is no corpus", dir.display());
        Self { dir, scope: Scope::Whole }
    }

    /// Returns true if nothing of the corpus is left out, so that counts must be complete.
    pub fn is_whole(&self) -> bool {
        self.scope == Scope::Whole
    }

    /// Path of a file or case; `None` if the selection does not have it.
    pub fn find(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let path = self.dir.join(path);
        let exists = path.exists();
        assert!(exists || !self.is_whole(), "{} is missing", path.display());
        exists.then_some(path)
    }
}

/// Archive of `fixtures/golden`, as described in `MANIFEST.toml`.
pub struct Archive {
    /// Path below `fixtures/golden`.
    pub name: String,
    /// Entries of its folder of the corpus, as paths from the corpus' root.
    pub cases: Vec<String>,
    sha256: String,
}

/// All archives of the manifest.
pub fn archives() -> Vec<Archive> {
    let text = fs_err::read_to_string(fixture("golden/MANIFEST.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    let row = |(name, row): (&String, &toml::Value)| Archive {
        name: name.clone(),
        cases: row["cases"].as_array().unwrap().iter().map(text).collect(),
        sha256: text(&row["sha256"]),
    };
    manifest["archives"].as_table().unwrap().iter().map(row).collect()
}

/// Unpacks the archives into the build directory, once for each content; all test processes share it.
fn unpacked() -> PathBuf {
    let manifest = fs_err::read(fixture("golden/MANIFEST.toml")).unwrap();
    // The executable is in `deps` of the build directory; cargo names its `tmp` only to tests of programs.
    let home = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("tmp/golden");
    let dir = home.join(&sha256(&manifest)[..16]);
    if dir.is_dir() {
        return dir;
    }
    fs_err::create_dir_all(&home).unwrap();
    let temp = tempfile::tempdir_in(&home).unwrap();
    archives().par_iter().for_each(|archive| {
        let packed = fs_err::read(fixture("golden").join(&archive.name)).unwrap();
        assert_eq!(sha256(&packed), archive.sha256, "{} is not what MANIFEST.toml says", archive.name);
        let mut tar = tar::Archive::new(lzma_rust2::XzReader::new(packed.as_slice(), false));
        tar.set_preserve_mtime(false);
        tar.unpack(temp.path()).unwrap_or_else(|error| panic!("{}: {error}", archive.name));
    });
    // Another process may have been faster.
    if let Err(error) = fs_err::rename(temp.path(), &dir) {
        assert!(dir.is_dir(), "{error}");
    } else {
        let _ = temp.keep();
    }
    dir
}
