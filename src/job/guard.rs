//! Registration of a run's files with the guard that checks outputs before any work.

use std::error::Error;
use std::path::{Path, PathBuf};

use crate::core::output::{GuardError, OutputGuard, OutputKind};
use crate::core::progress::Progress;
use crate::core::shard_name::ShardName;
use crate::gguf::split::sibling_paths;
use crate::job::NameTaken;
use crate::job::default_name::Unnamed;

/// Inputs and outputs of a run. A dry run only warns, once, of what would stop a real run.
pub struct Guard<'a> {
    files: OutputGuard,
    progress: &'a dyn Progress,
    is_dry: bool,
    has_warned: bool,
}

impl<'a> Guard<'a> {
    /// Guard without files; warnings of a dry run go to `progress`.
    pub fn new(progress: &'a dyn Progress, is_dry: bool) -> Self {
        Self { files: OutputGuard::default(), progress, is_dry, has_warned: false }
    }

    /// Registers a file that is read, or a directory of which any file may be read.
    ///
    /// # Errors
    /// The file is also an output.
    pub fn read(&mut self, role: &'static str, path: &Path) -> Result<(), GuardError> {
        let told = self.files.read(role, path);
        self.judge(told)
    }

    /// Registers several files that are read.
    pub fn read_all<P: AsRef<Path>>(
        &mut self,
        role: &'static str,
        paths: impl IntoIterator<Item = P>,
    ) -> Result<(), GuardError> {
        paths.into_iter().try_for_each(|path| self.read(role, path.as_ref()))
    }

    /// Registers a model that is read: a directory, or a file with all parts that its name implies.
    pub fn model(&mut self, role: &'static str, path: &Path) -> Result<(), GuardError> {
        self.read(role, path)?;
        self.read_all(role, Self::parts_of(path))
    }

    /// Returns all parts of a split model, by the name of one: `NAME-00001-of-00003.gguf`.
    pub fn parts_of(path: &Path) -> Vec<PathBuf> {
        parts(path)
    }

    /// Registers a file that will be written, with the option that names it.
    ///
    /// # Errors
    /// The file is also an input or another output, or it would replace a file of another kind.
    pub fn write(&mut self, option: &'static str, path: &Path, kind: OutputKind) -> Result<(), GuardError> {
        let told = self.files.write(option, path, kind);
        self.judge(told)
    }

    /// Checks a file that will be written under a default name. Outputs must be registered with [`Guard::write`] as
    /// well.
    pub(super) fn unnamed(&mut self, path: &Path, model: Unnamed<'_>) -> Result<(), NameTaken> {
        self.judge(model.check(path))
    }

    pub(super) fn warn(&self, text: &str) {
        self.progress.warn(text);
    }

    fn judge<E: Error>(&mut self, told: Result<(), E>) -> Result<(), E> {
        match told {
            Err(error) if self.is_dry => {
                if !self.has_warned {
                    self.progress.warn(&format!("a run would stop here: {error}"));
                    self.has_warned = true;
                }
                Ok(())
            }
            told => told,
        }
    }
}

/// Returns all parts of a split model, by the name of one: `NAME-00001-of-00003.gguf`.
fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let part = ShardName::of(name).filter(|part| part.suffix == "gguf" && u16::try_from(part.count).is_ok());
    part.and_then(|part| sibling_paths(path, part.number.into(), part.count.into())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_names_its_siblings() {
        let found = parts(Path::new("dir/a-b-00002-of-00003.gguf"));
        let expected: Vec<_> =
            (1..=3).map(|n| PathBuf::from(format!("dir/a-b-0000{n}-of-00003.gguf"))).collect();
        assert_eq!(found, expected);
        for name in ["a.gguf", "a-of-3.gguf", "a-2-of-3.gguf", "-of-.gguf", "", "a-00001-of-00002.bin"] {
            assert!(parts(Path::new(name)).is_empty(), "{name}");
        }
    }
}
