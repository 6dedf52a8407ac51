//! Writes a draft as TOML. Names come from the checkpoint, so they are quoted in keys and escaped in comments.

use std::fmt::Write as _;

use toml::Value as Toml;

use super::{AddedEntry, Drafter, MatchResults, Unmatched, UnreadKey};
use crate::error::similarity::Similarity;
use crate::read::metadata_rows::base_keys;
use gguf_core::output::CARD_DRAFT;
use gguf_core::text::escape;

/// Column at which comments after a line start.
const NOTE_COLUMN: usize = 52;
/// Maximum length of a configuration value in a comment.
const MAX_VALUE: usize = 60;
/// Maximum number of reasons for an unmatched name.
const MAX_REASONS: usize = 3;

/// Values in the head of a draft.
pub(super) struct Head<'a> {
    pub(super) class: &'a str,
    pub(super) gguf: &'a str,
    /// Similarity of the card through which the parent was found.
    pub(super) best: Option<&'a Similarity>,
}

pub(super) fn card(
    drafter: &Drafter<'_>,
    head: &Head<'_>,
    found: &MatchResults,
    unread: &[UnreadKey],
) -> String {
    let mut out = String::new();
    top(&mut out, drafter, head);
    metadata(&mut out, drafter, unread);
    names(&mut out, drafter, found);
    for (in_blocks, section) in [(false, "tensors"), (true, "blocks")] {
        entries(&mut out, found, in_blocks, section);
    }
    operations(&mut out, drafter, found);
    missing(&mut out, drafter, found);
    out
}

fn top(out: &mut String, drafter: &Drafter<'_>, head: &Head<'_>) {
    let is_known = drafter.registry.by_gguf(head.gguf).is_some();
    let parent = drafter.parent.map(|card| card.gguf.as_str());
    let _ = writeln!(out, "{CARD_DRAFT} To try it: gguf-convert hf2gguf DIR --card FILE --dry-run");
    let gguf = quoted(head.gguf);
    let note = match (is_known, parent) {
        (true, _) => "the model's type is that of this architecture".to_owned(),
        (false, Some(parent)) => {
            format!("TODO: the runtime's name for it; {} if it computes the same as that", quoted(parent))
        }
        (false, None) => "TODO: the runtime's name for it".to_owned(),
    };
    *out += "schema   = 1\n";
    line(out, &format!("gguf     = {gguf}"), &note);
    if let (Some(parent), Some(best)) = (parent, head.best) {
        let Similarity { card, n_kinds, of_kinds, n_config_keys, of_config_keys, .. } = best;
        let note = format!(
            "{card} knows {n_kinds} of {of_kinds} kinds of tensors, {n_config_keys} of {of_config_keys} keys"
        );
        line(out, &format!("extends  = {}", quoted(parent)), &note);
    }
    let _ = writeln!(out, "classes  = [{}]", quoted(head.class));
    line(out, "examples = [\"OWNER/MODEL\"]", "TODO: a public repository");
}

/// Writes rows for the keys that most decoders have and that the parent has no value for, and comments on the other keys
/// of the configuration.
fn metadata(out: &mut String, drafter: &Drafter<'_>, unread: &[UnreadKey]) {
    let has_parent = drafter.parent.is_some();
    let is_needed = |gguf: &str| {
        base_keys().any(|key| key == gguf)
            && drafter.keys.get(&format!("{}.{gguf}", drafter.card.gguf)).is_none()
    };
    let rows = unread.iter().filter_map(|key| Some((key, key.written.as_ref()?)));
    let (needed, others): (Vec<_>, Vec<_>) = rows.partition(|(_, (gguf, _))| is_needed(gguf));
    let include = format!("[\n  [\"include\", \"{}\"],\n", if has_parent { "parent" } else { "base" });
    if !has_parent || !needed.is_empty() {
        let _ = write!(out, "\nmetadata = {include}");
        for (key, (gguf, card)) in needed {
            line(
                out,
                &format!("  [{}, {}],", quoted(gguf), quoted(&key.key)),
                &format!("{}; as in {card}", value(key)),
            );
        }
        *out += "]\n";
    }
    if unread.iter().all(|key| key.written.as_ref().is_some_and(|(gguf, _)| is_needed(gguf))) {
        return;
    }
    *out += "\n# Keys of config.json that no row reads. Those that change what the model computes need one in `metadata`:\n";
    for (key, (gguf, card)) in others {
        let row = format!("#  [{}, {}],", quoted(gguf), quoted(&key.key));
        line(out, &row, &format!("{}; as in {card}", value(key)));
    }
    for key in unread.iter().filter(|key| key.written.is_none()) {
        let _ = writeln!(out, "# {} = {}", escape(&key.key), value(key));
    }
}

/// Returns a configuration value as text, truncated if it is long.
fn value(key: &UnreadKey) -> String {
    let text = key.value.to_string();
    let text = escape(&text);
    match text.char_indices().nth(MAX_VALUE) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

fn names(out: &mut String, drafter: &Drafter<'_>, found: &MatchResults) {
    if drafter.rename.is_none() && found.block.is_none() {
        return;
    }
    *out += "\n[names]\n";
    if let Some(block) = &found.block {
        let _ = writeln!(out, "block = {}", quoted(block));
    }
    if let Some((from, to)) = &drafter.rename {
        let _ = writeln!(out, "rewrite = [\n  [\"head\", {}, {}],", quoted(from), quoted(to));
        let merged = drafter.merged().unwrap_or_default();
        let steps = merged.get("names").and_then(|names| names.get("rewrite")).and_then(Toml::as_array);
        for step in steps.into_iter().flatten() {
            line(out, &format!("  {},", inline(step)), "the parent's");
        }
        *out += "]\n";
    }
}

fn entries(out: &mut String, found: &MatchResults, in_blocks: bool, section: &str) {
    let added: Vec<&AddedEntry> = found.added.iter().filter(|entry| entry.in_blocks == in_blocks).collect();
    let is_here = |name: &&String| found.removed_blocks.contains(*name) == in_blocks;
    let removed: Vec<&String> = found.removed.iter().filter(is_here).collect();
    let unmatched: Vec<&Unmatched> =
        found.unmatched.iter().filter(|row| row.key.as_ref().is_some_and(|key| key.1) == in_blocks).collect();
    if added.is_empty() && removed.is_empty() && unmatched.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n[{section}]");
    for entry in added {
        let how = if entry.is_exact { "as in" } else { "TODO check: its name ends, or its shape is, as in" };
        let text = format!("{} = {}", quoted(&entry.key), entry.entry);
        line(out, &text, &format!("{how} {}; {}", entry.card, tensors(entry.n_tensors)));
    }
    for key in removed {
        line(out, &format!("{} = false", quoted(key)), "not in this checkpoint");
    }
    for row in unmatched {
        let shape = if row.dims.is_empty() { String::new() } else { format!(" {:?}", row.dims) };
        let _ = writeln!(out, "# TODO {}{shape}: `{}`", tensors(row.n_tensors), escape(&row.name));
        for why in row.why.iter().take(MAX_REASONS) {
            let _ = writeln!(out, "#      {}", escape(why));
        }
        if let Some((key, _)) = &row.key {
            let _ = writeln!(out, "#{} = \"\"", quoted(key));
        }
    }
}

/// Writes a comment on the parent's operations beyond renaming: they are right only if this model stores the tensors
/// alike.
fn operations(out: &mut String, drafter: &Drafter<'_>, found: &MatchResults) {
    let kept = found.added.iter().filter_map(|entry| drafter.kept_ops(entry));
    let all: Vec<(String, String)> = found.with_ops.iter().cloned().chain(kept).collect();
    let Some(parent) = drafter.parent.filter(|_| !all.is_empty()) else { return };
    let _ = writeln!(
        out,
        "\n# TODO check: `{}` does not only rename these. Right only if this model stores them as its models do.",
        parent.gguf
    );
    for (name, ops) in &all {
        let _ = writeln!(out, "#   {}: {ops}", escape(name));
    }
}

/// Writes a comment on the tensors that the runtime requires and that nothing fills.
fn missing(out: &mut String, drafter: &Drafter<'_>, found: &MatchResults) {
    let (missing, Some(parent)) = (drafter.missing(found), drafter.parent) else { return };
    if !missing.is_empty() {
        let _ = writeln!(out, "\n# TODO nothing fills these, which llama.cpp requires of `{}`:", parent.gguf);
    }
    for name in missing {
        let _ = writeln!(out, "#   {}", escape(&name));
    }
}

fn tensors(n: u64) -> String {
    format!("{n} tensor{}", if n == 1 { "" } else { "s" })
}

/// Writes a line with a trailing comment.
fn line(out: &mut String, text: &str, note: &str) {
    // A blank also after an entry that is longer than the column.
    let text = format!("{text} ");
    let _ = writeln!(out, "{text:NOTE_COLUMN$}# {}", escape(note));
}

/// Returns a text as a one-line basic string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Characters that a terminal or an editor would act on, or that TOML forbids.
            c if escape(c.encode_utf8(&mut [0; 4])).len() != c.len_utf8() => {
                let _ = write!(out, "\\U{:08X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns a TOML value on one line; keys of a table are ordered as in cards.
pub(super) fn inline(value: &Toml) -> String {
    const FIRST: [&str; 5] = ["to", "ops", "stack", "concat", "n"];
    match value {
        Toml::String(text) => quoted(text),
        Toml::Integer(number) => number.to_string(),
        Toml::Float(number) => format!("{number:?}"),
        Toml::Boolean(truth) => truth.to_string(),
        Toml::Datetime(time) => time.to_string(),
        Toml::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Toml::Table(fields) => {
            let mut keys: Vec<(&String, &Toml)> = fields.iter().collect();
            keys.sort_by_key(|(key, _)| FIRST.iter().position(|first| key == first).unwrap_or(FIRST.len()));
            let is_bare =
                |key: &str| key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            let keys = keys.into_iter().map(|(key, value)| {
                let key = if is_bare(key) && !key.is_empty() { key.clone() } else { quoted(key) };
                format!("{key} = {}", inline(value))
            });
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_quoted() {
        for text in ["plain.{bid}.name", "a\"b\\c", "line\nend\t\r", "\u{202e}turned\u{7f}", "\u{1f600}", ""]
        {
            let table: toml::Table = format!("{} = {}", quoted(text), quoted(text)).parse().unwrap();
            assert_eq!(table.get(text).and_then(toml::Value::as_str), Some(text));
        }
        assert_eq!(quoted("a\nb"), "\"a\\U0000000Ab\"");
    }
}
