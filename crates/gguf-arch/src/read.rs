//! From a merged TOML table to a typed card. Unknown keys are errors everywhere.

use indexmap::IndexMap;
use toml::{Table, Value as Toml};

use crate::error::CardProblem;
use crate::graph::GraphFeatures;
use crate::language::expr::{Expr, ParseError};
use crate::language::names::{Pattern, Placeholder, Stars, nearest};
use crate::read::fusion::Fusion;
use crate::read::schema::{
    CLIP, Card, CardKind, EACH_BLOCK, Ignore, InverseRule, MetadataRow, Required, Rewrite, RewriteStep,
};

mod assumes;
mod base;
pub(crate) mod card_merge;
pub(crate) mod check;
pub(crate) mod config_keys;
mod defaults;
mod entries;
pub(crate) mod fusion;
mod generate;
mod kept_ops;
pub(crate) mod metadata_rows;
mod reserved;
pub(crate) mod roots;
pub(crate) mod schema;
#[cfg(test)]
mod tests;
mod tokenizer;
pub(crate) mod visit;

pub(super) use base::{base, is_multimodal};
use entries::{EntryTables, entries};
use generate::generate;
pub(super) use reserved::not_built;
use tokenizer::tokenizer;

type Read<T> = Result<T, CardProblem>;

/// Default block prefix of sources.
const BLOCK: &str = "model.layers.{bid}.";
/// Default block prefix of sources in audio towers.
const AUDIO_BLOCK: &str = "audio_tower.layers.{bid}.";

const CARD_KEYS: &[&str] = &[
    "schema",
    "kind",
    "gguf",
    "extends",
    "abstract",
    "annotate",
    "assumes",
    "biases",
    "classes",
    "companions",
    "config_keys",
    "examples",
    "when",
    "raw_config",
    "multimodal",
    "fuse",
    "mtp_export",
    "mtp_keep",
    "require",
    "differs",
    "set",
    "drop_config",
    "metadata_set",
    "metadata_drop",
    "early",
    "metadata",
    "let",
    "tables",
    "defaults",
    "model_types",
    "aliases",
    "names",
    "parts",
    "tensors",
    "blocks",
    "audio_blocks",
    "ignore",
    "outputs",
    "required",
    "generate",
    "tokenizer",
    "variant",
    "inverse",
    "graph",
];

const NAMES_KEYS: &[&str] = &["rewrite", "block", "audio_block"];
const IGNORE_KEYS: &[&str] = &["why", "when", "require_zero", "drop_if_equal"];
const INVERSE_KEYS: &[&str] = &["value", "null", "tensor"];

/// Table whose keys are all known, and its place in the card for messages.
struct CardTable<'t> {
    table: &'t Table,
    at: String,
}

impl<'t> CardTable<'t> {
    fn new(value: &'t Toml, at: &str, known: &[&str]) -> Read<Self> {
        let table = value.as_table().ok_or_else(|| kind(at, "a table", value))?;
        Self::of(table, at, known)
    }

    fn of(table: &'t Table, at: &str, known: &[&str]) -> Read<Self> {
        let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else {
            return Ok(Self { table, at: at.to_owned() });
        };
        Err(not_built(at, "key", key).unwrap_or_else(|| CardProblem::UnknownKey {
            at: at.to_owned(),
            key: key.clone(),
            nearest: nearest(key, known.iter().copied()).map(str::to_owned),
        }))
    }

    fn at(&self, key: &str) -> String {
        format!("{} `{key}`", self.at)
    }

    fn text(&self, key: &str) -> Read<Option<String>> {
        self.table.get(key).map(|value| text(value, &self.at(key))).transpose()
    }

    fn bool(&self, key: &str) -> Read<bool> {
        match self.table.get(key) {
            None => Ok(false),
            Some(Toml::Boolean(value)) => Ok(*value),
            Some(other) => Err(kind(&self.at(key), "true or false", other)),
        }
    }

    fn expr(&self, key: &str) -> Read<Option<Expr>> {
        self.table.get(key).map(|value| expr(value, &self.at(key))).transpose()
    }

    fn list(&self, key: &str) -> Read<&'t [Toml]> {
        match self.table.get(key) {
            None => Ok(&[]),
            Some(Toml::Array(items)) => Ok(items),
            Some(other) => Err(kind(&self.at(key), "a list", other)),
        }
    }

    fn texts(&self, key: &str) -> Read<Vec<String>> {
        self.list(key)?.iter().map(|item| text(item, &self.at(key))).collect()
    }

    fn table(&self, key: &str) -> Read<Option<&'t Table>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Toml::Table(table)) => Ok(Some(table)),
            Some(other) => Err(kind(&self.at(key), "a table", other)),
        }
    }

    fn tables(&self, key: &str) -> Read<impl Iterator<Item = (&'t String, &'t Toml)>> {
        Ok(self.table(key)?.into_iter().flatten())
    }
}

fn kind(at: &str, expected: &'static str, found: &Toml) -> CardProblem {
    CardProblem::Kind { at: at.to_owned(), expected, found: found.type_str().to_owned() }
}

fn text(value: &Toml, at: &str) -> Read<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| kind(at, "a text", value))
}

/// Parses an expression; numbers and booleans may be unquoted.
fn expr(value: &Toml, at: &str) -> Read<Expr> {
    match value {
        Toml::String(text) => Expr::parse(text).map_err(|source| {
            let reserved = match &source {
                ParseError::UnknownFunction { name, .. } => not_built(at, "function", name),
                _ => None,
            };
            let (at, text) = (at.to_owned(), text.clone());
            reserved.unwrap_or(CardProblem::Expr { at, text, source })
        }),
        Toml::Integer(value) => Ok(Expr::Int((*value).into())),
        Toml::Float(value) if value.is_finite() => Ok(Expr::Float(*value)),
        Toml::Boolean(value) => Ok(Expr::Bool(*value)),
        other => Err(kind(at, "an expression", other)),
    }
}

fn pattern(text: &str, at: &str, stars: Stars) -> Read<Pattern> {
    Pattern::parse(text, stars).map_err(|source| CardProblem::Pattern { at: at.to_owned(), source })
}

fn choice<T: Copy>(at: &str, what: &'static str, name: &str, known: &[(&str, T)]) -> Read<T> {
    let unknown = || CardProblem::UnknownChoice {
        at: at.to_owned(),
        what,
        name: name.to_owned(),
        nearest: nearest(name, known.iter().map(|row| row.0)).map(str::to_owned),
    };
    let found = known.iter().find(|row| row.0 == name).map(|row| row.1);
    found.ok_or_else(|| not_built(at, what, name).unwrap_or_else(unknown))
}

/// Reads a merged card from the file `stem`.
pub(super) fn card(table: &Table, stem: &str, variant: Option<&str>) -> Read<Card> {
    let top = CardTable::of(table, "top level", CARD_KEYS)?;
    match table.get("schema") {
        Some(Toml::Integer(1)) => {}
        Some(other) => return Err(kind("`schema`", "1", other)),
        None => return Err(CardProblem::MissingKey { at: top.at, key: "schema" }),
    }
    let multimodal = top.text("multimodal")?.unwrap_or_else(|| "drop".to_owned());
    let (kind, gguf) = kind_of(&top)?;
    if kind == CardKind::Text {
        of_towers_only(&top, &["biases", "parts", "audio_blocks"])?;
    }
    let (rewrite, sections) = match table.get("names") {
        Some(names) => names_of(&CardTable::new(names, "[names]", NAMES_KEYS)?, kind)?,
        None => (Vec::new(), EntryTables::new(kind, None, None)),
    };
    let mut lets = base().lets.clone();
    if kind == CardKind::Mmproj {
        lets.extend(base().tower_lets.clone());
    }
    lets.extend(exprs(&top, "let")?);
    let mut tables = base().tables.clone();
    tables.extend(numbers(&top)?);
    Ok(Card {
        kind,
        stem: stem.to_owned(),
        gguf,
        variant: variant.map(str::to_owned),
        is_abstract: top.bool("abstract")?,
        classes: top.texts("classes")?,
        examples: top.texts("examples")?,
        when: top.expr("when")?,
        config_keys: top.texts("config_keys")?,
        raw_config: top.bool("raw_config")?,
        keep_multimodal: choice("`multimodal`", "choice", &multimodal, &[("drop", false), ("keep", true)])?,
        parts: top.texts("parts")?,
        mtp_export: top.bool("mtp_export")?,
        mtp_keep: mtp_keep(&top)?,
        fuse: fuse(&top)?,
        require: conditions(&top, "require")?,
        differs: conditions(&top, "differs")?,
        set: pairs(&top, "set")?,
        drop_config: top.texts("drop_config")?,
        metadata_set: pairs(&top, "metadata_set")?,
        metadata_drop: top.texts("metadata_drop")?,
        early: rows(&top, "early")?,
        metadata: match kind {
            CardKind::Text if !table.contains_key("metadata") => vec![MetadataRow::Base],
            _ => rows(&top, "metadata")?,
        },
        annotate: key_rows(&top, "annotate")?,
        lets,
        tables,
        defaults: defaults::defaults(&top)?,
        aliases: aliases(&top)?,
        rewrite,
        entries: entries(&top, &sections)?,
        ignore: ignore(&top)?,
        outputs: outputs(&top, kind)?,
        required: required(&top)?,
        companions: companions(&top)?,
        generate: top.list("generate")?.iter().map(generate).collect::<Read<_>>()?,
        tokenizer: table.get("tokenizer").map(tokenizer).transpose()?.unwrap_or_default(),
        inverse: inverse(&top)?,
        graph: graph(&top)?,
        assumes: assumes::assumes(&top)?,
    })
}

/// Reads the `[graph]` table; an empty one counts as absent.
fn graph(top: &CardTable<'_>) -> Read<Option<GraphFeatures>> {
    let described = top.table("graph")?.filter(|table| !table.is_empty());
    described.map(GraphFeatures::from_toml).transpose().map_err(CardProblem::Graph)
}

/// Returns the card's kind and its `general.architecture`. For towers the latter is fixed, so no card declares it.
fn kind_of(top: &CardTable<'_>) -> Read<(CardKind, String)> {
    let name = top.text("kind")?.unwrap_or_else(|| "text".to_owned());
    let kind =
        choice(&top.at("kind"), "kind", &name, &[("text", CardKind::Text), ("mmproj", CardKind::Mmproj)])?;
    let given = top.text("gguf")?;
    let at = || top.at.clone();
    match (kind, given) {
        (CardKind::Text, Some(gguf)) => Ok((kind, gguf)),
        (CardKind::Text, None) => Err(CardProblem::MissingKey { at: at(), key: "gguf" }),
        (CardKind::Mmproj, None) => Ok((kind, CLIP.to_owned())),
        (CardKind::Mmproj, Some(_)) => {
            let why = "the architecture of towers is always `clip`";
            Err(CardProblem::WithoutEffect { at: at(), key: "gguf", why })
        }
    }
}

/// Refuses keys of towers in the card of a text model, where they have no effect.
fn of_towers_only(fields: &CardTable<'_>, keys: &[&'static str]) -> Read<()> {
    match keys.iter().find(|key| fields.table.contains_key(**key)) {
        Some(key) => {
            let why = "it belongs to cards of towers (`kind = \"mmproj\"`)";
            Err(CardProblem::WithoutEffect { at: fields.at.clone(), key, why })
        }
        None => Ok(()),
    }
}

/// Reads `names.rewrite` and the block prefixes.
fn names_of(names: &CardTable<'_>, kind: CardKind) -> Read<(Vec<Rewrite>, EntryTables)> {
    if kind == CardKind::Text {
        of_towers_only(names, &["audio_block"])?;
    }
    let steps =
        names.list("rewrite")?.iter().map(|step| rewrite(step, &names.at("rewrite"))).collect::<Read<_>>()?;
    Ok((steps, EntryTables::new(kind, names.text("block")?, names.text("audio_block")?)))
}

fn rewrite(step: &Toml, at: &str) -> Read<Rewrite> {
    let mut items = step.as_array().cloned().ok_or_else(|| kind(at, "a list", step))?;
    let when = match items.last() {
        Some(Toml::Table(table)) => {
            let when = CardTable::of(table, at, &["when"])?.expr("when")?;
            items.pop();
            when
        }
        _ => None,
    };
    let texts: Vec<&str> = items.iter().filter_map(Toml::as_str).collect();
    let own = |text: &str| text.to_owned();
    let step = match texts.as_slice() {
        ["strip", a] => RewriteStep::Strip(own(a)),
        ["head", a, b] => RewriteStep::Head(own(a), own(b)),
        ["tail", a, b] => RewriteStep::Tail(own(a), own(b)),
        ["replace", a, b] => RewriteStep::Replace(own(a), own(b)),
        ["prefix", a] => RewriteStep::Prefix(own(a)),
        ["shift", a, b, by] => RewriteStep::Shift(own(a), own(b), expr(&Toml::from(*by), at)?),
        _ => return Err(kind(at, "a rewriting step (strip, head, tail, replace, prefix, shift)", step)),
    };
    Ok(Rewrite { step, when })
}

fn inverse(top: &CardTable<'_>) -> Read<IndexMap<String, InverseRule>> {
    let rule = |name: &str, value: &Toml, at: &str| {
        if name.replacen(EACH_BLOCK, ".", 1).contains(['[', ']']) {
            let expected = "a name with `[bid].` once, and no other brackets";
            return Err(CardProblem::Kind { at: at.to_owned(), expected, found: name.to_owned() });
        }
        let Toml::Table(table) = value else {
            return Ok(InverseRule { value: expr(value, at)?, writes_null: false, tensor: None });
        };
        let fields = CardTable::of(table, at, INVERSE_KEYS)?;
        let value =
            fields.expr("value")?.ok_or(CardProblem::MissingKey { at: at.to_owned(), key: "value" })?;
        let (writes_null, is_tensor) = (fields.bool("null")?, fields.bool("tensor")?);
        if writes_null && is_tensor {
            let why = "a tensor whose value is null is left out";
            return Err(CardProblem::WithoutEffect { at: at.to_owned(), key: "null", why });
        }
        let tensor = if is_tensor { Some(pattern(name, at, Stars::Refused)?) } else { None };
        let is_known = |pattern: &Pattern| pattern.placeholders().all(|found| found == Placeholder::Bid);
        if tensor.as_ref().is_some_and(|pattern| !is_known(pattern)) {
            let (expected, found) = ("a tensor's name with no other placeholder than {bid}", name.to_owned());
            return Err(CardProblem::Kind { at: at.to_owned(), expected, found });
        }
        Ok(InverseRule { value, writes_null, tensor })
    };
    top.tables("inverse")?
        .map(|(name, value)| Ok((name.clone(), rule(name, value, &format!("[inverse] `{name}`"))?)))
        .collect()
}

/// Reads a list of `[name, expression]`.
fn pairs(top: &CardTable<'_>, key: &str) -> Read<Vec<(String, Expr)>> {
    let at = top.at(key);
    let pair = |item: &Toml| match item.as_array().map(Vec::as_slice) {
        Some([name, value]) => Ok((text(name, &at)?, expr(value, &at)?)),
        _ => Err(kind(&at, "[name, expression]", item)),
    };
    top.list(key)?.iter().map(pair).collect()
}

/// Reads `mtp_keep`; the default is the usual tensors that draft heads share with the model.
fn mtp_keep(top: &CardTable<'_>) -> Read<Vec<String>> {
    match (top.table.contains_key("mtp_keep"), top.bool("mtp_export")?) {
        (true, _) => top.texts("mtp_keep"),
        (false, true) => Ok(base().mtp_keep.clone()),
        (false, false) => Ok(Vec::new()),
    }
}

fn fuse(top: &CardTable<'_>) -> Read<Vec<Fusion>> {
    top.texts("fuse")?.iter().map(|word| choice("`fuse`", "join", word, &Fusion::WORDS)).collect()
}

/// Reads conditions, each with a message.
fn conditions(top: &CardTable<'_>, key: &str) -> Read<Vec<(Expr, String)>> {
    let at = top.at(key);
    let rule = |item: &Toml| match item.as_array().map(Vec::as_slice) {
        Some([condition, message]) => Ok((expr(condition, &at)?, text(message, &at)?)),
        _ => Err(kind(&at, "[condition, message]", item)),
    };
    top.list(key)?.iter().map(rule).collect()
}

fn rows(fields: &CardTable<'_>, key: &str) -> Read<Vec<MetadataRow>> {
    fields.list(key)?.iter().map(|item| row(item, &fields.at(key))).collect()
}

/// Reads rows of keys, among which `["include", "base"]` is not allowed.
fn key_rows(fields: &CardTable<'_>, key: &str) -> Read<Vec<MetadataRow>> {
    let key_row = |item: &Toml| match row(item, &fields.at(key))? {
        MetadataRow::Base => {
            Err(kind(&fields.at(key), "[key, expression] or [key, expression, condition]", item))
        }
        key @ MetadataRow::Key { .. } => Ok(key),
    };
    fields.list(key)?.iter().map(key_row).collect()
}

fn row(item: &Toml, at: &str) -> Read<MetadataRow> {
    let wrong = || kind(at, "[key, expression] or [key, expression, condition]", item);
    match item.as_array().map(Vec::as_slice) {
        Some([include, base]) if include.as_str() == Some("include") && base.as_str() == Some("base") => {
            Ok(MetadataRow::Base)
        }
        Some([key, value, when @ ..]) if when.len() <= 1 => {
            let key = key.as_str().ok_or_else(wrong)?;
            let at = format!("{at}, row `{key}`");
            let when = when.first().map(|when| expr(when, &at)).transpose()?;
            Ok(MetadataRow::Key { key: key.to_owned(), value: expr(value, &at)?, when })
        }
        _ => Err(wrong()),
    }
}

fn exprs(top: &CardTable<'_>, key: &str) -> Read<IndexMap<String, Expr>> {
    let named =
        |(name, value): (&String, &Toml)| Ok((name.clone(), expr(value, &format!("[{key}] `{name}`"))?));
    top.tables(key)?.map(named).collect()
}

/// Reads `[tables]`: numbers by text.
fn numbers(top: &CardTable<'_>) -> Read<IndexMap<String, IndexMap<String, i64>>> {
    let mut all = IndexMap::new();
    for (name, table) in top.tables("tables")? {
        let at = format!("[tables.{name}]");
        let table = table.as_table().ok_or_else(|| kind(&at, "a table", table))?;
        let number = |(key, value): (&String, &Toml)| {
            Ok((key.clone(), value.as_integer().ok_or_else(|| kind(&at, "an integer", value))?))
        };
        all.insert(name.clone(), table.iter().map(number).collect::<Read<_>>()?);
    }
    Ok(all)
}

fn aliases(top: &CardTable<'_>) -> Read<IndexMap<String, IndexMap<String, String>>> {
    let mut all = IndexMap::new();
    for (model_type, table) in top.tables("aliases")? {
        let at = format!("[aliases.{model_type}]");
        let table = table.as_table().ok_or_else(|| kind(&at, "a table", table))?;
        let names = table.iter().map(|(key, value)| Ok((key.clone(), text(value, &at)?)));
        all.insert(model_type.clone(), names.collect::<Read<_>>()?);
    }
    Ok(all)
}

/// Reads `[required]` and `biases`. A row of `[required]` is a target with `true`, with the condition under which it
/// must exist, or with a table of that condition and the target that it goes `with`. A stem of `biases` must have a
/// bias wherever it has a weight.
fn required(top: &CardTable<'_>) -> Read<Vec<Required>> {
    let mut all = Vec::new();
    for (name, value) in top.tables("required")? {
        let at = format!("[required] `{name}`");
        let (with, when) = match value {
            Toml::Boolean(true) => (None, None),
            Toml::String(_) => (None, Some(expr(value, &at)?)),
            Toml::Table(table) => {
                let fields = CardTable::of(table, &at, &["with", "when"])?;
                let with = fields.text("with")?;
                (with.map(|with| pattern(&with, &at, Stars::Refused)).transpose()?, fields.expr("when")?)
            }
            other => return Err(kind(&at, "true, a condition or a table", other)),
        };
        all.push(Required { target: pattern(name, &at, Stars::Refused)?, with, when });
    }
    let at = "`biases`";
    for stem in top.texts("biases")? {
        let target = pattern(&format!("{stem}.bias"), at, Stars::Refused)?;
        let with = Some(pattern(&format!("{stem}.weight"), at, Stars::Refused)?);
        all.push(Required { target, with, when: None });
    }
    Ok(all)
}

fn outputs(top: &CardTable<'_>, kind: CardKind) -> Read<Vec<Pattern>> {
    let is_default = kind == CardKind::Text && !top.table.contains_key("outputs");
    let names = if is_default { base().outputs.clone() } else { top.texts("outputs")? };
    names.iter().map(|text| pattern(text, "`outputs`", Stars::Refused)).collect()
}

fn companions(top: &CardTable<'_>) -> Read<Vec<String>> {
    let known: Vec<_> = base().companions.iter().map(|slot| (slot.as_str(), slot.as_str())).collect();
    let slot = |name: &String| choice("`companions`", "tensor", name, &known).map(str::to_owned);
    top.texts("companions")?.iter().map(slot).collect()
}

fn ignore(top: &CardTable<'_>) -> Read<Vec<Ignore>> {
    let mut all = Vec::new();
    for (name, value) in top.tables("ignore")? {
        let at = format!("[ignore] `{name}`");
        let own = |name: &str, stars| pattern(name, &at, stars);
        let mut rule = Ignore {
            pattern: own(name, Stars::Allowed)?,
            why: String::new(),
            when: None,
            require_zero: false,
            drop_if_equal: None,
        };
        if let Toml::String(why) = value {
            rule.why.clone_from(why);
        } else {
            let fields = CardTable::new(value, &at, IGNORE_KEYS)?;
            rule.when = fields.expr("when")?;
            rule.require_zero = fields.bool("require_zero")?;
            let other = fields.text("drop_if_equal")?;
            rule.drop_if_equal = other.map(|other| own(&other, Stars::Refused)).transpose()?;
            // Equality with another tensor is a reason in itself.
            match fields.text("why")? {
                Some(why) => rule.why = why,
                None if rule.drop_if_equal.is_some() => {}
                None => return Err(CardProblem::MissingKey { at: at.clone(), key: "why" }),
            }
        }
        all.push(rule);
    }
    Ok(all)
}
