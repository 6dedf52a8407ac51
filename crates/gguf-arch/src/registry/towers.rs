//! Required tensors of a tower file: those of every entry of its card, and those that the card lists in addition. The
//! same rules apply to a checkpoint that is converted and to an existing file.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use crate::language::expr::{Expr, Function};
use crate::language::names::{BOUNDS, Captures, Pattern};
use crate::read::schema::{Card, CardKind, MetadataRow, Optional, Required, TensorEntry};
use crate::registry::Registry;
use gguf_core::TensorMeta;
use gguf_format::Metadata;

pub(crate) const WEIGHT: &str = ".weight";
const VISION_BLOCK: &str = "v.blk.{bid}.";
const AUDIO_BLOCK: &str = "a.blk.{bid}.";

/// Tensor names of a tower file, and the numbers of blocks of its towers.
#[derive(Clone, Debug)]
pub struct TowerFile<'n> {
    /// Names of the tensors.
    pub names: HashSet<&'n str>,
    /// Number of blocks of the vision tower; `None` without such a tower.
    pub vision: Option<u64>,
    /// Number of blocks of the audio tower; `None` without such a tower.
    pub audio: Option<u64>,
}

impl TowerFile<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns true if the tensor exists, with the ending `.weight` or without.
    pub(crate) fn has_weight(&self, name: &str) -> bool {
        self.has(name) || self.has(&format!("{name}{WEIGHT}"))
    }

    fn has_tower_of(&self, target: &str) -> bool {
        let is_audio = target.starts_with("a.") || target.starts_with("mm.a.");
        if is_audio { self.audio.is_some() } else { self.vision.is_some() }
    }

    /// Returns the number of blocks of a target's tower; `None` if the target is outside blocks.
    fn blocks_of(&self, target: &Pattern) -> Option<u64> {
        let n_blocks = if target.text().starts_with(VISION_BLOCK) {
            self.vision
        } else if target.text().starts_with(AUDIO_BLOCK) {
            self.audio
        } else {
            return None;
        };
        // Capped by the number of tensors: further blocks would all be missing.
        n_blocks.map(|n| n.clamp(1, self.names.len() as u64 + 1))
    }
}

/// Evaluates a condition of the card; `None` if its value is unknown.
pub(crate) type EvalCondition<'h, E> = &'h dyn Fn(&str, Option<&Expr>, Captures) -> Result<Option<bool>, E>;

/// Returns the targets of a card that a file lacks: for each target the first missing block, without duplicates.
pub(crate) fn missing<E>(
    card: &Card,
    file: &TowerFile<'_>,
    holds: EvalCondition<'_, E>,
) -> Result<Vec<String>, E> {
    let mut missing = Vec::new();
    let numbers = numbers(card, file);
    for entry in card.entries.iter().filter(|entry| entry.optional != Optional::Anywhere) {
        for target in entry.targets.iter().map(|target| &target.name) {
            if !file.has_tower_of(target.text()) {
                continue;
            }
            let wanted: Vec<Captures> = match file.blocks_of(target) {
                Some(n_blocks) if entry.bid.is_none() => (0..n_blocks).map(of_block).collect(),
                _ if target.placeholders().next().is_none() => vec![Captures::default()],
                // Targets with the same prefix need the same numbers; entries with `bid` or `n` may have none.
                _ => match numbers.get(head(target)) {
                    Some(numbers) => numbers.iter().copied().collect(),
                    None if entry.bid.is_some() || entry.n.is_some() => continue,
                    None => vec![Captures { bid: Some(0), eid: Some(0), xid: Some(0) }],
                },
            };
            let lacks = |captures: &Captures| {
                let name = target.render(*captures)?;
                (!file.has_weight(&name) && !has_joined(file, &name)).then_some(name)
            };
            if entry.optional == Optional::Everywhere
                && wanted.iter().all(|captures| lacks(captures).is_some())
            {
                continue;
            }
            for captures in wanted {
                if let Some(name) = lacks(&captures)
                    && holds(entry.name(), entry.when.as_ref(), captures)? == Some(true)
                {
                    missing.push(if target.is_complete() || entry.drops_ending {
                        name
                    } else {
                        name + WEIGHT
                    });
                    break;
                }
            }
        }
    }
    missing.extend(missing_bounds(card, file));
    for required in &card.required {
        let is_due = holds(required.target.text(), required.when.as_ref(), Captures::default())?;
        let wanted = wanted(required, file);
        let is_there = |name: &String| file.has(name);
        // If the condition is unknown, one existing tensor implies that all must exist.
        if is_due == Some(false) || (is_due.is_none() && !wanted.iter().any(is_there)) {
            continue;
        }
        missing.extend(wanted.into_iter().find(|name| !is_there(name)));
    }
    let mut known = HashSet::new();
    missing.retain(|name| known.insert(name.clone()));
    Ok(missing)
}

fn of_block(bid: u64) -> Captures {
    Captures { bid: Some(bid), ..Captures::default() }
}

/// Returns a target's name up to its first number.
fn head(target: &Pattern) -> &str {
    let text = target.text();
    text.split('{').next().unwrap_or(text)
}

/// Returns the numbers of numbered parts by the prefix of their targets, combined over all entries with that prefix.
fn numbers<'c>(card: &'c Card, file: &TowerFile<'_>) -> HashMap<&'c str, BTreeSet<Captures>> {
    let mut numbers: HashMap<&str, BTreeSet<Captures>> = HashMap::new();
    let entries = card.entries.iter().filter(|entry| entry.optional == Optional::Never);
    for target in entries.flat_map(|entry| &entry.targets).map(|target| &target.name) {
        if file.blocks_of(target).is_some() || target.placeholders().next().is_none() {
            continue;
        }
        let found = file
            .names
            .iter()
            .filter_map(|name| target.matches(name).or_else(|| target.matches(name.strip_suffix(WEIGHT)?)));
        let found: Vec<Captures> = found.collect();
        if !found.is_empty() {
            numbers.entry(head(target)).or_default().extend(found);
        }
    }
    numbers
}

/// Returns true if queries, keys and values are one joined tensor instead of three, or the other way round.
fn has_joined(file: &TowerFile<'_>, name: &str) -> bool {
    let Some((block, part)) = name.rsplit_once('.') else { return false };
    match part {
        "attn_q" | "attn_k" | "attn_v" => file.has_weight(&format!("{block}.attn_qkv")),
        "attn_qkv" => {
            ["attn_q", "attn_k", "attn_v"].iter().all(|part| file.has_weight(&format!("{block}.{part}")))
        }
        _ => false,
    }
}

/// Returns missing clamp bounds: if one layer of a tower has bounds, all such layers need all four.
fn missing_bounds(card: &Card, file: &TowerFile<'_>) -> Vec<String> {
    let mut missing = Vec::new();
    for block in [VISION_BLOCK, AUDIO_BLOCK] {
        let clamped = |entry: &&TensorEntry| {
            entry.clamped && entry.targets.iter().all(|target| target.name.text().starts_with(block))
        };
        let targets: Vec<&Pattern> = card
            .entries
            .iter()
            .filter(clamped)
            .flat_map(|entry| &entry.targets)
            .map(|target| &target.name)
            .collect();
        let bounds = |bid: u64| {
            let stems = targets.iter().filter_map(move |target| target.render(of_block(bid)));
            stems.flat_map(|stem| BOUNDS.map(|bound| format!("{stem}{bound}")))
        };
        let n_blocks = targets.first().and_then(|target| file.blocks_of(target)).unwrap_or(0);
        if (0..n_blocks).any(|bid| bounds(bid).any(|name| file.has(&name))) {
            missing.extend((0..n_blocks).flat_map(bounds).find(|name| !file.has(name)));
        }
    }
    missing
}

/// Returns the targets that a `[required]` row names: one, one per block, or one for each match of `with`.
fn wanted(required: &Required, file: &TowerFile<'_>) -> Vec<String> {
    let target = &required.target;
    if let Some(with) = &required.with {
        let captures: BTreeSet<Captures> = file.names.iter().filter_map(|name| with.matches(name)).collect();
        return captures.into_iter().filter_map(|captures| target.render(captures)).collect();
    }
    match file.blocks_of(target) {
        Some(n_blocks) => (0..n_blocks).filter_map(|bid| target.render(of_block(bid))).collect(),
        None => target.render(Captures::default()).into_iter().collect(),
    }
}

/// Comparison of a tower file with its card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TowerGaps {
    /// Missing tensors.
    pub missing: Vec<String>,
    /// True if converters write such towers with fewer blocks than declared when the checkpoint has fewer.
    pub may_be_short: bool,
}

/// Returns the missing tensors of a file with these projectors, by the card that fits it best; `None` if no card writes
/// them.
pub fn tower_gaps(projectors: &[&str], file: &TowerFile<'_>) -> Option<TowerGaps> {
    let registry = Registry::embedded_of(CardKind::Mmproj).ok()?;
    let cards = registry.cards().iter().filter(|card| !card.is_abstract && is_of(card, projectors));
    // The card that knows most of the tensors is used; among equals, the one with the fewest missing tensors.
    let best = cards.map(|card| {
        let gaps = gaps_of(card, file);
        let n_known = file.names.iter().filter(|name| knows(card, name)).count();
        ((n_known, Reverse(gaps.missing.len())), gaps)
    });
    best.max_by_key(|(order, _)| *order).map(|(_, gaps)| gaps)
}

fn gaps_of(card: &Card, file: &TowerFile<'_>) -> TowerGaps {
    let holds = |_: &str, when: Option<&Expr>, _: Captures| -> Result<Option<bool>, Infallible> {
        Ok(match when {
            None => Some(true),
            // A definition may be a plain boolean.
            Some(Expr::Path(path)) if path.steps.is_empty() => match card.lets.get(&path.root) {
                Some(Expr::Bool(truth)) => Some(*truth),
                _ => None,
            },
            Some(_) => None,
        })
    };
    let may_be_short = counts_blocks(card);
    let shortened = shortened(file);
    let file = if may_be_short { &shortened } else { file };
    let mut missing = missing(card, file, &holds).unwrap_or_else(|never| match never {});
    let generated = card.generate.iter().filter(|generate| generate.when.is_none() && !generate.is_fill());
    let generated = generated.map(|generate| generate.to.text()).filter(|name| file.has_tower_of(name));
    missing.extend(generated.filter(|name| !file.has(name)).map(str::to_owned));
    TowerGaps { missing, may_be_short }
}

/// Returns the tensors of a tower file whose type its card fixes: kernels of convolutions, and weights that the runtime
/// transposes or adds, which it cannot do with blocks.
pub fn tower_fixed(metadata: &Metadata, tensors: &[TensorMeta]) -> BTreeSet<String> {
    let projectors: Vec<&str> = metadata
        .iter()
        .filter(|row| row.0.ends_with("projector_type"))
        .filter_map(|row| row.1.as_str())
        .collect();
    let Ok(registry) = Registry::embedded_of(CardKind::Mmproj) else { return BTreeSet::new() };
    let cards = registry.cards().iter().filter(|card| !projectors.is_empty() && is_of(card, &projectors));
    let entries = cards.flat_map(|card| &card.entries).filter(|entry| entry.ty.is_fixed());
    let targets: Vec<&Pattern> =
        entries.flat_map(|entry| &entry.targets).map(|target| &target.name).collect();
    let is_fixed = |name: &&str| targets.iter().any(|target| is_named(target, name));
    tensors.iter().map(|tensor| tensor.name.as_str()).filter(is_fixed).map(str::to_owned).collect()
}

/// Returns true if a target is this tensor, with its ending or without.
fn is_named(target: &Pattern, name: &str) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |parts| parts.0);
    target.matches(name).is_some() || target.matches(stem).is_some()
}

/// Returns true if the card writes such a tensor.
fn knows(card: &Card, name: &str) -> bool {
    card.entries.iter().flat_map(|entry| &entry.targets).any(|target| is_named(&target.name, name))
}

/// Returns true if the card writes all of these projectors.
fn is_of(card: &Card, projectors: &[&str]) -> bool {
    projectors.iter().all(|projector| {
        card.metadata.iter().any(|row| match row {
            MetadataRow::Key { key, value: Expr::Text(text), .. } => {
                key.ends_with("projector_type") && text == projector
            }
            _ => false,
        })
    })
}

/// Returns true if the card counts blocks in the checkpoint instead of in the configuration.
fn counts_blocks(card: &Card) -> bool {
    matches!(card.lets.get("block_limit"), Some(Expr::Call(Function::Count, _)))
}

/// Returns the file with its actual number of vision blocks instead of the declared one.
fn shortened<'n>(file: &TowerFile<'n>) -> TowerFile<'n> {
    let n_found = block_count(file.names.iter().copied(), "v.blk.");
    TowerFile { vision: file.vision.map(|declared| declared.min(n_found)), ..file.clone() }
}

/// Returns the number of blocks by the highest block number in names that start with `head`.
pub fn block_count<'n>(names: impl IntoIterator<Item = &'n str>, head: &str) -> u64 {
    let numbers = names.into_iter().filter_map(|name| block_number(name, head));
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

/// Returns the block number in a name that starts with `head`.
pub fn block_number(name: &str, head: &str) -> Option<u64> {
    name.strip_prefix(head)?.split('.').next()?.parse().ok()
}
