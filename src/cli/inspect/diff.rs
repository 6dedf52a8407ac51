//! `gguf-inspect diff`: compares two models.

use std::cmp::Ordering;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value as Json, json};

use crate::cli::failure::Failure;
use crate::cli::inspect::{SHOWN_CHARS, SHOWN_ELEMS};
use crate::cli::render::{Align, Style, Table, count, plural, styled};
use crate::cli::{Exit, Session};
use crate::core::text::escape;
use crate::core::{GgmlType, Shape};
use crate::gguf::{GgufFile, Value};
use crate::inspect::{self, DataDiff, Diff, KeyDiff, TensorDiff, typed_json, value_text, value_type_name};

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// First file
    a: PathBuf,
    /// Second file
    b: PathBuf,
    /// Compare metadata, names, types and shapes only
    #[arg(long)]
    no_data: bool,
}

impl DiffArgs {
    /// Ends with the exit codes of diff(1): 0 equal, 1 different, 2 failed (3 if a file is broken).
    pub(super) fn run(&self, session: &Session) -> anyhow::Result<Exit> {
        self.compare(session).or_else(|error| {
            let failure = Failure::of(&error).map(Failure::into_trouble);
            Ok(failure.map_or(Exit::Done, |failure| failure.tell(session.common.json)))
        })
    }

    fn compare(&self, session: &Session) -> anyhow::Result<Exit> {
        let (a, b) = (GgufFile::open(&self.a)?, GgufFile::open(&self.b)?);
        let diff = inspect::diff(&a, &b, !self.no_data, session.common.simd, &session.progress)?;
        if session.common.json {
            session.print_json(&diff_json(&diff))?;
        } else {
            session.print(|out| print(&diff, out))?;
        }
        Ok(if diff.is_equal() { Exit::Done } else { Exit::Failed })
    }
}

fn print(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    if diff.is_equal() {
        return writeln!(out, "{}", styled(Style::Good, "equal"));
    }
    writeln!(out, "{}\n", styled(Style::Bad, &in_short(diff)))?;
    for table in [layout_table(diff), key_table(&diff.keys), tensor_table(&diff.tensors)] {
        if !table.is_empty() {
            table.print(out)?;
            writeln!(out)?;
        }
    }
    if diff.key_order {
        writeln!(out, "the common keys come in another order")?;
    }
    if diff.tensor_order {
        writeln!(out, "the common tensors come in another order")?;
    }
    Ok(())
}

/// Summarizes the differences in a line: number of keys and tensors, by kind.
fn in_short(diff: &Diff) -> String {
    let n_of = |is: fn(&TensorDiff) -> bool| diff.tensors.iter().filter(|tensor| is(tensor)).count() as u64;
    let both = |tensor: &TensorDiff| tensor.a.is_some() && tensor.b.is_some();
    let ty = |tensor: &TensorDiff| {
        tensor.a.as_ref().map(|facts| facts.0) != tensor.b.as_ref().map(|facts| facts.0)
    };
    let kinds = [
        (n_of(|tensor| tensor.b.is_none()), "only in a"),
        (n_of(|tensor| tensor.a.is_none()), "only in b"),
        (diff.tensors.iter().filter(|tensor| both(tensor) && ty(tensor)).count() as u64, "of another type"),
    ];
    let kinds: Vec<String> =
        kinds.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(n))).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let (keys, tensors) =
        (plural(diff.keys.len() as u64, "key"), plural(diff.tensors.len() as u64, "tensor"));
    format!("{keys} and {tensors} differ{kinds}")
}

fn layout_table(diff: &Diff) -> Table {
    let mut table = Table::new(&[("layout", Align::Left), ("a", Align::Left), ("b", Align::Left)]);
    for (what, a, b) in &diff.layout {
        table.row([(*what).to_owned(), a.clone(), b.clone()]);
    }
    table
}

/// Returns a table of keys, sorted: the kind of difference, and the values or first elements that differ.
fn key_table(keys: &[KeyDiff]) -> Table {
    let mut table =
        Table::new(&[("key", Align::Left), ("differs", Align::Left), ("a", Align::Fill), ("b", Align::Fill)]);
    let mut keys: Vec<&KeyDiff> = keys.iter().collect();
    keys.sort_by(|a, b| weight(&a.key).cmp(&weight(&b.key)).then_with(|| by_name(&a.key, &b.key)));
    for key in keys {
        let (what, a, b) = key_cells(key);
        table.row([escape(&key.key).into_owned(), what, a, b]);
    }
    table
}

fn key_cells(key: &KeyDiff) -> (String, String, String) {
    let text = |value: &Value| value_text(value, Some(SHOWN_CHARS), Some(SHOWN_ELEMS));
    let (a, b) = match (&key.a, &key.b) {
        (Some(a), Some(b)) => (a, b),
        (Some(a), None) => return ("only in a".to_owned(), text(a), String::new()),
        (None, Some(b)) => return ("only in b".to_owned(), String::new(), text(b)),
        (None, None) => return Default::default(),
    };
    let (type_a, type_b) = (value_type_name(a), value_type_name(b));
    if type_a != type_b {
        return ("type".to_owned(), format!("{type_a} {}", text(a)), format!("{type_b} {}", text(b)));
    }
    match (key.first_element(), a.as_array(), b.as_array()) {
        (Some(index), Some(list_a), Some(list_b)) => {
            let element = |value: Option<Value>| value.map_or_else(String::new, |value| text(&value));
            let what = match (list_a.len(), list_b.len()) {
                (n_a, n_b) if n_a == n_b => format!("element {index}"),
                (n_a, n_b) => format!("element {index}, {n_a} → {n_b}"),
            };
            (what, element(list_a.get(index)), element(list_b.get(index)))
        }
        _ => ("value".to_owned(), text(a), text(b)),
    }
}

/// Returns a table of tensors by name: the kind of difference, and the distance of the values.
fn tensor_table(tensors: &[TensorDiff]) -> Table {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("differs", Align::Left),
        ("a", Align::Left),
        ("b", Align::Left),
        ("values", Align::Right),
        ("max abs", Align::Right),
        ("rel. rms", Align::Right),
    ]);
    let mut tensors: Vec<&TensorDiff> = tensors.iter().collect();
    tensors.sort_by(|a, b| by_name(&a.name, &b.name));
    for tensor in tensors {
        let (what, a, b) = tensor_cells(tensor);
        let distances = tensor.data.as_ref().map(data_cells).unwrap_or_default();
        table.row([escape(&tensor.name).into_owned(), what, a, b].into_iter().chain(distances));
    }
    table
}

fn tensor_cells(tensor: &TensorDiff) -> (String, String, String) {
    let (a, b) = match (&tensor.a, &tensor.b) {
        (Some(a), Some(b)) => (a, b),
        (Some((ty, shape)), None) => return ("only in a".to_owned(), format!("{ty} {shape}"), String::new()),
        (None, Some((ty, shape))) => return ("only in b".to_owned(), String::new(), format!("{ty} {shape}")),
        (None, None) => return Default::default(),
    };
    let text = |facts: &(GgmlType, Shape)| {
        if a.1 == b.1 { facts.0.to_string() } else { format!("{} {}", facts.0, facts.1) }
    };
    let what = [
        (a.0 != b.0).then_some("type"),
        (a.1 != b.1).then_some("shape"),
        tensor.data.filter(|data| data.n_differing > 0).map(|_| "values"),
        tensor.data.filter(|data| data.n_non_finite > 0).map(|_| "not finite"),
    ];
    (what.into_iter().flatten().collect::<Vec<_>>().join(", "), text(a), text(b))
}

/// Returns the share of values that differ, the largest absolute difference, and the RMS difference relative to the RMS
/// of a.
fn data_cells(data: &DataDiff) -> [String; 3] {
    if data.n_differing == 0 {
        return ["equal".to_owned(), String::new(), String::new()];
    }
    let percent = 100.0 * data.n_differing as f64 / data.n_elems as f64;
    let share = if percent < 0.1 { "< 0.1 %".to_owned() } else { format!("{percent:.1} %") };
    [share, format!("{:.1e}", data.max_abs), format!("{:.1e}", data.relative_rms())]
}

/// Sort weight of a key: architecture keys first, then the tokenizer, then keys that only describe the file.
fn weight(key: &str) -> u8 {
    match key {
        "general.architecture" => 0,
        key if key.starts_with("tokenizer.") => 2,
        key if ["general.", "quantize.", "split.", "imatrix."].iter().any(|start| key.starts_with(start)) => {
            3
        }
        _ => 1,
    }
}

/// Compares names with numbers in numeric order: `blk.2` before `blk.10`.
fn by_name(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    loop {
        let (number_a, number_b) = (digits(rest_a), digits(rest_b));
        if !number_a.is_empty() && !number_b.is_empty() {
            let (n_a, n_b) = (number_a.trim_start_matches('0'), number_b.trim_start_matches('0'));
            let order = n_a.len().cmp(&n_b.len()).then_with(|| n_a.cmp(n_b));
            if order.is_ne() {
                return order;
            }
            (rest_a, rest_b) = (&rest_a[number_a.len()..], &rest_b[number_b.len()..]);
            continue;
        }
        let (mut chars_a, mut chars_b) = (rest_a.chars(), rest_b.chars());
        match (chars_a.next(), chars_b.next()) {
            (Some(x), Some(y)) if x == y => (rest_a, rest_b) = (chars_a.as_str(), chars_b.as_str()),
            (None, None) => return a.cmp(b),
            (x, y) => return x.cmp(&y),
        }
    }
}

/// Returns the leading digits of a text.
fn digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    &text[..end]
}

fn diff_json(diff: &Diff) -> Json {
    let layout: Vec<_> =
        diff.layout.iter().map(|(what, a, b)| json!({ "what": what, "a": a, "b": b })).collect();
    json!({
        "equal": diff.is_equal(),
        "layout": layout,
        "keys": diff.keys.iter().map(key_json).collect::<Vec<_>>(),
        "key_order_differs": diff.key_order,
        "tensors": diff.tensors.iter().map(tensor_json).collect::<Vec<_>>(),
        "tensor_order_differs": diff.tensor_order,
    })
}

fn key_json(key: &KeyDiff) -> Json {
    json!({
        "key": key.key,
        "a": key.a.as_ref().map(typed_json),
        "b": key.b.as_ref().map(typed_json),
        "first_element": key.first_element(),
    })
}

fn tensor_json(tensor: &TensorDiff) -> Json {
    let facts = |facts: &Option<(GgmlType, Shape)>| {
        facts.as_ref().map(|(ty, shape)| json!({ "type": ty.name(), "shape": shape.dims() }))
    };
    let data = tensor.data.map(|data| {
        json!({
            "elements": data.n_elems,
            "differing": data.n_differing,
            "non_finite": data.n_non_finite,
            "max_abs": data.max_abs,
            "max_abs_at": data.max_abs_at,
            "max_rel": data.max_rel,
            "rms": data.rms(),
            "relative_rms": data.relative_rms(),
        })
    });
    json!({ "name": tensor.name, "a": facts(&tensor.a), "b": facts(&tensor.b), "data": data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_numbers() {
        let mut names = ["blk.10.a", "blk.2.b", "blk.2.a", "output", "blk.02.a", "blk", "a9", "a10b"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(names, ["a9", "a10b", "blk", "blk.02.a", "blk.2.a", "blk.2.b", "blk.10.a", "output"]);
    }
}
