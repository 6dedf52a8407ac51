//! Conversion of JSON values into prompts.

use serde::Deserialize;
use serde_json::Value as Json;

use crate::PromptSource;

/// Description of the accepted values, for error messages.
pub(super) const EXPECTED: &str =
    "a text, or an object with one of `text`, `tokens`, `prompt` with `completion`, `messages`";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptFields {
    text: Option<String>,
    tokens: Option<Vec<u32>>,
    prompt: Option<String>,
    completion: Option<String>,
    messages: Option<Json>,
}

/// Converts a value into a prompt: a text, one of the objects, or a chat by itself (a list of objects with a `role`).
/// The error describes what was found instead.
pub(super) fn prompt(value: Json) -> Result<PromptSource, String> {
    match value {
        Json::String(text) => Ok(PromptSource::Text(text)),
        Json::Array(entries) if is_chat(&entries) => Ok(PromptSource::Messages(Json::Array(entries))),
        Json::Object(_) => match serde_json::from_value::<PromptFields>(value) {
            Ok(fields) => object(fields),
            // The caller says what is expected.
            Err(error) => {
                Err(error.to_string().split(", expected one of").next().unwrap_or_default().to_owned())
            }
        },
        other => Err(format!("found {}", kind(&other))),
    }
}

fn object(fields: PromptFields) -> Result<PromptSource, String> {
    match fields {
        PromptFields { text: Some(text), tokens: None, prompt: None, completion: None, messages: None } => {
            Ok(PromptSource::Text(text))
        }
        PromptFields { text: None, tokens: Some(tokens), prompt: None, completion: None, messages: None } => {
            Ok(PromptSource::Tokens(tokens))
        }
        PromptFields {
            text: None,
            tokens: None,
            prompt: Some(prompt),
            completion: Some(completion),
            messages: None,
        } => Ok(PromptSource::Completion { prompt, completion }),
        PromptFields {
            text: None,
            tokens: None,
            prompt: None,
            completion: None,
            messages: Some(messages),
        } => Ok(PromptSource::Messages(messages)),
        PromptFields { text: None, tokens: None, prompt: Some(_), completion: None, messages: None } => {
            Err("found `prompt` without `completion`".to_owned())
        }
        PromptFields { text: None, tokens: None, prompt: None, completion: None, messages: None } => {
            Err("found none of the keys".to_owned())
        }
        _ => Err("found several forms at once".to_owned()),
    }
}

/// Returns true for a list of messages: objects with a `role`.
pub(super) fn is_chat(entries: &[Json]) -> bool {
    !entries.is_empty()
        && entries.iter().all(|entry| entry.as_object().is_some_and(|message| message.contains_key("role")))
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a bool",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}
