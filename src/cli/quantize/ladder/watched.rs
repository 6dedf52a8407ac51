//! Inputs of a ladder, which several steps open one after the other: all of them must find the same state.

use std::io;
use std::path::{Path, PathBuf};

use crate::core::output::same_file;
use crate::core::platform::{FileId, stamp};
use crate::core::text::escape;
use crate::job::Guard;

/// Files of the model and texts, with their state before the first step.
pub(super) struct WatchedInputs(Vec<(PathBuf, Option<String>)>);

impl WatchedInputs {
    /// Notes the state of a model (a file with all its parts, or the files of a folder) and of other files. A folder that
    /// the files go into is left out.
    pub(super) fn of<'p>(
        model: &Path,
        output: &Path,
        others: impl Iterator<Item = &'p PathBuf>,
    ) -> io::Result<Self> {
        let mut paths: Vec<PathBuf> = others.cloned().collect();
        if model.is_dir() && !same_file(model, output) {
            for entry in fs_err::read_dir(model)? {
                paths.push(entry?.path());
            }
            paths.retain(|path| !path.is_dir());
        } else if model.is_file() {
            paths.push(model.to_owned());
            paths.extend(Guard::parts_of(model));
        }
        let with_state = |path: PathBuf| {
            let state = state(&path);
            (path, state)
        };
        Ok(Self(paths.into_iter().map(with_state).collect()))
    }

    /// Checks that the state is what it was.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match self.0.iter().find(|(path, before)| state(path) != *before) {
            Some((path, _)) => anyhow::bail!(
                "{}: changed while the ladder was made, so that its steps have read two states: run the command again",
                escape(&path.display().to_string())
            ),
            None => Ok(()),
        }
    }
}

/// State of a file; `None` if it does not exist.
fn state(path: &Path) -> Option<String> {
    let found = path.metadata().ok()?;
    let index = FileId::at(path).map_or(0, |id| id.index);
    Some(format!("{}, number {index}", stamp(&found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_between_two_steps_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (model, text) = (dir.path().join("model"), dir.path().join("text.txt"));
        fs_err::create_dir(&model).unwrap();
        fs_err::write(model.join("weights"), "one").unwrap();
        fs_err::write(&text, "a").unwrap();
        let watched = || WatchedInputs::of(&model, &dir.path().join("out"), std::iter::once(&text)).unwrap();
        let before = watched();
        before.check().unwrap();
        fs_err::write(&text, "other").unwrap();
        assert!(before.check().unwrap_err().to_string().contains("text.txt: changed"));
        let before = watched();
        fs_err::write(dir.path().join("new"), "two").unwrap();
        fs_err::rename(dir.path().join("new"), model.join("weights")).unwrap();
        assert!(before.check().unwrap_err().to_string().contains("weights: changed"));
        // Files that the ladder itself writes into the folder are none of them.
        let own = WatchedInputs::of(&model, &model, [].into_iter()).unwrap();
        fs_err::write(model.join("weights"), "three").unwrap();
        own.check().unwrap();
    }
}
