//! Configuration keys that card expressions may name: those of `base.toml`, and those that cards declare in
//! `config_keys`. Any other name must be a definition or a default of the card, else it is an error when the card is
//! loaded.

use std::collections::BTreeSet;

use crate::read::base;
use crate::read::schema::Card;

/// Names of configuration keys, sorted.
pub(crate) struct ConfigKeys<'a>(BTreeSet<&'a str>);

impl<'a> ConfigKeys<'a> {
    /// Collects the shared keys and those that `cards` declare.
    pub(crate) fn of(cards: impl IntoIterator<Item = &'a Card>) -> Self {
        let declared = cards.into_iter().flat_map(|card| &card.config_keys);
        Self(base().config_keys.iter().chain(declared).map(String::as_str).collect())
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::facts;
    use crate::{CardKind, Registry};

    #[test]
    fn a_key_is_shared_or_declared_once_where_it_is_read() {
        let shared = &base().config_keys;
        assert!(shared.is_sorted());
        let mut declared: BTreeSet<String> = BTreeSet::new();
        for registry in [CardKind::Text, CardKind::Mmproj].map(|kind| Registry::embedded_of(kind).unwrap()) {
            for (stem, table) in registry.own_tables() {
                let cards = registry.cards().iter().filter(|card| card.stem == stem);
                let read: BTreeSet<String> = cards.flat_map(facts::config_keys).collect();
                let own = table.get("config_keys").and_then(toml::Value::as_array);
                for key in own.into_iter().flatten().map(|key| key.as_str().unwrap()) {
                    assert!(!shared.iter().any(|shared| shared == key), "{stem}: `{key}` is in base.toml");
                    assert!(declared.insert(key.to_owned()), "{stem}: another card declares `{key}`");
                    assert!(read.contains(key), "{stem}: `{key}` is not read");
                }
            }
        }
    }
}
