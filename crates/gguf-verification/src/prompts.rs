//! Prompts (text, token ids, completions, chats): as they are in their files, and as token ids.

mod files;
mod form;
mod read;
mod shape;

pub use files::{PromptFile, PromptFileReport};
pub(super) use files::{file_reports, shares};
pub use read::{PromptForm, PromptPlace, read_prompts};

use serde::Serialize;

use crate::{ChatError, ChatRenderer, PromptError, TextEncoder, VerifyError};
use gguf_core::isolated::IsolatedError;
use gguf_engine::EngineError;

/// Prompt as it is in its file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum PromptSource {
    /// Document: BOS at the start of every chunk if the file's vocabulary declares it.
    Text(String),
    /// Token ids, used as given.
    Tokens(Vec<u32>),
    /// Prompt of which only the completion is scored.
    Completion {
        /// Text before the completion.
        prompt: String,
        /// Scored text.
        completion: String,
    },
    /// Chat, rendered by the file's own template; kept as JSON for it.
    Messages(serde_json::Value),
}

/// Prompt as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, with BOS in front if the vocabulary asks for it.
    pub tokens: Vec<u32>,
    /// Token that replaces the first one of every chunk.
    pub bos: Option<u32>,
    /// Index of the first token whose prediction is scored.
    pub score_from: usize,
    /// True if the prompt must not be cut into chunks.
    pub whole: bool,
}

impl PromptSource {
    /// Returns true if the prompt can only be used with a tokenizer.
    pub(crate) fn needs_encoder(&self) -> bool {
        !matches!(self, Self::Tokens(_))
    }

    /// Encodes the prompt; `at` is its number in error messages, `template` the file's chat template.
    ///
    /// # Errors
    /// Text without ids in the vocabulary, messages without a template.
    pub fn encode(
        &self,
        at: usize,
        encoder: Option<&dyn TextEncoder>,
        template: &dyn ChatRenderer,
    ) -> Result<Prompt, VerifyError> {
        if let Self::Tokens(tokens) = self {
            return Ok(Prompt { tokens: tokens.clone(), bos: None, score_from: 1, whole: false });
        }
        let encoder = encoder
            .ok_or_else(|| VerifyError::NoEncoder { reason: "the file has no tokenizer".to_owned() })?;
        let bos = encoder.start_of_text();
        let ids = |text: &str, special| {
            encoder.encode(text, special).map_err(|reason| PromptError::Encode { prompt: at, reason })
        };
        let mut tokens: Vec<u32> = bos.into_iter().collect();
        match self {
            Self::Tokens(_) => {}
            Self::Text(text) => tokens.extend(ids(text, false)?),
            Self::Completion { prompt, completion } => {
                tokens.extend(ids(prompt, true)?);
                let score_from = tokens.len().max(1);
                tokens.extend(ids(completion, false)?);
                return Ok(Prompt { tokens, bos: None, score_from, whole: true });
            }
            Self::Messages(messages) => {
                let text = template.render(messages).map_err(|reason| match reason {
                    ChatError::Isolated(IsolatedError::Cancelled) => EngineError::Cancelled.into(),
                    reason => VerifyError::from(PromptError::Template { prompt: at, reason }),
                })?;
                let encoded = ids(&text, true)?;
                // Many templates write BOS themselves.
                if encoded.first().copied() == bos {
                    tokens.clear();
                }
                tokens.extend(encoded);
                return Ok(Prompt { tokens, bos: None, score_from: 1, whole: true });
            }
        }
        Ok(Prompt { tokens, bos, score_from: 1, whole: false })
    }
}

#[cfg(test)]
mod tests;
