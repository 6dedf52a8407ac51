//! Vocabulary from the keys of a GGUF file, checked.

use crate::Result;
use std::collections::HashMap;

use gguf_format::{Array, Metadata, Value};

use super::super::TokenizerError;
use super::super::emit::TokenType;

/// Typed values of the keys.
#[derive(Debug)]
pub(super) struct GgufVocabulary {
    pub(super) architecture: String,
    pub(super) model: String,
    pub(super) pre: Option<String>,
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<TokenType>,
    pub(super) scores: Option<Vec<f32>>,
    pub(super) merges: Vec<String>,
    pub(super) charsmap: Vec<u8>,
    pub(super) plain_template: Option<String>,
    pub(super) named_templates: Vec<(String, String)>,
    pub(super) context_length: Option<u64>,
    flags: HashMap<String, bool>,
    special: HashMap<String, usize>,
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const TEMPLATE: &str = "tokenizer.chat_template";

impl GgufVocabulary {
    /// Reads the keys; `None` if the file has no vocabulary.
    pub(super) fn read(metadata: &Metadata) -> Result<Option<Self>> {
        let model = match metadata.get("tokenizer.ggml.model") {
            None => return Ok(None),
            Some(value) => text("tokenizer.ggml.model", value)?,
        };
        if matches!(model.as_str(), "none" | "no_vocab") {
            return Ok(None);
        }
        let tokens = strings(metadata, TOKENS)?
            .ok_or_else(|| TokenizerError::GgufKey { key: TOKENS.into(), expected: "an array of strings" })?;
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token.as_str(), id) {
                let token = token.clone();
                return Err(TokenizerError::GgufDuplicateToken { token, first, second: id });
            }
        }
        let types = match metadata.get(TYPES) {
            None => vec![TokenType::Normal; tokens.len()],
            Some(Value::Array(Array::I32(types))) => types.iter().map(|&kind| token_type(kind)).collect(),
            Some(Value::Array(Array::U32(types))) => {
                types.iter().map(|&kind| token_type(i32::try_from(kind).unwrap_or(0))).collect()
            }
            Some(_) => {
                return Err(TokenizerError::GgufKey { key: TYPES.into(), expected: "an array of i32" });
            }
        };
        let scores = match metadata.get(SCORES) {
            None => None,
            Some(Value::Array(Array::F32(scores))) => Some(scores.clone()),
            Some(_) => {
                return Err(TokenizerError::GgufKey { key: SCORES.into(), expected: "an array of f32" });
            }
        };
        for (key, found) in [(TYPES, Some(types.len())), (SCORES, scores.as_ref().map(Vec::len))] {
            if let Some(found) = found.filter(|&found| found != tokens.len()) {
                return Err(TokenizerError::GgufLength { key: key.into(), found, expected: tokens.len() });
            }
        }
        let charsmap = match metadata.get(CHARSMAP) {
            Some(Value::Array(Array::U8(bytes))) => bytes.clone(),
            Some(Value::Array(Array::I8(bytes))) => bytes.iter().map(|&byte| byte as u8).collect(),
            _ => Vec::new(),
        };
        let (mut flags, mut special, mut named) = (HashMap::new(), HashMap::new(), Vec::new());
        for (key, value) in metadata.iter() {
            if !key.starts_with("tokenizer.") {
                continue;
            }
            if let Some(flag) = value.as_bool() {
                flags.insert(key.to_owned(), flag);
            } else if key.ends_with("_token_id") {
                let id = value.as_u64().and_then(|id| usize::try_from(id).ok());
                // Files mark a role without a token by an id beyond the vocabulary (-1, 2^32 - 1).
                special.extend(id.filter(|&id| id < tokens.len()).map(|id| (key.to_owned(), id)));
            } else if let Some(name) = key.strip_prefix("tokenizer.chat_template.") {
                named.push((name.to_owned(), text(key, value)?));
            }
        }
        let architecture = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        Ok(Some(Self {
            architecture: architecture.to_owned(),
            model,
            pre: metadata
                .get("tokenizer.ggml.pre")
                .map(|value| text("tokenizer.ggml.pre", value))
                .transpose()?,
            types,
            scores,
            merges: strings(metadata, MERGES)?.unwrap_or_default(),
            charsmap,
            plain_template: metadata.get(TEMPLATE).map(|value| text(TEMPLATE, value)).transpose()?,
            named_templates: named,
            context_length: metadata.get(&format!("{architecture}.context_length")).and_then(Value::as_u64),
            tokens,
            flags,
            special,
        }))
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.flags.get(key).copied()
    }

    /// Returns the id of a special token, if the vocabulary has it.
    pub(super) fn special(&self, key: &str) -> Option<usize> {
        self.special.get(key).copied()
    }

    /// Returns true for tokens that are recognized in text before anything else. This includes the unknown token, as in
    /// transformers.
    pub(super) fn is_added(&self, id: usize) -> bool {
        matches!(self.types.get(id), Some(TokenType::Control | TokenType::UserDefined | TokenType::Unknown))
    }

    /// Number of tokens without the padding at the end.
    pub(super) fn end(&self) -> usize {
        (0..self.tokens.len()).rev().find(|&id| !self.is_padding(id)).map_or(0, |id| id + 1)
    }

    /// Returns true for a row that only pads the embedding.
    pub(super) fn is_padding(&self, id: usize) -> bool {
        self.types.get(id) == Some(&TokenType::Unused)
            && self.tokens.get(id).is_some_and(|text| *text == format!("[PAD{id}]"))
    }
}

fn token_type(number: i32) -> TokenType {
    match number {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    }
}

fn text(key: &str, value: &Value) -> Result<String> {
    let wrong = || TokenizerError::GgufKey { key: key.to_owned(), expected: "text in UTF-8" };
    value.as_str().map(str::to_owned).ok_or_else(wrong)
}

fn strings(metadata: &Metadata, key: &'static str) -> Result<Option<Vec<String>>> {
    let items = match metadata.get(key) {
        None => return Ok(None),
        Some(Value::Array(Array::String(items))) => items,
        Some(_) => {
            return Err(TokenizerError::GgufKey { key: key.into(), expected: "an array of strings" });
        }
    };
    let checked = items.iter().enumerate().map(|(index, item)| {
        let wrong = |_| TokenizerError::GgufNotUtf8 { key: key.into(), index };
        String::from_utf8(item.clone()).map_err(wrong)
    });
    checked.collect::<Result<_, _>>().map(Some)
}
