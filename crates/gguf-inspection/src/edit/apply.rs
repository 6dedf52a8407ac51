//! Application of edits to the keys of a file.

use std::path::Path;

use crate::edit::{Edit, EditError};
use crate::template::is_template;
use gguf_core::progress::Progress;
use gguf_core::similar::nearest;
use gguf_core::text::escape;
use gguf_format::key_faults::own_type;
use gguf_format::keys::{KEYS, key_info};
use gguf_format::{Array, AssignType, Assignment, Metadata, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
/// Role names of checkpoints that differ from those of the keys.
const ROLE_ALIASES: &[(&str, &str)] =
    &[("unk", "unknown"), ("sep", "seperator"), ("separator", "seperator"), ("pad", "padding")];
/// Maximum number of ids of equal tokens that a warning lists.
const MAX_LISTED: usize = 8;

impl Edit {
    /// Applies the edit; returns the keys that it refers to.
    pub(super) fn apply(
        &self,
        metadata: &mut Metadata,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Vec<String>, EditError> {
        match self {
            Self::Set(assignment) => assign(assignment, metadata),
            Self::Remove(key) => {
                let known: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
                let nearest = || nearest(key, known.iter().map(String::as_str)).map(str::to_owned);
                let no_key =
                    || EditError::NoKey { path: path.to_owned(), key: key.clone(), nearest: nearest() };
                metadata.remove(key).ok_or_else(no_key)?;
                Ok(vec![key.clone()])
            }
            Self::Special { key, token } => {
                let id = find_token(token, key, metadata, path, progress)?;
                let text = id.to_string().into_bytes();
                assign(&Assignment { key: (*key).to_owned(), ty: None, text }, metadata)
            }
            Self::Templates(templates) => Ok(replace_templates(templates, metadata)),
            Self::Rename { .. } | Self::Drop(_) => Ok(Vec::new()),
        }
    }
}

fn assign(assignment: &Assignment, metadata: &mut Metadata) -> Result<Vec<String>, EditError> {
    let value = assignment.value(type_of(&assignment.key, metadata))?;
    metadata.set(assignment.key.clone(), value);
    Ok(vec![assignment.key.clone()])
}

/// Returns the type of a key: that of the value in the file, else that of the well-known key.
fn type_of(key: &str, metadata: &Metadata) -> Option<AssignType> {
    let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
    match metadata.get(key) {
        Some(value) => AssignType::of(value),
        None => key_info(key, arch).map(own_type),
    }
}

/// Roles of special tokens by their names in keys, with the keys.
fn roles() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.iter().filter_map(|row| {
        let role = row.pattern.strip_prefix("tokenizer.ggml.")?.strip_suffix("_token_id")?;
        Some((role, row.pattern))
    })
}

pub(super) fn role_names() -> String {
    roles().map(|(role, _)| role).collect::<Vec<_>>().join(", ")
}

pub(super) fn role_key(role: &str) -> Option<&'static str> {
    let role = ROLE_ALIASES.iter().find(|alias| alias.0 == role).map_or(role, |alias| alias.1);
    roles().find(|(name, _)| *name == role).map(|(_, key)| key)
}

/// Returns the id of a token, the first of several.
fn find_token(
    token: &str,
    key: &str,
    metadata: &Metadata,
    path: &Path,
    progress: &dyn Progress,
) -> Result<usize, EditError> {
    let Some(Value::Array(Array::String(tokens))) = metadata.get(TOKENS) else {
        return Err(EditError::NoVocabulary { path: path.to_owned() });
    };
    let mut ids = tokens.iter().enumerate().filter(|(_, own)| own.as_slice() == token.as_bytes());
    let Some((first, _)) = ids.next() else {
        let known = tokens.iter().filter_map(|own| std::str::from_utf8(own).ok());
        let nearest = nearest(token, known).map(str::to_owned);
        return Err(EditError::NoToken { path: path.to_owned(), token: token.to_owned(), nearest });
    };
    let others: Vec<String> = ids.map(|(id, _)| id.to_string()).collect();
    if !others.is_empty() {
        let shown = others.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", ");
        let more = if others.len() > MAX_LISTED { ", …" } else { "" };
        progress.warn(&format!(
            "token `{}` is there {} times: {first} is taken, {key}=ID takes another ({shown}{more})",
            escape(token),
            others.len() + 1
        ));
    }
    Ok(first)
}

/// Replaces all templates; a new one takes the position of an old one of the same name.
fn replace_templates(templates: &Metadata, metadata: &mut Metadata) -> Vec<String> {
    let old: Vec<String> =
        metadata.iter().map(|(key, _)| key).filter(|key| is_template(key)).map(str::to_owned).collect();
    for key in old.iter().filter(|key| !templates.contains(key)) {
        metadata.remove(key);
    }
    for (key, value) in templates.iter() {
        metadata.set(key, value.clone());
    }
    let new = templates.iter().map(|(key, _)| key.to_owned()).filter(|key| !old.contains(key));
    old.iter().cloned().chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_the_names_of_keys_and_of_checkpoints() {
        assert_eq!(role_key("eos"), Some("tokenizer.ggml.eos_token_id"));
        assert_eq!(role_key("pad"), role_key("padding"));
        assert_eq!(role_key("sep"), Some("tokenizer.ggml.seperator_token_id"));
        assert_eq!(role_key("fim_pre"), Some("tokenizer.ggml.fim_pre_token_id"));
        assert_eq!(role_key("gmask"), None);
        assert!(role_names().starts_with("bos, eos, eot, eom, unknown, "), "{}", role_names());
    }
}
