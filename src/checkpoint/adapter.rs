//! An adapter as PEFT saves it: `adapter_config.json`, and its matrices in one file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::checkpoint::config::ModelDir;
use crate::checkpoint::shards::SafetensorsShards;
use crate::checkpoint::torch::TorchFiles;
use crate::checkpoint::{CheckpointError, Container};
use crate::core::limits::Limits;
use crate::core::{SourceError, WeightMeta, WeightSource};

/// What the adapter is.
const CONFIG: &str = "adapter_config.json";
/// Its matrices; the first form that is there is read.
const SAFETENSORS: &str = "adapter_model.safetensors";
const TORCH: &str = "adapter_model.bin";

/// A directory with an adapter; as a [`WeightSource`] its matrices, in the order of the file.
#[derive(Debug)]
pub struct AdapterDir {
    dir: ModelDir,
    container: Box<dyn Container>,
    file: &'static str,
}

impl AdapterDir {
    /// Opens a directory: its configuration, and the header of the file with the matrices.
    ///
    /// # Errors
    /// [`CheckpointError`]: not a directory, a missing or broken file.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, CheckpointError> {
        let found = fs_err::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => CheckpointError::NotFound { path: path.to_owned() },
            _ => error.into(),
        })?;
        if !found.is_dir() {
            return Err(CheckpointError::NotADirectory { path: path.to_owned() });
        }
        let dir = ModelDir::without_config(path, None, limits);
        let missing = |name| CheckpointError::FileMissing { dir: path.to_owned(), name };
        let config = dir.json(CONFIG)?.ok_or_else(|| missing(CONFIG))?;
        let dir = dir.with_config(config);
        if dir.file(SAFETENSORS).is_some() {
            let container = Box::new(SafetensorsShards::single(&dir, SAFETENSORS)?);
            return Ok(Self { dir, container, file: SAFETENSORS });
        }
        if dir.file(TORCH).is_none() {
            return Err(missing(SAFETENSORS));
        }
        let chosen = ModelDir::without_config(path, Some(TORCH.to_owned()), limits);
        let container = TorchFiles::find(&chosen, &[])?.ok_or_else(|| missing(TORCH))?;
        Ok(Self { dir, container: Box::new(container), file: TORCH })
    }

    /// The directory and its small files.
    #[must_use]
    pub fn dir(&self) -> &ModelDir {
        &self.dir
    }

    /// The content of `adapter_config.json`.
    #[must_use]
    pub fn config(&self) -> &Map<String, Json> {
        self.dir.config()
    }

    /// Path of `adapter_config.json`.
    #[must_use]
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join(CONFIG)
    }

    /// The files that are read.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        vec![self.config_path(), self.dir.path().join(self.file)]
    }

    /// What is odd about the files but does not stop anyone.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        self.container.warnings()
    }
}

impl WeightSource for AdapterDir {
    fn weights(&self) -> &[WeightMeta] {
        self.container.weights()
    }

    fn read_elems(&self, weight: usize, first: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.container.read_elems(weight, first, out)
    }

    fn borrow(&self, weight: usize) -> Option<&[u8]> {
        self.container.borrow(weight)
    }

    fn expect(&self, weight: usize) {
        self.container.expect(weight);
    }
}
