//! What becomes of each key of a configuration.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use gguf_checkpoint::pieces::{NOTHING, is_nothing, why};
use gguf_core::account::{Fate, Piece, PieceKind};
use serde_json::Value as Json;

use crate::error::lost_value::LostValue;
use crate::judge::carried::same::same;
use crate::judge::carried::{CarriedCheck, config_plan, effects, rope};
use crate::judge::facts;
use crate::keys::hparams::ConfigMap;
use crate::keys::origins::Origins;
use crate::language::expr::{Expr, PathStep};
use crate::read::schema::Card;
use crate::read::visit;

/// Part of a configuration with the keys of the language model.
const TEXT: &str = "text_config";
/// Keys that are tried one by one; of more, many are tried together first.
const TRIED_SINGLY: usize = 256;
/// Rows of the table of pieces for keys of every configuration.
const CONFIG: &str = "config.json";
/// Reason for what runtimes do without being told.
const ANYWAY: &str = "it says what runtimes compute in any case";

/// Values of keys for which runtimes compute what the model's own code does.
static STANDS_FOR: LazyLock<toml::Table> =
    LazyLock::new(|| toml::from_str(include_str!("stands_for.toml")).unwrap_or_default());

/// Returns what becomes of each key for a card whose values are not compared with a class: it reads some of them. The
/// members of a key are listed instead of it.
pub(crate) fn of_read(card: &Card, config: &ConfigMap) -> Vec<Piece> {
    let mut read = facts::config_keys(card);
    visit::walk(card, &mut |expr| {
        if let Expr::Path(path) = expr {
            read.extend(path.steps.iter().filter_map(|step| match step {
                PathStep::Field(name) => Some(name.clone()),
                PathStep::Index(_) => None,
            }));
        }
    });
    let piece = |name: String, key: &str, value: &Json| {
        let to = || vec![format!("{}.*", card.gguf)];
        let none = |why: &str| Piece::not(PieceKind::Key, &*name, Fate::WithoutEffect, why);
        match why(CONFIG, key) {
            _ if is_nothing(value) => none(NOTHING),
            _ if read.contains(key) => Piece::written(PieceKind::Key, &*name, to()),
            Some(why) if !why.starts_with("it is of a tower") => none(why),
            _ => none("nothing of the file depends on it"),
        }
    };
    let pieces = config.iter().flat_map(|(key, value)| match value.as_object() {
        Some(map) if !map.is_empty() => {
            map.iter().map(|(own, value)| piece(format!("{key}.{own}"), own, value)).collect()
        }
        _ => vec![piece(key.clone(), key, value)],
    });
    pieces.collect()
}

impl CarriedCheck<'_, '_> {
    /// Returns what becomes of each key, those of the text part first. `origins` are the sources of the file's keys.
    pub(super) fn fates(&mut self, origins: &Origins) -> Vec<Piece> {
        let mut written: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (key, sources) in origins {
            for source in sources {
                written.entry(&source.key).or_default().push(key.clone());
            }
        }
        let config = self.config;
        let text = config.get(TEXT).and_then(Json::as_object);
        let nested = text.into_iter().flatten().map(|(key, value)| (Some(TEXT), key, value));
        let own = config.iter().filter(|(key, _)| *key != TEXT).map(|(key, value)| (None, key, value));
        let all: Vec<_> = nested.chain(own).collect();
        let open = all.iter().map(|(part, key, _)| (*part, key.as_str()));
        let open: Vec<_> = open.filter(|(_, key)| !written.contains_key(key)).collect();
        let mut idle = HashSet::new();
        if open.len() > TRIED_SINGLY {
            self.find_idle(&open, &mut idle);
        }
        let piece = |(part, key, value): (Option<&str>, &String, &Json)| {
            let name = part.map_or_else(|| key.clone(), |part| format!("{part}.{key}"));
            let to = written.get(key.as_str()).cloned();
            let is_idle = idle.contains(&(part, key.as_str()));
            match to.map_or_else(|| self.fate(part, key, value, is_idle), Ok) {
                Ok(to) => Piece::written(PieceKind::Key, name, to),
                Err((fate, why)) => Piece::not(PieceKind::Key, name, fate, why),
            }
        };
        let pieces = all.into_iter().map(piece).collect();
        self.with_rope_members(pieces)
    }

    /// Lists the members of rope parameters in place of the key that holds them.
    fn with_rope_members(&mut self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        let holds = |piece: &Piece, name: &str| {
            name.strip_prefix(&piece.name).is_some_and(|rest| rest.starts_with('.'))
        };
        let mut members: Vec<Piece> = Vec::new();
        for path in self.descriptions() {
            let description = self.at(&path).cloned().unwrap_or_default();
            for (member, value) in description.iter().filter(|(_, value)| !value.is_object()) {
                let name = path.iter().chain([member]).map(String::as_str).collect::<Vec<_>>().join(".");
                let lost = self.lost_member(&path, member).map(|lost| Cow::from(lost.to_string()));
                let without = self.with_members(&path, &[(member, Json::Null)]);
                members.push(match (lost, without.and_then(|changed| self.changed_by(&changed))) {
                    (Some(why), _) => Piece::not(PieceKind::Key, name, Fate::LeftOut, why),
                    _ if is_nothing(value) => Piece::not(PieceKind::Key, name, Fate::WithoutEffect, NOTHING),
                    // Nothing can be planned without it: it is in what the whole is.
                    (None, Some(to)) if to.is_empty() => {
                        let whole = pieces.iter().find(|piece| holds(piece, &name));
                        let to = whole.map(|piece| piece.to.clone()).unwrap_or_default();
                        Piece::written(PieceKind::Key, name, to)
                    }
                    (None, Some(to)) => Piece::written(PieceKind::Key, name, to),
                    (None, None) => Piece::not(PieceKind::Key, name, Fate::WithoutEffect, ANYWAY),
                });
            }
        }
        let is_whole = |piece: &Piece| members.iter().any(|own| holds(piece, &own.name));
        if let Some(at) = pieces.iter().position(is_whole) {
            pieces.splice(at..=at, members);
        }
        pieces
    }

    /// Returns what a key is written as. The error is its other fate, with the reason.
    fn fate(
        &mut self,
        part: Option<&str>,
        key: &str,
        value: &Json,
        is_idle: bool,
    ) -> Result<Vec<String>, (Fate, Cow<'static, str>)> {
        let none = |why: &'static str| Err((Fate::WithoutEffect, why.into()));
        let unknown = || Err((Fate::Unknown, "no rule knows this key: it is not read".into()));
        let is_own = |lost: &&LostValue| {
            lost.key == key || lost.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        };
        if let Some(lost) = self.lost.iter().find(is_own) {
            return Err((Fate::LeftOut, lost.to_string().into()));
        }
        if self.mentioned.contains(key) {
            return Ok(vec!["which tensors there are, and their shapes".to_owned()]);
        }
        if let Some(why) = effects::why_none(key).or_else(|| why(CONFIG, key)) {
            return none(why);
        }
        if is_nothing(value) {
            return none(NOTHING);
        }
        if !is_idle && let Some(keys) = self.changed_without(|own, name| (own, name) == (part, key)) {
            return Ok(keys);
        }
        let is_known = |attributes: &&crate::attributes::Attributes| {
            attributes.names().any(|name| attributes.spellings(name).any(|own| own == key))
        };
        if self.attributes.as_ref().is_some_and(is_known) || rope::is_judged(key) || rope::OLD.contains(&key)
        {
            return none(ANYWAY);
        }
        let own = STANDS_FOR.get(&format!("{}.{key}", self.card.gguf)).or_else(|| STANDS_FOR.get(key));
        let is_listed = |own: &toml::Value| serde_json::to_value(own).is_ok_and(|own| same(&own, value));
        let values = own.and_then(toml::Value::as_array);
        if values.is_some_and(|values| values.is_empty() || values.iter().any(is_listed)) {
            return none(ANYWAY);
        }
        if !self.acts(key, value) {
            return none("another key turns it off");
        }
        // A class of transformers reads the keys that it knows, unless code beside the model takes its place.
        if self.attributes.is_some() && !self.config.contains_key("auto_map") {
            return none("transformers' class of this model does not read it");
        }
        unknown()
    }

    /// Collects keys without which, all together, the file stays as it is: a configuration may have very many that nothing
    /// reads.
    fn find_idle<'k>(
        &mut self,
        keys: &[(Option<&'k str>, &'k str)],
        idle: &mut HashSet<(Option<&'k str>, &'k str)>,
    ) {
        let gone: HashSet<_> = keys.iter().copied().collect();
        if self.changed_without(|part, key| gone.contains(&(part, key))).is_none() {
            idle.extend(keys);
        } else if keys.len() > TRIED_SINGLY / 16 {
            let (first, second) = keys.split_at(keys.len() / 2);
            self.find_idle(first, idle);
            self.find_idle(second, idle);
        }
    }

    /// Returns the keys of the file that change if the configuration lacks some keys, if any does. The list is empty if
    /// nothing can be planned without them.
    fn changed_without(&mut self, is_gone: impl Fn(Option<&str>, &str) -> bool) -> Option<Vec<String>> {
        let without = |part: Option<&str>, map: &serde_json::Map<String, Json>| {
            let kept = map.iter().filter(|(key, _)| !is_gone(part, key));
            kept.map(|(key, value)| (key.clone(), value.clone())).collect::<serde_json::Map<_, _>>()
        };
        let mut changed = without(None, self.config);
        if let Some(text) = changed.get_mut(TEXT).and_then(Json::as_object_mut) {
            *text = without(Some(TEXT), text);
        }
        self.changed_by(&changed)
    }

    /// Returns the keys of the file that are other ones under this configuration.
    fn changed_by(&mut self, changed: &ConfigMap) -> Option<Vec<String>> {
        let Ok((plan, annotations)) = config_plan(self.card, changed, &mut self.scope) else {
            return Some(Vec::new());
        };
        if plan == self.plan && annotations == self.annotations {
            return None;
        }
        let pairs = [(&self.plan.early, &plan.early), (&self.plan.metadata, &plan.metadata)];
        let keys = pairs.into_iter().flat_map(|(before, after)| {
            let differs = |(key, value): &(&str, _)| after.get(key) != Some(*value);
            before.iter().filter(differs).map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        });
        Some(keys.collect())
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn the_table_of_values_is_read_and_sorted() {
        let table: toml::Table = toml::from_str(include_str!("stands_for.toml")).unwrap();
        assert!(table.len() > 40 && table.values().all(toml::Value::is_array));
        let (of_archs, shared): (Vec<_>, Vec<_>) = table.keys().partition(|key| key.contains('.'));
        assert!(of_archs.is_sorted() && shared.is_sorted());
    }
}
