//! Origins of the values of a file's keys: the keys of `config.json` that the card's rows read.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::keys::origin::Origin;
use crate::language::eval::Scope;
use crate::language::expr::{Expr, Function, Path, PathStep};
use crate::read::metadata_rows;
use crate::read::roots::{ROOTS, is_number};
use crate::read::schema::{Card, MetadataRow};

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
    collect(card, expr, config, &mut Vec::new(), &mut names);
    let text = config.get("text_config").and_then(Json::as_object);
    let origin = |key: String| {
        let stated = text.and_then(|text| member(text, &key)).or_else(|| member(config, &key)).cloned();
        let taken = member(&scope.config, &key).or(stated.as_ref()).cloned().unwrap_or(Json::Null);
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

/// Returns the value of a key, which may be in a part: `vision_config.depth`.
pub(crate) fn member<'c>(config: &'c Map<String, Json>, key: &str) -> Option<&'c Json> {
    let mut names = key.split('.');
    let first = config.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name))
}

/// Returns the configuration key that a definition of the card reads.
pub(crate) fn defined(card: &Card, name: &str, config: &Map<String, Json>) -> Option<String> {
    let text = |expr: &Expr| match expr {
        Expr::Path(path) if path.steps.iter().all(|step| matches!(step, PathStep::Field(_))) => {
            Some(path.to_string())
        }
        _ => None,
    };
    match card.lets.get(name)? {
        Expr::Call(Function::First, keys) => {
            let keys: Vec<String> = keys.iter().filter_map(text).collect();
            let is_there =
                |key: &&String| key.split('.').next().is_some_and(|root| config.contains_key(root));
            keys.iter().find(is_there).or(keys.last()).cloned()
        }
        expr => text(expr),
    }
}

fn collect(
    card: &Card,
    expr: &Expr,
    config: &Map<String, Json>,
    open: &mut Vec<String>,
    names: &mut Vec<String>,
) {
    let mut paths: Vec<Path> = Vec::new();
    expr.walk(&mut |expr| {
        if let Expr::Path(path) = expr {
            paths.push(path.clone());
        }
    });
    for path in paths {
        let name = path.key();
        // A member of a part of the configuration, such as `vision_config`.
        if let Some(PathStep::Field(field)) = path.steps.first()
            && let Some(part) = defined(card, name, config)
            && part.split('.').next().is_some_and(|root| !ROOTS.contains(&root))
        {
            let key = format!("{part}.{field}");
            if !names.contains(&key) {
                names.push(key);
            }
            continue;
        }
        match card.lets.get(name) {
            Some(definition) if !open.iter().any(|open| open == name) => {
                open.push(name.to_owned());
                collect(card, definition, config, open, names);
                open.pop();
            }
            _ if ROOTS.contains(&name) || is_number(name) || names.iter().any(|known| known == name) => {}
            _ => names.push(name.to_owned()),
        }
    }
}
