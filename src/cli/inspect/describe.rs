//! `gguf-inspect FILE`: describes the content of a file.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;

use crate::cli::inspect::{SHOWN_CHARS, SHOWN_ELEMS, about};
use crate::cli::remote::open_header;
use crate::cli::render::{Align, Screen, Table, count, plural, shorten};
use crate::cli::{Exit, Session};
use crate::core::TensorSource;
use crate::core::progress::Progress;
use crate::core::text::{bytes, escape};
use crate::gguf::{GgufFile, OpenOptions};
use crate::inspect::{self, FileSummary, SummaryOptions, value_text, value_type_name};

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
        for warning in inspect::warnings(&file) {
            session.progress.warn(&warning);
        }
        if session.common.json {
            let options =
                SummaryOptions { max_elems: self.at_most(SHOWN_ELEMS), has_tensors: !self.no_tensors };
            let mut document = inspect::summary_json(&file, options);
            document["about"] = about::facts_json(&file);
            session.print_json(&document)?;
        } else {
            session.print(|out| self.print(&file, out))?;
        }
        Ok(Exit::Done)
    }

    /// Returns a limit; `None` if everything is wanted.
    fn at_most(&self, most: usize) -> Option<usize> {
        (!self.full).then_some(most)
    }

    fn print(&self, file: &GgufFile, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", headline(file))?;
        let facts = about::facts(file);
        if !facts.is_empty() {
            let width = Screen::stdout().width.filter(|_| !self.full).unwrap_or(usize::MAX);
            let fit = |text: &str| shorten(text, width.saturating_sub(11));
            facts.iter().try_for_each(|(what, text)| writeln!(out, "{what:<10} {}", fit(text)))?;
            writeln!(out)?;
        }
        self.print_table(&self.keys(file), out)?;
        if file.tensors().is_empty() {
            return writeln!(out, "\nno tensors");
        }
        writeln!(out)?;
        if !self.no_tensors {
            self.print_table(&tensors(file), out)?;
            writeln!(out)?;
        }
        let totals = inspect::summary(file);
        let shares = totals.types.iter();
        let rows =
            shares.map(|share| (share.name.clone(), share.n_tensors as u64, share.n_elems, share.n_bytes));
        type_table(rows).print(out)?;
        writeln!(out, "\n{}", total_line(&totals, file.tensors().len()))
    }

    fn print_table(&self, table: &Table, out: &mut dyn Write) -> io::Result<()> {
        if self.full { table.print_whole(out) } else { table.print(out) }
    }

    fn keys(&self, file: &GgufFile) -> Table {
        let mut table = Table::new(&[("key", Align::Left), ("type", Align::Left), ("value", Align::Fill)]);
        for (key, value) in file.metadata().iter() {
            let text = value_text(value, self.at_most(SHOWN_CHARS), self.at_most(SHOWN_ELEMS));
            let meaning = about::meaning(file.metadata(), key, value);
            let text = meaning.map_or_else(|| text.clone(), |meaning| format!("{text} ({meaning})"));
            table.row([escape(key).into_owned(), value_type_name(value), text]);
        }
        table
    }
}

fn headline(file: &GgufFile) -> String {
    let n_parts = file.parts().len();
    let parts = if n_parts > 1 { format!(", {n_parts} parts") } else { String::new() };
    format!(
        "{}: GGUF {}, {}-endian, {}, {}{parts}",
        escape(&file.path().display().to_string()),
        file.version(),
        inspect::endian_name(file.endian()),
        bytes(file.file_bytes()),
        plural(file.metadata().len() as u64, "key"),
    )
}

fn tensors(file: &GgufFile) -> Table {
    let mut heads = vec![
        ("tensor", Align::Left),
        ("type", Align::Left),
        ("shape, outermost first", Align::Left),
        ("bytes", Align::Right),
        ("offset", Align::Right),
    ];
    let has_parts = file.parts().len() > 1;
    heads.extend(has_parts.then_some(("part", Align::Right)));
    let mut table = Table::new(&heads);
    for tensor in inspect::listed(file) {
        let dims: Vec<_> = tensor.dims.iter().map(u64::to_string).collect();
        let row = [
            escape(&tensor.name).into_owned(),
            tensor.type_name,
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

fn total_line(totals: &FileSummary, n_tensors: usize) -> String {
    let bits = totals.bits_per_weight().map(|bits| format!(", {bits:.2} bits per weight"));
    format!(
        "{}, {} elements, {}{}",
        plural(n_tensors as u64, "tensor"),
        count(totals.n_elems),
        bytes(totals.tensor_bytes),
        bits.unwrap_or_default()
    )
}
