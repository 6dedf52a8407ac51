//! Metadata and headers of a checkpoint, which a card is applied to.

use serde_json::{Map, Value as Json};

use crate::keys::target::TargetModel;
use crate::language::values::CountTokens;
use gguf_core::{WeightMeta, WeightSource};

/// Metadata and headers of a checkpoint.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The members of `config.json`.
    pub config: &'a Map<String, Json>,
    /// The weights, in the checkpoint's order.
    pub weights: &'a [WeightMeta],
    /// Source of the weights' content, for the few cards that read some; `None` if only headers are known.
    pub values: Option<&'a dyn WeightSource>,
    /// Function that counts the vocabulary's tokens, if its files can be read.
    pub vocabulary: Option<CountTokens<'a>>,
    /// Stored tensors from which weights are assembled: expressions can refer to them.
    pub stored: &'a [WeightMeta],
    /// Biases that a quantization added to layers without one: the configuration knows nothing of them.
    pub added_biases: &'a [String],
    /// The members of `tokenizer_config.json`, if it exists.
    pub tokenizer_config: Option<&'a Map<String, Json>>,
    /// The members of `generation_config.json`, if it exists.
    pub generation_config: Option<&'a Map<String, Json>>,
    /// Preprocessing of images and audio: `preprocessor_config.json` and similar files, merged.
    pub preprocessor: Option<&'a Map<String, Json>>,
    /// Configurations of the subdirectories in which a model keeps parts of its towers, by directory name.
    pub folders: Option<&'a Map<String, Json>>,
    /// Names of the files in the checkpoint's directory.
    pub files: &'a [String],
    /// Pooling of token vectors, if `modules.json` of sentence-transformers declares it.
    pub pooling: Option<Pooling>,
    /// Target model of a draft model.
    pub target: Option<TargetModel<'a>>,
}

impl<'a> Inputs<'a> {
    /// Returns inputs with only the configuration and the headers of the weights.
    pub fn of_headers(config: &'a Map<String, Json>, weights: &'a [WeightMeta]) -> Self {
        Self {
            config,
            weights,
            values: None,
            vocabulary: None,
            stored: &[],
            added_biases: &[],
            tokenizer_config: None,
            generation_config: None,
            preprocessor: None,
            folders: None,
            files: &[],
            pooling: None,
            target: None,
        }
    }
}

/// Pooling of token vectors; the values are those of `pooling_type` in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all tokens.
    Mean = 1,
    /// First token.
    Cls = 2,
    /// Last token.
    Last = 3,
}

impl Pooling {
    /// Returns the name that llama.cpp's `--pooling` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        }
    }
}
