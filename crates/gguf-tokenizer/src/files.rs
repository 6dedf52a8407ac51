//! Reader of the small files of a checkpoint directory.

use crate::Result;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use gguf_checkpoint::json;
use gguf_core::{input, limits::Limits};
use gguf_format::OtherFiles;

use super::TokenizerError;

/// Name of the tokenizer's configuration file.
pub(crate) const CONFIG: &str = "tokenizer_config.json";

/// A checkpoint directory with size limits for its text files, or files in memory instead of one.
#[derive(Clone, Copy, Debug)]
pub struct Directory<'a> {
    path: &'a Path,
    limits: Limits,
    in_memory: Option<&'a [(String, Vec<u8>)]>,
    others: Option<&'a OtherFiles>,
}

impl<'a> Directory<'a> {
    /// Creates a view of a directory; nothing is read yet.
    pub fn new(path: &'a Path, limits: Limits) -> Self {
        Self { path, limits, in_memory: None, others: None }
    }

    /// Replaces some of the files by those of another directory.
    pub fn with_others(self, others: Option<&'a OtherFiles>) -> Self {
        Self { others, ..self }
    }

    /// Creates a view of files in memory, by name; `path` names their origin.
    pub fn in_memory(path: &'a Path, limits: Limits, files: &'a [(String, Vec<u8>)]) -> Self {
        Self { path, limits, in_memory: Some(files), others: None }
    }

    /// Path of the directory.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Returns the path of a file in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        OtherFiles::dir_of(self.path, self.others, name).join(name)
    }

    /// Reads the bytes of a file, or `None` if it does not exist.
    ///
    /// # Errors
    /// I/O errors, a file above the size limit.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if let Some(files) = self.in_memory {
            return Ok(files.iter().find(|file| file.0 == name).map(|file| file.1.clone()));
        }
        let path = self.join(name);
        let found = fs_err::metadata(&path);
        if found.is_ok() && !self.limits.follow_links {
            input::check_inside(OtherFiles::dir_of(self.path, self.others, name), &path)?;
        }
        match found {
            Ok(metadata) if metadata.is_file() => {
                let limit = self.limits.text_file_bytes;
                if metadata.len() > limit {
                    return Err(TokenizerError::FileTooLarge { path, found: metadata.len(), limit });
                }
                let bytes = input::read(&path)?;
                Ok(Some(input::own_content(&path, bytes)?))
            }
            Ok(metadata) if metadata.is_dir() => Ok(None),
            // The read fails with the kind of the file.
            Ok(_) => Ok(Some(input::read(&path)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the text of a file, or `None` if it does not exist.
    ///
    /// # Errors
    /// I/O errors, a file above the size limit, text that is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|error| TokenizerError::NotUtf8 {
            path: self.join(name),
            offset: error.utf8_error().valid_up_to(),
        })
    }

    /// Reads the bytes of a JSON file without duplicate keys, or `None` if it does not exist.
    fn checked(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let bytes = self.bytes(name)?;
        let keys = bytes.as_deref().map_or(Ok(()), json::check_keys);
        keys.map_err(|source| TokenizerError::KeyTwice { path: self.join(name), source })?;
        Ok(bytes)
    }

    /// Reads a JSON file, or `None` if it does not exist.
    ///
    /// # Errors
    /// I/O errors, a file above the size limit, malformed JSON, duplicate keys or members of the wrong type.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(bytes) = self.checked(name)? else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| TokenizerError::Json { path: self.join(name), source })
    }

    /// Reads a JSON file as a tree; null if it does not exist, is malformed, or is not UTF-8.
    pub(crate) fn lenient_tree(&self, name: &str) -> Result<Json> {
        match self.tree(name) {
            Err(TokenizerError::Json { .. } | TokenizerError::NotUtf8 { .. }) => Ok(Json::Null),
            found => found,
        }
    }

    /// Reads a JSON file as a tree; null if it does not exist. Python's `NaN` and `Infinity` are accepted, because they
    /// occur in configurations.
    pub fn tree(&self, name: &str) -> Result<Json> {
        let Some(bytes) = self.checked(name)? else { return Ok(Json::Null) };
        serde_json::from_slice(&bytes).or_else(|source| {
            let with_literals = json::parse(&bytes, self.limits.depth).ok();
            with_literals.ok_or_else(|| TokenizerError::Json { path: self.join(name), source })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_python_are_read() {
        let files = [
            ("a.json".to_owned(), b"{\"time_step_limit\": [0.0, Infinity], \"eos_token_id\": 2}".to_vec()),
            ("b.json".to_owned(), b"{\"a\": 1".to_vec()),
            ("d.json".to_owned(), b"{\"eos_token\": \"a\", \"eos_token\": \"b\"}".to_vec()),
        ];
        let directory = Directory::in_memory(Path::new("d"), Limits::default(), &files);
        assert_eq!(directory.tree("a.json").unwrap()["eos_token_id"], 2);
        assert!(directory.tree("b.json").unwrap_err().to_string().starts_with("d/b.json: EOF while parsing"));
        assert_eq!(directory.tree("c.json").unwrap(), Json::Null);
        // Also where a broken file is left out: two values contradict one another.
        for found in [
            directory.tree("d.json"),
            directory.lenient_tree("d.json"),
            directory.json("d.json").map(Option::unwrap),
        ] {
            let error = found.unwrap_err().to_string();
            assert_eq!(error, "d/d.json: line 1, column 20 (offset 19): duplicate key `eos_token`");
        }
    }
}
