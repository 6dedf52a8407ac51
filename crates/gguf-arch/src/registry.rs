//! The registry of cards: embedded TOML, inheritance, variants, and all checks that need no checkpoint.

use crate::Result;
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use rayon::prelude::*;
use toml::{Table, Value as Toml};

use crate::error::{ArchError, CardProblem, ParentProblem};
use crate::graph::{self, GraphFeatures};
use crate::read;
use crate::read::card_merge::merge;
use crate::read::config_keys::ConfigKeys;
use crate::read::schema::{Card, CardKind};
use crate::read::{check, metadata_rows};

pub(crate) mod detect;
pub(crate) mod model_types;
#[cfg(test)]
mod tests;
pub(crate) mod towers;

/// Name and text of each embedded card: files of `converters/`, and of `converters/mmproj/` in `MMPROJ`.
const TEXT: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/cards.rs"));
const MMPROJ: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/mmproj.rs"));

/// Registries of all embedded cards, after their first use.
static OF_TEXT: OnceLock<Registry> = OnceLock::new();
static OF_MMPROJ: OnceLock<Registry> = OnceLock::new();

/// Cards that a program was given for all that it does, together with the embedded ones.
static GIVEN: OnceLock<Registry> = OnceLock::new();

/// Returns true if an embedded card writes files of this architecture.
pub(crate) fn is_embedded(arch: &str) -> bool {
    TEXT.iter().any(|(stem, _)| *stem == arch)
}

/// Maximum number of generations of cards that extend one another.
const MAX_GENERATIONS: usize = 6;

/// Checks of cards when they are read.
#[derive(Clone, Copy)]
enum Checks {
    /// Due for cards of users.
    Due,
    /// Skipped for embedded cards: a test checks them, and every run would have to pay for it.
    Passed,
}

/// All known cards of one kind. Clones share them until a card is added.
#[derive(Clone, Debug)]
pub struct Registry {
    kind: CardKind,
    tables: Arc<IndexMap<String, Table>>,
    cards: Arc<Vec<Card>>,
    /// True if cards of the user are included.
    has_given: bool,
}

/// Model class and the card that converts it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassRow<'a> {
    /// The class as in `architectures` of `config.json`.
    pub class: &'a str,
    /// `general.architecture` of its GGUF file.
    pub gguf: &'a str,
    /// Variant of the card, if it is one.
    pub variant: Option<&'a str>,
}

impl Registry {
    /// Returns the embedded cards. They are parsed once per process, since a conversion asks for them several times.
    ///
    /// # Errors
    /// [`ArchError::Card`] if an embedded card is invalid; never in a program that passes its tests.
    pub fn embedded() -> Result<Self> {
        Self::embedded_of(CardKind::Text)
    }

    /// Returns the embedded cards that write files of this kind.
    pub fn embedded_of(kind: CardKind) -> Result<Self> {
        Self::shared(kind).cloned()
    }

    /// As [`Registry::embedded_of`], without a clone.
    fn shared(kind: CardKind) -> Result<&'static Self> {
        if let Some(registry) = Self::read_before(kind) {
            return Ok(registry);
        }
        let registry = Self::load(kind, texts(kind).iter().copied(), Checks::Passed)?;
        Ok(Self::all_of(kind).get_or_init(|| registry))
    }

    fn all_of(kind: CardKind) -> &'static OnceLock<Self> {
        match kind {
            CardKind::Text => &OF_TEXT,
            CardKind::Mmproj => &OF_MMPROJ,
        }
    }

    /// Returns all cards of a kind, if this process has them.
    fn read_before(kind: CardKind) -> Option<&'static Self> {
        GIVEN.get().filter(|given| given.kind == kind).or_else(|| Self::all_of(kind).get())
    }

    /// Returns the embedded cards of text models that write files of an architecture, with their parents. A run that
    /// reads one file does not parse the other cards.
    pub fn of_architecture(arch: &str) -> Result<Self> {
        if let Some(registry) = Self::read_before(CardKind::Text) {
            return Ok(registry.clone());
        }
        Self::load(CardKind::Text, rows_of(arch), Checks::Passed)
    }

    /// Returns the embedded cards of a kind that claim one of these classes, with their parents; all embedded cards if
    /// none claims one. A conversion of a known class does not parse the other cards.
    pub fn of_classes(kind: CardKind, classes: &[String]) -> Result<Self> {
        if let Some(registry) = Self::read_before(kind) {
            return Ok(registry.clone());
        }
        Self::read_classes(kind, classes)
    }

    fn read_classes(kind: CardKind, classes: &[String]) -> Result<Self> {
        let quoted: Vec<String> = classes.iter().map(|class| format!("\"{class}\"")).collect();
        let names_one = |text: &str| quoted.iter().any(|class| text.contains(class));
        let registry = Self::load(kind, rows_where(kind, names_one), Checks::Passed)?;
        let is_claimed =
            registry.cards.iter().any(|card| card.classes.iter().any(|own| classes.contains(own)));
        if is_claimed { Ok(registry) } else { Self::embedded_of(kind) }
    }

    /// Makes these cards of text models those of the whole process, in place of the embedded ones. Only the first call has
    /// an effect.
    pub fn install(self) {
        let _ = GIVEN.set(self);
    }

    /// Returns true if an embedded card writes text models of this architecture.
    pub fn knows(gguf: &str) -> bool {
        // A card's file is named after its architecture; variants may have another one.
        let is_variant = || {
            Self::of_architecture(gguf)
                .is_ok_and(|registry| registry.cards.iter().any(|card| card.gguf == gguf))
        };
        TEXT.iter().any(|(stem, _)| *stem == gguf) || is_variant()
    }

    /// Returns true if a card of an architecture has its own row for a key of its files: its graph description then
    /// takes the key into account.
    pub fn describes(&self, arch: &str, key: &str) -> bool {
        self.cards.iter().any(|card| card.gguf == arch && metadata_rows::has_own_row(card, key))
    }

    /// Builds a registry from cards, each with its file stem and text.
    pub(crate) fn from_texts<'t>(texts: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        Self::load(CardKind::Text, texts, Checks::Due)
    }

    fn load<'t>(
        kind: CardKind,
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
        checks: Checks,
    ) -> Result<Self> {
        let texts: Vec<(&str, &str)> = texts.into_iter().collect();
        // In parallel, because a run that reads cards does little else. The first error is the same in any order.
        let parsed: Vec<_> = texts.par_iter().map(|&(stem, text)| parse(stem, text)).collect();
        let mut tables = IndexMap::new();
        for ((stem, _), table) in texts.into_iter().zip(parsed) {
            let table = table?;
            match table.get("gguf").and_then(Toml::as_str) {
                Some(gguf) if gguf != stem => {
                    let problem = CardProblem::Stem { gguf: gguf.to_owned(), stem: stem.to_owned() };
                    return Err(wrong(stem, problem));
                }
                _ => tables.insert(stem.to_owned(), table),
            };
        }
        let has_given = matches!(checks, Checks::Due);
        let mut registry = Self { kind, tables: Arc::new(tables), cards: Arc::default(), has_given };
        let tables: Vec<_> = registry.tables.iter().collect();
        let expanded: Vec<_> = tables.par_iter().map(|(name, table)| registry.expand(name, table)).collect();
        let cards = expanded.into_iter().collect::<Result<Vec<_>, _>>()?;
        let cards: Vec<Card> = cards.into_iter().flatten().collect();
        if has_given {
            check_cards(&cards, &[])?;
        }
        registry.cards = Arc::new(cards);
        registry.check_classes()?;
        Ok(registry)
    }

    /// Builds a registry of the embedded cards and the given ones: file stem and text. A given card replaces an
    /// embedded one of the same name.
    pub fn overlaid<'t>(kind: CardKind, given: impl IntoIterator<Item = (&'t str, &'t str)>) -> Result<Self> {
        let mut all: IndexMap<&str, &str> = texts(kind).iter().copied().collect();
        all.extend(given);
        Self::load(kind, all, Checks::Due)
    }

    /// Adds a card from a file. It replaces an embedded card of the same name, and removes its classes from all other
    /// cards.
    pub fn add(&mut self, name: &str, text: &str) -> Result<()> {
        self.has_given = true;
        let table = parse(name, text)?;
        let added = self.expand(name, &table)?;
        check_cards(&added, &self.cards)?;
        let base = added.first().map_or(name, |card| card.base()).to_owned();
        let cards = Arc::make_mut(&mut self.cards);
        cards.retain(|card| card.base() != base);
        for card in cards.iter_mut() {
            card.classes.retain(|class| !added.iter().any(|added| added.classes.contains(class)));
        }
        Arc::make_mut(&mut self.tables).insert(base, table);
        cards.extend(added);
        self.check_classes()
    }

    /// Returns the registry without what converts a class: variants, or cards with all that extend them.
    #[cfg(test)]
    pub(crate) fn without(&self, class: &str) -> Self {
        let claims = |card: &&Card| card.classes.iter().any(|own| own == class);
        let hidden: Vec<&Card> = self.cards.iter().filter(claims).collect();
        let is_hidden = |name: &str, variant: Option<&str>| {
            hidden.iter().any(|card| match card.variant.as_deref() {
                Some(own) => card.stem == name && variant == Some(own),
                None => self.lineage(name).contains(&card.stem.as_str()),
            })
        };
        let mut rest = self.clone();
        Arc::make_mut(&mut rest.cards).retain(|card| !is_hidden(&card.stem, card.variant.as_deref()));
        Arc::make_mut(&mut rest.tables).retain(|name, table| {
            if let Some(variants) = table.get_mut("variant").and_then(Toml::as_table_mut) {
                variants.retain(|variant, _| !is_hidden(name, Some(variant)));
            }
            !is_hidden(name, None)
        });
        rest
    }

    /// Returns true if cards of the user are included.
    pub(crate) fn has_given(&self) -> bool {
        self.has_given
    }

    /// Returns the kind of file that the cards write.
    pub fn kind(&self) -> CardKind {
        self.kind
    }

    /// Returns the cards and their variants, including abstract cards.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// Returns all classes, sorted.
    pub fn classes(&self) -> Vec<ClassRow<'_>> {
        let rows = self.cards.iter().flat_map(|card| {
            card.classes.iter().map(|class| ClassRow {
                class,
                gguf: &card.gguf,
                variant: card.variant.as_deref(),
            })
        });
        let mut all: Vec<ClassRow<'_>> = rows.collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns the main card, not a variant, of a `general.architecture`.
    pub fn by_gguf(&self, gguf: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.gguf == gguf && card.variant.is_none() && !card.is_abstract)
    }

    /// Returns the variants of a card that can convert GGUF files back: those with their own `[inverse]`.
    pub(crate) fn variants_back(&self, gguf: &str) -> impl Iterator<Item = &Card> {
        let tables = self.tables.get(gguf).and_then(|table| table.get("variant")?.as_table());
        let is_own = move |name: &str| {
            tables.is_some_and(|tables| tables.get(name).is_some_and(|table| table.get("inverse").is_some()))
        };
        let cards = self.cards.iter();
        let gguf = gguf.to_owned();
        cards.filter(move |card| card.gguf == gguf && card.variant.as_deref().is_some_and(&is_own))
    }

    /// Returns a card's name and those of its parents, the nearest first.
    pub(crate) fn lineage<'a>(&'a self, gguf: &'a str) -> Vec<&'a str> {
        let mut names = vec![gguf];
        let mut newest = gguf;
        while let Some(parent) = self.tables.get(newest).and_then(|table| table.get("extends"))
            && let Some(parent) = parent.as_str().filter(|_| names.len() < MAX_GENERATIONS)
        {
            names.push(parent);
            newest = parent;
        }
        names
    }

    /// Returns the family of a card: the oldest of its parents that is not abstract, or the card itself.
    pub fn family<'a>(&'a self, gguf: &'a str) -> &'a str {
        let is_abstract = |name: &str| {
            self.tables.get(name).and_then(|table| table.get("abstract")).and_then(Toml::as_bool)
                == Some(true)
        };
        let lineage = self.lineage(gguf);
        lineage.iter().rev().find(|name| !is_abstract(name)).copied().unwrap_or(gguf)
    }

    /// Returns true if another card can extend this one without exceeding the limit of generations.
    pub(crate) fn can_be_extended(&self, gguf: &str) -> bool {
        self.lineage(gguf).len() < MAX_GENERATIONS
    }

    /// Returns the tables of all cards as in their files, without inheritance.
    pub(crate) fn own_tables(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.tables.iter().map(|(name, table)| (name.as_str(), table))
    }

    /// Returns a card's table with those of its parents merged in.
    pub(crate) fn merged_table(&self, gguf: &str) -> Option<Table> {
        self.merged(gguf, self.tables.get(gguf)?).ok()
    }

    /// Reads a card and its variants.
    fn expand(&self, name: &str, table: &Table) -> Result<Vec<Card>> {
        let merged = self.merged(name, table)?;
        let main = read::card(&merged, name, None).map_err(|problem| wrong(name, problem))?;
        if main.kind != self.kind {
            return Err(wrong(name, CardProblem::OtherKind));
        }
        let mut cards = vec![main];
        let variants = match table.get("variant") {
            None => return Ok(cards),
            Some(Toml::Table(variants)) => variants,
            Some(other) => {
                let found = other.type_str().to_owned();
                return Err(wrong(
                    name,
                    CardProblem::Kind { at: "`variant`".to_owned(), expected: "a table", found },
                ));
            }
        };
        for (variant, overlay) in variants {
            let full_name = format!("{name}/{variant}");
            let at = || format!("[variant.{variant}]");
            let Some(overlay) = overlay.as_table() else {
                let found = overlay.type_str().to_owned();
                return Err(wrong(&full_name, CardProblem::Kind { at: at(), expected: "a table", found }));
            };
            let forbidden = ["schema", "kind", "extends", "abstract", "config_keys", "variant"];
            if let Some(key) = overlay.keys().find(|key| forbidden.contains(&key.as_str())) {
                let problem = CardProblem::UnknownKey { at: at(), key: key.clone(), nearest: None };
                return Err(wrong(&full_name, problem));
            }
            let mut table = merge(&merged, overlay).map_err(|problem| wrong(&full_name, problem))?;
            // Under another architecture, the same tensors belong to another graph.
            if overlay.contains_key("gguf") && !overlay.contains_key("graph") {
                table.remove("graph");
            }
            for key in ["gguf", "classes", "examples"] {
                if let (false, Some(value)) = (table.contains_key(key), merged.get(key)) {
                    table.insert(key.to_owned(), value.clone());
                }
            }
            let card =
                read::card(&table, name, Some(variant)).map_err(|problem| wrong(&full_name, problem))?;
            cards.push(card);
        }
        Ok(cards)
    }

    /// Returns `table` with those of its parents merged in.
    fn merged(&self, name: &str, table: &Table) -> Result<Table> {
        let mut generations = vec![table];
        let mut newest = table;
        while let Some(parent) = newest.get("extends") {
            let parent = parent.as_str().ok_or_else(|| {
                let found = parent.type_str().to_owned();
                wrong(name, CardProblem::Kind { at: "`extends`".to_owned(), expected: "a text", found })
            })?;
            let problem = |problem| wrong(name, CardProblem::Parent(problem));
            newest = self.tables.get(parent).ok_or_else(|| {
                let is_of_the_other =
                    |kind| kind != self.kind && texts(kind).iter().any(|row| row.0 == parent);
                if [CardKind::Text, CardKind::Mmproj].into_iter().any(is_of_the_other) {
                    return wrong(name, CardProblem::OtherKind);
                }
                problem(ParentProblem::Unknown(parent.to_owned()))
            })?;
            generations.push(newest);
            if generations.len() > MAX_GENERATIONS {
                return Err(problem(ParentProblem::TooDeep));
            }
        }
        let mut merged = Table::new();
        for table in generations.into_iter().rev() {
            merged = merge(&merged, table).map_err(|problem| wrong(name, problem))?;
        }
        // A child inherits its parent's graph only with its own `[graph]` table, which may be empty: one more tensor
        // makes another graph.
        if !table.contains_key("graph") {
            merged.remove("graph");
        }
        Ok(merged)
    }

    /// Checks that a class belongs to one card, unless all but one of the cards that claim it have conditions.
    fn check_classes(&self) -> Result<()> {
        let mut unconditional: IndexMap<&str, &Card> = IndexMap::new();
        for card in self.cards.iter().filter(|card| card.when.is_none()) {
            for class in &card.classes {
                if let Some(other) = unconditional.insert(class, card) {
                    let problem = CardProblem::ClassTwice { class: class.clone(), other: other.name() };
                    return Err(wrong(&card.name(), problem));
                }
            }
        }
        Ok(())
    }
}

impl GraphFeatures {
    /// Returns the `[graph]` table of the card of `arch`, a value of `general.architecture`. `None` if the card has no
    /// such table; an empty table is the plain decoder.
    pub fn of(arch: &str) -> Option<Self> {
        Registry::of_architecture(arch).ok()?.by_gguf(arch)?.graph.clone()
    }
}

/// Returns names and texts of the embedded cards of a kind.
fn texts(kind: CardKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        CardKind::Text => TEXT,
        CardKind::Mmproj => MMPROJ,
    }
}

/// Checks cards that may name the configuration keys of embedded cards, of `others`, and their own.
fn check_cards(cards: &[Card], others: &[Card]) -> Result<()> {
    let [text, mmproj] = [CardKind::Text, CardKind::Mmproj].map(Registry::shared);
    let known = ConfigKeys::of(text?.cards.iter().chain(&*mmproj?.cards).chain(others).chain(cards));
    let check = |card: &Card| {
        let file = || card.variant.as_ref().map_or(card.stem.clone(), |name| format!("{}/{name}", card.stem));
        check::card(card, &known).map_err(|problem| wrong(&file(), problem))
    };
    // The first error is the same in any order.
    let checked: Vec<_> = cards.par_iter().map(check).collect();
    checked.into_iter().collect()
}

/// Returns the embedded cards of text models that name an architecture, and all their parents.
fn rows_of(arch: &str) -> Vec<(&'static str, &'static str)> {
    rows_where(CardKind::Text, |text| texts_of("gguf", text).any(|gguf| gguf == arch))
}

/// Returns the embedded cards of a kind whose text is selected, and all their parents.
fn rows_where(kind: CardKind, is_selected: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    let mut rows: Vec<_> = texts(kind).iter().filter(|row| is_selected(row.1)).copied().collect();
    let mut n_seen = 0;
    while let Some(&(_, text)) = rows.get(n_seen) {
        let parent = texts_of("extends", text).next();
        let parent = texts(kind).iter().find(|row| Some(row.0) == parent && !rows.contains(row));
        rows.extend(parent.copied());
        n_seen += 1;
    }
    rows
}

/// Returns the texts that the lines `key = "text"` of an embedded card give; a test compares them with the parsed cards.
fn texts_of<'t>(key: &str, card: &'t str) -> impl Iterator<Item = &'t str> {
    card.lines().filter_map(move |line| {
        line.strip_prefix(key)?.trim_start().strip_prefix('=')?.trim().strip_prefix('"')?.strip_suffix('"')
    })
}

fn wrong(card: &str, problem: CardProblem) -> ArchError {
    ArchError::Card { card: card.to_owned(), problem: Box::new(problem) }
}

fn parse(name: &str, text: &str) -> Result<Table> {
    let mut table = text.parse::<Table>().map_err(|error| {
        let line = error
            .span()
            .map_or(0, |span| text.get(..span.start).map_or(0, |before| before.matches('\n').count()) + 1);
        wrong(name, CardProblem::Toml(format!("line {line}: {}", error.message())))
    })?;
    // Before inheritance, which merges the tables of a graph.
    move_graph_keys(name, &mut table)?;
    for (_, variant) in table.get_mut("variant").and_then(Toml::as_table_mut).into_iter().flatten() {
        variant.as_table_mut().map_or(Ok(()), |variant| move_graph_keys(name, variant))?;
    }
    Ok(table)
}

/// Moves keys of a card's `[graph]` into the tables of their parts.
fn move_graph_keys(name: &str, card: &mut Table) -> Result<()> {
    if let Some(Toml::Table(graph)) = card.get_mut("graph") {
        let moved = graph::moved(std::mem::take(graph));
        *graph = moved.map_err(|problem| wrong(name, CardProblem::Graph(problem)))?;
    }
    Ok(())
}
