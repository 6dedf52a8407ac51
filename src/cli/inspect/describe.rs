//! `gguf-inspect FILE`: describes the content of a file.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use serde::Serialize;

use crate::cli::inspect::about::{self, About};
use crate::cli::inspect::{SHOWN_CHARS, SHOWN_ELEMS};
use crate::cli::remote::open_header;
use crate::cli::render::{Align, Screen, Table, count, plural, shorten};
use crate::cli::{Exit, Session};
use crate::core::progress::Progress;
use crate::core::text::{bytes, escape};
use crate::gguf::{GgufFile, OpenOptions};
use crate::inspect::{self, FileSummary, SummaryOptions, TensorLine, value_text};

/// Report of `gguf-inspect FILE`.
#[derive(Serialize)]
struct DescribeReport<'a> {
    #[serde(flatten)]
    summary: FileSummary<'a>,
    /// Readable description of the file.
    about: About,
}

/// How a file is described.
#[derive(Debug, Args)]
pub(super) struct Describe {
    /// Do not shorten long strings, arrays and names
    #[arg(long)]
    full: bool,
    /// Leave out the list of tensors
    #[arg(long)]
    no_tensors: bool,
}

impl Describe {
    pub(super) fn run(&self, path: &Path, session: &Session) -> anyhow::Result<Exit> {
        let file = open_header(session, path, &OpenOptions::foreign())?;
        let options = SummaryOptions { max_elems: self.at_most(SHOWN_ELEMS), has_tensors: !self.no_tensors };
        let summary = inspect::summary(&file, options);
        for warning in &summary.warnings {
            session.progress.warn(warning);
        }
        let report = DescribeReport { about: About::of(&file, &summary), summary };
        if session.common.json {
            session.print_json(&report)?;
        } else {
            session.print(|out| self.print(&report, &file, out))?;
        }
        Ok(Exit::Done)
    }

    /// Returns a limit; `None` if everything is wanted.
    fn at_most(&self, most: usize) -> Option<usize> {
        (!self.full).then_some(most)
    }

    fn print(&self, report: &DescribeReport<'_>, file: &GgufFile, out: &mut dyn Write) -> io::Result<()> {
        let DescribeReport { summary, about } = report;
        writeln!(out, "{}\n", headline(summary))?;
        let width = Screen::stdout().width.filter(|_| !self.full).unwrap_or(usize::MAX);
        let fit = |text: &str| shorten(text, width.saturating_sub(11));
        about.lines().try_for_each(|(label, text)| writeln!(out, "{label:<10} {}", fit(text)))?;
        writeln!(out)?;
        self.print_table(&self.keys(summary, file), out)?;
        if summary.types.is_empty() {
            return writeln!(out, "\nno tensors");
        }
        writeln!(out)?;
        if let Some(tensors) = &summary.tensors {
            self.print_table(&tensor_table(tensors, summary.parts.len() > 1), out)?;
            writeln!(out)?;
        }
        let shares = summary.types.iter();
        let rows =
            shares.map(|share| (share.name.clone(), share.n_tensors as u64, share.n_elems, share.n_bytes));
        type_table(rows).print(out)?;
        writeln!(out, "\n{}", total_line(summary))
    }

    fn print_table(&self, table: &Table, out: &mut dyn Write) -> io::Result<()> {
        if self.full { table.print_whole(out) } else { table.print(out) }
    }

    fn keys(&self, summary: &FileSummary<'_>, file: &GgufFile) -> Table {
        let mut table = Table::new(&[("key", Align::Left), ("type", Align::Left), ("value", Align::Fill)]);
        for entry in &summary.metadata {
            let shown = entry.typed.value;
            let text = value_text(shown.value, self.at_most(SHOWN_CHARS), shown.max_elems);
            let meaning = about::meaning(file.metadata(), entry.key, shown.value);
            let text = meaning.map_or_else(|| text.clone(), |meaning| format!("{text} ({meaning})"));
            table.row([escape(entry.key).into_owned(), entry.typed.ty.clone(), text]);
        }
        table
    }
}

fn headline(summary: &FileSummary<'_>) -> String {
    let n_parts = summary.parts.len();
    let parts = if n_parts > 1 { format!(", {n_parts} parts") } else { String::new() };
    format!(
        "{}: GGUF {}, {}-endian, {}, {}{parts}",
        escape(&summary.path.display().to_string()),
        summary.version,
        inspect::endian_name(summary.endian),
        bytes(summary.file_bytes),
        plural(summary.metadata.len() as u64, "key"),
    )
}

fn tensor_table(tensors: &[TensorLine], has_parts: bool) -> Table {
    let mut heads = vec![
        ("tensor", Align::Left),
        ("type", Align::Left),
        ("shape, outermost first", Align::Left),
        ("bytes", Align::Right),
        ("offset", Align::Right),
    ];
    heads.extend(has_parts.then_some(("part", Align::Right)));
    let mut table = Table::new(&heads);
    for tensor in tensors {
        let dims: Vec<_> = tensor.dims.iter().map(u64::to_string).collect();
        let row = [
            escape(&tensor.name).into_owned(),
            tensor.type_name.clone(),
            format!("[{}]", dims.join(", ")),
            count(tensor.n_bytes),
            count(tensor.offset),
        ];
        table.row(row.into_iter().chain(has_parts.then(|| (tensor.part + 1).to_string())));
    }
    table
}

/// Returns the table of types: name, tensors, elements, bytes.
pub(super) fn type_table(rows: impl Iterator<Item = (String, u64, u64, u64)>) -> Table {
    let mut table = Table::new(&[
        ("type", Align::Left),
        ("tensors", Align::Right),
        ("elements", Align::Right),
        ("size", Align::Right),
    ]);
    for (name, n_tensors, n_elems, n_bytes) in rows {
        table.row([name, count(n_tensors), count(n_elems), bytes(n_bytes)]);
    }
    table
}

fn total_line(summary: &FileSummary<'_>) -> String {
    let n_tensors: usize = summary.types.iter().map(|share| share.n_tensors).sum();
    let bits = summary.bits_per_weight.map(|bits| format!(", {bits:.2} bits per weight"));
    format!(
        "{}, {} elements, {}{}",
        plural(n_tensors as u64, "tensor"),
        count(summary.n_elems),
        bytes(summary.tensor_bytes),
        bits.unwrap_or_default()
    )
}
