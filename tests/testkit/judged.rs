//! A tiny model as the verification takes it.

use gguf_verification::{Model, NoTemplate};

use gguf_arch::GraphFeatures;
use gguf_core::TensorSource;
use gguf_format::Metadata;

use super::models::TinyModel;
use super::tiny::Tiny;

const NO_TEMPLATE: NoTemplate = NoTemplate;

/// Model that can be verified and calibrated.
pub trait Judged {
    /// Returns the model without a vocabulary.
    fn model(&self) -> Model<'_>;
}

impl Judged for TinyModel {
    fn model(&self) -> Model<'_> {
        bare_model(&self.tensors, &self.metadata, &self.features)
    }
}

/// The bundled model as the verification takes it, with its vocabulary.
pub fn model<'a>(tiny: &'a Tiny, features: &'a GraphFeatures) -> Model<'a> {
    Model { encoder: Ok(&*tiny.encoder), ..bare_model(&tiny.tensors, &tiny.metadata, features) }
}

/// Model without a vocabulary.
pub fn bare_model<'a>(
    source: &'a dyn TensorSource,
    metadata: &'a Metadata,
    features: &'a GraphFeatures,
) -> Model<'a> {
    Model {
        source,
        metadata,
        file: None,
        is_checkpoint: false,
        features: Ok(features),
        encoder: Err("not read"),
        template: &NO_TEMPLATE,
        origin: None,
        lost: &[],
        recall: None,
    }
}
