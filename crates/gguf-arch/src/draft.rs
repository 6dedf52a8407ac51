//! Drafts a card for a checkpoint that no card fits: the most similar card as its parent, entries for the names that
//! other cards know, and a note on each of the other names.

mod known;
mod names;
mod shapes;
#[cfg(test)]
mod share;
mod text;
mod unread_keys;

use crate::Result;
use std::collections::{BTreeSet, HashSet};

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use toml::{Table, Value as Toml};

use crate::apply::resolve::resolve;
use crate::error::ArchError;
use crate::error::similarity::Similarity;
use crate::judge::kinds::{TensorKind, block_prefix, kinds};
use crate::judge::needs::missing_tensors;
use crate::judge::similar::{card_prefix, lenient_scope, model_types, renamed, similar};
use crate::keys::shapes::check_shapes;
use crate::language::eval::Scope;
use crate::language::expr::Expr;
use crate::language::names::{Captures, SUFFIXES};
use crate::mapping::inputs::Inputs;
use crate::mapping::matching::{IgnoreStage, Matcher, kind_of};
use crate::mapping::options::ResolveOptions;
use crate::read::metadata_rows;
use crate::read::schema::{Card, TensorEntry};
use crate::registry::{Registry, detect};
use gguf_core::TensorMeta;
use gguf_format::Metadata;
use known::{KnownEntries, Proposal, targets};
use names::{complete, display, entry_text, full_targets, meta, numbered, texts};
pub use unread_keys::UnreadKey;

/// Maximum number of similar cards in a draft.
const MAX_SIMILAR: usize = 5;
/// A parent must know at least one in this many kinds of tensors.
const PARENT_SHARE: usize = 3;
/// Number of the most similar cards that may become the parent.
const MAX_PARENTS: usize = 12;
/// Number of required tensors without a source that weighs as much as a kind of tensors that a card does not know: one
/// can be filled in, more belong to another graph.
const MISSING_WEIGHT: usize = 2;
/// Default of `names.block`, the prefix of sources in `[blocks]`.
const BLOCK: &str = "model.layers.{bid}.";

/// Draft of a card, from the names and shapes of a checkpoint.
#[derive(Debug, Serialize)]
pub struct Draft {
    /// The card as TOML.
    #[serde(rename = "card")]
    pub text: String,
    /// `general.architecture` that the card gives the model.
    #[serde(rename = "architecture")]
    pub gguf: String,
    /// Model class that it converts.
    pub class: String,
    /// Card that it extends, if one is similar enough.
    #[serde(rename = "extends")]
    pub parent: Option<String>,
    /// The most similar cards, the best first.
    pub similar: Vec<Similarity>,
    /// Number of tensors of the text model.
    #[serde(rename = "tensors")]
    pub n_tensors: u64,
    /// Number of tensors that the card maps or ignores.
    #[serde(rename = "matched")]
    pub n_matched: u64,
    /// Entries that other cards have and the parent lacks.
    pub added: Vec<AddedEntry>,
    /// Keys of the parent's entries that match nothing in the checkpoint.
    pub removed: Vec<String>,
    /// Tensors that the card does not map, by kind.
    pub unmatched: Vec<Unmatched>,
    /// Tensors that the runtime requires of the parent's files and that no entry fills, with `N` for the block.
    pub missing: Vec<String>,
    /// Keys of `config.json` that the parent does not read.
    pub unread: Vec<UnreadKey>,
    /// Error that a conversion with the draft raises.
    #[serde(skip)]
    pub problem: Option<ArchError>,
}

/// Entry that the parent lacks and other cards have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AddedEntry {
    /// Key of the entry.
    #[serde(rename = "name")]
    pub key: String,
    /// True for `[blocks]`, false for `[tensors]`.
    #[serde(skip)]
    pub(crate) in_blocks: bool,
    /// Value of the key, as TOML.
    pub entry: String,
    /// Card that has the entry.
    #[serde(rename = "as_in")]
    pub card: String,
    /// True if that card has the same source name; false if only the ends of the names agree.
    #[serde(rename = "exact")]
    pub is_exact: bool,
    /// Number of tensors that it matches.
    #[serde(rename = "tensors")]
    pub n_tensors: u64,
    /// Names of the tensors that it fills in a file, with `{bid}` for the block.
    #[serde(skip)]
    pub fills: Vec<String>,
}

/// Tensors of one kind that the card does not map.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unmatched {
    /// Name after the card's rewriting, with `N` for numbers and without ending.
    pub name: String,
    /// Key that an entry for them would have, if their name can be one; the flag is that of `AddedEntry::in_blocks`.
    #[serde(skip)]
    pub key: Option<(String, bool)>,
    /// Number of tensors.
    #[serde(rename = "tensors")]
    pub n_tensors: u64,
    /// Shape of the first tensor, outermost dimension first.
    #[serde(rename = "shape")]
    pub dims: Vec<u64>,
    /// Reasons against the likely targets.
    pub why: Vec<String>,
}

/// Drafts a card for a checkpoint from its headers.
///
/// # Errors
/// [`ArchError::NoClass`] if the configuration names no class.
pub fn draft(registry: &Registry, inputs: &Inputs<'_>) -> Result<Draft> {
    let config = detect::with_text_config(inputs.config);
    let class = detect::class_of(&config)?;
    let ranking = similar(registry, &class, &config, inputs);
    // Drafting does not read weights. Only the trial conversion does, if a card asks for some.
    let headers = Inputs { values: None, ..*inputs };
    let all = kinds(inputs.weights);
    let fit = |best: &Similarity| {
        let parent = parent_of(registry, &best.card);
        let n_missing = parent.map_or(0, |card| {
            let scope = lenient_scope(card, &class, &config, &headers);
            let drafter = Drafter::new(registry, card, Some(best), &scope, &config);
            let found = drafter.find(&all);
            // What has no place yet may be what is missing.
            if found.unmatched.is_empty() { drafter.missing(&found).len() } else { 0 }
        });
        best.n_kinds.saturating_sub(n_missing / MISSING_WEIGHT)
    };
    let parents = ranking.iter().take(MAX_PARENTS);
    let parents = parents.filter(|best| best.n_kinds * PARENT_SHARE >= best.of_kinds.max(1));
    // Of equals, the last is returned: the most similar one.
    let best = parents.rev().max_by_key(|best| fit(best));
    let parent = best.and_then(|best| parent_of(registry, &best.card));
    let gguf = architecture(registry, parent, &config, &class);
    let nothing = Registry::from_texts([("none", NO_PARENT)])?;
    let card = parent.or_else(|| nothing.cards().first()).ok_or(ArchError::NoClass { model_type: None })?;
    let scope = lenient_scope(card, &class, &config, &headers);
    let drafter = Drafter::new(registry, card, best.filter(|_| parent.is_some()), &scope, &config);
    let mut found = drafter.find(&all);
    let unread = unread_keys::unread(registry, card, &config);
    let head = text::Head { class: &class, gguf: &gguf, best: best.filter(|_| parent.is_some()) };
    let mut text = text::card(&drafter, &head, &found, &unread);
    let mut with_draft = registry.clone();
    let mut problem = with_draft.add(&gguf, &text).err();
    if problem.is_some() {
        // An entry of another card may use definitions of that card.
        found.keep_entries(|entry| drafter.loads(&head, entry));
        text = text::card(&drafter, &head, &found, &unread);
        with_draft = registry.clone();
        problem = with_draft.add(&gguf, &text).err();
    }
    if problem.is_none() {
        problem = resolve(&with_draft, inputs, &ResolveOptions::default()).err();
    }
    let missing = drafter.missing(&found);
    let n_tensors = all.values().map(|kind| kind.n_tensors).sum();
    let MatchResults { n_inherited, added, removed, unmatched, .. } = found;
    let n_matched = n_inherited + added.iter().map(|entry| entry.n_tensors).sum::<u64>();
    let parent = parent.map(|card| card.gguf.clone());
    let similar = ranking.into_iter().take(MAX_SIMILAR).collect();
    Ok(Draft {
        text,
        gguf,
        class,
        parent,
        similar,
        n_tensors,
        n_matched,
        added,
        removed,
        unmatched,
        missing,
        unread,
        problem,
    })
}

/// Parent of a draft that extends no card.
const NO_PARENT: &str = "schema = 1\ngguf = \"none\"\nabstract = true\nmetadata = [[\"include\", \"base\"]]";

/// Returns the card to extend: the card of this name, or its nearest parent that may have another child.
fn parent_of<'r>(registry: &'r Registry, gguf: &str) -> Option<&'r Card> {
    let name = *registry.lineage(gguf).iter().find(|name| registry.can_be_extended(name))?;
    registry.cards().iter().find(|card| card.gguf == name && card.variant.is_none())
}

/// Returns the architecture's name: that of the parent if it knows the model's type, else one derived from the type.
fn architecture(
    registry: &Registry,
    parent: Option<&Card>,
    config: &Map<String, Json>,
    class: &str,
) -> String {
    let has_type = |table: &Table| {
        let defaults = table.get("defaults").and_then(Toml::as_table);
        let named = table.get("model_types").and_then(Toml::as_array);
        model_types(config).any(|model_type| {
            defaults.is_some_and(|table| table.contains_key(model_type))
                || named.is_some_and(|names| names.iter().any(|name| name.as_str() == Some(model_type)))
        })
    };
    let is_parent = |name: &str| parent.is_some_and(|parent| parent.gguf == name);
    if let Some((name, _)) = registry.own_tables().find(|(name, table)| is_parent(name) && has_type(table)) {
        return name.to_owned();
    }
    let word = |text: &str| -> String {
        let letters =
            text.chars().take(64).map(|c| if c == '_' || c == ' ' { '-' } else { c.to_ascii_lowercase() });
        letters.filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect()
    };
    let stem = class.trim_end_matches("ForCausalLM").trim_end_matches("ForConditionalGeneration");
    let names = model_types(config).chain([stem]).map(word);
    names
        .into_iter()
        .find(|name| name.chars().any(char::is_alphanumeric))
        .unwrap_or_else(|| "model".to_owned())
}

struct Drafter<'a> {
    registry: &'a Registry,
    /// The parent, or an empty card.
    card: &'a Card,
    parent: Option<&'a Card>,
    /// Card that is most similar to the checkpoint: the parent, or a child of it.
    nearest: Option<&'a str>,
    scope: &'a Scope<'a>,
    matcher: Matcher<'a>,
    /// Replacement at the start of names before the parent's rewriting.
    rename: Option<(String, String)>,
    /// Width of the residual stream.
    width: Option<u64>,
    /// Keys that the parent writes for this configuration, as far as they are known.
    keys: Metadata,
}

/// Tensors, sorted by the result of matching.
#[derive(Default)]
struct MatchResults {
    /// Number of tensors that the parent maps or ignores.
    n_inherited: u64,
    /// Names of the tensors that entries of the parent fill, with `{bid}` for the block.
    inherited: Vec<String>,
    /// Entries of the parent that match something and do more than rename: pattern and operations.
    with_ops: Vec<(String, String)>,
    added: Vec<AddedEntry>,
    removed: Vec<String>,
    /// Keys of `removed` that are in `[blocks]`.
    removed_blocks: BTreeSet<String>,
    unmatched: Vec<Unmatched>,
    /// Source prefix of `[blocks]`, if it differs from the default.
    block: Option<String>,
}

impl MatchResults {
    fn keep_entries(&mut self, keep: impl Fn(&AddedEntry) -> bool) {
        let (kept, refused) = std::mem::take(&mut self.added).into_iter().partition(keep);
        self.added = kept;
        self.unmatched.extend(refused.into_iter().map(|entry: AddedEntry| Unmatched {
            name: entry.key.clone(),
            why: vec![format!("`{}` has {}, which needs definitions of that card", entry.card, entry.entry)],
            key: Some((entry.key, entry.in_blocks)),
            n_tensors: entry.n_tensors,
            dims: Vec::new(),
        }));
    }
}

/// Kinds that differ only in their ending, by their common name.
type KindsByName<'k> = IndexMap<String, Vec<(&'static str, &'k TensorKind)>>;

impl<'a> Drafter<'a> {
    /// A drafter that extends a card, or none: then `card` is empty, and no card is similar enough.
    fn new(
        registry: &'a Registry,
        card: &'a Card,
        best: Option<&'a Similarity>,
        scope: &'a Scope<'a>,
        config: &Map<String, Json>,
    ) -> Self {
        Self {
            registry,
            card,
            parent: best.map(|_| card),
            nearest: best.map(|best| best.card.as_str()),
            scope,
            matcher: Matcher::lenient(card, scope),
            rename: best.and_then(|best| best.rename.clone()),
            width: shapes::width(config),
            keys: metadata_rows::known_keys(card, scope),
        }
    }

    fn find(&self, all: &IndexMap<String, TensorKind>) -> MatchResults {
        let mut found = MatchResults::default();
        let mut used = BTreeSet::new();
        let mut taken: HashSet<(String, &'static str)> = HashSet::new();
        let mut sources: KindsByName<'_> = IndexMap::new();
        for kind in all.values() {
            let [first, last] = [&kind.first_name, &kind.last_name].map(|name| {
                let name = renamed(name, self.rename.as_ref());
                self.matcher.rewritten(name.clone()).unwrap_or(name)
            });
            let entry = |name: &str| self.matcher.entry_of(name, name).ok().flatten();
            let is_ignored = |name: &str| {
                matches!(self.matcher.ignored(name, name, IgnoreStage::AfterEntries), Ok(Some(_)))
            };
            match (entry(&first), entry(&last)) {
                (Some((at, found_first)), Some((other, _))) if at == other => {
                    used.insert(at);
                    found.n_inherited += kind.n_tensors;
                    for target in &self.card.entries[at].targets {
                        taken.insert((target.name.text().to_owned(), found_first.suffix));
                        found.inherited.push(complete(target.name.text(), found_first.suffix));
                    }
                }
                (None, None) if is_ignored(&first) => found.n_inherited += kind.n_tensors,
                _ => {
                    let name = kind_of(&first);
                    let suffix = SUFFIXES.into_iter().find(|suffix| name.ends_with(suffix)).unwrap_or("");
                    let base = name.strip_suffix(suffix).unwrap_or(&name).to_owned();
                    sources.entry(base).or_default().push((suffix, kind));
                }
            }
        }
        found.with_ops = self.with_ops(used.iter().filter_map(|&at| self.card.entries.get(at)));
        let prefix = self.parent.and_then(card_prefix).map(str::to_owned);
        let prefix = prefix.or_else(|| block_prefix(all.keys().map(String::as_str)).map(str::to_owned));
        let block = prefix.as_ref().map(|prefix| format!("{prefix}{{bid}}."));
        let parents =
            self.merged().and_then(|table| table.get("names")?.get("block")?.as_str().map(str::to_owned));
        let parents = parents.unwrap_or_else(|| BLOCK.to_owned());
        if self.parent.is_none() {
            found.block = block.clone().filter(|block| *block != parents);
        }
        let in_blocks = self.parent.is_none() || block.as_ref() == Some(&parents);
        let known = KnownEntries::of(self.registry, self.nearest);
        for (base, kinds) in &sources {
            let shaped = shapes::feed_forward(base, &sources, self.width);
            self.place(base, kinds, shaped, prefix.as_deref(), in_blocks, &known, &mut taken, &mut found);
        }
        self.idle_entries(&used, &parents, &mut found);
        found
    }

    /// Returns the tensors that the runtime requires of the parent's files and that no entry fills.
    fn missing(&self, found: &MatchResults) -> Vec<String> {
        let added = found.added.iter().flat_map(|entry| &entry.fills);
        let tensor = |name: &String| meta(&name.replace("{bid}", "0"), &[1]);
        let tensors: Vec<TensorMeta> = found.inherited.iter().chain(added).filter_map(tensor).collect();
        let missing = missing_tensors(&self.keys, &tensors).map(|missing| missing.names).unwrap_or_default();
        missing.iter().map(|name| name.replace("blk.0.", "blk.N.")).collect()
    }

    /// Returns the operations that an entry takes over from the parent's entry with its target.
    fn kept_ops(&self, entry: &AddedEntry) -> Option<(String, String)> {
        let is_same = |own: &&TensorEntry| {
            let [target] = own.targets.as_slice() else { return false };
            own.join.is_none() && entry.fills.iter().any(|name| name.starts_with(target.name.text()))
        };
        let states_ops =
            ["ops", "pre", "stack", "concat"].iter().any(|key| entry.entry.contains(&format!("{key} =")));
        let kept = self.card.entries.iter().filter(is_same).filter(|_| !states_ops);
        self.with_ops(kept).into_iter().next().map(|(_, ops)| (entry.key.clone(), ops))
    }

    /// Returns the parent's table with those of its own parents merged in.
    fn merged(&self) -> Option<Table> {
        self.registry.merged_table(&self.parent?.gguf)
    }

    /// Returns the names of the entries that do more than rename, with their operations.
    #[expect(clippy::unused_self, reason = "the entries are the card's")]
    fn with_ops<'e>(&self, entries: impl Iterator<Item = &'e TensorEntry>) -> Vec<(String, String)> {
        let named = entries.map(|entry| {
            let of_targets = entry.targets.iter().flat_map(|target| &target.ops);
            let ops = entry.pre.iter().chain(&entry.ops).chain(of_targets).map(|op| op.kind.name());
            (entry.name().to_owned(), ops.collect::<Vec<_>>().join(", "))
        });
        named.filter(|(_, ops)| !ops.is_empty()).collect()
    }

    /// Adds an entry for the sources of one name, or notes why no target fits.
    #[expect(clippy::too_many_arguments, reason = "the state of one walk over the names")]
    fn place(
        &self,
        base: &str,
        kinds: &[(&'static str, &TensorKind)],
        shaped: Option<&str>,
        prefix: Option<&str>,
        in_blocks: bool,
        known: &KnownEntries,
        taken: &mut HashSet<(String, &'static str)>,
        found: &mut MatchResults,
    ) {
        let n_tensors = kinds.iter().map(|(_, kind)| kind.n_tensors).sum();
        let rest = prefix.and_then(|prefix| base.strip_prefix(prefix)?.strip_prefix("#."));
        let is_literal = kinds.iter().all(|(_, kind)| !kind.first_name.contains(['#', '{', '}', '*']));
        let key = match rest {
            Some(rest) => numbered(rest).map(|key| match (in_blocks, prefix) {
                (false, Some(prefix)) => (format!("{prefix}{{bid}}.{key}"), false),
                _ => (key, true),
            }),
            None => (!base.contains('#')).then(|| (base.to_owned(), false)),
        };
        let key = key.filter(|(key, _)| is_literal && !key.is_empty());
        let mut why = Vec::new();
        let mut proposals = known.proposals(rest.unwrap_or(base), rest.is_some());
        let n_votes: usize = proposals.iter().map(|proposal| proposal.votes).sum();
        let shaped = shaped.filter(|_| rest.is_some()).map(|target| Proposal {
            value: Toml::from(target),
            card: self.card.gguf.clone(),
            is_exact: false,
            is_nearest: false,
            votes: n_votes + 1,
        });
        proposals.extend(shaped);
        for proposal in proposals.iter().take(8) {
            let Some((key, in_blocks)) = key.clone() else { break };
            let is_likely = proposal.is_exact || proposal.is_nearest || proposal.votes * 2 > n_votes;
            let objection = match self.objection(proposal, kinds, rest.is_some(), taken) {
                None if !is_likely => Some("names that end alike are not one thing elsewhere".to_owned()),
                objection => objection,
            };
            if let Some(objection) = objection {
                why.push(format!(
                    "not {} as in `{}`: {objection}",
                    text::inline(&proposal.value),
                    proposal.card
                ));
                continue;
            }
            let mut fills = Vec::new();
            for target in full_targets(&proposal.value, rest.is_some()) {
                taken.extend(kinds.iter().map(|(suffix, _)| (target.clone(), *suffix)));
                fills.extend(kinds.iter().map(|(suffix, _)| complete(&target, suffix)));
            }
            let mut added = AddedEntry {
                key,
                in_blocks,
                entry: entry_text(&proposal.value, rest.is_some() && !in_blocks),
                card: proposal.card.clone(),
                is_exact: proposal.is_exact,
                n_tensors,
                fills,
            };
            // Its shape fits as it is stored.
            if self.kept_ops(&added).is_some_and(|(_, ops)| ops == "transpose") {
                added.entry = format!("{{ to = {}, ops = [] }}", added.entry);
            }
            found.added.push(added);
            return;
        }
        let dims = kinds.first().map(|(_, kind)| kind.dims.clone()).unwrap_or_default();
        found.unmatched.push(Unmatched { name: display(base), key, n_tensors, dims, why });
    }

    /// Returns the objection to a proposal, if there is one.
    fn objection(
        &self,
        proposal: &Proposal,
        kinds: &[(&'static str, &TensorKind)],
        in_block: bool,
        taken: &HashSet<(String, &'static str)>,
    ) -> Option<String> {
        let fields = proposal.value.as_table();
        let has = |key: &str| fields.is_some_and(|fields| fields.contains_key(key));
        let has_ops = ["ops", "pre"].iter().any(|key| {
            let ops = fields.and_then(|fields| fields.get(*key)?.as_array());
            ops.is_some_and(|ops| !ops.is_empty())
        });
        if has_ops && !proposal.is_exact && !proposal.is_nearest {
            return Some("its operations belong to another name".to_owned());
        }
        if let Some(n) = fields.and_then(|fields| fields.get("n")).and_then(Toml::as_str) {
            let value = Expr::parse(n).ok().and_then(|n| self.scope.eval(&n, Captures::default()).ok());
            if value.is_none_or(|value| value.as_int().is_none()) {
                return Some(format!("the configuration has no `{n}`"));
            }
        }
        let of_ops = ["ops", "pre"].iter().filter_map(|key| fields?.get(*key));
        let dims = kinds.first().map_or(&[][..], |(_, kind)| &kind.dims);
        if let Some(unknown) = of_ops.flat_map(texts).find(|text| !self.has_value(text, dims)) {
            return Some(format!("the configuration has no `{unknown}`"));
        }
        let is_own = |full: &str| {
            self.card.entries.iter().flat_map(|entry| &entry.targets).any(|target| target.name.text() == full)
        };
        if let Some(parent) = self.parent.filter(|_| !proposal.is_known_well())
            && let Some(foreign) =
                full_targets(&proposal.value, in_block).into_iter().find(|full| !is_own(full))
        {
            return Some(format!("`{}` has no `{foreign}`", parent.gguf));
        }
        for target in full_targets(&proposal.value, in_block) {
            let is_taken = |suffix: &&'static str| taken.contains(&(target.clone(), *suffix));
            if let Some(suffix) = kinds.iter().map(|kind| kind.0).find(is_taken) {
                return Some(format!("`{target}{suffix}` is made of another tensor"));
            }
        }
        if has_ops {
            return None;
        }
        let target = targets(&proposal.value).first().copied().unwrap_or_default().to_owned();
        let is_part = has("stack") || has("concat");
        let full = full_targets(&proposal.value, in_block).into_iter().next().unwrap_or_default();
        kinds.iter().find_map(|(suffix, kind)| {
            shapes::objection(&target, suffix, &kind.dims, is_part, self.width)
                .or_else(|| self.wrong_shape(&complete(&full, suffix), &kind.dims, is_part))
        })
    }

    /// Returns true if an expression of an operation has a value for a tensor of these dimensions in the first block.
    fn has_value(&self, text: &str, dims: &[u64]) -> bool {
        let first = Captures { bid: Some(0), ..Captures::default() };
        Expr::parse(text).is_ok_and(|expr| self.scope.eval_with(&expr, first, dims).is_ok())
    }

    /// Returns the objection to a tensor of these dimensions by the keys that the parent writes.
    fn wrong_shape(&self, name: &str, dims: &[u64], is_part: bool) -> Option<String> {
        let experts = || self.keys.get(&format!("{}.expert_count", self.card.gguf))?.as_u64();
        let dims: Vec<u64> = if is_part {
            std::iter::once(experts()?).chain(dims.iter().copied()).collect()
        } else {
            dims.to_vec()
        };
        let tensor = meta(&name.replace("{bid}", "0"), &dims)?;
        let wrong = check_shapes(&self.keys, &[tensor]).wrong.into_iter().next()?;
        Some(format!("`{name}` has the shape {}", wrong.expected()))
    }

    /// Records entries of the parent that match nothing. Exempt are optional and conditional entries, and the output
    /// matrix, which a model may lack.
    fn idle_entries(&self, used: &BTreeSet<usize>, block: &str, found: &mut MatchResults) {
        let Some(table) = self.merged() else { return };
        let names: HashSet<&str> =
            used.iter().filter_map(|&at| self.card.entries.get(at)).map(TensorEntry::name).collect();
        for (section, prefix) in [("tensors", ""), ("blocks", block)] {
            for (key, value) in table.get(section).and_then(Toml::as_table).into_iter().flatten() {
                let is_free = |value: &Toml| {
                    let fields = value.as_table();
                    fields
                        .is_some_and(|fields| fields.contains_key("when") || fields.contains_key("optional"))
                };
                let is_kept = targets(value).contains(&"output")
                    || is_free(value)
                    || value.as_array().is_some_and(|items| items.iter().any(is_free));
                let in_blocks = section == "blocks";
                let is_replaced =
                    found.added.iter().any(|entry| entry.key == *key && entry.in_blocks == in_blocks);
                if !names.contains(format!("{prefix}{key}").as_str()) && !is_kept && !is_replaced {
                    found.removed.push(key.clone());
                    if in_blocks {
                        found.removed_blocks.insert(key.clone());
                    }
                }
            }
        }
    }

    /// Returns true if the parent with this one additional entry is a valid card.
    fn loads(&self, head: &text::Head<'_>, entry: &AddedEntry) -> bool {
        let found = MatchResults { added: vec![entry.clone()], ..MatchResults::default() };
        let text = text::card(self, head, &found, &[]);
        self.registry.clone().add(head.gguf, &text).is_ok()
    }
}
