//! What cards see of a checkpoint: its headers, and the small files beside the weights.

use serde_json::{Map, Value as Json};

use crate::arch::{Inputs, Pooling};
use crate::checkpoint::{CheckpointError, ModelDir};
use crate::convert::{ConvertError, ModelSource, pooling};
use crate::core::{WeightMeta, WeightSource};

/// The files beside the weights that cards look at.
pub(super) struct Beside {
    tokenizer_config: Option<Map<String, Json>>,
    generation_config: Option<Map<String, Json>>,
    files: Vec<String>,
    pooling: Option<Pooling>,
}

impl Beside {
    /// Reads them. What is odd about them goes to `warnings`.
    ///
    /// # Errors
    /// I/O errors; a description of pooling that is not understood.
    pub(super) fn read(dir: &ModelDir, warnings: &mut Vec<String>) -> Result<Self, ConvertError> {
        let mut optional = |name| optional_json(dir, name, warnings);
        Ok(Self {
            tokenizer_config: optional("tokenizer_config.json")?,
            generation_config: optional("generation_config.json")?,
            files: dir.file_names()?,
            pooling: pooling::read(dir)?,
        })
    }

    /// These, with the configuration and the weights: those of the source, or what else is known of them.
    pub(super) fn inputs<'a>(&'a self, source: &'a ModelSource, weights: &'a [WeightMeta]) -> Inputs<'a> {
        Inputs {
            values: source.weights.as_deref().map(|weights| weights as &dyn WeightSource),
            stored: &source.stored,
            tokenizer_config: self.tokenizer_config.as_ref(),
            generation_config: self.generation_config.as_ref(),
            files: &self.files,
            pooling: self.pooling,
            ..Inputs::of_headers(source.dir.config(), weights)
        }
    }
}

/// A JSON file that may be missing; one that is broken is a warning, as for the reference.
fn optional_json(
    dir: &ModelDir,
    name: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<Map<String, Json>>, ConvertError> {
    match dir.json(name) {
        Ok(map) => Ok(map),
        Err(CheckpointError::Io(error)) => Err(error.into()),
        Err(error) => {
            warnings.push(format!("{error}; the file is left out"));
            Ok(None)
        }
    }
}
