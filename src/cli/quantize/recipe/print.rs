//! The report of `gguf-quantize recipe` as text.

use std::io::{self, Write};

use crate::cli::render::{duration, plural};
use crate::core::text::{bytes, escape};
use crate::job::recipe::{FileRecipe, ImportanceUse, KeyFinding, TensorFinding, TensorStatus};

/// Lines of each kind that are printed without `--verbose`.
const MOST: usize = 20;

/// Prints the findings; with `all`, every tensor.
pub(super) fn recipe(out: &mut dyn Write, report: &FileRecipe, all: bool) -> io::Result<()> {
    let name = report.file.display().to_string();
    writeln!(out, "file        {}, {}", escape(&name), bytes(report.file_bytes))?;
    writeln!(out, "SHA-256     {}", report.sha256)?;
    writeln!(out, "types       {}", escape(&report.mixture))?;
    lines(out, report.rules.iter().map(|rule| format!("  --tensor-type {}", escape(rule))), all)?;
    writeln!(out, "importance  {}", importance(report))?;
    for key in &report.importance.keys {
        writeln!(out, "  {} = {}", escape(&key.key), key.value)?;
    }
    let counts = [
        (report.n_reproduced, "reproduced"),
        (report.n_near, "near"),
        (report.n_not_from_source, "not from this source"),
        (report.n_no_such_tensor, "without such a tensor in the source"),
        (report.missing.len(), "missing"),
    ];
    let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    let n_tensors = plural(report.tensors.len() as u64, "tensor");
    writeln!(out, "tensors     {n_tensors}: {}", counts.collect::<Vec<_>>().join(", "))?;
    let wanted = report.tensors.iter().filter(|tensor| all || tensor.status != TensorStatus::Reproduced);
    lines(out, wanted.map(|tensor| format!("  {}", tensor_line(tensor))), all)?;
    lines(out, report.missing.iter().map(|name| format!("  {}: missing", escape(name))), all)?;
    if !report.keys.is_empty() {
        writeln!(out, "keys        {} from those of a run of our own", differ(report.keys.len()))?;
        lines(out, report.keys.iter().map(|key| format!("  {}", key_line(key))), all)?;
    }
    if report.key_order_differs {
        writeln!(out, "keys        in another order than a run of our own writes them")?;
    }
    for padding in &report.padding {
        let n_bytes = plural(padding.bytes, "byte");
        let (after, offset) = (escape(&padding.after), padding.offset);
        writeln!(out, "padding     after {after}: {n_bytes} not zero, from offset {offset} on")?;
    }
    if report.trailing_bytes > 0 {
        writeln!(out, "end         {} after the last tensor", plural(report.trailing_bytes, "byte"))?;
    }
    if let Some(recipe) = &report.recipe {
        let name = recipe.file.display().to_string();
        let share = 100.0 * recipe.file_bytes as f64 / report.file_bytes.max(1) as f64;
        writeln!(out, "recipe      {}, {} ({share:.2} %)", escape(&name), bytes(recipe.file_bytes))?;
    }
    let verdict = if report.is_explained { "the source explains the file" } else { "something differs" };
    writeln!(out, "\n{verdict}, in {}", duration(report.seconds))
}

/// Prints lines, and the number of those left out.
fn lines(out: &mut dyn Write, lines: impl Iterator<Item = String>, all: bool) -> io::Result<()> {
    let mut n_left = 0;
    for (at, line) in lines.enumerate() {
        if all || at < MOST {
            writeln!(out, "{line}")?;
        } else {
            n_left += 1;
        }
    }
    if n_left > 0 {
        writeln!(out, "  and {n_left} more (-v lists all)")?;
    }
    Ok(())
}

fn differ(n: usize) -> String {
    if n == 1 { "1 differs".to_owned() } else { format!("{n} differ") }
}

fn importance(report: &FileRecipe) -> String {
    let found = &report.importance;
    match found.is_used {
        ImportanceUse::Used => {
            format!("used: without the matrix, {} would differ", plural(found.n_with as u64, "tensor"))
        }
        ImportanceUse::NotUsed => {
            format!("not used: with the matrix, {} would differ", plural(found.n_without as u64, "tensor"))
        }
        ImportanceUse::Unknown if found.is_given => "cannot be told: no tensor depends on it".to_owned(),
        ImportanceUse::Unknown if found.keys.is_empty() => {
            "cannot be told without --imatrix; the file names none".to_owned()
        }
        ImportanceUse::Unknown => "cannot be told without --imatrix; the file names one".to_owned(),
    }
}

fn tensor_line(tensor: &TensorFinding) -> String {
    let name = format!("{} ({})", escape(&tensor.name), tensor.ty);
    let from = tensor.from.as_ref().map(|from| format!("the data of `{}`", escape(from)));
    match tensor.status {
        TensorStatus::Reproduced => format!("{name}: {}", tensor.way.unwrap_or_default()),
        TensorStatus::Near => match &tensor.differing {
            Some(found) if found.n_differing == 1 => {
                format!("{name}: block {} of {} differs", found.first, found.n_blocks)
            }
            Some(found) => format!(
                "{name}: {} of {} blocks differ, the first is block {}",
                found.n_differing, found.n_blocks, found.first
            ),
            None => format!("{name}: follows the source; how it was made is unknown"),
        },
        TensorStatus::NotFromSource => match from {
            Some(from) => format!("{name}: not from the source's tensor of this name: {from}"),
            None => format!("{name}: not from this source"),
        },
        TensorStatus::NoSuchTensor => match from {
            Some(from) => format!("{name}: no such tensor in the source: {from}"),
            None => format!("{name}: no such tensor in the source"),
        },
    }
}

fn key_line(key: &KeyFinding) -> String {
    let name = escape(&key.key);
    let at = key.first_element.map_or_else(String::new, |at| format!(", first at element {at}"));
    match (&key.expected, &key.found) {
        (Some(expected), Some(found)) => format!("{name}: {found}, expected {expected}{at}"),
        (Some(expected), None) => format!("{name}: missing, expected {expected}"),
        (None, Some(found)) => format!("{name}: added: {found}"),
        (None, None) => name.into_owned(),
    }
}
