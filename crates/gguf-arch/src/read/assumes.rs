//! The `[assumes]` table of a card.

use indexmap::IndexMap;
use toml::Value as Toml;

use crate::language::expr::Expr;
use crate::read::{CardTable, Read, expr, kind};

/// Reads attributes, each with one expression or a list of them. All expressions are strings: `false` removes a
/// parent's row.
pub(super) fn assumes(top: &CardTable<'_>) -> Read<IndexMap<String, Vec<Expr>>> {
    let mut all = IndexMap::new();
    for (key, value) in top.tables("assumes")? {
        let at = format!("[assumes] `{key}`");
        let texts = match value {
            Toml::String(_) => std::slice::from_ref(value),
            Toml::Array(texts) if !texts.is_empty() && texts.iter().all(Toml::is_str) => texts,
            other => return Err(kind(&at, "an expression in quotes, or a list of them", other)),
        };
        all.insert(key.clone(), texts.iter().map(|text| expr(text, &at)).collect::<Read<_>>()?);
    }
    Ok(all)
}
