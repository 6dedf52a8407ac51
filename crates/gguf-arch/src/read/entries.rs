//! The `[tensors]` and `[blocks]` tables of a card: entries with their targets and operations.

use toml::{Table, Value as Toml};

use super::{AUDIO_BLOCK, BLOCK, CardTable, Read, choice, expr, kind, pattern};
use crate::error::CardProblem;
use crate::language::names::{Pattern, Placeholder, Stars};
use crate::language::ops::{OpKind, OpSpec, Param, ParamForm};
use crate::read::schema::{CardKind, Domain, EntryTarget, EntryType, Join, Optional, Phase, TensorEntry};

/// Table of entries: prefixes of its sources and targets, and the blocks that it counts.
#[derive(Clone, Debug)]
struct EntryTable {
    key: &'static str,
    source: String,
    target: &'static str,
    domain: Domain,
}

/// Entry tables that a card of one kind may have.
#[derive(Clone, Debug)]
pub(super) struct EntryTables(Vec<EntryTable>);

impl EntryTables {
    /// Returns `[tensors]`, then the tables whose names are relative to a block.
    pub(super) fn new(kind: CardKind, block: Option<String>, audio_block: Option<String>) -> Self {
        let (block, audio_block) = (
            block.unwrap_or_else(|| BLOCK.to_owned()),
            audio_block.unwrap_or_else(|| AUDIO_BLOCK.to_owned()),
        );
        let row = |key, source, target, domain| EntryTable { key, source, target, domain };
        let mut all = vec![row("tensors", String::new(), "", Domain::Blocks)];
        match kind {
            CardKind::Text => all.push(row("blocks", block, "blk.{bid}.", Domain::Blocks)),
            CardKind::Mmproj => {
                all.push(row("blocks", block, "v.blk.{bid}.", Domain::Blocks));
                all.push(row("audio_blocks", audio_block, "a.blk.{bid}.", Domain::AudioBlocks));
            }
        }
        Self(all)
    }
}

/// Reads the entries of all tables, with prefixes added. One name may have a list of several entries.
pub(super) fn entries(top: &CardTable<'_>, sections: &EntryTables) -> Read<Vec<TensorEntry>> {
    let mut all = Vec::new();
    for section in &sections.0 {
        for (name, value) in top.tables(section.key)? {
            let at = format!("[{}] `{name}`", section.key);
            match value {
                Toml::Array(items) => {
                    for item in items {
                        all.push(entry(name, item, &at, section)?);
                    }
                }
                value => all.push(entry(name, value, &at, section)?),
            }
        }
    }
    Ok(all)
}

pub(super) const ENTRY_KEYS: &[&str] = &[
    "to",
    "alias",
    "ops",
    "pre",
    "stack",
    "concat",
    "n",
    "with",
    "join",
    "group",
    "also",
    "ending",
    "clamped",
    "bid",
    "repeat",
    "when",
    "optional",
    "type",
    "phase",
    "duplicates",
    "untyped_bid",
];

pub(super) const TARGET_KEYS: &[&str] = &["to", "ops"];

fn entry(name: &str, value: &Toml, at: &str, section: &EntryTable) -> Read<TensorEntry> {
    let (source, target) = (section.source.as_str(), section.target);
    let shorthand;
    let fields = if let Toml::String(to) = value {
        shorthand = Table::from_iter([("to".to_owned(), Toml::from(to.as_str()))]);
        CardTable::of(&shorthand, at, ENTRY_KEYS)?
    } else {
        CardTable::new(value, at, ENTRY_KEYS)?
    };
    let source_pattern = |name: &str| pattern(&format!("{source}{name}"), at, Stars::Refused);
    let mut patterns = vec![source_pattern(name)?];
    for alias in fields.texts("alias")? {
        patterns.push(source_pattern(&alias)?);
    }
    let with = fields.texts("with")?.iter().map(|name| source_pattern(name)).collect::<Read<Vec<_>>>()?;
    let targets = match fields.table.get("to") {
        None => return Err(CardProblem::MissingKey { at: at.to_owned(), key: "to" }),
        Some(Toml::Array(items)) => {
            items.iter().map(|to| one_target(to, at, target)).collect::<Read<Vec<_>>>()?
        }
        Some(to) => vec![one_target(to, at, target)?],
    };
    let also = fields.texts("also")?;
    let also = also.iter().map(|name| pattern(&format!("{target}{name}"), at, Stars::Refused));
    let also = also.collect::<Read<Vec<_>>>()?;
    let n_complete = targets.iter().filter(|target| target.name.is_complete()).count();
    let is_mixed = n_complete != 0 && n_complete != targets.len();
    if is_mixed || also.iter().any(|name| name.is_complete() != (n_complete > 0)) {
        return Err(CardProblem::Kind {
            at: at.to_owned(),
            expected: "targets that all have an ending, or none",
            found: "a mixture".to_owned(),
        });
    }
    let types = [
        ("f32", EntryType::F32),
        ("f16", EntryType::F16),
        ("conv", EntryType::Conv),
        ("file", EntryType::File),
        ("source", EntryType::Source),
        ("i32", EntryType::I32),
        ("i64", EntryType::I64),
        ("blocks", EntryType::Blocks),
    ];
    let phases = [("first", Phase::First), ("last", Phase::Last)];
    let chosen = |key: &'static str| fields.text(key);
    Ok(TensorEntry {
        exact: n_complete > 0 || patterns.iter().any(Pattern::is_complete),
        patterns,
        join: join(&fields, !with.is_empty())?,
        with,
        targets,
        pre: ops(&fields, "pre")?,
        ops: ops(&fields, "ops")?,
        n: fields.expr("n")?,
        group: fields.text("group")?,
        also,
        drops_ending: chosen("ending")?
            .map_or(Ok(false), |name| choice(at, "ending", &name, &[("", true)]))?,
        clamped: fields.bool("clamped")?,
        domain: section.domain,
        bid: fields.expr("bid")?,
        repeat: fields.expr("repeat")?,
        when: fields.expr("when")?,
        optional: optional(&fields)?,
        ty: chosen("type")?.map_or(Ok(EntryType::Auto), |name| choice(at, "type", &name, &types))?,
        phase: chosen("phase")?.map_or(Ok(Phase::Normal), |name| choice(at, "phase", &name, &phases))?,
        drop_duplicates: chosen("duplicates")?
            .map_or(Ok(false), |name| choice(at, "choice", &name, &[("error", false), ("drop", true)]))?,
        sole: fields.text("duplicates")?.is_some_and(|name| name == "error"),
        untyped_bid: fields.bool("untyped_bid")?,
    })
}

/// Reads `optional`: `true` if the tensor may be missing in any block, `"everywhere"` if it is in all blocks or in
/// none.
fn optional(fields: &CardTable<'_>) -> Read<Optional> {
    let at = fields.at("optional");
    match fields.table.get("optional") {
        Some(Toml::String(word)) => choice(&at, "choice", word, &[("everywhere", Optional::Everywhere)]),
        _ => Ok(if fields.bool("optional")? { Optional::Anywhere } else { Optional::Never }),
    }
}

fn join(fields: &CardTable<'_>, has_with: bool) -> Read<Option<Join>> {
    let placeholder = |key: &str| -> Read<Option<Placeholder>> {
        let Some(name) = fields.text(key)? else { return Ok(None) };
        let known = [("eid", Placeholder::Eid), ("xid", Placeholder::Xid)];
        choice(&fields.at(key), "placeholder", &name, &known).map(Some)
    };
    let named = match fields.text("join")? {
        Some(name) => {
            let known = [
                ("concat", Join::Concat { axis: 0 }),
                ("concat1", Join::Concat { axis: 1 }),
                ("stack", Join::Stack),
                ("mul", Join::Mul),
            ];
            Some(choice(&fields.at("join"), "join", &name, &known)?)
        }
        None => None,
    };
    match (placeholder("stack")?, placeholder("concat")?, named, has_with) {
        (None, None, None, false) => Ok(None),
        (Some(by), None, None, false) => Ok(Some(Join::StackBy(by))),
        (None, Some(by), None, false) => Ok(Some(Join::ConcatBy(by))),
        (None, None, Some(join), true) => Ok(Some(join)),
        _ => Err(CardProblem::Kind {
            at: fields.at.clone(),
            expected: "one of `stack`, `concat`, or `join` together with `with`",
            found: "another combination".to_owned(),
        }),
    }
}

fn one_target(to: &Toml, at: &str, prefix: &str) -> Read<EntryTarget> {
    let (name, ops) = match to {
        Toml::String(name) => (name.clone(), Vec::new()),
        other => {
            let fields = CardTable::new(other, at, TARGET_KEYS)?;
            let name = fields.text("to")?.ok_or(CardProblem::MissingKey { at: at.to_owned(), key: "to" })?;
            (name, ops(&fields, "ops")?)
        }
    };
    Ok(EntryTarget { name: pattern(&format!("{prefix}{name}"), at, Stars::Refused)?, ops })
}

fn ops(fields: &CardTable<'_>, key: &str) -> Read<Vec<OpSpec>> {
    fields.list(key)?.iter().map(|item| op(item, &fields.at(key))).collect()
}

/// Reads an operation: its name, or a table with its name and parameters.
fn op(item: &Toml, at: &str) -> Read<OpSpec> {
    let (name, value) = match item {
        Toml::String(name) => (name.as_str(), None),
        Toml::Table(table) if table.len() == 1 => match table.iter().next() {
            Some((name, value)) => (name.as_str(), Some(value)),
            None => return Err(kind(at, "an operation", item)),
        },
        other => return Err(kind(at, "an operation", other)),
    };
    let known: Vec<(&str, OpKind)> = OpKind::all().map(|kind| (kind.name(), kind)).collect();
    let op = choice(at, "operation", name, &known)?;
    let row = op.row();
    let at = format!("{at} `{name}`");
    let mut params = Vec::new();
    if let Some(Toml::Table(table)) = value {
        let known: Vec<&str> = row.params.iter().map(|param| param.name).collect();
        let fields = CardTable::of(table, &at, &known)?;
        for spec in row.params {
            if let Some(value) = fields.table.get(spec.name) {
                params.push((spec.name, param(value, spec.form, &at)?));
            }
        }
    } else if let Some(value) = value {
        let spec = row.params.iter().find(|param| param.name == row.short);
        let spec = spec.ok_or_else(|| kind(&at, "a table of parameters", value))?;
        params.push((spec.name, param(value, spec.form, &at)?));
    }
    match row.params.iter().find(|spec| spec.required && !params.iter().any(|param| param.0 == spec.name)) {
        Some(spec) => Err(CardProblem::MissingKey { at, key: spec.name }),
        None => Ok(OpSpec { kind: op, params }),
    }
}

fn param(value: &Toml, form: ParamForm, at: &str) -> Read<Param> {
    match (form, value) {
        (ParamForm::Many, Toml::Array(items)) => {
            Ok(Param::Many(items.iter().map(|item| expr(item, at)).collect::<Read<_>>()?))
        }
        // One expression may yield the whole list.
        _ => Ok(Param::One(expr(value, at)?)),
    }
}
