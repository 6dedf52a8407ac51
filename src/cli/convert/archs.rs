//! `gguf-convert archs`: lists the architectures, or prints one card in full.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value as Json, json};

use crate::arch::{ArchError, CardFacts, CardKind, CardProblem, Registry, TensorFacts, all_facts, facts};
use crate::cli::render::{Align, Table};
use crate::cli::{Exit, Session, UsageError};
use crate::convert::{ConvertError, ConvertOptions, registry};
use crate::core::similar::{did_you_mean, nearest};
use crate::core::text::escape;
use crate::engine::{Stage, stage};

/// Arguments of `archs`.
#[derive(Debug, Args)]
pub(super) struct Archs {
    /// Architecture, variant of one (llama/internlm3) or class: show what its card reads and writes
    name: Option<String>,
    /// Read an architecture card from a file in addition, or the cards of a directory instead of the embedded ones
    #[arg(long, value_name = "FILE|DIR")]
    card: Option<PathBuf>,
}

impl Archs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let registries = self.registries()?;
        let Some(name) = &self.name else { return list(&registries, session) };
        let cards: Vec<CardFacts> = registries.iter().flat_map(|registry| facts(registry, name)).collect();
        if cards.is_empty() {
            return Err(unknown(&registries, name).into());
        }
        if session.common.json {
            let cards: Vec<Json> = cards.iter().map(document).collect();
            session.print_json(&json!({ "cards": cards }))?;
        } else {
            session.print(|out| {
                for (at, card) in cards.iter().enumerate() {
                    if at > 0 {
                        writeln!(out)?;
                    }
                    print(card, out)?;
                }
                Ok(())
            })?;
        }
        Ok(Exit::Done)
    }

    /// Returns the cards of text models and those of towers. A card from a file may be of either kind.
    fn registries(&self) -> Result<[Registry; 2], ConvertError> {
        let of = |kind, card: &Option<PathBuf>| {
            registry(&ConvertOptions { kind, card: card.clone(), ..ConvertOptions::default() })
        };
        let (text, towers) = (CardKind::Text, CardKind::Mmproj);
        match of(text, &self.card) {
            Err(ConvertError::Arch(ArchError::Card { problem, .. }))
                if *problem == CardProblem::OtherKind =>
            {
                Ok([of(text, &None)?, of(towers, &self.card)?])
            }
            with_card => Ok([with_card?, of(towers, &None)?]),
        }
    }
}

fn unknown(registries: &[Registry], name: &str) -> UsageError {
    let all: Vec<CardFacts> = registries.iter().flat_map(all_facts).collect();
    let names =
        all.iter().flat_map(|card| card.classes.iter().map(String::as_str).chain([card.name.as_str()]));
    let near = did_you_mean(nearest(name, names)).map(|hint| format!(": {hint}")).unwrap_or_default();
    UsageError(format!("no architecture and no class is named `{}`{near}", escape(name)))
}

/// Lists a line for each class.
fn list(registries: &[Registry], session: &Session) -> anyhow::Result<Exit> {
    let cards: Vec<CardFacts> = registries.iter().flat_map(all_facts).collect();
    let mut rows: Vec<(&CardFacts, &str)> =
        cards.iter().flat_map(|card| card.classes.iter().map(move |class| (card, class.as_str()))).collect();
    if session.common.json {
        rows.sort_by_key(|(card, class)| (*class, &card.gguf, &card.variant));
        let rows = rows.into_iter().map(|(card, class)| {
            json!({
                "class": class, "kind": kind(card), "architecture": card.gguf, "variant": card.variant, "family": card.family,
                "way_back": card.one_way.is_empty(), "engine": word(&stage(&card.gguf)),
            })
        });
        session.print_json(&json!(rows.collect::<Vec<_>>()))?;
        return Ok(Exit::Done);
    }
    let mut table =
        Table::new(&[("family", Align::Left), ("architecture", Align::Left), ("class", Align::Left)]);
    rows.sort_by_key(|(card, class)| (&card.family, &card.gguf, *class));
    rows.dedup_by_key(|(card, class)| (card.gguf.clone(), *class));
    for (card, class) in rows {
        table.row([card.family.clone(), card.gguf.clone(), class.to_owned()]);
    }
    session.print(|out| table.print(out))?;
    Ok(Exit::Done)
}

/// Returns the kind of output of a card, in one word.
fn kind(card: &CardFacts) -> &'static str {
    match card.kind {
        CardKind::Text => "text",
        CardKind::Mmproj => "mmproj",
    }
}

/// Returns what the engine does with an architecture, in one word.
fn word(stage: &Stage) -> &'static str {
    match stage {
        Stage::Runs => "runs",
        Stage::Refused(_) => "refused",
        Stage::Undescribed => "none",
    }
}

fn print(card: &CardFacts, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", card.name)?;
    let parents = if card.parents.is_empty() { "none".to_owned() } else { card.parents.join(", ") };
    writeln!(out, "  family      {}", card.family)?;
    writeln!(out, "  extends     {parents}")?;
    writeln!(out, "  classes     {}", card.classes.join(", "))?;
    writeln!(out, "  examples    {}", card.examples.join(", "))?;
    let tokenizer = if card.kind == CardKind::Mmproj {
        "none".to_owned()
    } else if card.tokenizer.is_empty() {
        "that of the target model".to_owned()
    } else {
        card.tokenizer.join(", ")
    };
    writeln!(out, "  tokenizer   {tokenizer}")?;
    let options = if card.options.is_empty() { "none".to_owned() } else { card.options.join(", ") };
    writeln!(out, "  options     {options}")?;
    if card.kind == CardKind::Mmproj {
        writeln!(out, "  engine      gguf-verify checks its structure only: towers are not run")?;
        writeln!(out, "  way back    none")?;
        return print_contents(card, out);
    }
    let engine = match stage(&card.gguf) {
        Stage::Runs => "gguf-verify runs it".to_owned(),
        Stage::Refused(why) => format!("gguf-verify checks its structure only: {why}"),
        Stage::Undescribed => {
            "gguf-verify checks its structure only: nobody has described its graph".to_owned()
        }
    };
    writeln!(out, "  engine      {engine}")?;
    match card.one_way.as_slice() {
        [] => writeln!(out, "  way back    gguf2hf")?,
        reasons => {
            writeln!(out, "  way back    none where the model has these tensors")?;
            for reason in reasons {
                writeln!(out, "              {reason}")?;
            }
        }
    }
    print_contents(card, out)
}

/// Prints tensors, keys of config.json that are read, and GGUF keys.
fn print_contents(card: &CardFacts, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n  tensors")?;
    for tensor in &card.tensors {
        writeln!(out, "    {}", tensor_line(tensor))?;
    }
    for (pattern, why) in &card.ignored {
        writeln!(out, "    {pattern} is left out: {why}")?;
    }
    writeln!(out, "\n  config.json")?;
    for (key, defaults) in &card.config {
        let defaults: Vec<String> =
            defaults.iter().map(|(model_type, value)| format!("{value} ({model_type})")).collect();
        let absent =
            if defaults.is_empty() { String::new() } else { format!("  absent: {}", defaults.join(", ")) };
        writeln!(out, "    {key}{absent}")?;
    }
    writeln!(out, "\n  keys")?;
    for key in &card.keys {
        writeln!(out, "    {key}")?;
    }
    for key in &card.annotations {
        writeln!(out, "    {key}  with --annotate")?;
    }
    Ok(())
}

fn tensor_line(tensor: &TensorFacts) -> String {
    let mut notes: Vec<&str> = tensor.joined.into_iter().collect();
    notes.extend(&tensor.ops);
    if tensor.is_conditional {
        notes.push("under a condition");
    }
    if tensor.is_optional {
        notes.push("optional");
    }
    let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
    format!("{} -> {}{notes}", tensor.sources.join(" | "), tensor.targets.join(", "))
}

fn document(card: &CardFacts) -> Json {
    let tensors = card.tensors.iter().map(|tensor| {
        json!({
            "sources": tensor.sources, "targets": tensor.targets, "operations": tensor.ops, "joined": tensor.joined,
            "conditional": tensor.is_conditional, "optional": tensor.is_optional,
        })
    });
    let config = card.config.iter().map(|(key, defaults)| {
        let defaults =
            defaults.iter().map(|(model_type, value)| json!({ "model_type": model_type, "value": value }));
        json!({ "key": key, "defaults": defaults.collect::<Vec<_>>() })
    });
    let stage = stage(&card.gguf);
    let refusal = if let Stage::Refused(why) = &stage { Some(why) } else { None };
    json!({
        "name": card.name, "kind": kind(card), "architecture": card.gguf, "variant": card.variant, "family": card.family,
        "extends": card.parents, "classes": card.classes, "examples": card.examples,
        "tokenizer": card.tokenizer, "options": card.options,
        "engine": word(&stage), "engine_refusal": refusal,
        "way_back": card.one_way.is_empty(), "one_way": card.one_way,
        "tensors": tensors.collect::<Vec<_>>(),
        "ignored": card.ignored.iter().map(|(pattern, why)| json!({ "pattern": pattern, "why": why })).collect::<Vec<_>>(),
        "config": config.collect::<Vec<_>>(),
        "keys": card.keys, "annotations": card.annotations,
    })
}
