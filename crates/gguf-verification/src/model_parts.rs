//! Parts of a model that are built from its keys.

use crate::{Model, renderer};
use gguf_arch::graph::GraphFeatures;
use gguf_core::{Hint, TensorSource};
use gguf_format::{GgufFile, Metadata, Value};
use gguf_tokenizer::Encoder;

/// Graph features and tokenizer of a model, built from its keys.
pub struct ModelParts {
    features: Result<GraphFeatures, String>,
    encoder: Result<Encoder, String>,
}

impl ModelParts {
    /// Builds the parts. Those that cannot be built are replaced by the reasons.
    pub fn of(metadata: &Metadata) -> Self {
        let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let features = GraphFeatures::of(arch).ok_or_else(|| match arch {
            "clip" => "vision and audio towers are not run".to_owned(),
            _ => "it is none of those that this program runs".to_owned(),
        });
        let encoder = Encoder::from_metadata(metadata)
            .map_err(|error| [vec![error.to_string()], error.hints()].concat().join("; "));
        Self { features, encoder }
    }

    /// Tokenizer, if it could be built.
    pub fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_ref().ok()
    }

    /// Calls `work` with a model of these parts.
    pub fn with<R>(
        &self,
        source: &dyn TensorSource,
        metadata: &Metadata,
        file: Option<&GgufFile>,
        work: impl FnOnce(&Model<'_>) -> R,
    ) -> R {
        let template = renderer(metadata);
        work(&Model {
            source,
            metadata,
            file,
            is_checkpoint: file.is_none(),
            features: self.features.as_ref().map_err(String::as_str),
            encoder: self.encoder.as_ref().map(|encoder| encoder as _).map_err(String::as_str),
            template: &*template,
            origin: None,
            lost: &[],
            recall: None,
        })
    }
}
