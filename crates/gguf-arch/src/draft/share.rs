//! Measures drafts: each fixture's class is drafted without the card that converts it, and the draft is compared with
//! that card line by line.
//!
//! Both count with what they inherit. A line is a row for tensors of the checkpoint, a key of its file, a generated
//! tensor, or a row of another section. What it says for this checkpoint counts, not how: operations and keys by their
//! values. A line of the draft that the card lacks is wrong.
//!
//! Left out, because headers do not tell it: `examples` (where the model is published), what its class computes and what
//! llama.cpp's graph does not (`[graph]`, `require`, `differs`, `[assumes]`), and the way back (`[inverse]`). Also
//! `model_types`, which names a table that is made from transformers, `outputs`, which only checks the rows for tensors,
//! and definitions (`[let]`, `set`), which count by what uses them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::language::ops::{OpSpec, Param};
use crate::mapping::generated::generated;
use crate::read::card_merge::merge;
use crate::read::schema::GenerateKind;
use gguf_testkit::{checkpoints, files, fixture};
use serde_json::json;

/// Sections that are compared as they are written, row by row.
const WRITTEN: &[&str] = &["classes", "early", "fuse", "gguf", "tokenizer"];

/// Share that drafts reach, in percent.
const LEAST: usize = 80;

/// What a card says, by what it says it about.
type Lines = BTreeMap<String, String>;

/// Class with a checkpoint.
struct Subject {
    class: String,
    config: Map<String, Json>,
    weights: Vec<gguf_core::WeightMeta>,
}

impl Subject {
    fn read(path: &std::path::Path) -> Option<Self> {
        let mut case = files::json(path);
        if let Some(shapes) = case["tensors"].as_object() {
            case["tensors"] = shapes.iter().map(|(name, dims)| json!([name, "F32", dims])).collect();
        }
        let config = case["config"].as_object()?.clone();
        let class = detect::class_of(&detect::with_text_config(&config)).ok()?;
        // Of the others, the text part has a class that is not new.
        (config.get("architectures")?.get(0)?.as_str()? == class).then_some(())?;
        Some(Self { class, config, weights: checkpoints::weights(&case) })
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs::of_headers(&self.config, &self.weights)
    }

    /// Returns the card's row for each kind of tensors.
    fn rows(&self, card: &Card) -> BTreeMap<String, String> {
        let config = detect::with_text_config(&self.config);
        let inputs = self.inputs();
        let scope = lenient_scope(card, &self.class, &config, &inputs);
        let matcher = Matcher::lenient(card, &scope);
        let row = |name: &str| {
            let name = matcher.rewritten(name.to_owned()).ok()?;
            if let Ok(Some((at, _))) = matcher.entry_of(&name, &name) {
                return Some(card.entries[at].name().to_owned());
            }
            card.ignore
                .iter()
                .find(|row| row.pattern.matches(&name).is_some())
                .map(|row| row.pattern.text().to_owned())
        };
        let all = kinds(&self.weights);
        all.iter()
            .filter_map(|(kind, of)| {
                Some((format!("tensor {kind}"), format!("tensor {}", row(&of.last_name)?)))
            })
            .collect()
    }

    fn lines(&self, card: &Card, table: &Table) -> Lines {
        let config = detect::with_text_config(&self.config);
        let inputs = self.inputs();
        let scope = lenient_scope(card, &self.class, &config, &inputs);
        let matcher = Matcher::lenient(card, &scope);
        let mut lines = Lines::new();
        for (kind, of_kind) in &kinds(&self.weights) {
            let name = matcher.rewritten(of_kind.last_name.clone()).unwrap_or_default();
            if let Ok(Some((at, found))) = matcher.entry_of(&name, &name) {
                let says =
                    entry_says(&card.entries[at], &found.captures, found.suffix, &of_kind.dims, &scope);
                lines.insert(format!("tensor {kind}"), says);
            } else if IGNORED.iter().any(|at| matches!(matcher.ignored(&name, &name, *at), Ok(Some(_)))) {
                lines.insert(format!("tensor {kind}"), "left out".to_owned());
            }
        }
        for (key, value) in metadata_rows::known_keys(card, &scope).iter() {
            let key = key.strip_prefix(&format!("{}.", card.gguf)).unwrap_or(key);
            lines.insert(format!("key {key}"), format!("{value:?}"));
        }
        lines.remove("key general.architecture");
        for generate in &card.generate {
            let fill = matches!(&generate.kind, GenerateKind::Fill(fill) if fill.before.is_some());
            if fill || !matches!(generated(card, generate, &scope), Ok(None)) {
                lines.insert(format!("generate {}", generate.to.text()), format!("{:?}", generate.kind));
            }
        }
        for section in WRITTEN {
            let Some(value) = table.get(*section) else { continue };
            match value {
                Toml::Table(rows) => lines.extend(
                    rows.iter().map(|(key, value)| (format!("{section} {key}"), text::inline(value))),
                ),
                Toml::Array(rows) => {
                    let own = |row: &&Toml| *section != "classes" || row.as_str() == Some(&self.class);
                    lines.extend(
                        rows.iter()
                            .filter(own)
                            .map(|row| (format!("{section} {}", text::inline(row)), String::new())),
                    );
                }
                other => drop(lines.insert((*section).to_owned(), text::inline(other))),
            }
        }
        lines
    }
}

const IGNORED: [IgnoreStage; 2] = [IgnoreStage::BeforeEntries, IgnoreStage::AfterEntries];

fn entry_says(
    entry: &TensorEntry,
    captures: &Captures,
    suffix: &str,
    dims: &[u64],
    scope: &Scope<'_>,
) -> String {
    let value = |expr: &Expr| match scope.eval_with(expr, *captures, dims) {
        Ok(value) => value.to_string(),
        Err(_) => format!("{expr:?}"),
    };
    let param = |param: &Param| match param {
        Param::One(expr) => value(expr),
        Param::Many(all) => all.iter().map(value).collect::<Vec<_>>().join(","),
    };
    let ops = |ops: &[OpSpec]| {
        let op = |op: &OpSpec| {
            let params: Vec<String> =
                op.params.iter().map(|(name, value)| format!("{name}={}", param(value))).collect();
            format!("{}({})", op.kind.name(), params.join(" "))
        };
        ops.iter().map(op).collect::<Vec<_>>().join(" ")
    };
    let targets: Vec<String> = entry
        .targets
        .iter()
        .map(|target| format!("{} {}", complete(target.name.text(), suffix), ops(&target.ops)))
        .collect();
    let n = entry.n.as_ref().map(value);
    format!(
        "{targets:?} {} {} {:?} {n:?} {:?} {:?}",
        ops(&entry.pre),
        ops(&entry.ops),
        entry.join,
        entry.ty,
        entry.bid.as_ref().map(value)
    )
}

/// Result of one class.
struct Compared {
    n_right: usize,
    n_lines: usize,
    /// Names of the wrong lines.
    wrong: Vec<String>,
}

/// Drafts a card for a class without the one that converts it, and compares both.
fn compared(subject: &Subject, all: &Registry, card: &Card) -> Compared {
    let without = all.without(&subject.class);
    let draft = super::draft(&without, &subject.inputs()).unwrap();
    let own: Table = draft.text.parse().unwrap();
    // The draft may have the name of the card that it extends.
    let parent = own.get("extends").and_then(|parent| without.merged_table(parent.as_str()?));
    let table = merge(&parent.unwrap_or_default(), &own).unwrap();
    let mut with_draft = without;
    with_draft.add(&draft.gguf, &draft.text).unwrap();
    let drafted = with_draft.cards().iter().find(|own| own.gguf == draft.gguf && own.variant.is_none());
    let of_draft = subject.lines(drafted.unwrap(), &table);
    let of_card = subject.lines(card, &table_of(all, card));
    let rows = subject.rows(card);
    let mut lines: BTreeMap<&String, bool> = BTreeMap::new();
    for at in of_card.keys().chain(of_draft.keys()) {
        *lines.entry(rows.get(at).unwrap_or(at)).or_insert(true) &= of_card.get(at) == of_draft.get(at);
    }
    let wrong: Vec<String> = lines.iter().filter(|line| !line.1).map(|line| (*line.0).clone()).collect();
    Compared { n_right: lines.len() - wrong.len(), n_lines: lines.len(), wrong }
}

/// Returns a card's table with those of its parents merged in.
fn table_of(all: &Registry, card: &Card) -> Table {
    let mut table = all.merged_table(&card.stem).unwrap();
    if let Some(variant) = &card.variant {
        let own = all.own_tables().find(|(name, _)| *name == card.stem).unwrap().1;
        let main = table.clone();
        table = merge(&main, own["variant"][variant].as_table().unwrap()).unwrap();
        for key in ["gguf", "classes"] {
            if let (false, Some(value)) = (table.contains_key(key), main.get(key)) {
                table.insert(key.to_owned(), value.clone());
            }
        }
    }
    table
}

/// Share of the lines that drafts of the classes of `fixtures/classes` get right; with `--nocapture`, by class.
#[test]
fn drafts_of_new_classes_are_mostly_right() {
    let all = Registry::embedded().unwrap();
    let (mut n_right, mut n_lines, mut seen) = (0, 0, BTreeSet::new());
    for path in files::entries(fixture("classes")) {
        let Some(subject) = Subject::read(&path) else { continue };
        let config = detect::with_text_config(&subject.config);
        let inputs = subject.inputs();
        let holds =
            |card: &Card| detect::condition(card, &lenient_scope(card, &subject.class, &config, &inputs));
        let Ok(card) = detect::choose(&all, &subject.class, &holds) else { continue };
        if seen.insert((card.name(), subject.class.clone())) {
            let result = compared(&subject, &all, card);
            println!("{:>3} of {:>3}  {} ({})", result.n_right, result.n_lines, subject.class, card.name());
            println!("           wrong: {}", result.wrong.join(", "));
            n_right += result.n_right;
            n_lines += result.n_lines;
        }
    }
    println!(
        "{n_right} of {n_lines} lines of {} classes: {:.1} %",
        seen.len(),
        100.0 * n_right as f64 / n_lines as f64
    );
    assert_eq!(seen.len(), 25, "every class with a fixture and a card of its own");
    assert!(100 * n_right >= LEAST * n_lines, "{n_right} of {n_lines}: less than {LEAST} %");
}
