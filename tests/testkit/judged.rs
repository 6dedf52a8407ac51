//! A tiny model as the verification takes it.

use gguf_foundry::verify::{Model, NoTemplate};

use super::models::TinyModel;

const NO_TEMPLATE: NoTemplate = NoTemplate;

/// Model that can be verified and calibrated.
pub trait Judged {
    /// Returns the model without a vocabulary.
    fn model(&self) -> Model<'_>;
}

impl Judged for TinyModel {
    fn model(&self) -> Model<'_> {
        Model {
            source: &self.tensors,
            metadata: &self.metadata,
            file: None,
            features: Ok(&self.features),
            encoder: Err("none"),
            template: &NO_TEMPLATE,
            origin: None,
            lost: &[],
            recall: None,
        }
    }
}
