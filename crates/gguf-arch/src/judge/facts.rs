//! Keys, tensors and options that a card reads and writes.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::keys::{hparams, target};
use crate::language::expr::{Expr, PathStep};
use crate::language::names::Pattern;
use crate::language::ops::OpSpec;
use crate::mapping::heads::DraftHeads;
use crate::read::roots::{ROOTS, is_number};
use crate::read::schema::{Card, CardKind, DefaultValue, Join, MetadataRow, Optional, TensorEntry};
use crate::read::{metadata_rows, visit};
use crate::registry::model_types::usual_text_part;
use crate::registry::{Registry, detect};
use gguf_format::keys::ANNOTATION_PREFIX;

/// Returns the keys of `config.json` that a card reads: those in its expressions and defaults, and those of the rows
/// that most decoders share.
pub(crate) fn config_keys(card: &Card) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut add = |expr: &Expr| {
        if let Expr::Path(path) = expr {
            let name = path.key();
            let is_own = card.lets.contains_key(name) && !is_same_name(card, name);
            if !is_own && !is_number(name) && !ROOTS.contains(&name) {
                keys.insert(name.to_owned());
            }
        }
    };
    visit::walk(card, &mut add);
    if card.metadata.contains(&MetadataRow::Base) {
        for row in metadata_rows::base_rows() {
            if let MetadataRow::Key { value, when, .. } = row {
                value.walk(&mut add);
                if let Some(when) = when {
                    when.walk(&mut add);
                }
            }
        }
        keys.extend(hparams::ROPE_KEYS.iter().map(|key| (*key).to_owned()));
    }
    keys.extend(card.defaults.values().flat_map(|defaults| defaults.keys().cloned()));
    for aliases in card.aliases.values() {
        keys.extend(aliases.iter().flat_map(|(alias, key)| [alias.clone(), key.clone()]));
    }
    let inverse = card.inverse.iter().filter(|(_, rule)| rule.tensor.is_none());
    keys.extend(inverse.map(|(key, _)| key.split('[').next().unwrap_or(key).to_owned()));
    keys
}

/// Returns true for a definition with the name of a key that it reads: inside it, the name is the key.
fn is_same_name(card: &Card, name: &str) -> bool {
    let mut found = false;
    if let Some(own) = card.lets.get(name) {
        own.walk(&mut |expr| found |= matches!(expr, Expr::Path(path) if path.root == name));
    }
    found
}

/// Returns the conversion options that affect the card.
fn options(card: &Card) -> Vec<String> {
    let mut options: Vec<&str> = Vec::new();
    if card.mtp_export {
        options.extend([DraftHeads::Alone, DraftHeads::Dropped].into_iter().filter_map(DraftHeads::option));
    }
    options.extend(card.fuse.iter().map(|fusion| fusion.option()));
    if !card.annotate.is_empty() {
        options.push("--annotate");
    }
    let mut asked = BTreeSet::new();
    visit::walk(card, &mut |expr| {
        let Expr::Path(path) = expr else { return };
        match (path.root.as_str(), path.steps.first()) {
            ("opt", Some(PathStep::Field(name))) => {
                asked.extend(ASKED.iter().find(|row| row.0 == name).map(|row| row.1));
            }
            (target::ROOT, _) => {
                asked.insert("--target-model-dir");
            }
            _ => {}
        }
    });
    if card.tokenizer.from.is_some() {
        asked.insert("--target-model-dir");
    }
    // A parent's expression may refer to a format in which the card's own classes do not exist.
    if !card.classes.iter().any(|class| detect::MISTRAL_CLASSES.contains(&class.as_str())) {
        asked.remove("--mistral-format");
    }
    options.into_iter().chain(asked).map(str::to_owned).collect()
}

/// Names under `opt` in expressions, and the options that set them. Draft heads have a key of the card instead.
const ASKED: &[(&str, &str)] = &[("mistral_format", "--mistral-format"), ("rerank", "--rerank")];

/// Facts about a card for display.
#[derive(Clone, Debug)]
pub struct CardFacts {
    /// Models that it converts, and its place among the cards.
    pub head: CardHead,
    /// Tensors and keys that it reads and writes.
    pub contents: CardContents,
    /// Reasons why a GGUF file cannot be converted back; empty if it can.
    pub one_way: Vec<String>,
}

/// Models that a card converts, and its place among the cards.
#[derive(Clone, Debug, Serialize)]
pub struct CardHead {
    /// Name of the card or variant: `llama`, `llama/internlm3`.
    pub name: String,
    /// Kind of file that the card writes: `text`, or `mmproj` for vision and audio towers.
    pub kind: CardKind,
    /// Value of `general.architecture` of the output.
    #[serde(rename = "architecture")]
    pub gguf: String,
    /// Name of the variant, unless it is a main card.
    pub variant: Option<String>,
    /// Oldest parent that is not abstract, or the card itself.
    pub family: String,
    /// Names of its parents, the nearest first.
    #[serde(rename = "extends")]
    pub parents: Vec<String>,
    /// Model classes.
    pub classes: Vec<String>,
    /// Public repositories.
    pub examples: Vec<String>,
    /// Tokenizer modes, in the order in which they are tried.
    pub tokenizer: Vec<String>,
    /// Conversion options that affect the card.
    pub options: Vec<String>,
}

/// Tensors and keys that a card reads and writes.
#[derive(Clone, Debug, Serialize)]
pub struct CardContents {
    /// Tensor entries, in card order.
    pub tensors: Vec<TensorFacts>,
    /// Tensors that are left out.
    pub ignored: Vec<IgnoredTensors>,
    /// Keys of `config.json` that are read.
    pub config: Vec<ConfigKeyFacts>,
    /// GGUF keys that are written, except the tokenizer's own.
    pub keys: Vec<String>,
    /// Keys that `--annotate` adds.
    pub annotations: Vec<String>,
}

/// Conversion of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorFacts {
    /// Names in the checkpoint, with placeholders; names without an ending pass theirs on.
    pub sources: Vec<String>,
    /// Names in the GGUF.
    pub targets: Vec<String>,
    /// Names of the operations, in order.
    #[serde(rename = "operations")]
    pub ops: Vec<&'static str>,
    /// Kind of join of several sources: `stacked` or `joined`.
    pub joined: Option<&'static str>,
    /// True if the entry has a condition.
    #[serde(rename = "conditional")]
    pub is_conditional: bool,
    /// True if the tensor may be missing in some blocks.
    #[serde(rename = "optional")]
    pub is_optional: bool,
}

/// Tensors that a card leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IgnoredTensors {
    /// Pattern of their names.
    pub pattern: String,
    /// Reason.
    pub why: String,
}

/// Key of `config.json` that a card reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigKeyFacts {
    /// Name of the key.
    pub key: String,
    /// Defaults of an absent key, by model type.
    pub defaults: Vec<KeyDefault>,
}

/// Default of an absent key of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyDefault {
    /// Value of `model_type` for which it applies.
    pub model_type: String,
    /// The default as JSON, or `computed`.
    pub value: String,
}

/// Operations without an inverse, by their names in cards, unless a parameter declares the original shape.
const ONE_WAY: &[&str] = &[
    "flatten",
    "fold_norm",
    "replace_row",
    "reshape",
    "resize_grid",
    "softplus",
    "sum",
    "ternary",
    "tp_qkv",
];

/// Returns facts about the cards and variants of an architecture, a variant (`llama/internlm3`), or a class.
pub fn facts(registry: &Registry, name: &str) -> Vec<CardFacts> {
    let name = usual_text_part(name).filter(|_| registry.kind() == CardKind::Text).unwrap_or(name);
    let all = registry.cards().iter();
    let is_meant = |card: &&Card| {
        card.base() == name || card.name() == name || card.classes.iter().any(|class| class == name)
    };
    all.filter(is_meant).map(|card| of_card(registry, card)).collect()
}

/// Returns facts about all cards that convert models, including variants.
pub fn all_facts(registry: &Registry) -> Vec<CardFacts> {
    let cards = registry.cards().iter().filter(|card| !card.is_abstract);
    cards.map(|card| of_card(registry, card)).collect()
}

fn of_card(registry: &Registry, card: &Card) -> CardFacts {
    let mut modes: Vec<String> = Vec::new();
    for mode in &card.tokenizer.modes {
        // A mode may be listed twice, under two conditions.
        if !modes.iter().any(|name| name == mode.mode.name()) {
            modes.push(mode.mode.name().to_owned());
        }
    }
    let texts = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let head = CardHead {
        name: card.name(),
        kind: card.kind,
        gguf: card.gguf.clone(),
        variant: card.variant.clone(),
        family: registry.family(card.base()).to_owned(),
        parents: texts(registry.lineage(card.base()).split_off(1)),
        classes: card.classes.clone(),
        examples: card.examples.clone(),
        tokenizer: modes,
        options: options(card),
    };
    CardFacts { head, contents: contents(card), one_way: one_way(card) }
}

fn contents(card: &Card) -> CardContents {
    let keys = card.early.iter().chain(&card.metadata);
    let around = card.tokenizer.before.iter().chain(&card.tokenizer.after);
    let ignored = card
        .ignore
        .iter()
        .map(|rule| IgnoredTensors { pattern: rule.pattern.text().to_owned(), why: rule.why.clone() });
    let config = config_keys(card).into_iter();
    let config = config.map(|key| ConfigKeyFacts { defaults: defaults(card, &key), key });
    let annotations = card.annotate.iter().flat_map(row_keys);
    CardContents {
        tensors: card.entries.iter().map(tensor).collect(),
        ignored: ignored.collect(),
        config: config.collect(),
        keys: written(card, keys.chain(around)),
        annotations: annotations.map(|key| format!("{ANNOTATION_PREFIX}{key}")).collect(),
    }
}

fn row_keys(row: &MetadataRow) -> Vec<String> {
    match row {
        MetadataRow::Base => metadata_rows::base_keys().map(str::to_owned).collect(),
        MetadataRow::Key { key, .. } => vec![key.clone()],
    }
}

/// Returns the full keys of rows, without duplicates.
fn written<'r>(card: &Card, rows: impl Iterator<Item = &'r MetadataRow>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let keys = rows.flat_map(row_keys).map(|key| metadata_rows::full_key(&key, &card.gguf).unwrap_or(key));
    keys.filter(|key| seen.insert(key.clone())).collect()
}

fn defaults(card: &Card, key: &str) -> Vec<KeyDefault> {
    let own = card.defaults.iter().filter_map(|(model_type, keys)| Some((model_type, keys.get(key)?)));
    own.map(|(model_type, default)| {
        let value = match &default.value {
            DefaultValue::Literal(json) => json.to_string(),
            DefaultValue::Expr(_) => "computed".to_owned(),
        };
        KeyDefault { model_type: model_type.clone(), value }
    })
    .collect()
}

fn tensor(entry: &TensorEntry) -> TensorFacts {
    let texts = |patterns: &[Pattern]| patterns.iter().map(|p| p.text().to_owned()).collect::<Vec<_>>();
    TensorFacts {
        sources: [texts(&entry.patterns), texts(&entry.with)].concat(),
        targets: entry.targets.iter().map(|target| target.name.text().to_owned()).collect(),
        ops: ops_of(entry),
        joined: entry.join.map(join_name),
        is_conditional: entry.when.is_some(),
        is_optional: entry.optional != Optional::Never,
    }
}

fn ops_of(entry: &TensorEntry) -> Vec<&'static str> {
    specs(entry).map(|op| op.kind.name()).collect()
}

fn specs(entry: &TensorEntry) -> impl Iterator<Item = &OpSpec> {
    let of_targets = entry.targets.iter().flat_map(|target| &target.ops);
    entry.pre.iter().chain(&entry.ops).chain(of_targets)
}

fn is_undone(op: &OpSpec) -> bool {
    !ONE_WAY.contains(&op.kind.name()) || op.params.iter().any(|param| param.0 == "hf")
}

fn join_name(join: Join) -> &'static str {
    match join {
        Join::StackBy(_) | Join::Stack => "stacked",
        _ => "joined",
    }
}

/// Returns the reasons why a GGUF file cannot be converted back.
fn one_way(card: &Card) -> Vec<String> {
    let mut reasons = Vec::new();
    if card.kind == CardKind::Mmproj {
        return vec!["towers go one way".to_owned()];
    }
    // Of two entries for a tensor, by a condition, the one that can be undone serves all files.
    let is_undone_by_another = |entry: &TensorEntry| {
        let mut same = card.entries.iter().filter(|other| other.name() == entry.name());
        entry.when.is_some() && same.any(|other| other.when.is_some() && specs(other).all(is_undone))
    };
    for entry in card.entries.iter().filter(|entry| !is_undone_by_another(entry)) {
        let op = specs(entry).find(|op| !is_undone(op)).map(|op| format!("`{}`", op.kind.name()));
        let join = match entry.join {
            None | Some(Join::StackBy(_) | Join::Stack) => None,
            Some(_) => Some("parts joined one after the other".to_owned()),
        };
        if let Some(what) = op.or(join) {
            reasons.push(format!("`{}`: {what} cannot be undone", entry.name()));
        }
    }
    reasons
}
