//! The prompts of all files that were given, and which file each is of.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::core::text::escape;
use crate::verify::{PromptSource, VerifyError, read_prompts};

struct PromptFile {
    path: PathBuf,
    /// Its prompts among all.
    prompts: Range<usize>,
}

/// Prompts in the order of their files.
pub(super) struct PromptFiles {
    files: Vec<PromptFile>,
    sources: Vec<PromptSource>,
}

impl PromptFiles {
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self, VerifyError> {
        let (mut files, mut sources) = (Vec::new(), Vec::new());
        for path in paths {
            let first = sources.len();
            sources.extend(read_prompts(path)?);
            files.push(PromptFile { path: path.clone(), prompts: first..sources.len() });
        }
        Ok(Self { files, sources })
    }

    pub(super) fn sources(&self) -> &[PromptSource] {
        &self.sources
    }

    pub(super) fn first(&self) -> Option<&Path> {
        self.files.first().map(|file| file.path.as_path())
    }

    /// A sentence for each file behind the first prompt of which the limit on the number of chunks left nothing.
    pub(super) fn unreached(&self, prompts: &[usize]) -> Vec<String> {
        let Some(&first) = prompts.first() else { return Vec::new() };
        let is_behind = |file: &&PromptFile| {
            file.prompts.start >= first && prompts.iter().any(|prompt| file.prompts.contains(prompt))
        };
        let sentence = |file: &PromptFile| {
            let name = file.path.display().to_string();
            format!("`{}` is not read: `--chunks` ends before it", escape(&name))
        };
        self.files.iter().filter(is_behind).map(sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_behind_the_limit_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.txt", "b.jsonl", "c.txt"].map(|name| dir.path().join(name));
        fs_err::write(&paths[0], "a").unwrap();
        fs_err::write(&paths[1], "{\"text\":\"b\"}\n{\"text\":\"b\"}\n").unwrap();
        fs_err::write(&paths[2], "c").unwrap();
        let files = PromptFiles::read(&paths).unwrap();
        assert_eq!((files.sources().len(), files.first()), (4, Some(paths[0].as_path())));
        assert_eq!(files.unreached(&[]), [""; 0]);
        let found = files.unreached(&[2, 3]);
        assert!(found.len() == 1 && found[0].contains("c.txt` is not read: `--chunks`"), "{found:?}");
        assert_eq!(files.unreached(&[1, 2, 3]).len(), 2);
    }
}
