//! `gguf-convert archs`: lists the architectures, or prints one card in full.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::arch::diffusion::{DiffusionCard, DiffusionCards};
use crate::arch::{
    ArchError, CardContents, CardFacts, CardHead, CardKind, CardProblem, ConfigKeyFacts, IgnoredTensors,
    KeyDefault, Registry, TensorFacts, all_facts, facts,
};
use crate::cli::render::{Align, Table};
use crate::cli::{Exit, Session, UsageError};
use crate::convert::{ConvertError, ConvertOptions, registry, without_cards};
use crate::core::progress::Progress as _;
use crate::core::similar::{did_you_mean, nearest};
use crate::core::text::escape;
use crate::engine::{Stage, stage};

/// Arguments of `archs`.
#[derive(Debug, Args)]
pub(super) struct Archs {
    /// Architecture, variant of one (llama/internlm3) or class: show what its card reads and writes
    name: Option<String>,
    /// Read architecture cards in addition, from a file or a directory; a card replaces the embedded one of its name
    #[arg(long, value_name = "FILE|DIR")]
    card: Option<PathBuf>,
}

/// Class of a model that can be converted.
#[derive(Serialize)]
struct ListedClass<'a> {
    /// Class of a model in `config.json`; of an image or video model, a public repository of one.
    class: &'a str,
    /// Kind of the output: `text`, `mmproj` for vision and audio towers, or `diffusion` for image and video models.
    kind: ListedKind,
    /// Value of `general.architecture` of the output.
    #[serde(rename = "architecture")]
    gguf: &'a str,
    /// Variant of the architecture's card.
    variant: Option<&'a str>,
    /// Architecture of the oldest parent card.
    family: &'a str,
    /// True if `gguf2hf` converts such a GGUF back.
    #[serde(rename = "way_back")]
    has_way_back: bool,
    /// Support by the engine: `runs`, `refused` (only the structure is checked) or `none` (nobody has described its
    /// graph).
    engine: EngineSupport,
}

/// Kind of the output of a card.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum ListedKind {
    /// A text model.
    Text,
    /// Vision and audio towers.
    Mmproj,
    /// An image or video model.
    Diffusion,
}

impl From<CardKind> for ListedKind {
    fn from(kind: CardKind) -> Self {
        match kind {
            CardKind::Text => Self::Text,
            CardKind::Mmproj => Self::Mmproj,
        }
    }
}

/// Family of image and video models in the list.
const DIFFUSION: &str = "diffusion";

/// Cards and variants of an architecture or a class.
#[derive(Serialize)]
struct ArchReport {
    /// Cards and variants of the architecture or class.
    cards: Vec<CardReport>,
    /// Card of an image or video model.
    #[serde(skip_serializing_if = "Option::is_none")]
    diffusion: Option<DiffusionReport>,
}

/// Card of an image or video model.
#[derive(Serialize)]
struct DiffusionReport {
    /// Value of `general.architecture`.
    #[serde(rename = "architecture")]
    gguf: String,
    /// Public repositories of such models.
    examples: Vec<String>,
    /// Sets of tensor names; a checkpoint with all names of one set is recognized.
    recognized_by: Vec<Vec<String>>,
    /// Parts of names of tensors that are left out.
    left_out: Vec<String>,
    /// Parts of names of tensors that stay F32.
    f32: Vec<String>,
    /// Parts of names of weights that are not quantized.
    kept: Vec<String>,
    /// Names of weights that are not quantized.
    kept_names: Vec<String>,
}

impl From<&DiffusionCard> for DiffusionReport {
    fn from(card: &DiffusionCard) -> Self {
        Self {
            gguf: card.gguf.clone(),
            examples: card.examples.clone(),
            recognized_by: card.recognize.clone(),
            left_out: card.left_out.clone(),
            f32: card.f32.clone(),
            kept: card.keep.clone(),
            kept_names: card.keep_names.clone(),
        }
    }
}

/// Description of a card.
#[derive(Serialize)]
struct CardReport {
    /// Models that it converts, and its place among the cards.
    #[serde(flatten)]
    head: CardHead,
    /// Support by the engine: `runs`, `refused` (only the structure is checked) or `none` (nobody has described its
    /// graph).
    engine: EngineSupport,
    /// Reason why the engine does not run it.
    engine_refusal: Option<String>,
    /// True if `gguf2hf` converts such a GGUF back.
    #[serde(rename = "way_back")]
    has_way_back: bool,
    /// Reasons why a GGUF file cannot be converted back.
    one_way: Vec<String>,
    /// Tensors and keys that it reads and writes.
    #[serde(flatten)]
    contents: CardContents,
}

impl From<CardFacts> for CardReport {
    fn from(CardFacts { head, contents, one_way }: CardFacts) -> Self {
        let stage = stage(&head.gguf);
        Self {
            head,
            engine: EngineSupport::from(&stage),
            engine_refusal: if let Stage::Refused(why) = stage { Some(why) } else { None },
            has_way_back: one_way.is_empty(),
            one_way,
            contents,
        }
    }
}

/// Support of an architecture by the engine.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum EngineSupport {
    /// The engine runs it.
    Runs,
    /// The engine refuses it; only the structure is checked.
    Refused,
    /// Nobody has described its graph.
    None,
}

impl From<&Stage> for EngineSupport {
    fn from(stage: &Stage) -> Self {
        match stage {
            Stage::Runs => Self::Runs,
            Stage::Refused(_) => Self::Refused,
            Stage::Undescribed => Self::None,
        }
    }
}

impl Archs {
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        let registries = self.registries()?;
        if let Some(folder) = self.card.as_deref().filter(|path| path.is_dir())
            && let Some(warning) = without_cards(folder)?
        {
            session.progress.warn(&warning);
        }
        let Some(name) = &self.name else { return list(&registries, session) };
        let cards = registries.iter().flat_map(|registry| facts(registry, name)).map(CardReport::from);
        let images = DiffusionCards::embedded()?;
        let image = images.by_gguf(name).map(|card| DiffusionReport::from(&**card));
        let report = ArchReport { cards: cards.collect(), diffusion: image };
        if report.cards.is_empty() && report.diffusion.is_none() {
            return Err(unknown(&registries, name).into());
        }
        if session.common.json {
            session.print_json(&report)?;
        } else {
            session.print(|out| {
                for (at, card) in report.cards.iter().enumerate() {
                    if at > 0 {
                        writeln!(out)?;
                    }
                    print(card, out)?;
                }
                report.diffusion.as_ref().map_or(Ok(()), |card| print_diffusion(card, out))
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
    let all: Vec<CardHead> = registries.iter().flat_map(all_facts).map(|card| card.head).collect();
    let names =
        all.iter().flat_map(|card| card.classes.iter().map(String::as_str).chain([card.name.as_str()]));
    let near = did_you_mean(nearest(name, names)).map(|hint| format!(": {hint}")).unwrap_or_default();
    UsageError(format!("no architecture and no class is named `{}`{near}", escape(name)))
}

/// Lists a line for each class.
fn list(registries: &[Registry], session: &Session) -> anyhow::Result<Exit> {
    let cards: Vec<CardFacts> = registries.iter().flat_map(all_facts).collect();
    let mut rows: Vec<ListedClass<'_>> = cards.iter().flat_map(listed).collect();
    rows.extend(DiffusionCards::embedded()?.iter().filter_map(|card| listed_image(card)));
    if session.common.json {
        rows.sort_by_key(|row| (row.class, row.gguf, row.variant));
        session.print_json(&rows)?;
        return Ok(Exit::Done);
    }
    let mut table =
        Table::new(&[("family", Align::Left), ("architecture", Align::Left), ("class", Align::Left)]);
    rows.sort_by_key(|row| (row.family, row.gguf, row.class));
    rows.dedup_by_key(|row| (row.gguf, row.class));
    for row in rows {
        table.row([row.family, row.gguf, row.class].map(str::to_owned));
    }
    session.print(|out| table.print(out))?;
    Ok(Exit::Done)
}

fn listed(card: &CardFacts) -> impl Iterator<Item = ListedClass<'_>> {
    let CardFacts { head, one_way, .. } = card;
    let engine = EngineSupport::from(&stage(&head.gguf));
    head.classes.iter().map(move |class| ListedClass {
        class,
        kind: head.kind.into(),
        gguf: &head.gguf,
        variant: head.variant.as_deref(),
        family: &head.family,
        has_way_back: one_way.is_empty(),
        engine,
    })
}

/// Returns the row of an image or video model.
fn listed_image(card: &DiffusionCard) -> Option<ListedClass<'_>> {
    Some(ListedClass {
        class: card.examples.first()?,
        kind: ListedKind::Diffusion,
        gguf: &card.gguf,
        variant: None,
        family: DIFFUSION,
        has_way_back: false,
        engine: EngineSupport::None,
    })
}

/// Prints the card of an image or video model.
fn print_diffusion(card: &DiffusionReport, out: &mut dyn Write) -> io::Result<()> {
    let listed = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    writeln!(out, "{}", card.gguf)?;
    writeln!(out, "  family      {DIFFUSION}: image and video models, recognized by tensor names")?;
    writeln!(out, "  examples    {}", card.examples.join(", "))?;
    writeln!(
        out,
        "  engine      gguf-verify checks structure and weights: image and video models are not run"
    )?;
    writeln!(out, "  to HF       none")?;
    writeln!(out, "\n  recognized by all names of one line")?;
    for set in &card.recognized_by {
        writeln!(out, "    {}", set.join(" "))?;
    }
    writeln!(out, "\n  names with these parts")?;
    writeln!(out, "    left out       {}", listed(&card.left_out))?;
    writeln!(out, "    stay F32       {}", listed(&card.f32))?;
    writeln!(out, "    not quantized  {}", listed(&card.kept))?;
    writeln!(out, "    whole names    {}", listed(&card.kept_names))
}

fn print(card: &CardReport, out: &mut dyn Write) -> io::Result<()> {
    let head = &card.head;
    writeln!(out, "{}", head.name)?;
    let parents = if head.parents.is_empty() { "none".to_owned() } else { head.parents.join(", ") };
    writeln!(out, "  family      {}", head.family)?;
    writeln!(out, "  extends     {parents}")?;
    writeln!(out, "  classes     {}", head.classes.join(", "))?;
    writeln!(out, "  examples    {}", head.examples.join(", "))?;
    let tokenizer = if head.kind == CardKind::Mmproj {
        "none".to_owned()
    } else if head.tokenizer.is_empty() {
        "that of the target model".to_owned()
    } else {
        head.tokenizer.join(", ")
    };
    writeln!(out, "  tokenizer   {tokenizer}")?;
    let options = if head.options.is_empty() { "none".to_owned() } else { head.options.join(", ") };
    writeln!(out, "  options     {options}")?;
    if head.kind == CardKind::Mmproj {
        writeln!(out, "  engine      gguf-verify checks its structure only: towers are not run")?;
        writeln!(out, "  to HF       none")?;
        return print_contents(&card.contents, out);
    }
    let engine = match (card.engine, &card.engine_refusal) {
        (EngineSupport::Runs, _) => "gguf-verify runs it".to_owned(),
        (_, Some(why)) => format!("gguf-verify checks its structure only: {why}"),
        (_, None) => "gguf-verify checks its structure only: nobody has described its graph".to_owned(),
    };
    writeln!(out, "  engine      {engine}")?;
    match card.one_way.as_slice() {
        [] => writeln!(out, "  to HF       gguf2hf")?,
        reasons => {
            writeln!(out, "  to HF       none where the model has these tensors")?;
            for reason in reasons {
                writeln!(out, "              {reason}")?;
            }
        }
    }
    print_contents(&card.contents, out)
}

/// Prints tensors, keys of config.json that are read, and GGUF keys.
fn print_contents(card: &CardContents, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\n  tensors")?;
    for tensor in &card.tensors {
        writeln!(out, "    {}", tensor_line(tensor))?;
    }
    for IgnoredTensors { pattern, why } in &card.ignored {
        writeln!(out, "    {pattern} is left out: {why}")?;
    }
    writeln!(out, "\n  config.json")?;
    for ConfigKeyFacts { key, defaults } in &card.config {
        let defaults: Vec<String> = defaults
            .iter()
            .map(|KeyDefault { model_type, value }| format!("{value} ({model_type})"))
            .collect();
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
