//! Tokens that `added_tokens_decoder` of the tokenizer's configuration lists with their ids.

use crate::Result;
use serde_json::Value as Json;

use super::super::TokenizerError;
use super::super::files::CONFIG;
use super::Context;

/// A token with the id at which it replaces the vocabulary's own.
pub(super) struct TokenOverride {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) special: bool,
}

/// Returns the entries in the order of the file.
///
/// # Errors
/// An id that is no number or above `max_id`; an entry without a text.
pub(super) fn decoder_entries(context: &Context<'_>, max_id: u64) -> Result<Vec<TokenOverride>> {
    const KEY: &str = "added_tokens_decoder";
    let config = context.directory.tree(CONFIG)?;
    let mut entries = Vec::new();
    for (found, token) in config.get(KEY).and_then(Json::as_object).into_iter().flatten() {
        let bad =
            || TokenizerError::BadId { path: context.directory.join(CONFIG), key: KEY, found: found.clone() };
        let text = token.get("content").and_then(Json::as_str).ok_or_else(bad)?.to_owned();
        let special = token.get("special").and_then(Json::as_bool).unwrap_or(false);
        let id = found.parse().ok().filter(|&id| id <= max_id).ok_or_else(bad)?;
        entries.push(TokenOverride { id, text, special });
    }
    Ok(entries)
}
