//! Prompt files: plain text is one document, `*.jsonl` is one prompt a line.

use std::path::Path;

use serde::Deserialize;

use crate::verify::{PromptError, TextEncoder, VerifyError};

/// A prompt as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptSource {
    /// A document: BOS at the start of every chunk if the file's vocabulary says so.
    Text(String),
    /// Ids used as given.
    Tokens(Vec<u32>),
    /// Only the completion is scored.
    Completion {
        /// What comes before.
        prompt: String,
        /// What is scored.
        completion: String,
    },
    /// A chat, written out by the file's own template; kept as JSON for it.
    Messages(serde_json::Value),
}

/// A prompt as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Ids, with BOS in front where it belongs.
    pub tokens: Vec<u32>,
    /// Token that replaces the first one of every chunk.
    pub bos: Option<u32>,
    /// Index of the first token whose prediction is scored.
    pub score_from: usize,
    /// May not be cut into chunks.
    pub whole: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: Option<String>,
    tokens: Option<Vec<u32>>,
    prompt: Option<String>,
    completion: Option<String>,
    messages: Option<serde_json::Value>,
}

/// Reads a file of prompts.
///
/// # Errors
/// I/O errors; lines that are not UTF-8, not JSON or of no known form, by number; a file without prompts.
pub fn read_prompts(path: &Path) -> Result<Vec<PromptSource>, VerifyError> {
    let bytes = fs_err::read(path)?;
    let owned = || path.to_owned();
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|&byte| byte == b'\n').count();
        let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        PromptError::Utf8 { path: owned(), line, column: before.len() - start }
    })?;
    let is_lines = path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("jsonl"));
    let mut prompts = Vec::new();
    if is_lines {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line_number = at + 1;
            let parsed: Line = serde_json::from_str(line).map_err(|source| PromptError::Json {
                path: owned(),
                line: line_number,
                source,
            })?;
            let source = match parsed {
                Line { text: Some(text), tokens: None, prompt: None, completion: None, messages: None } => {
                    PromptSource::Text(text)
                }
                Line { text: None, tokens: Some(tokens), prompt: None, completion: None, messages: None } => {
                    PromptSource::Tokens(tokens)
                }
                Line {
                    text: None,
                    tokens: None,
                    prompt: Some(prompt),
                    completion: Some(completion),
                    messages: None,
                } => PromptSource::Completion { prompt, completion },
                Line {
                    text: None,
                    tokens: None,
                    prompt: None,
                    completion: None,
                    messages: Some(messages),
                } => PromptSource::Messages(messages),
                _ => return Err(PromptError::Form { path: owned(), line: line_number }.into()),
            };
            prompts.push(source);
        }
    } else if !text.is_empty() {
        prompts.push(PromptSource::Text(text.to_owned()));
    }
    if prompts.is_empty() {
        return Err(PromptError::Empty { path: owned() }.into());
    }
    Ok(prompts)
}

impl PromptSource {
    /// True if the prompt can only be used with a tokenizer.
    #[must_use]
    pub fn needs_encoder(&self) -> bool {
        !matches!(self, Self::Tokens(_))
    }

    /// Encodes the prompt; `at` is its number in messages, `template` the file's chat template.
    ///
    /// # Errors
    /// Text without ids in the vocabulary, messages without template.
    pub fn encode(
        &self,
        at: usize,
        encoder: Option<&dyn TextEncoder>,
        template: &dyn Fn(&serde_json::Value) -> Result<String, String>,
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
                let text =
                    template(messages).map_err(|reason| PromptError::Template { prompt: at, reason })?;
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
mod tests {
    use super::*;

    fn read(name: &str, content: &[u8]) -> Result<Vec<PromptSource>, VerifyError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs_err::write(&path, content).unwrap();
        read_prompts(&path)
    }

    #[test]
    fn every_form_is_read() {
        let lines = b"{\"text\":\"a\"}\n\n{\"tokens\":[1,2]}\n{\"prompt\":\"p\",\"completion\":\"c\"}\n\
            {\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n";
        let prompts = read("p.jsonl", lines).unwrap();
        assert_eq!(prompts.len(), 4);
        assert_eq!(prompts[1], PromptSource::Tokens(vec![1, 2]));
        assert_eq!(read("p.txt", b"{\"text\":1}").unwrap(), [PromptSource::Text("{\"text\":1}".to_owned())]);
    }

    #[test]
    fn bad_lines_are_named() {
        for (content, expected) in [
            (&b"{\"text\":\"a\"}\nab\xff"[..], "line 2: invalid UTF-8 at byte 2"),
            (b"{\"text\":\"a\",\"tokens\":[]}", "line 1: expected one of"),
            (b"{\"txt\":\"a\"}", "line 1: unknown field"),
            (b"{\"tokens\":[-1]}", "line 1: invalid value"),
            (b"\n\n", "no prompts"),
        ] {
            let error = read("p.jsonl", content).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(read("p.txt", b"").is_err());
    }
}
