//! `gguf-inspect diff`: compares two models.

use std::cmp::Ordering;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::cli::failure::Failure;
use crate::cli::inspect::{SHOWN_CHARS, SHOWN_ELEMS};
use crate::cli::render::{Align, Style, Table, count, plural, styled};
use crate::cli::{Exit, Session};
use crate::core::text::escape;
use crate::gguf::{GgufFile, Value};
use crate::inspect::{self, DataDiff, Diff, KeyDiff, TensorDiff, TensorForm, value_text};

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
            session.print_json(&diff)?;
        } else {
            session.print(|out| print(&diff, out))?;
        }
        Ok(if diff.is_equal { Exit::Done } else { Exit::Failed })
    }
}

fn print(diff: &Diff<'_>, out: &mut dyn Write) -> io::Result<()> {
    if diff.is_equal {
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
        writeln!(out, "the keys that both files have are in another order")?;
    }
    if diff.tensor_order {
        writeln!(out, "the tensors that both files have are in another order")?;
    }
    Ok(())
}

/// Summarizes the differences in a line: number of keys and tensors, by kind.
fn in_short(diff: &Diff<'_>) -> String {
    let n_of =
        |is: fn(&TensorDiff<'_>) -> bool| diff.tensors.iter().filter(|tensor| is(tensor)).count() as u64;
    let kinds = [
        (n_of(|tensor| tensor.b.is_none()), "only in a"),
        (n_of(|tensor| tensor.a.is_none()), "only in b"),
        (n_of(|tensor| tensor.a.zip(tensor.b).is_some_and(|(a, b)| a.ty != b.ty)), "of another type"),
    ];
    let kinds: Vec<String> =
        kinds.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(n))).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let (keys, tensors) =
        (plural(diff.keys.len() as u64, "key"), plural(diff.tensors.len() as u64, "tensor"));
    format!("{keys} and {tensors} differ{kinds}")
}

fn layout_table(diff: &Diff<'_>) -> Table {
    let mut table = Table::new(&[("layout", Align::Left), ("a", Align::Left), ("b", Align::Left)]);
    for property in &diff.layout {
        table.row([property.what.to_owned(), property.a.clone(), property.b.clone()]);
    }
    table
}

/// Returns a table of keys, sorted: the kind of difference, and the values or first elements that differ.
fn key_table(keys: &[KeyDiff<'_>]) -> Table {
    let mut table =
        Table::new(&[("key", Align::Left), ("differs", Align::Left), ("a", Align::Fill), ("b", Align::Fill)]);
    let mut keys: Vec<&KeyDiff<'_>> = keys.iter().collect();
    keys.sort_by(|a, b| weight(a.key).cmp(&weight(b.key)).then_with(|| by_name(a.key, b.key)));
    for key in keys {
        let (what, a, b) = key_cells(key);
        table.row([escape(key.key).into_owned(), what, a, b]);
    }
    table
}

fn key_cells(key: &KeyDiff<'_>) -> (String, String, String) {
    let text = |value: &Value| value_text(value, Some(SHOWN_CHARS), Some(SHOWN_ELEMS));
    let (a, b) = match (&key.a, &key.b) {
        (Some(a), Some(b)) => (a, b),
        (Some(a), None) => return ("only in a".to_owned(), text(a.value.value), String::new()),
        (None, Some(b)) => return ("only in b".to_owned(), String::new(), text(b.value.value)),
        (None, None) => return Default::default(),
    };
    let (type_a, type_b) = (&a.ty, &b.ty);
    let (a, b) = (a.value.value, b.value.value);
    if type_a != type_b {
        return ("type".to_owned(), format!("{type_a} {}", text(a)), format!("{type_b} {}", text(b)));
    }
    match (key.first_element, a.as_array(), b.as_array()) {
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
fn tensor_table(tensors: &[TensorDiff<'_>]) -> Table {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("differs", Align::Left),
        ("a", Align::Left),
        ("b", Align::Left),
        ("values", Align::Right),
        ("max abs", Align::Right),
        ("rel. rms", Align::Right),
    ]);
    let mut tensors: Vec<&TensorDiff<'_>> = tensors.iter().collect();
    tensors.sort_by(|a, b| by_name(a.name, b.name));
    for tensor in tensors {
        let (what, a, b) = tensor_cells(tensor);
        let distances = tensor.data.as_ref().map(data_cells).unwrap_or_default();
        table.row([escape(tensor.name).into_owned(), what, a, b].into_iter().chain(distances));
    }
    table
}

fn tensor_cells(tensor: &TensorDiff<'_>) -> (String, String, String) {
    let whole = |form: TensorForm<'_>| format!("{} {}", form.ty, form.shape);
    let (a, b) = match (tensor.a, tensor.b) {
        (Some(a), Some(b)) => (a, b),
        (Some(a), None) => return ("only in a".to_owned(), whole(a), String::new()),
        (None, Some(b)) => return ("only in b".to_owned(), String::new(), whole(b)),
        (None, None) => return Default::default(),
    };
    let text = |form: TensorForm<'_>| if a.shape == b.shape { form.ty.to_string() } else { whole(form) };
    let what = [
        (a.ty != b.ty).then_some("type"),
        (a.shape != b.shape).then_some("shape"),
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
    [share, format!("{:.1e}", data.max_abs), format!("{:.1e}", data.relative_rms)]
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

fn digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    &text[..end]
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
