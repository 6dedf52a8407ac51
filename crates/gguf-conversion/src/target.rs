//! Target model of a draft model: its directory, opened for configuration and vocabulary.

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

use crate::{ConvertError, ConvertOptions};
use gguf_arch::{TargetModel, target_config};
use gguf_checkpoint::ModelDir;

/// Directory of a target model and the files read from it.
pub(super) struct OpenTarget {
    dir: ModelDir,
    config: Map<String, Json>,
    tokenizer_config: Option<Map<String, Json>>,
    files: Vec<String>,
}

impl OpenTarget {
    /// Opens the directory given by `--target-model-dir`; `None` without this option.
    pub(super) fn of(options: &ConvertOptions) -> Result<Option<Self>, ConvertError> {
        let Some(path) = &options.target_model_dir else { return Ok(None) };
        let dir = ModelDir::open(path, &options.limits)?;
        let tokenizer_config = dir.json("tokenizer_config.json")?;
        let (config, files) = (target_config(dir.config()), dir.file_names()?);
        Ok(Some(Self { dir, config, tokenizer_config, files }))
    }

    /// Returns the target as cards see it.
    pub(super) fn view(&self) -> TargetModel<'_> {
        TargetModel {
            config: &self.config,
            tokenizer_config: self.tokenizer_config.as_ref(),
            files: &self.files,
        }
    }

    /// Iterates over the target's files, which an output must not replace.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().map(|name| self.dir.path().join(name))
    }

    /// Directory of the target's files.
    pub(super) fn dir(&self) -> &ModelDir {
        &self.dir
    }
}
