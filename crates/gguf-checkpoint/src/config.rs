//! The directory of a checkpoint without its weights: configuration and other small files, read with size limits.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::CheckpointError;
use crate::json::{JsonError, JsonReader};
use gguf_core::input;
use gguf_core::limits::Limits;
use gguf_format::OtherFiles;

/// A Hugging Face model directory with its configuration.
///
/// This is enough to read a vocabulary; [`super::Checkpoint`] adds the weights. The table in `probe.rs` lists the
/// paths that can be opened.
#[derive(Clone, Debug)]
pub struct ModelDir {
    path: PathBuf,
    /// Name of the weight file, if the user named a file instead of the directory.
    file: Option<String>,
    config: Map<String, Value>,
    limits: Limits,
    /// True if `path` is a directory whose files belong to the model; false if it is a single file.
    has_files: bool,
    /// True if configuration and weights are in Mistral's own format.
    is_mistral: bool,
    /// Files of another directory that replace the model's own.
    others: Option<Arc<OtherFiles>>,
}

/// File name of the configuration in Mistral's own format.
pub(super) const PARAMS: &str = "params.json";

impl ModelDir {
    /// Creates a directory without its configuration; `file` is the weight file that the user named.
    pub(super) fn without_config(path: &Path, file: Option<String>, limits: &Limits) -> Self {
        Self {
            path: path.to_owned(),
            file,
            config: Map::new(),
            limits: *limits,
            has_files: true,
            is_mistral: false,
            others: None,
        }
    }

    /// Returns this directory with `config` as its configuration.
    pub fn with_config(self, config: Map<String, Value>) -> Self {
        Self { config, ..self }
    }

    /// Returns this directory with some of its files replaced by those of another directory.
    pub fn with_others(self, others: OtherFiles) -> Self {
        Self { others: Some(Arc::new(others)), ..self }
    }

    /// The files that are read from another directory.
    pub fn others(&self) -> Option<&OtherFiles> {
        self.others.as_deref()
    }

    /// The directory from which a file of this name is read.
    fn home(&self, name: &str) -> &Path {
        OtherFiles::dir_of(&self.path, self.others(), name)
    }

    /// Name of the weight file that the user named, if not the directory.
    pub(crate) fn chosen_file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Creates the entry of a model in a single file that carries its own configuration.
    ///
    /// There are no small files: other files in its directory do not belong to it.
    pub fn of_file(path: &Path, config: Map<String, Value>, limits: &Limits) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            config,
            limits: *limits,
            has_files: false,
            is_mistral: false,
            others: None,
        }
    }

    /// Returns this directory, marked as Mistral's own format.
    pub(super) fn into_mistral(self) -> Self {
        Self { is_mistral: true, ..self }
    }

    /// Returns true if this is a checkpoint in Mistral's own format: `params.json` and `consolidated*.safetensors`.
    pub fn is_mistral_format(&self) -> bool {
        self.is_mistral
    }

    /// The directory as given, or the file if the model is a single file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the model.
    ///
    /// This is the name of the directory after links and `.` are resolved (empty for a root). A snapshot in the hub's
    /// cache has the name of its repository, without the organization. A single file has its name without the
    /// extension.
    ///
    /// # Errors
    /// I/O errors: a name that depended on them would be another one in the file.
    pub fn name(&self) -> std::io::Result<String> {
        if !self.has_files {
            return Ok(self
                .path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
                .unwrap_or_default());
        }
        // A transformer in a folder of its own has the name of the whole model.
        let whole = self.others().map(|others| &others.dir).filter(|dir| self.path.starts_with(dir));
        let resolved = fs_err::canonicalize(whole.unwrap_or(&self.path))?;
        let own = || resolved.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(cached_name(&resolved).or_else(own).unwrap_or_default())
    }

    /// The content of `config.json` (of `params.json` in Mistral's own format), keys in file order.
    pub fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The limits with which this directory is read.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The path of a file if it exists, or if nothing can be known about it: reading it then gives the error.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let path = self.home(name).join(name);
        // Anything but a file or directory is refused by its kind when it is opened.
        let is_there =
            path.metadata().map_or_else(|error| !input::is_absence(&error), |metadata| !metadata.is_dir());
        (self.has_files && is_there).then_some(path)
    }

    /// Path of a file whose text may appear in an output; checked against links that lead out of the directory.
    fn text_file(&self, name: &str) -> Result<Option<PathBuf>, CheckpointError> {
        let path = self.file(name);
        if let Some(path) = path.as_ref().filter(|_| !self.limits.follow_links) {
            input::check_inside(self.home(name), path)?;
        }
        Ok(path)
    }

    /// The bytes of a file; `None` if there is no such file.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        self.text_file(name)?.map(|path| read_capped(&path, &self.limits)).transpose()
    }

    /// The text of a file; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`ModelDir::bytes`]; text that is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>, CheckpointError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        String::from_utf8(bytes).map(Some).map_err(|error| CheckpointError::NotUtf8 {
            path: self.home(name).join(name),
            offset: error.utf8_error().valid_up_to() as u64,
        })
    }

    /// The object in a JSON file; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`ModelDir::bytes`]; broken JSON, or another value than an object.
    pub fn json(&self, name: &str) -> Result<Option<Map<String, Value>>, CheckpointError> {
        self.text_file(name)?.map(|path| load_object(&path, &self.limits)).transpose()
    }

    /// The names of the files in the directory, sorted; names that are not UTF-8 are left out.
    pub fn file_names(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = Vec::new();
        if !self.has_files {
            return Ok(names);
        }
        for entry in fs_err::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        if let Some(others) = self.others() {
            names.retain(|name| !others.names.contains(name));
            names.extend(others.names.iter().filter(|name| self.file(name).is_some()).cloned());
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// Reads a whole file of bounded size.
pub(crate) fn read_capped(path: &Path, limits: &Limits) -> Result<Vec<u8>, CheckpointError> {
    let file = input::open(path)?;
    let limit = limits.text_file_bytes;
    let too_large = |n_bytes| CheckpointError::TooLarge { path: path.to_owned(), n_bytes, limit };
    let n_bytes = file.metadata()?.len();
    if n_bytes > limit {
        return Err(too_large(n_bytes));
    }
    // The file may grow after its length was read, so the limit also applies while reading.
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(too_large(content.len() as u64));
    }
    Ok(input::own_content(path, content)?)
}

/// Reads a JSON file that holds one object.
///
/// # Errors
/// I/O errors, a file above the limit; [`CheckpointError::Json`].
pub fn load_object(path: &Path, limits: &Limits) -> Result<Map<String, Value>, CheckpointError> {
    let text = read_capped(path, limits)?;
    parse_object(&text, limits).map_err(|source| CheckpointError::Json { path: path.to_owned(), source })
}

/// Parses a JSON text that is one object.
///
/// # Errors
/// [`JsonError`], also for another value than an object.
pub fn parse_object(text: &[u8], limits: &Limits) -> Result<Map<String, Value>, JsonError> {
    let mut reader = JsonReader::new(text, limits.depth);
    let map = reader.map()?;
    reader.finish()?;
    Ok(map)
}

/// Returns `NAME` of `models--ORG--NAME/snapshots/COMMIT`, the layout of the hub's cache.
fn cached_name(dir: &Path) -> Option<String> {
    let snapshots = dir.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let id = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    let name = id.split_once("--").map_or(id, |(_, name)| name);
    // Neither part of a repository id contains `--`, so a further one belongs to the address of another server.
    Some(name.to_owned()).filter(|name| !name.is_empty() && !name.contains("--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_the_hubs_cache_has_the_name_of_its_repository() {
        let name = |path: &str| cached_name(Path::new(path));
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = |folder: &str| name(&format!("/c/hub/{folder}/snapshots/{commit}"));
        assert_eq!(snapshot("models--Qwen--Qwen2.5-0.5B").as_deref(), Some("Qwen2.5-0.5B"));
        assert_eq!(snapshot("models--gpt2").as_deref(), Some("gpt2"));
        assert_eq!(snapshot("models--"), None);
        assert_eq!(snapshot("datasets--a--b"), None);
        assert_eq!(snapshot("models--https---host-a-b--12ab34cd"), None);
        assert_eq!(name("/c/models--a--b/snapshots"), None);
        assert_eq!(name("/c/models--a--b/snapshots/1/text_encoder"), None);
    }

    #[cfg(unix)]
    #[test]
    fn every_path_to_a_directory_gives_its_own_name() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs_err::create_dir_all(at("Real-7B/sub")).unwrap();
        fs_err::create_dir_all(at("models--a--Tiny/snapshots/12ab")).unwrap();
        fs_err::os::unix::fs::symlink("Real-7B", at("link")).unwrap();
        fs_err::os::unix::fs::symlink("models--a--Tiny/snapshots/12ab", at("cached")).unwrap();
        let name = |path: &str| ModelDir::without_config(&at(path), None, &Limits::default()).name().unwrap();
        for path in ["Real-7B", "Real-7B/", "Real-7B/.", "Real-7B/sub/..", "link", "link/"] {
            assert_eq!(name(path), "Real-7B", "{path}");
        }
        assert_eq!(name("cached"), "Tiny");
        // No name of its own in place of an error.
        assert!(ModelDir::without_config(&at("gone"), None, &Limits::default()).name().is_err());
    }
}
