//! The model that a draft model works for: its directory, opened for configuration and vocabulary.

use std::path::PathBuf;

use serde_json::{Map, Value as Json};

use crate::arch::{Mapping, Target, TokenizerFrom, target_config};
use crate::checkpoint::{Checkpoint, ModelDir};
use crate::convert::conversion::{Scope, map};
use crate::convert::{ConvertError, ConvertOptions, ModelSource};
use crate::tokenizer::TokenizerRequest;

/// A target's directory and what was read of it.
pub(super) struct OpenTarget {
    dir: ModelDir,
    config: Map<String, Json>,
    tokenizer_config: Option<Map<String, Json>>,
    files: Vec<String>,
}

impl OpenTarget {
    /// Opens what `--target-model-dir` names; `None` without it.
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

    /// What cards see of it.
    pub(super) fn view(&self) -> Target<'_> {
        Target { config: &self.config, tokenizer_config: self.tokenizer_config.as_ref(), files: &self.files }
    }

    /// Its files, which an output must not replace.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().map(|name| self.dir.path().join(name))
    }

    /// The directory of the vocabulary, and the request in the words of the card that reads it.
    ///
    /// # Errors
    /// The target's own card is not known, or does not fit its configuration.
    pub(super) fn vocabulary(
        &self,
        from: TokenizerFrom,
        draft: &Mapping,
        options: &ConvertOptions,
    ) -> Result<TokenizerRequest, ConvertError> {
        if from == TokenizerFrom::Target {
            return Ok(draft.tokenizer.clone());
        }
        // Which variant of a card it is may depend on the tensors, if they are there.
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

    /// Where its files lie.
    pub(super) fn dir(&self) -> &ModelDir {
        &self.dir
    }
}
