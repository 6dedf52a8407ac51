//! Check that a planned file has all tensors that runtimes compute with.
//!
//! If every block lacks a kind of tensor, the blocks show no gap. The check uses the tensors that llama.cpp's loader
//! requires and that the graph reads.

use serde_json::{Map, Value as Json};

use gguf_arch::{ArchError, Card, MissingInput, missing_tensors};
use gguf_core::text::escape;
use gguf_core::{Hint, TensorMeta};
use gguf_engine::{EngineError, GraphPlan};
use gguf_format::Metadata;

/// Maximum number of names in a message.
const MAX_MISSING: usize = 64;
const HEAD: &str = "output.weight";

/// Plan to check.
pub(super) struct Planned<'a> {
    pub(super) card: &'a Card,
    pub(super) config: &'a Map<String, Json>,
    pub(super) metadata: &'a Metadata,
    pub(super) tensors: &'a [TensorMeta],
}

impl Planned<'_> {
    /// Checks for tensors that the planned file lacks. Returns a warning if a key or a shape prevents a graph.
    pub(super) fn check(&self) -> Result<Option<String>, ArchError> {
        let missing = missing_tensors(self.metadata, self.tensors);
        let names = missing.as_ref().map_or(&[][..], |missing| &missing.names[..]);
        let mut sources: Vec<String> = Vec::new();
        for name in names.iter().take(MAX_MISSING) {
            let source = self.card.source_of(name);
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        if !sources.is_empty() {
            return Err(ArchError::Missing { names: sources, more: names.len() > MAX_MISSING, cut: None });
        }
        self.graph()
    }

    /// Returns true if the configuration ties the head to the embedding.
    fn declares_tied(&self) -> bool {
        let text = self.config.get("text_config").and_then(Json::as_object);
        let mut parts = [Some(self.config), text].into_iter().flatten();
        parts.any(|part| part.get("tie_word_embeddings").is_some_and(|tied| tied == true))
    }

    /// Checks the plan like [`Planned::check`], with the engine's graph.
    fn graph(&self) -> Result<Option<String>, ArchError> {
        let Some(features) = &self.card.graph else { return Ok(None) };
        let Err(error) = GraphPlan::new(features, self.metadata, self.tensors) else { return Ok(None) };
        match &error {
            EngineError::MissingTensor { tensor } if tensor == HEAD && self.declares_tied() => Ok(Some(
                format!("nothing computes the file: {error}, and by config.json the embedding is the head"),
            )),
            EngineError::MissingTensor { tensor } => {
                Err(ArchError::Missing { names: vec![self.card.source_of(tensor)], more: false, cut: None })
            }
            EngineError::MissingKey { key } => Ok(Some(match self.card.name_in_row(key) {
                Some(name) => {
                    let lack = MissingInput::of_config("config.json", name, self.config);
                    let hints = lack.hints().join("; ");
                    format!("{lack}, and nothing computes the file without `{}`: {hints}", escape(key))
                }
                None => format!("nothing computes the file: {error}"),
            })),
            EngineError::LeftOver { tensors } if !tensors.iter().any(|name| name.starts_with("blk.")) => {
                Ok(None)
            }
            EngineError::TensorShape { .. } | EngineError::BadKey { .. } | EngineError::LeftOver { .. } => {
                Ok(Some(format!("nothing computes the file as it is: {error}")))
            }
            // Other failures may be limits of the engine; the verdict reports them.
            _ => Ok(None),
        }
    }
}
