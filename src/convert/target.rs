//! Target model of a draft model: its directory, opened for configuration and vocabulary.

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

use crate::arch::{Mapping, Target, TokenizerFrom, target_config};
use crate::checkpoint::{Checkpoint, ModelDir};
use crate::convert::conversion::{Scope, map};
use crate::convert::{ConvertError, ConvertOptions, ModelSource};
use crate::tokenizer::TokenizerRequest;

/// Directory of a target model and the files read from it.
pub(super) struct OpenTarget {
    dir: ModelDir,
    config: Map<String, Json>,
    tokenizer_config: Option<Map<String, Json>>,
    files: Vec<String>,
}

impl OpenTarget {
    /// Opens the directory given by `--target-model-dir`; `None` without this option.
    ///
    /// # Errors
    /// No directory with a configuration; a broken file.
    pub(super) fn of(options: &ConvertOptions) -> Result<Option<Self>, ConvertError> {
        let Some(path) = &options.target_model_dir else { return Ok(None) };
        let dir = ModelDir::open(path, &options.limits)?;
        let tokenizer_config = dir.json("tokenizer_config.json")?;
        let (config, files) = (target_config(dir.config()), dir.file_names()?);
        Ok(Some(Self { dir, config, tokenizer_config, files }))
    }

    /// Returns the target as cards see it.
    pub(super) fn view(&self) -> Target<'_> {
        Target { config: &self.config, tokenizer_config: self.tokenizer_config.as_ref(), files: &self.files }
    }

    /// Iterates over the target's files, which an output must not replace.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().map(|name| self.dir.path().join(name))
    }

    /// Returns the request for the vocabulary, from the card that reads it: the draft's own, or the target's.
    ///
    /// # Errors
    /// The target's own card is unknown, or does not fit its configuration.
    pub(super) fn vocabulary(
        &self,
        from: TokenizerFrom,
        draft: &Mapping,
        options: &ConvertOptions,
    ) -> Result<TokenizerRequest, ConvertError> {
        if from == TokenizerFrom::Target {
            return Ok(draft.tokenizer.clone());
        }
        // The variant of the card may depend on the tensors, if there are any.
        let weights = Checkpoint::with_dir(self.dir.clone());
        let weights = weights.map(|checkpoint| crate::core::WeightSource::weights(&checkpoint).to_vec());
        let source = ModelSource::without_weights(self.dir.clone());
        let own = ConvertOptions { target_model_dir: None, ..options.clone() };
        let weights = weights.unwrap_or_default();
        let target = map(&source, &weights, &own, Scope::Keys, &mut Vec::new())?;
        let mut request = target.tokenizer;
        request.size = draft.tokenizer.size.or(request.size);
        request.architecture.clone_from(&draft.tokenizer.architecture);
        for (key, value) in draft.tokenizer.after.iter() {
            request.after.set(key, value.clone());
        }
        Ok(request)
    }

    /// Directory of the target's files.
    pub(super) fn dir(&self) -> &ModelDir {
        &self.dir
    }
}
