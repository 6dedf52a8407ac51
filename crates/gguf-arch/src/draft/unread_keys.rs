//! Keys of `config.json` that the parent of a draft does not read, and their use in other cards.

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::judge::facts;
use crate::judge::similar::own_keys;
use crate::language::expr::{Expr, Function};
use crate::read::schema::{Card, MetadataRow};
use crate::registry::Registry;

/// Configuration key that the parent does not read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnreadKey {
    /// Name of the key.
    pub key: String,
    /// Value of the key.
    pub value: Json,
    /// GGUF key to which another card writes the value, and that card.
    #[serde(skip)]
    pub written: Option<(String, String)>,
}

/// Returns the keys of the text model's configuration that a card, the parent, does not read.
pub(super) fn unread(registry: &Registry, card: &Card, config: &Map<String, Json>) -> Vec<UnreadKey> {
    let read = facts::config_keys(card);
    let text = config.get("text_config").and_then(Json::as_object).unwrap_or(config);
    let unread = own_keys(config).into_iter().filter(|key| !read.contains(*key));
    unread
        .filter_map(|key| {
            let value = text.get(key)?.clone();
            Some(UnreadKey { key: key.to_owned(), value, written: written(registry, key) })
        })
        .collect()
}

/// Returns the GGUF key and card of a row whose value is just this configuration key.
fn written(registry: &Registry, key: &str) -> Option<(String, String)> {
    registry.cards().iter().find_map(|card| {
        let row = card.metadata.iter().find_map(|row| match row {
            MetadataRow::Key { key: gguf, value, .. } if is_key(value, key) => Some(gguf.clone()),
            _ => None,
        });
        Some((row?, card.gguf.clone()))
    })
}

fn is_key(value: &Expr, key: &str) -> bool {
    match value {
        Expr::Path(path) => path.root == key && path.steps.is_empty(),
        Expr::Call(Function::First, items) => items.iter().any(|item| is_key(item, key)),
        _ => false,
    }
}
