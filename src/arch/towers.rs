//! What a file of towers cannot be without: every entry of its card, and what the card lists besides. The same rules judge a
//! checkpoint that is converted and a file that is there.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;

use crate::arch::expr::{Expr, Function};
use crate::arch::load::Registry;
use crate::arch::names::{BOUNDS, Captures, Pattern};
use crate::arch::schema::{Card, CardKind, Entry, Optional, Required, Row};

pub(super) const WEIGHT: &str = ".weight";
const VISION_BLOCK: &str = "v.blk.{bid}.";
const AUDIO_BLOCK: &str = "a.blk.{bid}.";

/// The tensors of a file of towers by name, and the blocks of each tower that it has.
#[derive(Clone, Debug)]
pub struct TowerFile<'n> {
    /// The tensors.
    pub names: HashSet<&'n str>,
    /// Blocks of the tower for images; `None` without such a tower.
    pub vision: Option<u64>,
    /// Blocks of the tower for sounds; `None` without such a tower.
    pub audio: Option<u64>,
}

impl TowerFile<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// True if the tensor is there, with an ending or without.
    pub(super) fn has_weight(&self, name: &str) -> bool {
        self.has(name) || self.has(&format!("{name}{WEIGHT}"))
    }

    /// True if the tower that a target belongs to is there.
    fn has_tower_of(&self, target: &str) -> bool {
        let is_audio = target.starts_with("a.") || target.starts_with("mm.a.");
        if is_audio { self.audio.is_some() } else { self.vision.is_some() }
    }

    /// The blocks that a target counts; `None` if it is of no block.
    fn blocks_of(&self, target: &Pattern) -> Option<u64> {
        let n_blocks = if target.text().starts_with(VISION_BLOCK) {
            self.vision
        } else if target.text().starts_with(AUDIO_BLOCK) {
            self.audio
        } else {
            return None;
        };
        // More blocks than the file has tensors are missing all alike.
        n_blocks.map(|n| n.clamp(1, self.names.len() as u64 + 1))
    }
}

/// Whether a condition of the card holds; `None` if that cannot be told.
pub(super) type Holds<'h, E> = &'h dyn Fn(&str, Option<&Expr>, Captures) -> Result<Option<bool>, E>;

/// The targets of a card that a file lacks, each once: of those that all blocks lack, the first.
pub(super) fn missing<E>(card: &Card, file: &TowerFile<'_>, holds: Holds<'_, E>) -> Result<Vec<String>, E> {
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
                // Numbered parts have the same numbers; those that a list tells apart may have none.
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
        // Where nothing says whether the model has such tensors, those that are there do.
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

/// A target's name up to its first number.
fn head(target: &Pattern) -> &str {
    let text = target.text();
    text.split('{').next().unwrap_or(text)
}

/// The numbers of numbered parts, by what stands in front of them: those of all entries that share it.
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

/// Queries, keys and values are one tensor in some files of the same tower, and three in others.
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

/// Bounds of layers: where one layer of a tower has them, all such layers have all four.
fn missing_bounds(card: &Card, file: &TowerFile<'_>) -> Vec<String> {
    let mut missing = Vec::new();
    for block in [VISION_BLOCK, AUDIO_BLOCK] {
        let clamped = |entry: &&Entry| {
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

/// The targets that one of `[required]` names: one, one of each block, or one wherever another is.
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

/// How a card and a file of its projectors agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TowerGaps {
    /// Tensors that are missing.
    pub missing: Vec<String>,
    /// Converters write towers of this kind with fewer blocks than they say, where the checkpoint has fewer.
    pub may_be_short: bool,
}

/// What a file with these projectors lacks, by the card that fits it best; `None` if no card is of them.
#[must_use]
pub fn tower_gaps(projectors: &[&str], file: &TowerFile<'_>) -> Option<TowerGaps> {
    let registry = Registry::embedded_of(CardKind::Mmproj).ok()?;
    let cards = registry.cards().iter().filter(|card| !card.is_abstract && is_of(card, projectors));
    // The card that knows most of the tensors; of those that know as many, the one that misses least.
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
            // A definition may be a plain truth.
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

/// True if the card writes such a tensor.
fn knows(card: &Card, name: &str) -> bool {
    let mut targets = card.entries.iter().flat_map(|entry| &entry.targets);
    let stem = name.rsplit_once('.').map_or(name, |parts| parts.0);
    targets.any(|target| target.name.matches(name).is_some() || target.name.matches(stem).is_some())
}

/// True if the card writes all of these projectors.
fn is_of(card: &Card, projectors: &[&str]) -> bool {
    projectors.iter().all(|projector| {
        card.metadata.iter().any(|row| match row {
            Row::Key { key, value: Expr::Text(text), .. } => {
                key.ends_with("projector_type") && text == projector
            }
            _ => false,
        })
    })
}

/// True if the blocks are those that the checkpoint has, whatever its configuration says.
fn counts_blocks(card: &Card) -> bool {
    matches!(card.lets.get("block_limit"), Some(Expr::Call(Function::Count, _)))
}

/// The file with the blocks that it has, not those that it says.
fn shortened<'n>(file: &TowerFile<'n>) -> TowerFile<'n> {
    let n_found = block_count(file.names.iter().copied(), "v.blk.");
    TowerFile { vision: file.vision.map(|said| said.min(n_found)), ..file.clone() }
}

/// The number of blocks by the highest number in names that start with `head`.
pub fn block_count<'n>(names: impl IntoIterator<Item = &'n str>, head: &str) -> u64 {
    let numbers = names.into_iter().filter_map(|name| block_number(name, head));
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

/// The block in a name that starts with `head`.
#[must_use]
pub fn block_number(name: &str, head: &str) -> Option<u64> {
    name.strip_prefix(head)?.split('.').next()?.parse().ok()
}
