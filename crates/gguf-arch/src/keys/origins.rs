//! Origins of the values of a file's keys: the keys of `config.json` that the card's rows read.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value as Json};

use crate::language::eval::Scope;
use crate::language::expr::{Expr, Path};
use crate::read::metadata_rows;
use crate::read::roots::{ROOTS, is_number};
use crate::read::schema::{Card, MetadataRow};
use gguf_core::text::escape;

/// Maximum length of a displayed value, in characters.
const MAX_SHOWN: usize = 60;

/// Configuration key, with its stated and its effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The key.
    pub key: String,
    /// Value in the configuration; `None` if the key is absent.
    pub stated: Option<Json>,
    /// Effective value: an absent key has its default.
    pub taken: Json,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |json: &Json| {
            let text = json.to_string();
            match text.char_indices().nth(MAX_SHOWN) {
                Some((at, _)) => format!("{}…", escape(&text[..at])),
                None => escape(&text).into_owned(),
            }
        };
        write!(f, "`{}`", escape(&self.key))?;
        match &self.stated {
            Some(stated) if *stated == self.taken => write!(f, " = {}", shown(stated)),
            Some(stated) => write!(f, " = {} (counts as {})", shown(stated), shown(&self.taken)),
            None if self.taken.is_null() => f.write_str(", absent"),
            None => write!(f, ", absent (counts as {})", shown(&self.taken)),
        }
    }
}

/// Origins, by key of the file.
pub(crate) type Origins = BTreeMap<String, Vec<Origin>>;

/// Returns the origins of the keys that a card's rows write. `config` is the given configuration, with its text part
/// under `text_config`.
pub(crate) fn of_rows(card: &Card, scope: &Scope<'_>, config: &Map<String, Json>) -> Origins {
    let mut origins = Origins::new();
    let rows = card.metadata.iter().flat_map(|row| match row {
        MetadataRow::Base => metadata_rows::base_rows(),
        row @ MetadataRow::Key { .. } => std::slice::from_ref(row),
    });
    for row in rows {
        let MetadataRow::Key { key, value, .. } = row else { continue };
        if let Some(full) = metadata_rows::full_key(key, &card.gguf) {
            let found = of_expr(card, value, scope, config);
            if !found.is_empty() {
                origins.insert(full, found);
            }
        }
    }
    origins
}

pub(crate) fn of_expr(
    card: &Card,
    expr: &Expr,
    scope: &Scope<'_>,
    config: &Map<String, Json>,
) -> Vec<Origin> {
    let mut names = Vec::new();
    collect(card, expr, &mut Vec::new(), &mut names);
    let text = config.get("text_config").and_then(Json::as_object);
    let origin = |key: String| {
        let stated = text.and_then(|text| text.get(&key)).or_else(|| config.get(&key)).cloned();
        let taken = scope.config.get(&key).or(stated.as_ref()).cloned().unwrap_or(Json::Null);
        Origin { key, stated, taken }
    };
    let all: Vec<Origin> = names.into_iter().map(origin).collect();
    // If one of several names is present, the others are left out; if none is, the first is the usual one.
    let is_stated = |origin: &Origin| origin.stated.is_some();
    let is_taken = |origin: &Origin| !origin.taken.is_null();
    match (all.iter().any(is_stated), all.iter().any(is_taken)) {
        (true, _) => all.into_iter().filter(is_stated).collect(),
        (false, true) => all.into_iter().filter(is_taken).collect(),
        (false, false) => all.into_iter().take(1).collect(),
    }
}

fn collect(card: &Card, expr: &Expr, open: &mut Vec<String>, names: &mut Vec<String>) {
    let mut paths: Vec<Path> = Vec::new();
    expr.walk(&mut |expr| {
        if let Expr::Path(path) = expr {
            paths.push(path.clone());
        }
    });
    for path in paths {
        let name = path.key();
        match card.lets.get(name) {
            Some(definition) if !open.iter().any(|open| open == name) => {
                open.push(name.to_owned());
                collect(card, definition, open, names);
                open.pop();
            }
            _ if ROOTS.contains(&name) || is_number(name) || names.iter().any(|known| known == name) => {}
            _ => names.push(name.to_owned()),
        }
    }
}
