//! Nothing is planned that lacks a tensor which runtimes compute with. A kind of tensor that every block lacks leaves no gap
//! between blocks: what the loader of llama.cpp asks for and what the graph reads miss it.

use serde_json::{Map, Value as Json};

use crate::arch::{ArchError, Card, Lack, missing_tensors};
use crate::core::text::escape;
use crate::core::{Hint, TensorMeta};
use crate::engine::{EngineError, GraphPlan};
use crate::gguf::Metadata;

/// Names that a message can have.
const MAX_MISSING: usize = 64;
const HEAD: &str = "output.weight";

/// What a plan is judged by.
pub(super) struct Planned<'a> {
    pub(super) card: &'a Card,
    pub(super) config: &'a Map<String, Json>,
    pub(super) metadata: &'a Metadata,
    pub(super) tensors: &'a [TensorMeta],
}

impl Planned<'_> {
    /// Looks for what the planned file would lack; a warning where a key or a shape leaves no graph to compute.
    ///
    /// # Errors
    /// [`ArchError::Missing`] with the checkpoint's names of the tensors that the file would lack.
    pub(super) fn check(&self) -> Result<Option<String>, ArchError> {
        let missing = missing_tensors(self.metadata, self.tensors);
        let names = missing.as_ref().map_or(&[][..], |missing| &missing.names[..]);
        let is_tied_head = |name: &str| name == HEAD && self.says_tied();
        let mut sources: Vec<String> = Vec::new();
        for name in names.iter().filter(|name| !is_tied_head(name)).take(MAX_MISSING) {
            let source = self.card.source_of(name);
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        if !sources.is_empty() {
            return Err(ArchError::Missing { names: sources, more: names.len() > MAX_MISSING });
        }
        if let Some(head) = missing {
            return Ok(Some(format!("{head}, and by config.json the embedding is the head")));
        }
        self.graph()
    }

    /// Whether the configuration says that embedding and head are one.
    fn says_tied(&self) -> bool {
        let text = self.config.get("text_config").and_then(Json::as_object);
        let mut parts = [Some(self.config), text].into_iter().flatten();
        parts.any(|part| part.get("tie_word_embeddings").is_some_and(|tied| tied == true))
    }

    /// As [`Planned::check`], by the engine's graph.
    fn graph(&self) -> Result<Option<String>, ArchError> {
        let Some(features) = &self.card.graph else { return Ok(None) };
        let Err(error) = GraphPlan::new(features, self.metadata, self.tensors) else { return Ok(None) };
        match &error {
            EngineError::MissingTensor { tensor } if tensor == HEAD && self.says_tied() => Ok(Some(format!(
                "nothing computes the file: {error}, and by config.json the embedding is the head"
            ))),
            EngineError::MissingTensor { tensor } => {
                Err(ArchError::Missing { names: vec![self.card.source_of(tensor)], more: false })
            }
            EngineError::MissingKey { key } => Ok(Some(match self.card.name_in_row(key) {
                Some(name) => {
                    let lack = Lack::of_config("config.json", name, self.config);
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
            // What else cannot be built may be beyond the engine, and is the verdict's to say.
            _ => Ok(None),
        }
    }
}
