//! Entries of all cards together: proposes targets for a source name from its targets elsewhere.

use std::collections::BTreeMap;

use toml::{Table, Value as Toml};

use super::text::inline;
use crate::mapping::matching::kind_of;
use crate::registry::Registry;

/// Prefix of the targets in `[blocks]`.
const BLOCK: &str = "blk.{bid}.";

/// Last parts of names that are too generic to decide alone.
const VAGUE: &[&str] =
    &["#", "conv", "dense", "gate", "linear", "layer_norm", "ln", "mlp", "norm", "proj", "scale"];

#[derive(Clone, Debug)]
struct KnownEntry {
    /// Source name, after the block prefix if it is in a block, with `#` for each number.
    kind: String,
    in_block: bool,
    /// The entry as TOML; targets omit the block prefix if it is in a block.
    value: Toml,
    card: String,
    /// True if it belongs to the card that is most similar to the checkpoint.
    is_nearest: bool,
}

/// Proposed entry for a name, with its support among the cards.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposal {
    /// The entry, for `[blocks]` if the name is in a block, else for `[tensors]`.
    pub(super) value: Toml,
    pub(super) card: String,
    /// True if that card has exactly this source name.
    pub(super) is_exact: bool,
    /// True if the card that is most similar to the checkpoint has the entry.
    pub(super) is_nearest: bool,
    /// Number of cards that have this entry.
    pub(super) votes: usize,
}

/// Number of cards that must agree on the target of a name that only ends alike, if the extended card lacks it.
const AGREEING: usize = 3;

impl Proposal {
    /// Returns true if a target that the extended card lacks may be proposed all the same.
    pub(super) fn is_known_well(&self) -> bool {
        self.is_exact || self.is_nearest || self.votes >= AGREEING
    }
}

/// The entries of all cards.
pub(super) struct KnownEntries {
    entries: Vec<KnownEntry>,
}

impl KnownEntries {
    /// Collects the entries of all cards. `nearest` is the card that is most similar to the checkpoint: its entries,
    /// and those of its parents, rank first.
    pub(super) fn of(registry: &Registry, nearest: Option<&str>) -> Self {
        let mut entries = Vec::new();
        let mut add = |card: &str, table: &Table, is_nearest: bool| {
            for (section, in_blocks) in [("blocks", true), ("tensors", false)] {
                for (name, value) in table.get(section).and_then(Toml::as_table).into_iter().flatten() {
                    let entry = entry(card, name, value, in_blocks);
                    let entry = entry.map(|entry| if is_nearest { entry } else { without_no_ops(entry) });
                    entries.extend(entry.map(|entry| KnownEntry { is_nearest, ..entry }));
                }
            }
        };
        if let Some((card, table)) = nearest.and_then(|card| Some((card, registry.merged_table(card)?))) {
            add(card, &table, true);
        }
        registry.own_tables().for_each(|(card, table)| add(card, table, false));
        Self { entries }
    }

    /// Returns the proposals for a source, the likeliest first. `kind` is its name after the block prefix, or its whole
    /// name, without ending and with `#` for each number.
    pub(super) fn proposals(&self, kind: &str, in_block: bool) -> Vec<Proposal> {
        let parts: Vec<&str> = kind.split('.').collect();
        let mut best = 0;
        let mut found: Vec<(&KnownEntry, bool)> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.in_block == in_block) {
            let own: Vec<&str> = entry.kind.split('.').collect();
            let common = own.iter().rev().zip(parts.iter().rev()).take_while(|(a, b)| a == b).count();
            let is_exact = common == own.len() && common == parts.len();
            let numbers = |parts: &[&str]| parts.iter().filter(|part| **part == "#").count();
            let is_vague = common == 1 && parts.last().is_some_and(|last| VAGUE.contains(last));
            if common == 0 || (!is_exact && (is_vague || numbers(&own) != numbers(&parts))) {
                continue;
            }
            // An exactly equal name outranks all names that only end alike.
            let weight = common + if is_exact { parts.len() } else { 0 };
            if weight > best {
                best = weight;
                found.clear();
            }
            if weight == best {
                found.push((entry, is_exact));
            }
        }
        let mut votes: BTreeMap<String, Proposal> = BTreeMap::new();
        for (entry, is_exact) in found {
            let KnownEntry { value, card, is_nearest, .. } = entry.clone();
            let new = Proposal { value, card, is_exact, is_nearest: false, votes: 0 };
            let proposal = votes.entry(inline(&new.value)).or_insert(new);
            proposal.is_nearest |= is_nearest;
            proposal.votes += 1;
        }
        let mut all: Vec<Proposal> = votes.into_values().collect();
        all.sort_by_key(|proposal| (!proposal.is_nearest, std::cmp::Reverse(proposal.votes)));
        all
    }
}

/// Converts an entry for reuse; `None` for a conditional one, whose condition has another meaning elsewhere.
fn entry(card: &str, name: &str, value: &Toml, in_blocks: bool) -> Option<KnownEntry> {
    let numbered =
        kind_of(&["{bid}", "{eid}", "{xid}"].iter().fold(name.to_owned(), |n, p| n.replace(p, "0")));
    let behind_block =
        name.split_once("{bid}.").map(|(before, _)| kind_of(&before.replace("{bid}", "0")).len());
    let mut value = match value {
        Toml::String(to) => Table::from_iter([("to".to_owned(), Toml::from(to.as_str()))]),
        Toml::Table(fields) if !fields.contains_key("when") => fields.clone(),
        _ => return None,
    };
    let (kind, in_block) = match behind_block {
        _ if in_blocks => (numbered, true),
        Some(at) => (numbered.get(at + 2..)?.to_owned(), true),
        None => (numbered, false),
    };
    if !in_blocks && in_block {
        value.insert("to".to_owned(), in_block_words(value.get("to")?)?);
    }
    for key in ["alias", "with", "bid"] {
        if value.contains_key(key) {
            return None;
        }
    }
    Some(KnownEntry { kind, in_block, value: short(value), card: card.to_owned(), is_nearest: false })
}

/// Removes `ops = []`, which is about the parent of the entry's own card.
fn without_no_ops(mut entry: KnownEntry) -> KnownEntry {
    if let Toml::Table(mut fields) = entry.value {
        fields.retain(|key, value| key != "ops" || !value.as_array().is_some_and(Vec::is_empty));
        entry.value = short(fields);
    }
    entry
}

/// Returns targets `blk.{bid}.X` without the prefix, as `[blocks]` spells them.
fn in_block_words(to: &Toml) -> Option<Toml> {
    match to {
        Toml::String(name) => Some(Toml::from(name.strip_prefix(BLOCK)?)),
        Toml::Array(names) => names.iter().map(in_block_words).collect::<Option<Vec<_>>>().map(Toml::Array),
        _ => None,
    }
}

/// Replaces a table with nothing but `to` by the target alone.
fn short(mut fields: Table) -> Toml {
    match fields.get("to") {
        Some(Toml::String(_)) if fields.len() == 1 => fields.remove("to").unwrap_or_else(|| Toml::from("")),
        _ => Toml::Table(fields),
    }
}

/// Returns the targets of an entry as written: names without ending.
pub(super) fn targets(value: &Toml) -> Vec<&str> {
    match value {
        Toml::String(name) => vec![name],
        Toml::Table(fields) => fields.get("to").map(targets).unwrap_or_default(),
        Toml::Array(items) => items.iter().flat_map(targets).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_from_other_cards() {
        let known = KnownEntries::of(&Registry::embedded().unwrap(), None);
        let first = |kind: &str, in_block: bool| {
            let found = known.proposals(kind, in_block);
            found.first().map(|found| (inline(&found.value), found.is_exact))
        };
        assert_eq!(first("self_attn.q_norm", true), Some(("\"attn_q_norm\"".to_owned(), true)));
        assert_eq!(first("attention.q_norm", true), Some(("\"attn_q_norm\"".to_owned(), false)));
        assert_eq!(first("backbone.embed_tokens", false), Some(("\"token_embd\"".to_owned(), false)));
        assert_eq!(first("some.norm", true), None, "the last part says too little");
        let experts = first("mlp.experts.#.down_proj", true).unwrap();
        assert!(experts.1 && experts.0.contains("ffn_down_exps"), "{experts:?}");
    }

    #[test]
    fn entries_of_tensors_in_blocks_are_those_of_blocks() {
        let found = entry("x", "h.{bid}.attn.{eid}.q", &Toml::from("blk.{bid}.attn_q"), false).unwrap();
        assert_eq!((found.kind.as_str(), found.in_block), ("attn.#.q", true));
        assert_eq!(found.value, Toml::from("attn_q"));
        assert!(entry("x", "h.{bid}.q", &Toml::from("elsewhere.{bid}"), false).is_none());
    }
}
