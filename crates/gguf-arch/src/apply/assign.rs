//! Assigns weights to entries and entries to tensors in file order, and runs the checks that need only names and
//! shapes.

use crate::Result;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use indexmap::IndexMap;

use crate::apply::fuse;
use crate::error::{ArchError, CutBlocks};
use crate::language::eval::{Root, Scope};
use crate::language::expr::Expr;
use crate::language::names::{self, Captures, Placeholder, SUFFIXES};
use crate::language::ops::OpKind;
use crate::mapping::heads::HeadRule;
use crate::mapping::matching::{IgnoreStage, Match, Matcher};
use crate::mapping::options::ResolveOptions;
use crate::mapping::{DropReason, Dropped, OutputSpec, leftover};
use crate::read::fusion::Fusion;
use crate::read::is_multimodal;
use crate::read::schema::{Card, CardKind, Domain, EntryType, Generate, Join, Optional, Phase};
use gguf_core::WeightMeta;

use experts::ExpertEntries;

/// Maximum number of missing tensors in an error.
const MAX_MISSING: usize = 8;
/// Maximum number of dimensions of a GGUF tensor.
const MAX_RANK: usize = 4;

/// Result for all weights.
pub(crate) struct Assigned {
    pub(crate) outputs: Vec<OutputSpec>,
    pub(crate) dropped: Vec<Dropped>,
    /// Weights that are named like the model's output head.
    pub(crate) heads: Vec<usize>,
}

/// Emission of an entry: one tensor per target, from sources by part number.
#[derive(Default)]
struct Emission {
    parts: BTreeMap<u64, usize>,
    last: usize,
}

/// Key that tells the emissions of an entry apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct EmissionKey {
    entry: usize,
    captures: Captures,
    suffix: &'static str,
}

mod emit;
pub(in crate::apply) mod experts;
mod tied;
mod together;
mod tower;

struct Assigner<'a> {
    card: &'a Card,
    own: &'a Card,
    weights: &'a [WeightMeta],
    scope: &'a Scope<'a>,
    matcher: Matcher<'a>,
    heads: &'a HeadRule<'a>,
    /// True if the weights are only a part of a model: no tensor is missed, and none added.
    is_part: bool,
    /// True if neither the configuration nor the model type ties embedding and head.
    is_untied: bool,
    /// Names after rewriting, by weight.
    names: Vec<String>,
    emissions: IndexMap<EmissionKey, Emission>,
    dropped: Vec<Dropped>,
    experts: ExpertEntries,
}

pub(crate) fn assign(
    card: &Card,
    weights: &[WeightMeta],
    scope: &Scope<'_>,
    heads: &HeadRule<'_>,
    options: &ResolveOptions,
    is_untied: bool,
) -> Result<Assigned> {
    let own = card;
    let is_part = options.is_part;
    let (mut card, experts) = experts::with_all_layouts(own, weights);
    if options.norms_have_one {
        card.entries.iter_mut().for_each(|entry| entry.ops.retain(|op| op.kind != OpKind::Add));
    }
    let card = &card;
    let matcher = Matcher::new(card, scope)?;
    let (names, emissions, dropped) = (Vec::with_capacity(weights.len()), IndexMap::new(), Vec::new());
    let mut assigner = Assigner {
        card,
        own,
        weights,
        scope,
        matcher,
        heads,
        is_part,
        is_untied,
        names,
        emissions,
        dropped,
        experts,
    };
    assigner.match_all()?;
    if !heads.expects_model() && !assigner.names.iter().any(|name| heads.is_head(name)) {
        return Err(ArchError::NoHeads);
    }
    if assigner.emissions.is_empty()
        && assigner.dropped.iter().any(|dropped| dropped.why == DropReason::DraftHead)
    {
        return Err(ArchError::OnlyHeads);
    }
    assigner.add_required_head()?;
    let mut outputs = assigner.outputs()?;
    if experts::are_joined(own) {
        fuse::join(Fusion::GateUpExps, &mut outputs)?;
        if is_part {
            Assigner::check_joined(&outputs)?;
        }
    }
    if !is_part {
        if card.kind == CardKind::Mmproj {
            assigner.check_tower(&outputs)?;
        }
        assigner.check_complete(&outputs)?;
    }
    let heads = if is_part || card.kind != CardKind::Text { Vec::new() } else { assigner.stored_heads()? };
    Ok(Assigned { outputs, dropped: assigner.dropped, heads })
}

impl Assigner<'_> {
    fn holds(&self, at: &str, when: Option<&Expr>, captures: Captures) -> Result<bool> {
        self.matcher.holds(at, when, captures)
    }

    fn count(&self, at: &str, expr: &Expr, captures: Captures) -> Result<u64> {
        self.matcher.count(at, expr, captures)
    }

    fn block_limit(&self, domain: Domain) -> Result<u64> {
        let name = domain.limit();
        match self.card.lets.get(name) {
            Some(limit) => self.count(name, limit, Captures::default()),
            None => Ok(u64::MAX),
        }
    }

    /// Returns the block limits of all domains that entries use.
    fn block_limits(&self) -> Result<HashMap<Domain, u64>> {
        let mut limits = HashMap::new();
        for entry in &self.card.entries {
            if let Entry::Vacant(limit) = limits.entry(entry.domain) {
                limit.insert(self.block_limit(entry.domain)?);
            }
        }
        Ok(limits)
    }

    /// Returns the reason to leave a weight out before the entries are considered.
    fn dropped(&self, tensor: &str, name: &str) -> Result<Option<DropReason>> {
        if names::is_recomputed(name) {
            return Ok(Some(DropReason::Recomputed));
        }
        // Rules about the model's own tensors (such as tensors of zeros without a target) do not apply to training
        // leftovers.
        if self.is_of_training(tensor, name) && self.matcher.entry_of(tensor, name)?.is_none() {
            return Ok(None);
        }
        Ok(self
            .matcher
            .ignored(tensor, name, IgnoreStage::BeforeEntries)?
            .or_else(|| self.heads.left_out(name)))
    }

    /// Returns true for training leftovers, judged by the name in the checkpoint and by the rewritten one, which may
    /// have `model.` in front.
    fn is_of_training(&self, tensor: &str, name: &str) -> bool {
        let class = self.class();
        leftover::is_of_training(tensor, class) || leftover::is_of_training(name, class)
    }

    /// Returns the reason to leave out a weight that no entry maps.
    fn unknown(&self, tensor: &str, name: &str) -> Result<Option<DropReason>> {
        let card = self.card;
        if card.kind == CardKind::Mmproj {
            let is_text = names::is_of_text_model(tensor);
            if is_text || !(names::is_of_parts(name, &card.parts) || names::is_of_tower(name)) {
                return Ok(Some(DropReason::TextModel));
            }
        }
        let ignored = self.matcher.ignored(tensor, name, IgnoreStage::AfterEntries)?;
        let of_training = || self.is_of_training(tensor, name).then_some(DropReason::Training);
        let buffer = || leftover::is_buffer(name).then_some(DropReason::Recomputed);
        Ok(ignored.or_else(of_training).or_else(buffer))
    }

    /// Returns the model class of the checkpoint.
    fn class(&self) -> &str {
        let root = self.scope.roots.iter().find(|root| root.0 == "class");
        root.and_then(|root| if let Root::Value(class) = &root.1 { class.as_str() } else { None })
            .unwrap_or("")
    }

    /// Returns the first block without a tensor if there are as many blocks as the configuration counts.
    fn gap(&self, domain: Domain, limit: u64) -> Result<Option<u64>> {
        let mut blocks = HashSet::new();
        for weight in self.weights {
            let name = self.matcher.rewritten(names::shared_rewrite(&weight.name))?;
            if let Some((entry, found)) = self.matcher.entry_of(&weight.name, &name)?
                && self.card.entries[entry].domain == domain
            {
                blocks.extend(found.captures.bid);
            }
        }
        let first = (0..limit).find(|block| !blocks.contains(block));
        Ok(first.filter(|_| blocks.len() as u64 == limit))
    }

    fn match_all(&mut self) -> Result<()> {
        let mut leftovers = Vec::new();
        let limits = self.block_limits()?;
        let tied = self.tied_head()?;
        for weight in 0..self.weights.len() {
            let name = names::shared_rewrite(&self.weights[weight].name);
            let is_other =
                self.card.kind == CardKind::Text && !self.card.keep_multimodal && is_multimodal(&name);
            let name = match &tied {
                Some((head, embedding)) if *head == weight => embedding.clone(),
                _ if is_other => name,
                _ => self.matcher.rewritten(name)?,
            };
            let tensor = &self.weights[weight].name;
            let dropped =
                if is_other { Some(DropReason::OtherModality) } else { self.dropped(tensor, &name)? };
            if let Some(why) = dropped {
                self.dropped.push(Dropped { weight, why });
            } else if let Some((entry, found)) = self.matcher.entry_of(tensor, &name)? {
                let limit = limits.get(&self.card.entries[entry].domain).copied().unwrap_or(u64::MAX);
                if let Some(block) = found.captures.bid.filter(|&block| block >= limit) {
                    let tensor = self.weights[weight].name.clone();
                    let gap = self.gap(self.card.entries[entry].domain, limit)?;
                    return Err(ArchError::Block { tensor, block, n_blocks: limit, gap });
                }
                self.add(weight, entry, &found)?;
            } else if let Some(why) = self.unknown(tensor, &name)? {
                self.dropped.push(Dropped { weight, why });
            } else {
                leftovers.push((self.weights[weight].name.clone(), name.clone()));
            }
            self.names.push(name);
        }
        if leftovers.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = leftovers.iter().map(|(tensor, _)| tensor.as_str()).collect();
        let unmerged: Vec<String> =
            names.iter().filter(|name| leftover::is_unmerged(name)).map(|name| (*name).to_owned()).collect();
        if !unmerged.is_empty() && !self.is_part {
            return Err(ArchError::Unmerged { names: unmerged });
        }
        // If most of a checkpoint is unknown, no part of it can be left out.
        let all: Vec<&str> = self.weights.iter().map(|weight| weight.name.as_str()).collect();
        let has_experts = names.iter().any(|name| experts::is_of_experts(name));
        let within = leftover::within_matrix(&names, self.weights).map(Box::new);
        let can_drop = within.is_none() && !has_experts && names.len() * 2 < all.len();
        let drop = can_drop.then(|| leftover::pattern(&names, &all)).flatten();
        // Only the first few are shown, and the search for similar names takes time.
        let nearest = |(n, name): (usize, &String)| if n < MAX_MISSING { self.nearest(name) } else { None };
        let names = leftovers.iter().enumerate();
        let names = names.map(|(n, (tensor, name))| (tensor.clone(), nearest((n, name)))).collect();
        Err(ArchError::Leftover { card: self.card.name(), names, drop, within })
    }

    fn add(&mut self, weight: usize, entry: usize, found: &Match) -> Result<()> {
        let spec = &self.card.entries[entry];
        let by = match spec.join {
            Some(Join::StackBy(by) | Join::ConcatBy(by)) => Some(by),
            _ => None,
        };
        let part = by.map_or(Some(found.part as u64), |by| found.captures.get(by)).unwrap_or(0);
        let captures = by.map_or(found.captures, |by| found.captures.with(by, None));
        let key = EmissionKey { entry, captures, suffix: found.suffix };
        let emission = self.emissions.entry(key).or_default();
        if let Some(&first) = emission.parts.get(&part) {
            if spec.drop_duplicates {
                let why = DropReason::SameAs(self.weights[first].name.clone());
                self.dropped.push(Dropped { weight, why });
                return Ok(());
            }
            return Err(ArchError::TwoSources {
                first: self.weights[first].name.clone(),
                second: self.weights[weight].name.clone(),
                target: spec.targets.first().map_or_else(String::new, |target| {
                    target.name.render(captures).unwrap_or_else(|| target.name.text().to_owned())
                        + found.suffix
                }),
            });
        }
        emission.parts.insert(part, weight);
        emission.last = weight;
        Ok(())
    }

    /// Returns the known source name nearest to an unmatched one, for the same block.
    fn nearest(&self, name: &str) -> Option<String> {
        let block = names::block_of(name);
        let captures = Captures { bid: block.or(Some(0)), eid: Some(0), xid: Some(0) };
        let suffix = SUFFIXES.into_iter().find(|suffix| name.ends_with(suffix)).unwrap_or("");
        let known: Vec<String> = self
            .own
            .entries
            .iter()
            .flat_map(|entry| entry.patterns.iter().map(move |pattern| (entry, pattern)))
            .filter_map(|(entry, pattern)| {
                let name = pattern.render(captures)?;
                Some(if entry.exact { name } else { name + suffix })
            })
            .collect();
        names::nearest(name, known.iter().map(String::as_str)).map(str::to_owned)
    }

    /// Returns the tensors in file order.
    fn outputs(&self) -> Result<Vec<OutputSpec>> {
        // Entries of a group are written where the last of them is complete.
        let mut groups: HashMap<(&str, Option<u64>), usize> = HashMap::new();
        for (key, emission) in &self.emissions {
            if let Some(group) = &self.card.entries[key.entry].group {
                let last = groups.entry((group, key.captures.bid)).or_default();
                *last = (*last).max(emission.last);
            }
        }
        // Integer tables come before all other tensors of the first phase.
        let is_table =
            |key: &EmissionKey| matches!(self.card.entries[key.entry].ty, EntryType::I32 | EntryType::I64);
        let mut order = Vec::with_capacity(self.emissions.len());
        for (key, emission) in &self.emissions {
            let entry = &self.card.entries[key.entry];
            let group = entry.group.as_deref().and_then(|group| groups.get(&(group, key.captures.bid)));
            let last = group.copied().unwrap_or(emission.last);
            let is_late = entry.phase == Phase::First && !is_table(key);
            for (n, output) in self.emission_outputs(key, emission)?.into_iter().enumerate() {
                let rank = self.experts.get(&key.entry).and_then(|experts| experts.ranks.get(n));
                let place = Some((rank.copied().unwrap_or(key.entry), key.captures, key.suffix));
                order.push(((entry.phase, is_late, last, place), emission.last, output));
            }
        }
        // Generated tensors precede a weight; `None` sorts first.
        let has_fills = !self.is_part && self.card.generate.iter().any(Generate::is_fill);
        for weight in 0..if has_fills { self.names.len() } else { 0 } {
            let fills = self.fills_before(weight)?.into_iter();
            order.extend(fills.map(|output| ((Phase::Normal, false, weight, None), weight, output)));
        }
        order.sort_by_key(|(place, _, _)| *place);
        let mut outputs: Vec<OutputSpec> = Vec::with_capacity(order.len());
        let mut first_sources: HashMap<String, usize> = HashMap::with_capacity(order.len());
        for (_, last, output) in order {
            if let Some(&first) = first_sources.get(&output.name) {
                return Err(ArchError::TwoSources {
                    first: self.weights[first].name.clone(),
                    second: self.weights[last].name.clone(),
                    target: output.name,
                });
            }
            first_sources.insert(output.name.clone(), last);
            outputs.push(output);
        }
        Ok(outputs)
    }

    /// Checks that the card's required outputs exist, and that every block has what one block has.
    fn check_complete(&self, outputs: &[OutputSpec]) -> Result<()> {
        let present: HashSet<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        // With more blocks than tensors some block has none, so the search can stop there.
        let n_weights = self.weights.len() as u64 + 1;
        let limits = self.block_limits()?;
        let first_block = self.heads.first_expected_block();
        let mut missing: Vec<String> = Vec::new();
        let mut note = |name: String| {
            if !missing.contains(&name) {
                missing.push(name);
            }
            missing.len() > MAX_MISSING
        };
        let mut full = false;
        // Blocks that each entry matched, by suffix.
        let mut seen: IndexMap<(usize, &'static str), HashSet<u64>> = IndexMap::new();
        for key in self.emissions.keys() {
            if let Some(bid) = key.captures.bid {
                seen.entry((key.entry, key.suffix)).or_default().insert(bid);
            }
        }
        'entries: for ((index, suffix), blocks) in &seen {
            let entry = &self.card.entries[*index];
            let by = match entry.join {
                Some(Join::StackBy(by) | Join::ConcatBy(by)) => Some(by),
                _ => None,
            };
            let Some(pattern) = entry.patterns.first() else { continue };
            let other =
                |placeholder: &Placeholder| *placeholder != Placeholder::Bid && Some(*placeholder) != by;
            if entry.optional == Optional::Anywhere
                || entry.bid.is_some()
                || pattern.placeholders().any(|p| other(&p))
            {
                continue;
            }
            let limit = limits.get(&entry.domain).copied().unwrap_or(u64::MAX).min(n_weights);
            for bid in (first_block..limit).filter(|bid| !blocks.contains(bid)) {
                let captures = Captures { bid: Some(bid), ..Captures::default() };
                if !self.holds(entry.name(), entry.when.as_ref(), captures)? {
                    continue;
                }
                let yielded = entry.targets.iter().all(|target| {
                    let name = target.name.render(captures).unwrap_or_default() + suffix;
                    present.contains(name.as_str())
                });
                let captures = by.map_or(captures, |by| captures.with(by, Some(0)));
                if !yielded && note(pattern.render(captures).unwrap_or_default() + suffix) {
                    full = true;
                    break 'entries;
                }
            }
        }
        // A configuration may declare any number of blocks: the search ends when the list of missing tensors is full.
        let block_limit = self.block_limit(Domain::Blocks)?.min(n_weights);
        let required = self.card.required.iter().filter(|_| self.card.kind == CardKind::Text);
        let required = required.map(|required| (&required.target, Some(required)));
        let outputs = self.card.outputs.iter().map(|output| (output, None));
        'outputs: for (output, required) in outputs.chain(required).filter(|_| !full) {
            let blocks = if output.has(Placeholder::Bid) {
                first_block..block_limit
            } else {
                0..u64::from(self.heads.expects_model())
            };
            for bid in blocks {
                let captures = Captures { bid: Some(bid), ..Captures::default() };
                let name = output.render(captures).unwrap_or_default();
                let is_due = match required {
                    _ if present.contains(name.as_str()) => false,
                    Some(required) => self.is_due(required, captures, &present)?,
                    None => true,
                };
                if is_due && note(self.card.source_of(&name)) {
                    full = true;
                    break 'outputs;
                }
            }
        }
        if missing.is_empty() {
            return self.check_together(&present);
        }
        missing.truncate(MAX_MISSING);
        let names: Vec<String> = missing.into_iter().map(|name| self.as_stored(name)).collect();
        let stored = seen.values().flatten().max().map_or(0, |last| last + 1);
        let counted = self.block_limit(Domain::Blocks)?;
        let is_cut = |name: &String| {
            let block = name.split('.').find_map(|part| part.parse::<u64>().ok());
            block.is_some_and(|block| block >= stored)
        };
        let cut = (stored > 0 && names.iter().all(is_cut)).then_some(CutBlocks { stored, counted });
        Err(ArchError::Missing { names, more: full, cut })
    }
}
