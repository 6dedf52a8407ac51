//! Checks of a card that need no checkpoint: names, keys, arities, placeholders, overlapping patterns.

use indexmap::IndexMap;

use crate::error::CardProblem;
use crate::language::expr::{Expr, Function};
use crate::language::names::{BOUNDS, Pattern, PatternNames, Placeholder, SUFFIXES, Stars, nearest};
use crate::language::ops::OpSpec;
use crate::read::config_keys::ConfigKeys;
use crate::read::roots::{ROOTS, is_number};
use crate::read::schema::{Card, CardKind, Join, MetadataRow, TensorEntry};
use crate::read::visit::each_expr;
use crate::read::{metadata_rows, not_built};
use gguf_format::keys::{ANNOTATIONS, KEYS, annotation_info, key_type};

/// Checks a merged card. `known` are the configuration keys that it may name.
pub(crate) fn card(card: &Card, known: &ConfigKeys<'_>) -> Result<(), CardProblem> {
    selection(card)?;
    names(card, known)?;
    dropped_keys(card, known)?;
    keys(card)?;
    annotations(card)?;
    definitions(&card.lets)?;
    for entry in &card.entries {
        arity(entry)?;
        placeholders(entry)?;
        effects(entry)?;
    }
    outputs(card)?;
    overlaps(card)
}

/// Checks that a card has classes and examples, unless it is abstract: then it must have none.
fn selection(card: &Card) -> Result<(), CardProblem> {
    let at = || "top level".to_owned();
    for (key, list) in [("classes", &card.classes), ("examples", &card.examples)] {
        if list.is_empty() != card.is_abstract {
            return Err(if card.is_abstract {
                CardProblem::WithoutEffect { at: at(), key, why: "an abstract card converts nothing" }
            } else {
                CardProblem::MissingKey { at: at(), key }
            });
        }
    }
    if card.kind == CardKind::Text && !card.parts.is_empty() {
        let why = "a text model's card sets `multimodal`";
        return Err(CardProblem::WithoutEffect { at: at(), key: "parts", why });
    }
    if !card.mtp_export && !card.mtp_keep.is_empty() {
        let why = "only with `mtp_export = true` are draft heads written alone";
        return Err(CardProblem::WithoutEffect { at: at(), key: "mtp_keep", why });
    }
    match &card.when {
        Some(_) if card.is_abstract => {
            let why = "an abstract card converts nothing";
            Err(CardProblem::WithoutEffect { at: at(), key: "when", why })
        }
        _ => Ok(()),
    }
}

/// Checks that the keys that a card removes from the configuration are known.
fn dropped_keys(card: &Card, known: &ConfigKeys<'_>) -> Result<(), CardProblem> {
    let lists = [("`drop_config`", &card.drop_config), ("`metadata_drop`", &card.metadata_drop)];
    for (at, names) in lists {
        if let Some(name) = names.iter().find(|name| !is_known(card, known, name)) {
            let nearest = nearest(name, known.iter()).map(str::to_owned);
            return Err(CardProblem::UnknownName { at: at.to_owned(), name: name.clone(), nearest });
        }
    }
    Ok(())
}

/// Checks that the keys of an entry have an effect.
fn effects(entry: &TensorEntry) -> Result<(), CardProblem> {
    let wrong = |key, why| Err(CardProblem::WithoutEffect { at: format!("`{}`", entry.name()), key, why });
    let is_numbered =
        |entry: &TensorEntry| entry.bid.is_some() || entry.patterns.iter().any(|p| p.has(Placeholder::Xid));
    if entry.n.is_some() && entry.join.is_none() && !is_numbered(entry) {
        return wrong("n", "it counts parts that are joined");
    }
    if !entry.also.is_empty() && entry.targets.len() > 1 {
        return wrong("also", "each of several targets has a name of its own");
    }
    if entry.clamped && entry.exact {
        return wrong("clamped", "the target has the ending that it says, or the pattern has one");
    }
    if entry.drops_ending && entry.exact {
        return wrong("ending", "the target has the ending that it says, or the pattern has one");
    }
    let has_bid = |placeholder| entry.patterns.iter().all(|pattern| pattern.has(placeholder));
    if entry.repeat.is_some() && entry.bid.is_none() && !has_bid(Placeholder::Bid) {
        return wrong("repeat", "nothing says which block is the first: `bid` does");
    }
    if (entry.repeat.is_some() || entry.bid.is_some())
        && !entry.targets.iter().any(|target| target.name.has(Placeholder::Bid))
    {
        let key = if entry.bid.is_some() { "bid" } else { "repeat" };
        return wrong(key, "the target has no `{bid}`");
    }
    Ok(())
}

/// Checks that required outputs have no placeholder but `{bid}`.
fn outputs(card: &Card) -> Result<(), CardProblem> {
    let other = card.outputs.iter().flat_map(Pattern::placeholders).find(|p| *p != Placeholder::Bid);
    other.map_or(Ok(()), |placeholder| {
        Err(CardProblem::Placeholder {
            at: "`outputs`".to_owned(),
            placeholder: placeholder.name(),
            problem: "has no value here, only `{bid}` has",
        })
    })
}

/// Checks that every name in every expression is known.
fn names(card: &Card, known: &ConfigKeys<'_>) -> Result<(), CardProblem> {
    let check = |at: &str, expr: &Expr| -> Result<(), CardProblem> {
        let mut unknown = None;
        let mut broken = None;
        let mut tables: Vec<String> = Vec::new();
        expr.walk(&mut |expr| match expr {
            Expr::Call(Function::Has, arguments) => {
                if let Some(Expr::Text(name)) = arguments.first() {
                    broken = broken.take().or(Pattern::parse(name, Stars::Refused).err());
                }
            }
            Expr::Call(Function::Lookup, arguments) => {
                if let Some(Expr::Path(path)) = arguments.first() {
                    tables.push(path.root.clone());
                }
            }
            Expr::Path(path)
                if unknown.is_none()
                    && !is_known(card, known, &path.root)
                    && !tables.contains(&path.root) =>
            {
                unknown = Some(path.root.clone());
            }
            _ => {}
        });
        let nearest_name = |name: &str| {
            let lets = card.lets.keys().map(String::as_str);
            nearest(name, lets.chain(known.iter()).chain(ROOTS.iter().copied())).map(str::to_owned)
        };
        if let Some(source) = broken {
            return Err(CardProblem::Pattern { at: at.to_owned(), source });
        }
        if let Some(name) = tables.into_iter().find(|name| !card.tables.contains_key(name)) {
            return Err(CardProblem::UnknownName { at: at.to_owned(), nearest: None, name });
        }
        match unknown {
            Some(name) => Err(not_built(at, "name", &name).unwrap_or_else(|| CardProblem::UnknownName {
                at: at.to_owned(),
                nearest: nearest_name(&name),
                name,
            })),
            None => Ok(()),
        }
    };
    each_expr(card, &check)
}

fn is_known(card: &Card, known: &ConfigKeys<'_>, name: &str) -> bool {
    is_number(name)
        || card.lets.contains_key(name)
        || ROOTS.contains(&name)
        || known.contains(name)
        || card.defaults.values().any(|defaults| defaults.contains_key(name))
        || card
            .aliases
            .values()
            .any(|aliases| aliases.contains_key(name) || aliases.values().any(|key| key == name))
        || card.set.iter().chain(&card.metadata_set).any(|set| set.0 == name)
}

/// Checks that every metadata key is in the table of well-known keys, which has its type.
fn keys(card: &Card) -> Result<(), CardProblem> {
    let tokenizer = &card.tokenizer;
    let modes = tokenizer.modes.iter().map(|mode| &mode.after);
    let lists = [("early", &card.early), ("metadata", &card.metadata), ("[tokenizer]", &tokenizer.before)];
    let after = std::iter::once(&tokenizer.after).chain(modes).map(|rows| ("[tokenizer]", rows));
    for (at, rows) in lists.into_iter().chain(after) {
        for row in rows {
            let MetadataRow::Key { key, .. } = row else { continue };
            if metadata_rows::full_key(key, &card.gguf).and_then(|key| key_type(&key, &card.gguf)).is_none() {
                let known = KEYS.iter().map(|row| row.pattern.trim_start_matches("{arch}."));
                return Err(CardProblem::UnknownGgufKey {
                    at: at.to_owned(),
                    nearest: nearest(key, known).map(str::to_owned),
                    key: key.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Checks that every key of `annotate` is a known annotation, and that no unconditional metadata row writes it.
fn annotations(card: &Card) -> Result<(), CardProblem> {
    let is_written = |wanted: &str| {
        card.metadata.iter().any(|row| match row {
            // A conditional row does not always write its key.
            MetadataRow::Key { key, when, .. } => key == wanted && when.is_none(),
            MetadataRow::Base => metadata_rows::base_keys().any(|key| key == wanted),
        })
    };
    for row in &card.annotate {
        let MetadataRow::Key { key, .. } = row else { continue };
        if is_written(key) {
            return Err(CardProblem::AnnotatedTwice { key: key.clone() });
        }
        if annotation_info(key).is_none() {
            return Err(CardProblem::UnknownGgufKey {
                at: "annotate".to_owned(),
                nearest: nearest(key, ANNOTATIONS.iter().map(|row| row.pattern)).map(str::to_owned),
                key: key.clone(),
            });
        }
    }
    Ok(())
}

/// Checks that no definition depends on itself. (A name inside its own definition is the configuration key.)
fn definitions(lets: &IndexMap<String, Expr>) -> Result<(), CardProblem> {
    fn visit<'l>(
        name: &'l str,
        lets: &'l IndexMap<String, Expr>,
        open: &mut Vec<&'l str>,
        done: &mut Vec<&'l str>,
    ) -> Result<(), CardProblem> {
        if done.contains(&name) {
            return Ok(());
        }
        let Some((name, expr)) = lets.get_key_value(name) else { return Ok(()) };
        open.push(name);
        let mut uses: Vec<String> = Vec::new();
        expr.walk(&mut |expr| match expr {
            Expr::Path(path) => uses.push(path.root.clone()),
            Expr::Call(Function::Layers | Function::Find, arguments) if arguments.len() == 1 => {
                uses.push("block_count".to_owned());
            }
            _ => {}
        });
        for used in uses.iter().filter(|used| *used != name) {
            let Some((used, _)) = lets.get_key_value(used) else { continue };
            if open.contains(&used.as_str()) {
                return Err(CardProblem::Cycle(used.clone()));
            }
            visit(used, lets, open, done)?;
        }
        open.pop();
        done.push(name);
        Ok(())
    }
    let mut done = Vec::new();
    lets.keys().try_for_each(|name| visit(name, lets, &mut Vec::new(), &mut done))
}

/// Checks that the operations yield as many tensors as there are targets.
fn arity(entry: &TensorEntry) -> Result<(), CardProblem> {
    let count = |ops: &[OpSpec]| ops.iter().map(|op| op.n_outputs().unwrap_or(0)).product::<usize>();
    let wrong =
        |outputs, targets| Err(CardProblem::Arity { at: format!("`{}`", entry.name()), outputs, targets });
    // A split must be the last operation of the entry; later operations belong to the targets.
    let early = entry.pre.iter().chain(entry.ops.iter().rev().skip(1)).any(|op| op.n_outputs() != Some(1));
    let late = entry.targets.iter().any(|target| count(&target.ops) != 1);
    if early || late {
        return wrong(0, entry.targets.len());
    }
    // Without operations of the entry, each target derives its tensor from the same source.
    if entry.ops.is_empty() && entry.targets.iter().any(|target| !target.ops.is_empty()) {
        return Ok(());
    }
    match count(&entry.ops) {
        outputs if outputs == entry.targets.len() => Ok(()),
        outputs => wrong(outputs, entry.targets.len()),
    }
}

/// Checks that placeholders of targets have values, and that captured numbers are used.
fn placeholders(entry: &TensorEntry) -> Result<(), CardProblem> {
    let at = || format!("`{}`", entry.name());
    let joined = match entry.join {
        Some(Join::StackBy(by) | Join::ConcatBy(by)) => Some(by),
        _ => None,
    };
    let wrong = |placeholder: Placeholder, problem| {
        Err(CardProblem::Placeholder { at: at(), placeholder: placeholder.name(), problem })
    };
    for pattern in entry.patterns.iter().chain(&entry.with) {
        if let Some(by) = joined.filter(|&by| !pattern.has(by)) {
            return wrong(by, "is stacked but not in the pattern");
        }
        let names = || entry.targets.iter().map(|target| &target.name).chain(&entry.also);
        for placeholder in pattern.placeholders().filter(|&p| Some(p) != joined) {
            let used = names().all(|name| name.has(placeholder));
            let is_set = placeholder == Placeholder::Bid && entry.bid.is_some();
            if !used && !is_set && !entry.sole && !counts(entry, placeholder) {
                return wrong(placeholder, "is captured but neither stacked nor in the target");
            }
        }
        for name in names() {
            for placeholder in name.placeholders() {
                let set = placeholder == Placeholder::Bid && entry.bid.is_some();
                if !set && (!pattern.has(placeholder) || Some(placeholder) == joined) {
                    return wrong(placeholder, "is in the target but not in the pattern");
                }
            }
        }
    }
    Ok(())
}

/// Returns true if an entry's block is computed from a placeholder.
fn counts(entry: &TensorEntry, placeholder: Placeholder) -> bool {
    let Some(bid) = &entry.bid else { return false };
    let mut found = false;
    bid.walk(&mut |expr| found |= matches!(expr, Expr::Path(path) if path.root == placeholder.name()));
    found
}

/// Checks that no name matches two entries, unless both have conditions.
fn overlaps(card: &Card) -> Result<(), CardProblem> {
    let clamped: Vec<&str> = [""].into_iter().chain(SUFFIXES).chain(BOUNDS).collect();
    let bare = &clamped[..=SUFFIXES.len()];
    let mut all: Vec<(&Pattern, Vec<PatternNames>, bool)> = Vec::new();
    for entry in &card.entries {
        let suffixes = match (entry.exact, entry.clamped) {
            (true, _) => &bare[..1],
            (false, true) => &clamped,
            (false, false) => bare,
        };
        for pattern in entry.patterns.iter().chain(&entry.with) {
            let names = suffixes.iter().map(|suffix| pattern.names(suffix)).collect();
            all.push((pattern, names, entry.when.is_some()));
        }
    }
    for (i, (first, first_names, first_when)) in all.iter().enumerate() {
        for (second, second_names, second_when) in &all[..i] {
            if *first_when && *second_when {
                continue;
            }
            if first_names.iter().any(|a| second_names.iter().any(|b| a.overlaps(b))) {
                let (first, second) = (second.text().to_owned(), first.text().to_owned());
                return Err(CardProblem::Overlap { first, second });
            }
        }
    }
    // Entries are matched first, so an unconditional rule that ignores a mapped name would never apply.
    for ignore in card.ignore.iter().filter(|ignore| !ignore.is_conditional()) {
        if let Some(entry) = all.iter().find(|entry| entry.0.text() == ignore.pattern.text() && !entry.2) {
            let (first, second) = (entry.0.text().to_owned(), ignore.pattern.text().to_owned());
            return Err(CardProblem::Overlap { first, second });
        }
    }
    Ok(())
}
