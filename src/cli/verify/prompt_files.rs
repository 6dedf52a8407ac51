//! Prompts of all files that were given, with the file that each belongs to.

use std::path::{Path, PathBuf};

use crate::core::text::escape;
use crate::verify::{BUILTIN_TEXT, PromptFile, PromptForm, PromptSource, VerifyError, read_prompts};

/// Prompts in the order of their files.
pub(super) struct PromptFiles {
    files: Vec<PromptFile>,
    sources: Vec<PromptSource>,
}

impl PromptFiles {
    pub(super) fn read(paths: &[PathBuf], plain_text: bool) -> Result<Self, VerifyError> {
        let form = if plain_text { PromptForm::PlainText } else { PromptForm::Detected };
        let (mut files, mut sources) = (Vec::new(), Vec::new());
        for path in paths {
            let first = sources.len();
            sources.extend(read_prompts(path, form)?);
            files.push(PromptFile { path: path.clone(), prompts: first..sources.len() });
        }
        Ok(Self { files, sources })
    }

    /// Returns the built-in text, used if no files are given.
    pub(super) fn builtin() -> Self {
        Self { files: Vec::new(), sources: vec![PromptSource::Text(BUILTIN_TEXT.to_owned())] }
    }

    pub(super) fn is_builtin(&self) -> bool {
        self.files.is_empty() && !self.sources.is_empty()
    }

    pub(super) fn sources(&self) -> &[PromptSource] {
        &self.sources
    }

    pub(super) fn files(&self) -> &[PromptFile] {
        &self.files
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Returns a sentence for each file that the limit on the number of chunks left out: it has unreached prompts and
    /// no chunk. `chunks` are the numbers of chunks per file.
    pub(super) fn unreached(&self, prompts: &[usize], chunks: &[usize]) -> Vec<String> {
        let is_unread = |(file, chunks): &(&PromptFile, &usize)| {
            **chunks == 0 && prompts.iter().any(|prompt| file.prompts.contains(prompt))
        };
        let sentence = |(file, _): (&PromptFile, &usize)| {
            let name = file.path.display().to_string();
            format!("`{}` is not read: `--chunks` leaves none for it", escape(&name))
        };
        self.files.iter().zip(chunks).filter(is_unread).map(sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_get_no_chunk_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.txt", "b.jsonl", "c.txt"].map(|name| dir.path().join(name));
        fs_err::write(&paths[0], "a").unwrap();
        fs_err::write(&paths[1], "{\"text\":\"b\"}\n{\"text\":\"b\"}\n").unwrap();
        fs_err::write(&paths[2], "c").unwrap();
        let files = PromptFiles::read(&paths, false).unwrap();
        assert_eq!((files.sources().len(), files.paths().next()), (4, Some(paths[0].as_path())));
        assert_eq!(files.unreached(&[], &[1, 2, 1]), [""; 0]);
        let found = files.unreached(&[2, 3], &[1, 1, 0]);
        assert!(found.len() == 1 && found[0].contains("c.txt` is not read: `--chunks`"), "{found:?}");
        assert_eq!(files.unreached(&[1, 2, 3], &[1, 0, 0]).len(), 2);
        // A file without predictions cannot be missed.
        assert_eq!(files.unreached(&[2], &[0, 1, 0]), [""; 0]);
        let plain = PromptFiles::read(&paths, true).unwrap();
        assert_eq!(plain.sources().len(), 3);
    }
}
